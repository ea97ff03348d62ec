"""The LightningModule that treats a sampler as a manual-optimization strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lightning_sgmcmc import checks, step_size
from lightning_sgmcmc.batches import BatchStream
from lightning_sgmcmc.binding import bind_data, bind_target
from lightning_sgmcmc.burn_in import OptimizerBurnIn
from lightning_sgmcmc.chains import ChainStack, Starts, holding, starts
from lightning_sgmcmc.metrics import Prediction
from lightning_sgmcmc.samplers import ChainsInTurn, Sampler, Stacked
from lightning_sgmcmc.schedules import ConstantStep, DrawSchedule
from lightning_sgmcmc.selection import load_pretrained, sampled_names
from lightning_sgmcmc.strategies import leave_at_exit, replicas
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
            measured where burn-in ends, where the sampler takes over, and 1, 4, 16, ... steps
            after that.
        curvature_batches: Minibatches from which that one is estimated.
        max_gradient_noise: For ``lr="auto"``: the largest ratio of the minibatches' noise to the
            injected noise (:func:`~lightning_sgmcmc.diagnostics.gradient_noise`), for which the
            step is made smaller than ``step_fraction`` says, in burn-in only after an optimizer;
            None sets no bound.
        cycle: Length in steps of a cyclical step size, for keeping draws; None for none.
        sampling: Fraction of each cycle whose states are kept.
        draw_budget: Largest number of draws of a chain written to disk. If more are due, evenly
            spaced ones are written and the rest enters the ensemble only; 0 writes none.
        draw_dtype: Type that draws are stored in: float32, bfloat16 or float16.
        num_chains: Chains that run as one computation, each with its own start, noise and
            minibatches. ``nll`` and ``predictive`` must then be pure functions of batch and
            weights that ``torch.func.vmap`` can follow.
        starts: Where the other chains start than the first, which starts at ``net``'s weights:
            see :func:`~lightning_sgmcmc.chains.starts`. By default anew as ``net`` was
            initialised, and alike where weights are ``pretrained``.
        sample: Shell patterns of the names of the weights to sample, such as ``["net.4.*"]``; the
            rest stays as it is. None samples all.
        pretrained: File whose weights ``net`` starts from: see
            :func:`~lightning_sgmcmc.selection.load_pretrained`.

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
        num_data: int | None = None,
        schedule: Callable[[Optimizer], LRScheduler] = ConstantStep,
        burn_in_optimizer: OptimizerBurnIn | None = None,
        freeze_preconditioner: bool = True,
        step_fraction: float = 0.1,
        curvature_batches: int = 4,
        max_gradient_noise: float | None = None,
        cycle: int | None = None,
        sampling: float = 0.5,
        draw_budget: int = 200,
        draw_dtype: str = "float32",
        num_chains: int = 1,
        starts: Starts | None = None,
        sample: Sequence[str] | None = None,
        pretrained: str | None = None,
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
        if max_gradient_noise is not None and not max_gradient_noise > 0:
            raise ValueError(f"max_gradient_noise must be positive, got {max_gradient_noise}")
        if draw_budget < 0:
            raise ValueError(f"draw_budget must not be negative, got {draw_budget}")
        if num_data is not None and num_data < 1:
            raise ValueError(f"num_data must be positive, got {num_data}")
        if num_chains < 1:
            raise ValueError(f"num_chains must be at least 1, got {num_chains}")
        # Built once on a stand-in, so that a wrong argument is an error here, not mid-run.
        probe = sampler([nn.Parameter(torch.zeros(1))])
        if not isinstance(probe, Sampler):
            raise TypeError(
                f"sampler must build a lightning_sgmcmc Sampler, got {type(probe).__name__}"
            )
        schedule(probe)
        self._make_sampler, self.given_num_data = sampler, num_data
        self._make_schedule = schedule
        self.burn_in_optimizer = burn_in_optimizer
        self.freeze_preconditioner = freeze_preconditioner
        self.step_fraction, self.curvature_batches = step_fraction, curvature_batches
        self.max_gradient_noise = max_gradient_noise
        self.draw_budget, self.draw_dtype = draw_budget, draw_dtype
        self.num_chains, self.sample, self.pretrained = num_chains, sample, pretrained
        self.starts: Starts = starts or ("same" if pretrained else "reinitialise")
        self.chains: ChainStack | None = None
        self.stream: BatchStream | None = None
        self.target: Target | None = None
        #: Mean loss of the last minibatch, [] or [K].
        self.last_loss = torch.zeros(())
        #: Where the step size stands, once burn-in has ended: see step_size.py.
        self.stability: dict[str, float] = {}
        self._selected: list[str] | None = None
        self._prepared = False
        self._statistics_frozen = False
        self._one_network = False

    # What a task says.

    def nll(self, batch: Batch) -> Tensor:
        """Return the negative log-likelihood of each example under the current weights, [B]."""
        raise TypeError(f"{type(self).__name__} must define nll(batch)")

    def predictive(self, batch: Batch) -> Tensor:
        """Return what the ensemble averages, [B, ...]."""
        raise TypeError(f"{type(self).__name__} must define predictive(batch)")

    def predictive_and_nll(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return :meth:`predictive` and :meth:`nll` of a held-out batch.

        A task whose two share a forward pass overrides this to make it once.
        """
        return self.predictive(batch), self.nll(batch)

    #: Held-out sets whose metrics are followed along the draws, for the trace; a choice that is
    #: made by looking at them may only look at ``val``.
    followed: tuple[str, ...] = ("val",)

    #: Uniform numbers that :meth:`draw_labels` takes for one example.
    label_uniforms: int = 1

    def draw_labels(self, batch_and_uniforms: tuple[Batch, Tensor]) -> Batch:
        """Return a batch with its labels drawn from the model at the current weights.

        For Fisher metrics with ``labels="model"``.

        Args:
            batch_and_uniforms: A batch, and independent U[0, 1) numbers [B, label_uniforms].
        """
        raise TypeError(f"{type(self).__name__} must define draw_labels((batch, uniforms))")

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

    def on_draw(self, weight: float) -> None:
        """Do what a task does at every draw that is kept.

        Args:
            weight: The draw's weight in averages.
        """

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

    def evaluate(self, method: str, batch: Batch, stacked: bool = False) -> Any:
        """Return ``nll``, ``predictive`` or another method of a batch under the chains' weights.

        Args:
            method: The method's name.
            batch: A batch.
            stacked: Whether each of K chains has a batch of its own, along the first axis.

        Returns:
            What the method returns, a tensor or several, with K chains along a new first axis if
            there are several.
        """
        if self.chains is None or self._one_network:
            return getattr(self, method)(batch)
        return self.chains.evaluate(method, batch, stacked)

    @contextmanager
    def holding(self, weights: Mapping[str, Tensor]) -> Iterator[None]:
        """Be one network with these weights for a while, whatever the chains are."""
        with holding(self, weights):
            self._one_network = True
            try:
                yield
            finally:
                self._one_network = False

    @property
    def sampled(self) -> list[str]:
        """The names of the sampled weights."""
        if self._selected is None:
            self._selected = sampled_names(self, self.sample)
        return self._selected

    @property
    def chain_numbers(self) -> range:
        """The numbers of the chains of this process."""
        first = self.sampler.chain
        return range(first, first + self.num_chains)

    def chain_state(self, index: int) -> dict[str, Tensor]:
        """Return the sampled weights of this process's chain number ``index``, by name."""
        if self.chains is not None:
            return self.chains.state_of(index)
        own = dict(self.named_parameters())
        return {name: own[name].detach() for name in self.sampled}

    @property
    def num_gradients(self) -> int:
        """Minibatch gradients computed so far by a chain, all kinds counted."""
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

    def select(self) -> None:
        """Load pretrained weights and choose which are sampled; once, before any work.

        Raises:
            ValueError: If a file or a name does not fit the module, or a layer normalises by the
                statistics of a minibatch.
        """
        checks.refuse_batch_statistics(self)
        self._statistics_frozen = True
        if self._prepared:
            return
        self._prepared = True
        chosen = set(self.sampled)
        if self.pretrained is not None:
            load_pretrained(self, self.pretrained)
        for name, parameter in self.named_parameters():
            parameter.requires_grad = name in chosen  # requires_grad_() fails for lazy ones

    def train(self, mode: bool = True) -> Self:
        """Set the mode of all layers but batch normalisation, once a chain counts on it frozen."""
        super().train(mode)
        if self._statistics_frozen:
            checks.keep_statistics_frozen(self)
        return self

    def _first_chain(self) -> int:
        """Return how many chains run in the processes before this one."""
        independent = self._trainer is not None and not replicas(self.trainer).data_parallel
        return self.trainer.global_rank * self.num_chains if independent else 0

    def configure_optimizers(self) -> Any:
        """Build the sampler with its schedule and, if there is one, the burn-in optimizer."""
        sampler = self._build_sampler()
        sampler.set_first_chain(sampler.chain + self._first_chain())
        optimizers: list[Optimizer] = [sampler]
        schedulers: list[LRScheduler] = [self._make_schedule(sampler)]
        if self.burn_in_optimizer is not None:
            optimizer, scheduler = self.burn_in_optimizer.build(sampler.params)
            optimizers.append(optimizer)
            schedulers.append(scheduler)
        return optimizers, schedulers

    def _build_sampler(self) -> Sampler:
        if self.chains is None:
            own = dict(self.named_parameters())
            return self._make_sampler([(name, own[name]) for name in self.sampled])
        named = list(zip(self.chains.names, self.chains.weights, strict=True))
        alone = self._make_sampler([(n, nn.Parameter(p.detach()[0])) for n, p in named])
        if alone.unstackable is None:
            return self._make_sampler(Stacked(named))
        rank_zero_info(f"Note: the {len(self.chains)} chains run in turn: {alone.unstackable}")
        return ChainsInTurn(self._make_sampler, named)

    def configure_callbacks(self) -> list[Callback]:
        """Keep draws, stop a chain that diverges, flush subnormals; a Trainer's own go first."""
        from lightning_sgmcmc.callbacks import ChainGuard, FlushSubnormals, KeepDraws

        given: list[Callback] = self.trainer.callbacks  # type: ignore[attr-defined]
        return [
            make()
            for make in (KeepDraws, ChainGuard, FlushSubnormals)
            if not any(isinstance(callback, make) for callback in given)
        ]

    def setup(self, stage: str) -> None:
        """Refuse what would bias the chain, then choose what is sampled and by how many chains."""
        if self.trainer.world_size > 1:
            leave_at_exit()
        if stage == "fit":
            checks.refuse_biasing_trainer(self.trainer)
            checks.check_length(self.trainer.max_steps, self.draw_schedule)
            self.select()
            self._stack_chains()

    def _stack_chains(self) -> None:
        """Put every chain of this process where it starts, stacked if there are several."""
        before = self._first_chain()
        if self.chains is not None or (self.num_chains == 1 and not before):
            return
        probe = self._make_sampler([nn.Parameter(torch.zeros(1))])
        first = probe.chain + before
        numbers = range(first, first + self.num_chains)
        drawn = starts(self, self.sampled, self.starts, probe.seed, numbers, probe.prior)
        own = dict(self.named_parameters())
        if self.num_chains == 1:
            with torch.no_grad():
                for name in self.sampled:
                    own[name].copy_(drawn[0][name])
            return
        for name in self.sampled:
            own[name].requires_grad_(False)
        self.chains = ChainStack(self, drawn).to(own[self.sampled[0]].device)

    def on_train_start(self) -> None:
        """Bind data, N and target to the sampler, and say what is not the true posterior."""
        self.stream = bind_data(self)
        self.target = bind_target(self)
        checks.check_freezing(self.sampler, self.draw_schedule, self.freeze_preconditioner)
        for note in self.notes():
            rank_zero_info(f"Note: {note}")
        if self.global_step == 0:
            self._pass_milestones()

    def notes(self) -> list[str]:
        """Return, in words, where this chain's target is not the posterior at T = 1."""
        notes = checks.target_notes(self.sampler, self.freeze_preconditioner, self.stream)
        if self.chains is not None and not self.own_batches and self._shares_noise:
            notes.append("the chains share their minibatches, so that they are not independent")
        return notes

    @property
    def own_batches(self) -> bool:
        """Whether each of several chains has minibatches of its own."""
        return self.stream is not None and self.stream.stacked

    @property
    def _shares_noise(self) -> bool:
        return self.stream is None or self.stream.sampling != "full"

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
            # C, and the curvature where an optimizer stopped, change by orders of magnitude in the
            # chain's first steps.
            taken = step - self.optimizer_steps
            if taken == 0 or _power_of_four(taken):
                self._choose_step_size()

    def _chain_step(self, batch: Batch) -> Tensor:
        sampler, optimizer, scheduler = self.sampler, self._optimizer(0), self._scheduler(0)

        def closure() -> Tensor:
            sampler.zero_grad()
            return self._backward(batch)

        loss: Tensor = optimizer.step(closure)
        scheduler.step()
        return loss.detach()

    def _backward(self, batch: Batch) -> Tensor:
        """Return the mean loss of a batch, [] or [K], with its gradients in place."""
        assert self.target is not None
        self.target.use(batch)
        with self.target.recording():
            loss: Tensor = self.evaluate("nll", batch, self.own_batches).mean(-1)
            self.manual_backward(loss.sum())
        return loss

    def _optimizer_step(self, batch: Batch) -> Tensor:
        sampler, optimizer, scheduler = self.sampler, self._optimizer(1), self._scheduler(1)
        optimizer.zero_grad()
        loss = self._backward(batch)
        with torch.no_grad():
            grads = [p.grad for p in sampler.params if p.grad is not None]
            sampler.preconditioner.update(grads)
            sampler.add_prior_gradient_()
        optimizer.step()
        sampler.apply_masks_()
        if sampler.prior.adaptive and not sampler.prior.frozen:
            sampler.prior.update(sampler.params)
        scheduler.step()
        return loss.detach()

    def _end_burn_in(self) -> None:
        self.on_burn_in_end()
        sampler = self.sampler
        if self.freeze_preconditioner:
            sampler.freeze()
        if sampler.auto_lr or sampler.preconditioner.frozen:
            self._choose_step_size()
        assert sampler.num_data is not None
        curvature = sampler.prior.max_curvature(sampler.params)
        sampler.preconditioner.check(sampler.lr, sampler.num_data, curvature)

    def _choose_step_size(self) -> None:
        """Measure the largest stable step at the current weights; for ``lr="auto"``, take part."""
        self.stability = step_size.settle(self)

    def curvature_sample(self) -> list[Batch]:
        """Return the minibatches from which curvature is estimated."""
        if self.stream is not None:
            return [self.stream.at(i) for i in range(self.curvature_batches)]
        loader = iter(checks.plain_loader(self.trainer.train_dataloader))
        return [self.received(next(loader)) for _ in range(self.curvature_batches)]

    def received(self, batch: Batch) -> Batch:
        """Return a loader's batch in the run's precision, on the module's device."""
        converted = self.trainer.precision_plugin.convert_input(batch)
        return self.transfer_batch_to_device(converted, self.device, 0)

    def _log_step(self, loss: Tensor) -> None:
        values = {"train/nll": float(loss.mean()), "lr": self.current_lr}
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
        nll = self.evaluate("nll", batch)
        self.log("val/nll", nll.mean(), batch_size=nll.shape[-1], sync_dist=True)

    def _optimizer(self, index: int) -> Any:
        optimizers = self.optimizers()
        return optimizers[index] if isinstance(optimizers, list) else optimizers

    def _scheduler(self, index: int) -> Any:
        schedulers = self.lr_schedulers()
        return schedulers[index] if isinstance(schedulers, list) else schedulers


def _power_of_four(step: int) -> bool:
    return step > 0 and step & (step - 1) == 0 and step.bit_length() % 2 == 1
