"""The LightningModule that treats a sampler as a manual-optimization strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lightning_sgmcmc import checks
from lightning_sgmcmc.batches import BatchStream
from lightning_sgmcmc.burn_in import OptimizerBurnIn
from lightning_sgmcmc.metrics import Prediction
from lightning_sgmcmc.samplers import Sampler
from lightning_sgmcmc.schedules import ConstantStep, DrawSchedule
from lightning_sgmcmc.stability import largest_eigenvalue
from lightning_sgmcmc.target import Batch, Target

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lightning_sgmcmc.callbacks import KeepDraws


class SGMCMCModule(L.LightningModule):
    """Draws the weights of a network from their posterior.

    A task is a subclass with two methods, :meth:`nll` and :meth:`predictive`; everything else has
    a default. One step is: minibatch -> mean of ``nll`` -> ``manual_backward`` ->
    ``sampler.step(closure)`` -> scheduler step; the ``KeepDraws`` callback then asks
    ``draw_schedule`` whether the state is a draw.

    Args:
        net: The network.
        sampler: Called with the parameters, returns a :class:`~lightning_sgmcmc.Sampler`; for
            instance ``partial(PSGLD, lr=1e-3, prior=GaussianPrior(variance=1.0))``.
        burn_in: Steps before the first draw, the optimizer's included. C freezes there.
        thinning: Steps between draws.
        num_data: N; by default the length of the training set.
        schedule: Called with the sampler, returns the scheduler of its step size.
        burn_in_optimizer: Takes the first steps instead of the sampler; None for none.
        freeze_preconditioner: Freeze C at the end of burn-in. If not, draws come from a chain
            whose C still adapts and whose target is biased, and the run says so.
        step_fraction: For ``lr="auto"``: the step size as a fraction of the largest stable one,
            measured where burn-in ends, where the sampler takes over and, if C adapts from
            nothing, after 1, 4, 16, ... steps.
        curvature_batches: Minibatches from which that one is estimated.
        cycle: Length in steps of a cyclical step size, for keeping draws; None for none.
        sampling: Fraction of each cycle whose states are kept.
        draw_budget: Largest number of draws written to disk. If more are due, evenly spaced ones
            are written and the rest enters the ensemble only; 0 writes none.
        draw_dtype: Type that draws are stored in: float32, bfloat16 or float16.

    Raises:
        ValueError: If a value lies outside its range.
    """

    def __init__(
        self,
        net: nn.Module,
        sampler: Callable[[Iterable[nn.Parameter]], Sampler],
        *,
        burn_in: int = 0,
        thinning: int = 1,
        num_data: int | None = None,
        schedule: Callable[[Optimizer], LRScheduler] = ConstantStep,
        burn_in_optimizer: OptimizerBurnIn | None = None,
        freeze_preconditioner: bool = True,
        step_fraction: float = 0.1,
        curvature_batches: int = 4,
        cycle: int | None = None,
        sampling: float = 0.5,
        draw_budget: int = 200,
        draw_dtype: str = "float32",
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.net = net
        self.draw_schedule = DrawSchedule(burn_in, thinning, cycle, sampling)
        if burn_in_optimizer is not None and burn_in_optimizer.steps > burn_in:
            raise ValueError(
                f"burn_in = {burn_in} counts the optimizer's {burn_in_optimizer.steps} steps: it "
                "must be at least as large"
            )
        if not 0 < step_fraction < 1:
            raise ValueError(f"step_fraction must lie in (0, 1), got {step_fraction}")
        if curvature_batches < 1:
            raise ValueError(f"curvature_batches must be at least 1, got {curvature_batches}")
        if draw_budget < 0:
            raise ValueError(f"draw_budget must not be negative, got {draw_budget}")
        if num_data is not None and num_data < 1:
            raise ValueError(f"num_data must be positive, got {num_data}")
        # Built once on a stand-in, so that a wrong argument is an error here, not mid-run.
        probe = sampler([nn.Parameter(torch.zeros(1))])
        if not isinstance(probe, Sampler):
            raise TypeError(
                f"sampler must build a lightning_sgmcmc Sampler, got {type(probe).__name__}"
            )
        schedule(probe)
        self._make_sampler, self._num_data, self._make_schedule = sampler, num_data, schedule
        self.burn_in_optimizer = burn_in_optimizer
        self.freeze_preconditioner = freeze_preconditioner
        self.step_fraction, self.curvature_batches = step_fraction, curvature_batches
        self.draw_budget, self.draw_dtype = draw_budget, draw_dtype
        self.stream: BatchStream | None = None
        self.target: Target | None = None
        self.last_loss = torch.zeros(())

    # What a task says.

    def nll(self, batch: Batch) -> Tensor:
        """Return the negative log-likelihood of each example under the current weights, [B]."""
        raise TypeError(f"{type(self).__name__} must define nll(batch)")

    def predictive(self, batch: Batch) -> Tensor:
        """Return what the ensemble averages, [B, ...]."""
        raise TypeError(f"{type(self).__name__} must define predictive(batch)")

    def forward(self, x: Tensor) -> Tensor:
        """Return the network's output."""
        output: Tensor = self.net(x)
        return output

    def metrics(self, prediction: Prediction, batch: Batch) -> dict[str, float]:
        """Compare a prediction with the examples that it is for.

        Args:
            prediction: Of the ensemble or of one network (``std`` 0 then).
            batch: All examples of the held-out set, in order.

        Returns:
            Names and values for the logger and for ``results.json``.
        """
        return {"nll": float(prediction.nll.mean())}

    def on_burn_in_end(self) -> None:
        """Do what a task does once, before C freezes and the first draw can come."""

    def describe(self) -> dict[str, Any]:
        """Return what a task adds to ``results.json`` under ``task_details``."""
        return {}

    def paper(self) -> dict[str, Any] | None:
        """Return the published numbers that this run stands beside, None if there are none."""
        return None

    def summary(self, results: dict[str, Any]) -> list[tuple[str, str]]:
        """Return the rows, name and value, of the table that a run prints last."""
        ensemble = results["metrics"].get("ensemble", {})
        return [(name, f"{value:.4g}") for name, value in ensemble.items()]

    def figures(self, keep: KeepDraws) -> dict[str, Figure]:
        """Return the task's own figures by name."""
        return {}

    # The chain.

    @property
    def num_gradients(self) -> int:
        """Minibatch gradients computed so far, the second ones of an adapting metric included."""
        return self.sampler.gradients + min(self.global_step, self.optimizer_steps)

    @property
    def sampler(self) -> Sampler:
        """The sampler."""
        optimizers = self.optimizers()
        first = optimizers[0] if isinstance(optimizers, list) else optimizers
        inner = first.optimizer if isinstance(first, LightningOptimizer) else first
        assert isinstance(inner, Sampler)
        return inner

    @property
    def optimizer_steps(self) -> int:
        """Steps that the burn-in optimizer takes."""
        return self.burn_in_optimizer.steps if self.burn_in_optimizer else 0

    @property
    def sampling_now(self) -> bool:
        """Whether the sampler, not the burn-in optimizer, takes the next step."""
        return self.global_step >= self.optimizer_steps

    def configure_optimizers(self) -> Any:
        """Build the sampler with its schedule and, if there is one, the burn-in optimizer."""
        params = [p for p in self.parameters() if p.requires_grad]
        sampler = self._make_sampler(params)
        optimizers: list[Optimizer] = [sampler]
        schedulers: list[LRScheduler] = [self._make_schedule(sampler)]
        if self.burn_in_optimizer is not None:
            optimizer, scheduler = self.burn_in_optimizer.build(params)
            optimizers.append(optimizer)
            schedulers.append(scheduler)
        return optimizers, schedulers

    def configure_callbacks(self) -> list[Callback]:
        """Keep draws, and stop a chain that diverges; a Trainer's own of these go first."""
        from lightning_sgmcmc.callbacks import ChainGuard, KeepDraws

        given: list[Callback] = self.trainer.callbacks  # type: ignore[attr-defined]
        return [
            make()
            for make in (KeepDraws, ChainGuard)
            if not any(isinstance(callback, make) for callback in given)
        ]

    def setup(self, stage: str) -> None:
        """Refuse what would bias the chain, before any work."""
        if stage == "fit":
            checks.refuse_biasing_trainer(self.trainer)
            checks.check_length(self.trainer.max_steps, self.draw_schedule)

    def on_train_start(self) -> None:
        """Bind data, N and target to the sampler, and say what is not the true posterior."""
        sampler = self.sampler
        loader = self.trainer.train_dataloader
        if isinstance(loader, BatchStream):
            self.stream = loader
            loader.bind(
                self.device,
                sampler.seed,
                sampler.chain,
                self.trainer.global_rank,
                self.trainer.world_size,
                sampler.batches,
            )
        num_data = self._num_data or checks.training_set_size(loader)
        sampler.num_data = num_data
        reduce = self._average_over_ranks if self.trainer.world_size > 1 else None
        self.target = Target(self.nll, sampler.params, num_data, sampler.prior, reduce)
        sampler.attach(self.target)
        checks.check_freezing(sampler, self.draw_schedule, self.freeze_preconditioner)
        for note in self.notes():
            rank_zero_info(f"Note: {note}")
        if self.global_step == 0:
            self._pass_milestones()

    def notes(self) -> list[str]:
        """Return, in words, where this chain's target is not the posterior at T = 1."""
        return checks.target_notes(self.sampler, self.freeze_preconditioner)

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """Take one step of the burn-in optimizer or of the chain."""
        if self.stream is not None:
            batch = self.stream.at(self.global_step)
        loss = self._chain_step(batch) if self.sampling_now else self._optimizer_step(batch)
        self.last_loss = loss
        self._pass_milestones()
        every = self.trainer.log_every_n_steps  # type: ignore[attr-defined]
        if self.global_step % every == 0:
            self._log_step(loss)

    def _pass_milestones(self) -> None:
        """Do what is due between two steps: the end of burn-in, and choosing a step size."""
        step = self.global_step
        if step == self.draw_schedule.burn_in:
            self._end_burn_in()
        elif self.sampler.auto_lr and step < self.draw_schedule.burn_in:
            # A C that starts from nothing changes by orders of magnitude in its first steps.
            adapts = not self.optimizer_steps and not self.sampler.preconditioner.frozen
            if step == self.optimizer_steps or (adapts and _power_of_four(step)):
                self._choose_step_size()

    def _chain_step(self, batch: Batch) -> Tensor:
        sampler, optimizer, scheduler = self.sampler, self._optimizer(0), self._scheduler(0)
        if self.target is not None:
            self.target.use(batch)

        def closure() -> Tensor:
            sampler.zero_grad()
            loss = self.nll(batch).mean()
            self.manual_backward(loss)
            return loss

        loss: Tensor = optimizer.step(closure)
        scheduler.step()
        return loss.detach()

    def _optimizer_step(self, batch: Batch) -> Tensor:
        sampler, optimizer, scheduler = self.sampler, self._optimizer(1), self._scheduler(1)
        optimizer.zero_grad()
        loss = self.nll(batch).mean()
        self.manual_backward(loss)
        with torch.no_grad():
            grads = [p.grad for p in sampler.params if p.grad is not None]
            sampler.preconditioner.update(grads)
            sampler.add_prior_gradient_()
        optimizer.step()
        sampler.apply_masks_()
        scheduler.step()
        return loss.detach()

    def _end_burn_in(self) -> None:
        self.on_burn_in_end()
        sampler = self.sampler
        if self.freeze_preconditioner:
            sampler.freeze()
        if sampler.auto_lr:
            self._choose_step_size()
        precision = checks.prior_precision(sampler)
        assert sampler.num_data is not None
        sampler.preconditioner.check(sampler.lr, sampler.num_data, precision)

    def _choose_step_size(self) -> None:
        """Set lr to ``step_fraction`` of the largest stable one at the current weights."""
        assert self.target is not None
        sampler = self.sampler
        batches = [self.stream.at(i) for i in range(self.curvature_batches)] if self.stream else []
        if not batches:
            loader = iter(checks.plain_loader(self.trainer.train_dataloader))
            batches = [
                self.transfer_batch_to_device(next(loader), self.device, 0)
                for _ in range(self.curvature_batches)
            ]
        eigenvalue = largest_eigenvalue(
            self.target, sampler.preconditioner, batches, masks=sampler.masks
        )
        limit = sampler.max_stable_lr(eigenvalue)
        lr = float(self.trainer.strategy.broadcast(self.step_fraction * limit))
        sampler.set_lr(lr)
        scheduler = self._scheduler(0)
        scheduler.base_lrs = [lr]
        sampler.param_groups[0]["lr"] = lr * checks.schedule_factor(scheduler)
        rank_zero_info(
            f"lr: {lr:.3g}, {self.step_fraction:g} of the largest stable step {limit:.3g} "
            f"(lambda_max of C H is {eigenvalue:.3g})"
        )

    def _log_step(self, loss: Tensor) -> None:
        values = {"train/nll": float(loss), "lr": self.current_lr}
        temperature = self.kinetic_temperature()
        if temperature is not None:
            values["kinetic_temperature"] = temperature
        self.record(values)

    @property
    def current_lr(self) -> float:
        """The step size of whatever takes the next step."""
        if self.sampling_now:
            return self.sampler.lr
        return float(self._optimizer(1).param_groups[0]["lr"])

    def kinetic_temperature(self) -> float | None:
        """Return the sampler's kinetic temperature, None where it has none."""
        measure = getattr(self.sampler, "kinetic_temperature", None)
        return measure() if measure is not None else None

    def record(self, values: dict[str, float]) -> None:
        """Send values to every logger, at the number of steps taken."""
        for logger in self.trainer.loggers:
            logger.log_metrics(values, step=self.global_step)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Name the task in the checkpoint."""
        checkpoint["sgmcmc_task"] = type(self).__name__

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse a checkpoint of another task.

        Raises:
            ValueError: If the checkpoint names another one.
        """
        task = checkpoint.get("sgmcmc_task", "no SGMCMCModule")
        if task != type(self).__name__:
            raise ValueError(
                f"the checkpoint is of {task}, not of {type(self).__name__}: continue a run with "
                "the task that started it"
            )

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Log the mean NLL of the current weights."""
        nll = self.nll(batch)
        self.log("val/nll", nll.mean(), batch_size=len(nll), sync_dist=True)

    def _optimizer(self, index: int) -> Any:
        optimizers = self.optimizers()
        return optimizers[index] if isinstance(optimizers, list) else optimizers

    def _scheduler(self, index: int) -> Any:
        schedulers = self.lr_schedulers()
        return schedulers[index] if isinstance(schedulers, list) else schedulers

    def _average_over_ranks(self, tensors: list[Tensor]) -> None:
        for tensor in tensors:
            torch.distributed.all_reduce(tensor)
            tensor /= self.trainer.world_size


def _power_of_four(step: int) -> bool:
    return step > 0 and step & (step - 1) == 0 and step.bit_length() % 2 == 1
