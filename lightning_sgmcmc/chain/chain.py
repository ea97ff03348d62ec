"""One chain, or K chains that run as one computation."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Literal

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import DataLoader

from lightning_sgmcmc import steps
from lightning_sgmcmc.chain import checks
from lightning_sgmcmc.chain.batches import BatchStream
from lightning_sgmcmc.chain.burn_in import OptimizerBurnIn
from lightning_sgmcmc.chain.head import CollapsedHead
from lightning_sgmcmc.chain.probe import EXAMPLES, TaskProbe
from lightning_sgmcmc.chain.processes import Processes
from lightning_sgmcmc.chain.randomised_map import RandomisedMAP
from lightning_sgmcmc.chain.schedules import ConstantStep, DrawSchedule
from lightning_sgmcmc.chain.selection import load_pretrained, sampled_names
from lightning_sgmcmc.chain.spare import SpareMinibatches, isolated
from lightning_sgmcmc.chain.stack import ChainStack, holding
from lightning_sgmcmc.chain.starts import Starts, starts
from lightning_sgmcmc.chain.task import Task
from lightning_sgmcmc.priors import Prior
from lightning_sgmcmc.samplers import ChainsInTurn, Sampler, Stacked
from lightning_sgmcmc.samplers.gradients import present_gradients
from lightning_sgmcmc.target import (
    Batch,
    ControlVariate,
    FullGradient,
    GradientEstimator,
    Minibatch,
    PerExample,
    Target,
)

MakeSampler = Callable[[Iterable[Any]], Sampler]

#: What ``gradients="auto"`` chooses from.
CHOICES: tuple[type[GradientEstimator], ...] = (Minibatch, ControlVariate, FullGradient)


class Chain:
    """The state of one chain, or of K: weights, sampler, minibatches, target, schedule.

    It knows its task, and nothing of a Trainer, of files or of reports. A step is: minibatch ->
    mean of ``task.nll`` -> backward -> ``sampler.step(closure)`` -> scheduler step:

        chain = Chain(task, partial(PSGLD, lr=1e-3), DrawSchedule(burn_in=100))
        chain.select(); chain.place(); chain.build(); chain.bind(BatchStream(tensors, 100))
        for _ in range(1000):
            chain.advance(chain.minibatch())

    Args:
        task: The likelihood; its parameters are the weights.
        make_sampler: Called with the parameters, returns a sampler.
        draws: Which states are draws.
        make_schedule: Called with the sampler, returns the scheduler of its step size.
        burn_in_optimizer: Takes the first steps instead of the sampler; None for none.
        gradients: How the sampler's gradients are estimated from a minibatch; None for the
            minibatch's own, which the optimizer takes in any case. ``"auto"`` is the minibatch's
            own until :meth:`use_gradients` is called.
        num_chains: K.
        starts: Where the other chains start than the first: see
            :func:`~lightning_sgmcmc.chain.starts`. By default anew as the network was initialised,
            and alike where weights are ``pretrained``, but for those that the file does not give.
        sample: Shell patterns of the names of the weights to sample; None samples all.
        pretrained: File whose weights the network starts from.
        num_data: N; None takes the length of the training set.
        freezes: Whether C is frozen where burn-in ends.
        collapse_head: Integrate the task's head out, and draw it exactly at every draw: see
            :class:`~lightning_sgmcmc.chain.head.CollapsedHead`. ``"auto"`` does so where it can
            be done and all the data go into every step; a note says why where it does not.

    Attributes:
        steps: Steps taken, the optimizer's included.
        last_loss: Mean loss of the last minibatch, [] or [K].
        last_lr: Step size of the last step.
        draw_weight: Weight in averages of the state that the last step made.
        head: The head that is integrated out; None for none.
        stream: The minibatch stream; None where a loader of another kind is used.
        loader: What :meth:`bind` was given.
        num_data: N where it was given, None where the data tell.
        control: The control variate that may be chosen; None where nothing is to be chosen.
        target: The potential; None before :meth:`bind`.
        gradients: The gradient estimator, this chain's own.
        processes: The processes that run chains together.
        groups: The numbers of the chains of each process that has chains of its own.
    """

    def __init__(
        self,
        task: Task,
        make_sampler: MakeSampler,
        draws: DrawSchedule,
        make_schedule: Callable[[Optimizer], LRScheduler] = ConstantStep,
        *,
        burn_in_optimizer: OptimizerBurnIn | None = None,
        gradients: GradientEstimator | Literal["auto"] | None = None,
        num_chains: int = 1,
        starts: Starts | None = None,
        sample: Sequence[str] | None = None,
        pretrained: str | None = None,
        num_data: int | None = None,
        freezes: bool = True,
        collapse_head: bool | Literal["auto"] = False,
    ) -> None:
        self.task, self.draws, self.freezes = task, draws, freezes
        self.num_chains, self.num_data = num_chains, num_data
        self._make_sampler, self._make_schedule = make_sampler, make_schedule
        self._stand_in = checks.tried(make_sampler)  # of one weight, with the sampler's settings
        self._burn_in_optimizer = burn_in_optimizer
        self._given_gradients = gradients
        self._begin_gradients()
        self._starts: Starts | None = starts
        self._sample, self._pretrained = sample, pretrained
        self.stack: ChainStack | None = None
        self.stream: BatchStream | None = None
        self.loader: Any = None
        self._received: Callable[[Any], Batch] = _as_it_is
        #: Minibatches for what is measured beside the steps: the stream, or those of another
        #: loader's examples; None where these are not known.
        self.spare: BatchStream | SpareMinibatches | None = None
        self.target: Target | None = None
        self.processes = Processes()
        self.groups = [list(range(num_chains))]
        self.steps = 0
        self.last_loss, self.last_lr = torch.zeros(()), 0.0
        self.draw_weight = 1.0
        self._sampler: Sampler | None = None
        self._optimizers: list[Optimizer] = []
        self._schedulers: list[LRScheduler] = []
        self._selected: list[str] | None = None
        self.head: CollapsedHead | None = None
        self.collapse_head = collapse_head
        self._alike: set[str] = set()
        self._prepared = self._one_network = self._task_checked = False
        self._randomised: RandomisedMAP | None = None

    def _begin_gradients(self) -> None:
        given = self._given_gradients
        self.control = ControlVariate() if given == "auto" else None
        # A copy: the centre of one chain is not that of another, or of another fit.
        self.gradients: GradientEstimator = (
            Minibatch() if given is None or isinstance(given, str) else copy.copy(given)
        )

    # Before the first step.

    def select(self) -> None:
        """Load pretrained weights and choose which are sampled; once, before any work.

        Raises:
            ValueError: If a file or a name does not fit the task, a layer normalises by the
                statistics of a minibatch, or one draws masks at a temperature above 0.
        """
        checks.refuse_batch_statistics(self.task)
        if self._stand_in.temperature > 0:
            checks.refuse_dropout(self.task)
        chosen = set(self.sampled)
        checks.refuse_embeddings(self.task, chosen)
        if self._prepared:
            return
        self._prepared = True
        if self._pretrained is not None:
            anew = load_pretrained(self.task, self._pretrained, chosen)
            if self._starts is None:
                self._alike = chosen.difference(anew)
        for name, parameter in self.task.named_parameters():
            parameter.requires_grad = name in chosen  # requires_grad_() fails for lazy ones

    def place(self, processes: Processes | None = None, stream: BatchStream | None = None) -> None:
        """Put every chain of this process where it starts, stacked if there are several.

        Args:
            processes: That run chains together; None for this one alone.
            stream: What :meth:`bind` will be given, as far as it is known.

        Raises:
            ValueError: If the head cannot be integrated out, and is to be.
        """
        self._begin_gradients()
        self.processes = processes or Processes()
        if self.collapse_head and self.head is None:
            try:
                self.head = self._collapsed(stream)
            except ValueError as reason:
                self.sample_head(reason)
        before = self.processes.chains_before(self.num_chains)
        sampler = self._stand_in
        first = sampler.chain + before
        self.groups = self.processes.groups(self.num_chains, sampler.chain)
        if self.stack is not None or (self.num_chains == 1 and not before):
            return
        numbers = range(first, first + self.num_chains)
        kind = self._starts or ("same" if self._alike == set(self.sampled) else "reinitialise")
        drawn = starts(
            self.task, self.sampled, kind, sampler.seed, numbers, sampler.prior, self._alike
        )
        own = dict(self.task.named_parameters())
        if self.num_chains == 1:
            with torch.no_grad():
                for name in self.sampled:
                    own[name].copy_(drawn[0][name])
            return
        for name in self.sampled:
            own[name].requires_grad_(False)
        self.stack = ChainStack(self.task, drawn).to(own[self.sampled[0]].device)
        if any(layer._compiled_call_impl is not None for layer in self.task.modules()):
            rank_zero_info(f"Note: the {self.num_chains} chains run the network uncompiled")

    def _collapsed(self, stream: BatchStream | None) -> CollapsedHead:
        head = CollapsedHead(self.task, self.sampled, self.evaluate)
        if self.collapse_head == "auto":
            checks.check_collapsed(self._stand_in, stream, self.processes, self._starts)
            head.take_prior(self._whole_prior())
        return head

    def sample_head(self, reason: ValueError) -> None:
        """Sample the head with the other weights, where ``collapse_head`` leaves the choice.

        Args:
            reason: Why it cannot be integrated out; raised where it is to be.
        """
        if self.collapse_head != "auto":
            raise reason
        self.collapse_head = False
        rank_zero_info(f"Note: the last layer is sampled with the others: {reason}")

    def build(self) -> tuple[list[Optimizer], list[LRScheduler]]:
        """Build the sampler and, if there is one, the burn-in optimizer, each with its schedule.

        Raises:
            RuntimeError: If nothing was chosen to be sampled yet.
        """
        if not self._prepared:
            raise RuntimeError(
                f"select() was not called, in which the chain's weights are chosen: a setup(stage) "
                f"of {type(self.task).__name__} has to call super().setup(stage)"
            )
        if self.head is not None:
            self.head.take_prior(self._whole_prior())
        self._sampler = sampler = self._build_sampler()
        sampler.set_first_chain(sampler.chain + self.processes.chains_before(self.num_chains))
        self._optimizers, self._schedulers = [sampler], [self._make_schedule(sampler)]
        checks.check_schedule(sampler, self._schedulers[0])
        if self._burn_in_optimizer is not None:
            optimizer, scheduler = self._burn_in_optimizer.build(sampler.params)
            self._optimizers.append(optimizer)
            self._schedulers.append(scheduler)
        return self._optimizers, self._schedulers

    def _build_sampler(self) -> Sampler:
        if self.stack is None:
            own = dict(self.task.named_parameters())
            return self._sampler_of([(name, own[name]) for name in self.moved])
        named, reason = self._stacked(), self._unstackable()
        if reason is None:
            return self._sampler_of(Stacked(named))
        rank_zero_info(f"Note: the {self.num_chains} chains run in turn: {reason}")
        return ChainsInTurn(self._sampler_of, named)

    def _stacked(self) -> list[tuple[str, Tensor]]:
        """Return the weights that the sampler moves, [K, ...], by name."""
        assert self.stack is not None
        weights = dict(zip(self.stack.names, self.stack.weights, strict=True))
        return [(name, weights[name]) for name in self.moved]

    def _unstackable(self) -> str | None:
        """Return why the chains cannot run as one computation, which may go by their size."""
        first = [(name, nn.Parameter(p.detach()[0])) for name, p in self._stacked()]
        return self._sampler_of(first).unstackable

    def _sampler_of(self, named: list[Any]) -> Sampler:
        """Return a sampler of some of the weights, with the part of the prior that is theirs."""
        sampler = self._make_sampler(named)
        if self.head is not None:
            sampler.prior = sampler.prior.restricted_to(self.moved)
            sampler.prior.attach(sampler.params, sampler.chain_dims, self.moved)
        return sampler

    def bind(self, loader: Any, received: Callable[[Any], Batch] | None = None) -> None:
        """Give the sampler N and its target, and a minibatch stream the chains' seeds and shards.

        Args:
            loader: A :class:`BatchStream`, or a loader of another kind.
            received: Puts a batch of another kind of loader where a step takes it; by default it is
                there.

        Raises:
            ValueError: If N is unknown, or the sampler's law does not hold under these minibatches.
        """
        sampler, processes = self.sampler, self.processes
        self.loader = loader
        self.stream = loader if isinstance(loader, BatchStream) else None
        if self.stream is not None:
            self.stream.bind(
                sampler.params[0].device,
                sampler.seed,
                sampler.chain,
                processes.rank,
                processes.size,
                sampler.batches,
                sampler.num_chains,
            )
        else:
            self._received = received or _as_it_is
        sampler.num_data = self.size_of(loader)
        place = sampler.seed, sampler.chain, processes.rank, processes.size
        self.spare = self.stream or SpareMinibatches.of(loader, self._received, *place)
        sampler.batch_size = checks.batch_size(loader, processes.size)
        checks.check_batches(sampler, loader)
        checks.check_gradients(sampler, self.gradients, self.stream)
        if self.head is not None:
            checks.check_collapsed(sampler, self.stream, processes, self._starts)
            self.head.bind(self.minibatch(0))
        self._attach_target()
        checks.check_freezing(sampler, self.draws, self.freezes)
        if self._starts == "randomised_map":
            stream = checks.check_randomised(sampler, self.stream, self.optimizer_steps)
            self._randomised = RandomisedMAP(self.task, sampler, stream)

    def size_of(self, loader: Any) -> int:
        """Return N: what the chain or its sampler was given, or the examples behind a loader."""
        given = self.num_data or self.sampler.given_num_data
        return given or checks.training_set_size(loader)

    def check_task(self, batch: Batch | None = None) -> None:
        """Check the task on a few examples, once, before the first step.

        See :class:`~lightning_sgmcmc.chain.probe.TaskProbe`.

        Args:
            batch: A batch of a loader whose examples are not known; None where there is none yet.
        """
        if self._task_checked or self.steps:
            return
        self._check_alike()
        examples = batch if self.spare is None else self.spare.spread(EXAMPLES)
        if examples is None:
            return
        assert self.target is not None
        weights = dict(self.task.named_parameters())
        if self.stack is not None:
            weights = dict(zip(self.stack.names, self.stack.weights, strict=True))
        sampled = {name: weights[name] for name in self.sampled}
        temperature = self.sampler.temperature
        TaskProbe(self.task, self.evaluate, sampled, self.target, temperature).check(examples)
        self._task_checked = True

    def _check_alike(self) -> None:
        """Raise ValueError if chains of other processes have other weights that are not sampled."""
        if self.processes.data_parallel or self.processes.count == 1:
            return
        own = 0
        for _, tensor in sorted(self.constants().items()):
            content = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
            own = zlib.crc32(content.numpy().tobytes(), own)
        every = self.processes.gather(torch.tensor(own, device=self.device))
        if bool((every != own).any()):
            raise ValueError(
                "the processes have different weights or buffers that are not sampled, so that "
                "their chains would be of different posteriors: build the network alike in all of "
                "them, by seed_everything or pretrained weights"
            )

    def _whole_prior(self) -> Prior:
        """Return the prior of all sampled weights, the head's included."""
        own = dict(self.task.named_parameters())
        alone = self._make_sampler([(name, own[name]) for name in self.sampled])
        alone.prior.check()
        return alone.prior

    def _attach_target(self) -> None:
        """Make the target with all that the sampler needs, and attach it."""
        sampler, processes = self.sampler, self.processes
        reduce = processes.average_ if processes.size > 1 else None
        assert sampler.num_data is not None
        self.target = target = Target(
            self._nll,
            sampler.params,
            sampler.num_data,
            sampler.prior,
            reduce,
            sampler.chain_dims,
        )
        if "per_example" in sampler.needs:
            target.per_example = PerExample(
                self.task,
                self.sampled,
                sampler.params,
                self.task.nll,
                chain_dims=sampler.chain_dims,
                shared_batch=not self.own_batches,
                reduce=reduce,
                world_size=processes.size,
            )
            target.draw_labels = self._labels()
            target.label_uniforms = self.task.label_uniforms
        sampler.attach(target)
        target.correction = self._correction
        if self.stream is not None:
            self._bind(self.gradients)

    def _labels(self) -> Callable[[Batch, Tensor], Batch] | None:
        """Return how a batch gets labels drawn from the model, None where the task does not say."""
        if type(self.task).draw_labels is Task.draw_labels:
            return None
        if self.stack is not None and not self.own_batches:
            raise ValueError(
                "labels drawn from the model need minibatches of each chain's own: train on a "
                'BatchStream that is not "full"'
            )
        return lambda batch, uniforms: self.evaluate("draw_labels", (batch, uniforms), True)

    @property
    def _waiting(self) -> ControlVariate | None:
        """The control variate that may be chosen, unless it is in use."""
        return None if self.control is self.gradients else self.control

    def centred_control(self) -> ControlVariate:
        """Return the control variate that may be chosen, about its centre.

        The centre is taken when this is called first, whether it is chosen there or not.

        Raises:
            ValueError: If the likelihood has random layers.
        """
        control = self.control
        assert control is not None
        if control is not self.gradients:
            self._bind(control)
        self.prepare(control)
        return control

    def prepare(self, estimator: GradientEstimator) -> None:
        """Take an estimator's centre, where the next step is one at which it is due."""
        burn_in, masks = self.draws.burn_in, self.sampler.masks
        estimator.prepare(self.steps, self.optimizer_steps, burn_in, masks)

    def use_gradients(self, kind: type[GradientEstimator]) -> None:
        """Estimate the sampler's gradients by what was chosen from now on.

        Raises:
            ValueError: If it does not fit the sampler or the minibatches.
        """
        control = self.control if kind is ControlVariate else None
        estimator, before = control or kind(), self.gradients
        checks.check_gradients(self.sampler, estimator, self.stream)
        self._bind(estimator)
        if before is not self.control:
            estimator.evaluations += before.evaluations
        self.gradients = estimator

    def keep_gradients(self) -> None:
        """Choose no more: the gradients stay as they are."""
        if self._waiting is not None:
            self.gradients.evaluations += self._waiting.evaluations
        self.control = None

    def _bind(self, estimator: GradientEstimator) -> None:
        assert self.target is not None
        assert self.stream is not None
        estimator.bind(self.target, self.stream.whole, self.stream.batches_a_pass)

    def load_gradients(self, state: dict[str, Any]) -> None:
        """Continue the gradient estimator of a state, before :meth:`bind`."""
        if self.control is not None:
            kinds = {kind.__name__: kind for kind in CHOICES}
            self.gradients = kinds[state["chosen"] or "Minibatch"]()
            # An earlier version had not chosen yet, or for good.
            if state.get("control") is None and state["chosen"] is not None:
                self.control = None
            elif type(self.gradients) is ControlVariate:
                self.control = self.gradients
            elif state["chosen"] is not None:
                self.control.load_state_dict(state["control"])
        self.gradients.load_state_dict(state)

    def gradients_state(self) -> dict[str, Any]:
        """Return what :meth:`load_gradients` takes, for a checkpoint, of weights alone or of all.

        Raises:
            NonFiniteGradientError: If the chain has gone on from a gradient that is not finite.
        """
        self.sampler.look_back()
        control = None if self.control is None else self.control.state_dict()
        chosen = type(self.gradients).__name__
        return self.gradients.state_dict() | {"chosen": chosen, "control": control}

    # A step.

    def first_minibatches(self, count: int) -> list[Batch]:
        """Return minibatches that stand for the data, one where each is all of them."""
        if self.spare is not None:
            whole = self.spare.sampling == "full"
            return [self.spare.at(i) for i in range(1 if whole else count)]
        loader = self.loader
        if isinstance(loader, DataLoader):
            loader = copy.copy(loader)
            loader._iterator = None  # workers that persist serve one pass at a time
        with isolated(self.sampler.seed, self.sampler.chain):
            batches = [self._received(batch) for batch in islice(loader, count)]
        self.check_task(batches[0] if batches else None)
        return batches

    def minibatch(self, step: int | None = None) -> Batch:
        """Return the stream's minibatch of a step, by default of the next one."""
        assert self.stream is not None
        return self.stream.at(self.steps if step is None else step)

    def advance(
        self,
        batch: Batch,
        step: Callable[[int, Callable[[], Tensor] | None], Any] | None = None,
        backward: Callable[[Tensor], None] = Tensor.backward,
    ) -> Tensor:
        """Take one step of the burn-in optimizer or of the sampler.

        Args:
            batch: A minibatch.
            step: Called with 0 for the sampler or 1 for the optimizer, and with a closure or None,
                takes that one's step; by default directly. Lightning counts its own.
            backward: Computes the gradients of a loss.

        Returns:
            The mean loss at the old weights, [] or [K].
        """
        self.check_task(batch)
        which = 0 if self.sampling_now else 1
        self.last_lr = self.lr
        take = step or self._take_step
        if which:
            self.last_loss = self._optimizer_step(batch, take, backward).detach()
        else:
            # Before the gradient at the weights: a task may keep what its last ``nll`` computed.
            moves = self.gradients.exact  # with the weights, which a sampler may move before
            known = None if moves else self._counted_correction(batch)

            def closure() -> Tensor:
                correction = self._counted_correction(batch) if moves else known
                self.sampler.zero_grad()
                loss = self._gradient(batch, backward)
                self._correct(correction)
                return loss

            self.last_loss = take(0, closure).detach()
            self.draw_weight = self._weight()
        self.steps += 1
        self._schedulers[which].step()
        return self.last_loss

    def _take_step(self, which: int, closure: Callable[[], Tensor] | None) -> Any:
        optimizer: Any = self._optimizers[which]
        return optimizer.step(closure)

    def _optimizer_step(self, batch: Batch, take: Any, backward: Any) -> Tensor:
        sampler, randomised = self.sampler, self._randomised
        if randomised is not None:
            batch = randomised.at(self.steps)
        self._optimizers[1].zero_grad()
        loss = self._gradient(batch, backward)
        with torch.no_grad():
            grads = present_gradients(sampler.params)
            steps.update(sampler.preconditioner, grads, sampler.params, sampler.stream)
            sampler.add_prior_gradient_()
            if randomised is not None:
                randomised.add_anchor_(grads)
        take(1, None)
        sampler.apply_masks_()
        if sampler.prior.adaptive and not sampler.prior.frozen:
            sampler.prior.update(sampler.params)
        return loss

    def _gradient(self, batch: Batch, backward: Callable[[Tensor], None]) -> Tensor:
        """Return the mean loss of a batch, [] or [K], with its gradients in place."""
        assert self.target is not None
        self.target.use(batch)
        with self.target.recording():
            loss = self._nll(batch).mean(-1)
            backward(loss.sum())
        return loss

    def _counted_correction(self, batch: Batch) -> list[Tensor] | None:
        correction = self._correction(batch)
        self.gradients.evaluations += correction is not None
        return correction

    def _correction(self, batch: Batch) -> list[Tensor] | None:
        """Return what the estimator adds to the gradient of a batch at the present weights."""
        self.prepare(self.gradients)
        return self.gradients.correction(batch)

    def _correct(self, correction: list[Tensor] | None) -> None:
        """Add a correction to the gradients in place."""
        if correction is not None:
            with torch.no_grad():
                torch._foreach_add_(present_gradients(self.sampler.params), correction)

    def _nll(self, batch: Batch) -> Tensor:
        """Return the negative log-likelihood that the chain moves under, [B] or [K, B]."""
        if self.head is not None:
            return self.head.nll(batch)
        nll: Tensor = self.evaluate("nll", batch, self.own_batches)
        return nll

    def _weight(self) -> float:
        """Return the weight of the state that a step has just made."""
        return self.sampler.draw_weight() if self.draw_weights == "time" else 1.0

    @property
    def draw_weights(self) -> Literal["time", "equal"]:
        """How draws count in averages: by the time of their steps or alike."""
        return self.draws.resolved_weights(self.sampler.iterates)

    @property
    def base_lr(self) -> float:
        """The step size that the sampler's schedule starts from, without the schedule's factor."""
        return float(self.schedule.base_lrs[0])

    def set_lr(self, lr: float) -> None:
        """Change the step size that the schedule starts from, keeping the schedule's factor."""
        scheduler = self._schedulers[0]
        assert isinstance(scheduler, LambdaLR)
        self.sampler.set_lr(lr)
        scheduler.base_lrs = [lr]
        self.sampler.param_groups[0]["lr"] = lr * scheduler.lr_lambdas[0](scheduler.last_epoch)

    # Its weights, as networks.

    def evaluate(self, method: str, batch: Batch, stacked: bool = False) -> Any:
        """Return ``nll``, ``predictive`` or another method of a batch under the chains' weights.

        Args:
            method: A method of the task.
            batch: A batch.
            stacked: Whether each of K chains has a batch of its own, along the first axis.

        Returns:
            What the method returns, a tensor or several, with K chains along a new first axis if
            there are several.
        """
        if self.stack is None or self._one_network:
            return getattr(self.task, method)(batch)
        return self.stack.evaluate(method, batch, stacked)

    @contextmanager
    def holding(self, weights: Mapping[str, Tensor]) -> Iterator[None]:
        """Be one network with these weights for a while, whatever the chains are."""
        with holding(self.task, weights):
            self._one_network = True
            try:
                yield
            finally:
                self._one_network = False

    def complete(self) -> None:
        """Give the states all their weights: a head that is integrated out is drawn here."""
        if self.head is not None:
            states = {n: self.state(k) for k, n in enumerate(self.numbers)}
            self.head.draw(self.minibatch(0), states, self.sampler.seed, self.steps)

    def state(self, index: int) -> dict[str, Tensor]:
        """Return the sampled weights of this process's chain number ``index``, by name."""
        if self.stack is not None:
            return self.stack.state_of(index)
        own = dict(self.task.named_parameters())
        return {name: own[name].detach() for name in self.sampled}

    def constants(self) -> dict[str, Tensor]:
        """Return the part of the task's state that is not sampled, by name."""
        chosen = set(self.sampled)
        state: dict[str, Tensor] = self.task.state_dict()
        return {n: t for n, t in state.items() if n not in chosen and not n.startswith("chains.")}

    # What it is.

    @property
    def sampler(self) -> Sampler:
        """The sampler.

        Raises:
            RuntimeError: Before :meth:`build`.
        """
        if self._sampler is None:
            raise RuntimeError("the chain has no sampler yet: it is built where training starts")
        return self._sampler

    @property
    def sampled(self) -> list[str]:
        """The names of the sampled weights."""
        if self._selected is None:
            self._selected = sampled_names(self.task, self._sample)
        return self._selected

    @property
    def moved(self) -> list[str]:
        """The names of the weights that the sampler moves: sampled, and of no collapsed head."""
        head = self.head.names if self.head is not None else ()
        return [name for name in self.sampled if name not in head]

    @property
    def device(self) -> torch.device:
        """Where the chain is."""
        return self.sampler.params[0].device

    @property
    def numbers(self) -> range:
        """The numbers of the chains of this process."""
        first = self.sampler.chain
        return range(first, first + self.num_chains)

    @property
    def in_turn(self) -> bool:
        """Whether K chains are moved one after another."""
        return self.stack is not None and self._unstackable() is not None

    @property
    def own_batches(self) -> bool:
        """Whether each of several chains has minibatches of its own."""
        perturbed = self._randomised is not None and not self.sampling_now
        return perturbed or (self.stream is not None and self.stream.stacked)

    @property
    def optimizer_steps(self) -> int:
        """Steps that the burn-in optimizer takes."""
        return self._burn_in_optimizer.steps if self._burn_in_optimizer else 0

    @property
    def sampling_now(self) -> bool:
        """Whether the sampler, not the burn-in optimizer, takes the next step."""
        return self.steps >= self.optimizer_steps

    @property
    def schedule(self) -> LRScheduler:
        """The scheduler of the sampler's step size."""
        return self._schedulers[0]

    @property
    def batch_law(self) -> str:
        """How minibatches are drawn, ``"dataloader"`` where a loader of another kind is used."""
        return self.stream.sampling if self.stream is not None else "dataloader"

    @property
    def num_gradients(self) -> int:
        """Minibatch gradients computed so far by a chain, all kinds counted."""
        taken = self.sampler.gradients + min(self.steps, self.optimizer_steps)
        waiting = 0 if self._waiting is None else self._waiting.evaluations
        return taken + self.gradients.evaluations + waiting

    @property
    def lr(self) -> float:
        """The step size of whatever takes the next step."""
        if self.sampling_now:
            return self.sampler.lr
        return float(self._optimizers[1].param_groups[0]["lr"])

    def log_row(self) -> dict[str, float]:
        """Return the last minibatch's loss and the kinetic temperature, means over all chains.

        A sampler without momentum has no temperature. Processes talk once.
        """
        values = {"train/nll": self.last_loss}
        measure = getattr(self.sampler, "kinetic_temperature", None)
        temperature = measure() if measure is not None else None
        if temperature is not None:
            own = torch.full_like(self.last_loss, temperature, dtype=torch.float64)
            values["kinetic_temperature"] = own
        each = torch.stack(list(values.values()))
        return dict(zip(values, self.processes.mean_of_chains(each), strict=True))

    def notes(self) -> list[str]:
        """Return, in words, where this chain's target is not the posterior at T = 1."""
        law = checks.sampling_of(self.loader) if self.stream is None else self.stream.sampling
        notes = checks.target_notes(self.sampler, self.freezes, law)
        shares_noise = self.stream is None or self.stream.sampling != "full"
        if self.stack is not None and not self.own_batches and shares_noise:
            notes.append("the chains share their minibatches, so that they are not independent")
        return notes


def _as_it_is(batch: Batch) -> Batch:
    return batch
