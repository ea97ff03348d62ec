"""Distil a posterior ensemble of classifiers into one network (Bayesian dark knowledge)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam, Optimizer

from lightning_sgmcmc.chain.stack import ChainStack
from lightning_sgmcmc.common.arguments import check_optimizer
from lightning_sgmcmc.posterior.posterior import Posterior
from lightning_sgmcmc.posterior.predict import MEMORY, Plan, cut, num_examples

MakeOptimizer = Callable[[Iterable[Any]], Optimizer]

# Spawn key of SeedSequence(seed) for the student's minibatches: (this, step).
_STUDENT = 0xD1571


class Student:
    """A network that learns the predictive distribution of a posterior.

    It minimises over its weights w

        E_x' E_theta KL(p(. | x', theta) || s(. | x', w)) + (lambda / 2 N) ||w||^2

    for theta ~ posterior and inputs x' = x + noise_std z, z ~ N(0, I), around the N training
    inputs; s is the softmax of the network's outputs. Of the divergence only the cross-entropy
    of s with the teacher's probabilities depends on w, and it is linear in these, so that a step
    may see one draw or a mean over draws (Korattikara, Rathod, Murphy, Welling 2015, section 2
    and Algorithm 1, whose gamma is lambda / N).

    A step is a function of weights, optimizer, seed and step number alone.

    Args:
        net: The student, of any architecture; takes the inputs, returns logits [B, C].
        optimizer: Called with the student's parameters, returns the optimizer; None is Adam with
            step size 1e-4.
        batch_size: Examples of a step, at most N.
        noise_std: Standard deviation of the perturbation, in the inputs' units.
        prior_precision: lambda.
        seed: Seed of minibatches and perturbations.

    Raises:
        ValueError: If a value lies outside its range.
    """

    def __init__(
        self,
        net: nn.Module,
        optimizer: MakeOptimizer | None = None,
        batch_size: int = 100,
        noise_std: float = 0.1,
        prior_precision: float = 0.1,
        seed: int = 0,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if noise_std < 0:
            raise ValueError(f"noise_std must not be negative, got {noise_std}")
        if prior_precision < 0:
            raise ValueError(f"prior_precision must not be negative, got {prior_precision}")
        self.net = net
        parameters = list(net.parameters())
        self.optimizer = optimizer(parameters) if optimizer else Adam(parameters, lr=1e-4)
        check_optimizer(self.optimizer)
        self.batch_size, self.noise_std = batch_size, noise_std
        self.prior_precision, self.seed = prior_precision, seed
        #: Steps taken.
        self.steps = 0

    def minibatch(self, data: Any, step: int) -> Any:
        """Return the perturbed minibatch of a step, drawn without replacement.

        Args:
            data: All N examples: the inputs, or a tuple that starts with them.
            step: Number of the step.

        Raises:
            ValueError: If the inputs cannot be perturbed.
        """
        size = num_examples(data)
        sequence = np.random.SeedSequence(self.seed, spawn_key=(_STUDENT, step))
        rows, noise = (np.random.Generator(np.random.Philox(s)) for s in sequence.spawn(2))
        chosen = rows.choice(size, min(self.batch_size, size), replace=False)
        batch = cut(data, torch.from_numpy(chosen).to(_inputs(data).device))
        if not self.noise_std:
            return batch
        x = _inputs(batch)
        if not x.is_floating_point():
            raise ValueError(
                f"inputs of type {x.dtype} cannot be perturbed: set noise_std to 0 for them"
            )
        z = torch.from_numpy(noise.standard_normal(tuple(x.shape), dtype=np.float32))
        moved = x + self.noise_std * z.to(x)
        return moved if isinstance(batch, Tensor) else (moved, *batch[1:])

    @torch.enable_grad()
    def learn(self, batch: Any, probabilities: Tensor, num_data: int) -> Tensor:
        """Take a step towards the teacher's probabilities on a batch.

        Args:
            batch: What :meth:`minibatch` returned.
            probabilities: The teacher's, [B, C].
            num_data: N.

        Returns:
            The mean cross-entropy before the step, [].

        Raises:
            ValueError: If the student's outputs have another shape.
        """
        x = _inputs(batch)
        devices = [x.device] if x.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):  # for a student with dropout
            torch.manual_seed(self.seed + 2**32 * (self.steps + 1))
            self.net.train()
            logits = self.net(x)
        _check_logits(logits, probabilities)
        loss = functional.cross_entropy(logits, probabilities.to(logits))
        squares = sum((p.square().sum() for p in self.net.parameters()), torch.zeros(()).to(loss))
        self.optimizer.zero_grad()
        (loss + 0.5 * self.prior_precision / num_data * squares).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.steps += 1
        return loss.detach()

    @torch.no_grad()
    def check(self, batch: Any, probabilities: Tensor) -> None:
        """Refuse a teacher, or a student, that does not fit the other, without a step.

        Args:
            batch: What :meth:`minibatch` returned.
            probabilities: The teacher's.

        Raises:
            ValueError: If the teacher is no classifier, or the student's outputs have another
                shape than its probabilities.
        """
        check_probabilities(probabilities)
        _check_logits(self.net.eval()(_inputs(batch)), probabilities)

    @torch.no_grad()
    def probabilities(self, x: Tensor, batch_size: int = 1000) -> Tensor:
        """Return the student's probabilities, [B, C]."""
        self.net.eval()
        parts = [self.net(part).double() for part in torch.split(x, batch_size)]
        return torch.softmax(torch.cat(parts), -1)  # in float32 small ones would be 0

    def state_dict(self) -> dict[str, Any]:
        """Return all from which the student goes on exactly."""
        return {
            "net": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "steps": self.steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the student that gave ``state`` stood."""
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.steps = state["steps"]


def distill(
    posterior: Posterior,
    student: nn.Module,
    data: Any,
    *,
    steps: int,
    optimizer: MakeOptimizer | None = None,
    batch_size: int = 100,
    noise_std: float = 0.1,
    prior_precision: float = 0.1,
    draws_per_step: int | None = None,
    seed: int = 0,
    memory: int | str = MEMORY,
) -> nn.Module:
    """Distil stored draws into one network: see :class:`Student`.

    Args:
        posterior: The draws; the module's ``predictive`` returns probabilities [B, C].
        student: The network that learns, in place.
        data: What ``predictive`` takes, of all training examples: inputs [N, ...], or a tuple
            that starts with them. On the module's device, as the student.
        steps: Steps to take.
        optimizer: See :class:`Student`.
        batch_size: See :class:`Student`.
        noise_std: See :class:`Student`.
        prior_precision: See :class:`Student`.
        draws_per_step: Draws, taken at random by their weights, whose mean teaches in a step.
            None takes the weighted mean of all.
        seed: Of minibatches, perturbations and draws.
        memory: Working memory of the teacher; the draws stay in memory besides.

    Returns:
        The student.

    Raises:
        ValueError: If the posterior does not predict probabilities, or a value lies outside its
            range.
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    if draws_per_step is not None and draws_per_step < 1:
        raise ValueError(f"draws_per_step must be at least 1, got {draws_per_step}")
    learner = Student(student, optimizer, batch_size, noise_std, prior_precision, seed)
    teacher = _Teacher(posterior, learner.minibatch(data, 0), draws_per_step, seed, memory)
    size = num_examples(data)
    for step in range(steps):
        batch = learner.minibatch(data, step)
        probabilities = teacher.probabilities(batch, step)
        if step == 0:
            check_probabilities(probabilities)
        learner.learn(batch, probabilities, size)
    return student.eval()


class _Teacher:
    """Stored draws in memory, all of which or some of which teach in a step."""

    def __init__(
        self, posterior: Posterior, batch: Any, per_step: int | None, seed: int, memory: int | str
    ) -> None:
        self.plan = Plan(posterior.module, posterior.loads, "predictive", batch, memory)
        self.per_step, self.seed, self.weights = per_step, seed, posterior.weights
        loads, k = posterior.loads, self.plan.draws
        self.stacks = [
            self.plan.stack([load() for load in loads[i : i + k]]) for i in range(0, len(loads), k)
        ]

    def groups(self, step: int) -> Iterator[tuple[ChainStack, Tensor]]:
        """Yield the draws of a step and their weights, some at a time."""
        k = self.plan.draws
        if self.per_step is None:
            yield from zip(self.stacks, torch.split(self.weights, k), strict=True)
            return
        sequence = np.random.SeedSequence(self.seed, spawn_key=(_STUDENT, step, 2))
        generator = np.random.Generator(np.random.Philox(sequence))
        chosen = generator.choice(len(self.weights), self.per_step, p=self.weights.numpy())
        states = [self.stacks[i // k].state_of(i % k) for i in chosen.tolist()]
        for i in range(0, len(states), k):
            part = states[i : i + k]
            share = torch.full((len(part),), 1 / self.per_step, dtype=torch.float64)
            yield self.plan.stack(part), share

    def probabilities(self, batch: Any, step: int) -> Tensor:
        """Return the mean of the draws' probabilities, [B, C]."""
        mean = torch.empty(0)
        for stack, weights in self.groups(step):
            rows = [
                torch.tensordot(weights.to(outputs[0].device), outputs[0].double(), 1)
                for _, outputs in self.plan.outputs(stack, batch)
            ]
            mean = mean + torch.cat(rows) if mean.numel() else torch.cat(rows)
        return mean


def check_probabilities(predicted: Tensor) -> None:
    """Refuse a teacher that is no classifier.

    Raises:
        ValueError: If the predictions are not probabilities [B, C].
    """
    sums = predicted.sum(-1)
    if not (
        predicted.dim() == 2
        and bool((predicted >= 0).all())
        and torch.allclose(sums, torch.ones_like(sums), atol=1e-3)
    ):
        raise ValueError(
            "distillation needs a classifier whose predictive returns probabilities [B, C] that "
            f"sum to 1, got shape {list(predicted.shape)}"
            + (f" with sums from {sums.min():.3g} to {sums.max():.3g}" if sums.numel() else "")
        )


def _check_logits(logits: Tensor, probabilities: Tensor) -> None:
    if logits.shape != probabilities.shape:
        raise ValueError(
            f"the student must return logits {list(probabilities.shape)} as the teacher's "
            f"probabilities, got {list(logits.shape)}"
        )


def _inputs(data: Any) -> Tensor:
    x = data[0] if isinstance(data, (tuple, list)) else data
    if isinstance(x, (Mapping, tuple, list)):
        raise TypeError(
            f"a student learns from batches (x, ...) with a tensor x, got a {type(x).__name__}"
        )
    inputs: Tensor = x
    return inputs
