"""The LightningModule that treats a sampler as a manual-optimization strategy."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lightning_sgmcmc.adaptation import Adaptation, StepSize
from lightning_sgmcmc.callbacks import own_callbacks
from lightning_sgmcmc.callbacks.checkpoint_files import write_whole_checkpoints
from lightning_sgmcmc.callbacks.draws import training_data, training_stream
from lightning_sgmcmc.callbacks.loader_place import LoaderPlace
from lightning_sgmcmc.callbacks.regroup import regroup
from lightning_sgmcmc.callbacks.run import received, record
from lightning_sgmcmc.callbacks.settings import refuse_biasing_trainer
from lightning_sgmcmc.chain import Chain, OptimizerBurnIn, Starts, checks
from lightning_sgmcmc.chain.processes import Processes, leave_at_exit
from lightning_sgmcmc.chain.schedules import ConstantStep, DrawSchedule, DrawWeights
from lightning_sgmcmc.chain.selection import compiled_in_place
from lightning_sgmcmc.common.arguments import init_arguments, is_plain
from lightning_sgmcmc.posterior import EnsembleSteps
from lightning_sgmcmc.posterior.draws import check_dtype
from lightning_sgmcmc.samplers import Sampler
from lightning_sgmcmc.target import Batch, GradientEstimator


class SGMCMCModule(EnsembleSteps):
    """Draws the weights of a network from their posterior.

    A task is a subclass with one method, :meth:`law`, or with :meth:`nll` and :meth:`predictive`;
    everything else has a default (:class:`~lightning_sgmcmc.chain.Task`). The module hands
    Lightning's minibatches and its ``manual_backward`` to :attr:`chain`, which takes the steps; the
    ``KeepDraws`` callback asks the chain's schedule whether a state is a draw, and keeps it in
    :attr:`kept`.

    Args:
        net: The network.
        sampler: Called with the parameters, returns a :class:`~lightning_sgmcmc.Sampler`; for
            instance ``partial(PSGLD, lr=1e-3, prior=GaussianPrior(variance=1.0))``.
        burn_in: Steps before the first draw, the optimizer's included. C freezes there.
        thinning: Steps between draws.
        draw_weights: Of draws in averages: ``"time"`` of their steps, ``"equal"``, or ``"auto"``,
            by time, but equal in cycles (:class:`~lightning_sgmcmc.chain.schedules.DrawSchedule`).
        num_data: N; by default the length of the training set.
        schedule: Called with the sampler, returns the scheduler of its step size. One with
            ``draws``, a :class:`~lightning_sgmcmc.chain.schedules.Cycle`, also says which states
            are draws.
        burn_in_optimizer: Takes the first steps instead of the sampler; None for none.
        gradients: How the sampler's gradients are estimated from a minibatch, for instance by
            :class:`~lightning_sgmcmc.ControlVariate`; None for the minibatch's own. ``"auto"``
            chooses what costs least where ``lr="auto"`` bounds the minibatches' noise
            (:class:`~lightning_sgmcmc.adaptation.StepSize`), and is the minibatch's own otherwise.
        freeze_preconditioner: Freeze C at the end of burn-in. If not, draws come from a chain
            whose C still adapts and whose target is biased, and the run says so.
        step_fraction: For ``lr="auto"``: the step size as a fraction of the largest stable one,
            measured where burn-in ends, where the sampler takes over, and 1, 2, 4, 8, ... steps
            after that. ``"auto"`` takes the largest, up to a quarter, that keeps the bound below on
            a Gaussian.
        curvature_batches: Minibatches from which that one is estimated.
        max_gradient_noise: For ``lr="auto"`` on minibatches: largest relative error of a variance,
            the step's included (:class:`~lightning_sgmcmc.adaptation.StepSize`); None for no bound.
        draw_budget: Largest number of draws of a chain that a command writes to disk, evenly
            spaced ones of those due; the rest enters the ensemble only. 0 writes none.
        draw_dtype: Type that draws are stored in: float32, bfloat16 or float16.
        num_chains: Chains that run as one computation, each with its own start, noise and
            minibatches.
        starts: Where chains start other than the first, which starts at ``net``'s weights: see
            :func:`~lightning_sgmcmc.chain.starts`. By default anew, and alike if ``pretrained``.
        sample: Shell patterns of the names of the weights to sample, such as ``["net.4.*"]``; the
            rest stays as it is. None samples all.
        pretrained: File whose weights ``net`` starts from: see
            :func:`~lightning_sgmcmc.chain.selection.load_pretrained`.
        collapse_head: Integrate the last linear layer out and draw it exactly at every draw, for
            tasks that declare it: see :class:`~lightning_sgmcmc.chain.head.CollapsedHead`.
            ``"auto"`` does so where it can be done and all the data go into every step.

    Raises:
        ValueError: If a value lies outside its range.
    """

    def __init__(
        self,
        net: nn.Module,
        sampler: Callable[[Iterable[Any]], Sampler],
        *,
        burn_in: int = 0,
        thinning: int = 1,
        draw_weights: DrawWeights = "auto",
        num_data: int | None = None,
        schedule: Callable[[Optimizer], LRScheduler] = ConstantStep,
        burn_in_optimizer: OptimizerBurnIn | None = None,
        gradients: GradientEstimator | Literal["auto"] | None = "auto",
        freeze_preconditioner: bool = True,
        step_fraction: float | Literal["auto"] = "auto",
        curvature_batches: int = 4,
        max_gradient_noise: float | None = 0.05,
        draw_budget: int = 200,
        draw_dtype: str = "float32",
        num_chains: int = 1,
        starts: Starts | None = None,
        sample: Sequence[str] | None = None,
        pretrained: str | None = None,
        collapse_head: bool | Literal["auto"] = False,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        given = init_arguments(self, inspect.currentframe())
        self.save_hyperparameters({k: v for k, v in given.items() if is_plain(v)}, logger=False)
        self.net = compiled_in_place(net)
        checks.check_counts(draw_budget, num_data, num_chains)
        check_dtype(draw_dtype)
        cycle = getattr(schedule(checks.tried(sampler)), "draws", None)
        optimizer_steps = burn_in_optimizer.steps if burn_in_optimizer else 0
        self.draw_budget, self.draw_dtype = draw_budget, draw_dtype
        #: The chain, or the K chains: weights, sampler, minibatches, target, schedule.
        self.chain = Chain(
            self,
            sampler,
            DrawSchedule(burn_in, thinning, cycle, optimizer_steps, draw_weights),
            schedule,
            burn_in_optimizer=burn_in_optimizer,
            gradients=gradients,
            num_chains=num_chains,
            starts=starts,
            sample=sample,
            pretrained=pretrained,
            num_data=num_data,
            freezes=freeze_preconditioner,
            collapse_head=collapse_head,
        )
        step_size = StepSize(step_fraction, curvature_batches, max_gradient_noise)
        self.adaptation = Adaptation(self.chain, step_size)
        self._loader_place = LoaderPlace()
        self._evaluating: list[nn.Module] = []
        self._implementation = "unknown"  # of the steps before the checkpoint

    def train(self, mode: bool = True) -> Self:
        """Set the mode of all layers but those in evaluation mode where the chain starts."""
        super().train(mode)
        for layer in self._evaluating:
            layer.training = False
        return self

    def select(self) -> None:
        """Load pretrained weights and choose which are sampled; once, before any work."""
        self.chain.select()
        self._evaluating = checks.evaluation_layers(self)

    def setup(self, stage: str) -> None:
        """Refuse what would bias the chain, then choose what is sampled and by how many chains."""
        if self.trainer.world_size > 1:
            leave_at_exit()
        if stage == "fit":
            refuse_biasing_trainer(self.trainer)
            write_whole_checkpoints(self.trainer)
            if not self.trainer.fast_dev_run:  # type: ignore[attr-defined]
                checks.check_length(self.trainer.max_steps, self.chain.draws)
            self.select()
            self.chain.place(Processes.of(self.trainer), training_stream(self.trainer))
            self.adaptation.load_state_dict({})  # of an earlier fit
            if self.chain.stack is not None:
                self.chains = self.chain.stack  # a part of this module's state
            self.trainer.precision_plugin.convert_module(self)  # before a checkpoint is restored

    def configure_optimizers(self) -> Any:
        """Build the sampler with its schedule and, if there is one, the burn-in optimizer."""
        return self.chain.build()

    def configure_callbacks(self) -> list[Callback]:
        """Make a run of a fit: see :func:`~lightning_sgmcmc.callbacks.own_callbacks`."""
        return own_callbacks(self.trainer, self.draw_budget, self.draw_dtype)

    def on_train_start(self) -> None:
        """Bind data, N and target to the sampler, and say what is not the true posterior."""
        self.chain.bind(training_data(self.trainer), partial(received, self.trainer))
        for note in self.chain.notes():
            rank_zero_info(f"Note: {note}")
        self.chain.steps = self.global_step
        if self.global_step == 0:
            with self.trainer.precision_plugin.forward_context():
                self.chain.check_task()
            self.adaptation.after_step()
        self._loader_place.open(self.trainer)

    def on_fit_end(self) -> None:
        """Bind the chain of a run that was continued with no step left, which Lightning skips."""
        if self.chain.steps < self.global_step:
            self.on_train_start()
            self.chain.sampler.implementation = self._implementation

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """Take one step of the burn-in optimizer or of the chain."""
        chain = self.chain
        batch = batch if chain.stream is None else chain.minibatch()
        chain.advance(batch, self._take_step, self.manual_backward)
        self.adaptation.after_step()
        every: int = self.trainer.log_every_n_steps  # type: ignore[attr-defined]
        if every and chain.steps % every == 0:  # 0 in a barebones Trainer
            record(self.trainer, chain.log_row() | {"lr": chain.lr})

    def _take_step(self, which: int, closure: Callable[[], Tensor] | None) -> Any:
        """Take the step of the sampler (0) or the burn-in optimizer (1), which Lightning counts."""
        optimizers = self.optimizers()
        optimizer = optimizers[which] if isinstance(optimizers, list) else optimizers
        return optimizer.step() if closure is None else optimizer.step(closure)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Name task and chains, and add what the results say of them and their gradients."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["sgmcmc_chains"] = self.chain.groups
        checkpoint["sgmcmc_task"] = type(self).__name__
        checkpoint["sgmcmc_adaptation"] = self.adaptation.state_dict()
        checkpoint["sgmcmc_implementation"] = self.chain.sampler.implementation
        checkpoint["sgmcmc_gradients"] = self.chain.gradients_state()
        checkpoint["sgmcmc_loader"] = self._loader_place.state_dict(self.trainer)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse a checkpoint of another task, and continue this process's chains.

        Raises:
            ValueError: If the checkpoint names another one, or another number of chains.
        """
        task = checkpoint.get("sgmcmc_task", "no SGMCMCModule")
        if task != type(self).__name__:
            raise ValueError(
                f"the checkpoint is of {task}, not of {type(self).__name__}: continue a run with "
                "the task that started it"
            )
        if self._trainer is not None and self.trainer.state.fn == TrainerFn.FITTING:
            read = partial(self.trainer.strategy.checkpoint_io.load_checkpoint, weights_only=True)
            regroup(checkpoint, Path(str(self.trainer.ckpt_path)), self.chain, read)
            self._loader_place.load_state_dict(checkpoint.get("sgmcmc_loader"))
        super().on_load_checkpoint(checkpoint)
        earlier = {"stability": checkpoint.get("sgmcmc_stability", {})}  # an earlier version's
        self.adaptation.load_state_dict(checkpoint.get("sgmcmc_adaptation", earlier))
        self._implementation = checkpoint.get("sgmcmc_implementation", "unknown")
        self.chain.load_gradients(checkpoint["sgmcmc_gradients"])
