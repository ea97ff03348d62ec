"""A chain whose last layer is integrated out, and drawn exactly at every draw."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_sgmcmc.chain.task import Task
from lightning_sgmcmc.noise import NoiseStream
from lightning_sgmcmc.priors import GaussianPrior, Prior
from lightning_sgmcmc.priors.tensorwise import TensorwiseGaussianPrior
from lightning_sgmcmc.target import Batch
from lightning_sgmcmc.target.linear_head import (
    Targets,
    collapsed_nll,
    conditional_mean,
    conditional_variance,
    draw_head,
    reduced,
)

# Spawn key of SeedSequence(seed) for the head of a state: (chain, this, step).
_HEAD = 0x4EAD


class CollapsedHead:
    """The head of a task: what its chain moves without, and draws where a state is kept.

    The chain moves in the other weights w under the collapsed potential

        U(w) = -log p(Y | w) - log p(w),    p(Y | w) = integral of p(Y | w, W) p(W) dW,

    and a draw is w with W ~ p(W | Y, w) (:mod:`lightning_sgmcmc.target.linear_head`), which
    together are a draw of the posterior. The numbers of W are a function of the seed, the chain
    and the step.

    Args:
        task: The task, which names its head.
        sampled: Names of the sampled weights.
        evaluate: Returns what a method of the task gives for a batch, under the chains' weights.

    Raises:
        ValueError: If the task has no such head, or it is not sampled as a whole.
    """

    def __init__(
        self, task: Task, sampled: Collection[str], evaluate: Callable[[str, Batch], Any]
    ) -> None:
        self._task, self._evaluate = task, evaluate
        name = task.head
        if name is None:
            raise ValueError(
                f"{type(task).__name__} has no head to integrate out: this takes a Gaussian "
                "likelihood whose mean is the output of a last linear layer, scaled by one number"
            )
        parameters = dict(task.named_parameters())
        #: The names of the head's weight and, if there is one, its bias.
        self.names = [n for n in (f"{name}.weight", f"{name}.bias") if n in parameters]
        missing = sorted(set(self.names) - set(sampled))
        if missing:
            raise ValueError(f"collapse_head needs all of the head sampled, {missing[0]} is not")
        if set(self.names) == set(sampled):
            raise ValueError("no weight is left to move when the head is integrated out")
        self._targets = torch.empty(0)
        self._reduced = Targets(self._targets, self._targets, 0)
        self._log_units = self._precision = self._targets

    def bind(self, batch: Batch) -> None:
        """Take in the whole training set."""
        with torch.no_grad():
            targets, log_units = self._task.head_targets(batch)
        self._targets = targets.double()
        self._reduced = reduced(self._targets, torch.finfo(targets.dtype).eps)
        # log |dy / dt| of every example, D log s_i, so that the potential is that of y.
        self._log_units = targets.shape[1] * log_units.double().sum()
        self._precision = self._precision.to(self._targets)

    def take_prior(self, prior: Prior) -> None:
        """Take from the prior of all sampled weights lambda of each feature.

        Raises:
            ValueError: If the head's prior is not a Gaussian of mean 0.
        """
        own = dict(self._task.named_parameters())
        prior = prior.restricted_to(self.names)
        head = [own[name].detach() for name in self.names]
        prior.attach(head, names=self.names)
        if isinstance(prior, GaussianPrior) and not prior.mean:
            variances = [prior.variance] * len(head)
        elif isinstance(prior, TensorwiseGaussianPrior):
            variances = prior.variances(head)
        else:
            raise ValueError(
                f"collapse_head needs a Gaussian prior of mean 0 over {self.names[0]}, "
                f"got {prior!r}"
            )
        self._precision = torch.cat(
            [
                torch.full((p.shape[1] if p.dim() > 1 else 1,), 1 / v, dtype=torch.float64)
                for p, v in zip(head, variances, strict=True)
            ]
        )

    def nll(self, batch: Batch) -> Tensor:
        """Return -log p(Y | w) / N, [1] or [K, 1] in float64, for the whole training set."""
        features, log_sigma = self._evaluate("head_features", batch)
        value = collapsed_nll(features, log_sigma, self._reduced, self._precision)
        return ((value + self._log_units) / len(self._targets))[..., None]

    @property
    def outputs(self) -> int:
        """D, the number of outputs of an example."""
        return self._targets.shape[1]

    def expected(self, whole: Batch, batch: Batch, columns: slice) -> Tensor:
        """Return E[W | Y, w] phi(x) of some of the D outputs, [B, c] or [K, B, c].

        It is differentiable in the other weights, and in the units of ``task.head_targets``.

        Args:
            whole: The whole training set.
            batch: B examples.
            columns: Which outputs.
        """
        features, log_sigma = self._evaluate("head_features", whole)
        targets = self._targets[:, columns]
        mean = conditional_mean(features, log_sigma, targets, self._precision)
        result: Tensor = self._evaluate("head_features", batch)[0].double() @ mean
        return result

    @torch.no_grad()
    def variances(self, whole: Batch, batch: Batch, combinations: Tensor) -> Tensor:
        """Return the variances of combinations of W phi(x) given the other weights, [q] or [K, q].

        Args:
            whole: The whole training set.
            batch: B examples.
            combinations: Factors of some of the D outputs of each example, [q, B, c], in the units
                of ``task.head_targets``.
        """
        features, log_sigma = self._evaluate("head_features", whole)
        phi = self._evaluate("head_features", batch)[0].double()
        covectors = torch.einsum("...bp,qbc->...qpc", phi, combinations.to(phi))
        return conditional_variance(features, log_sigma, self._precision, covectors)

    @torch.no_grad()
    def draw(
        self, batch: Batch, states: Mapping[int, Mapping[str, Tensor]], seed: int, step: int
    ) -> None:
        """Give the head of every chain a draw from its conditional at the present weights.

        Args:
            batch: The whole training set.
            states: The weights of each chain by its number; the head's are overwritten.
            seed: Seed of the run.
            step: Steps that the chains have taken.
        """
        features, log_sigma = self._evaluate("head_features", batch)
        own = log_sigma.shape[features.dim() - 2 :]  # of each example, or none
        features = features.reshape(len(states), *features.shape[-2:])
        log_sigma = log_sigma.reshape(-1, *own).expand(len(states), *own)
        for phi, log_s, (chain, state) in zip(features, log_sigma, states.items(), strict=True):
            weight = state[self.names[0]]
            sequence = np.random.SeedSequence(seed, spawn_key=(chain, _HEAD, step))
            like = self._targets.new_empty(len(weight), len(self._precision))
            normal = NoiseStream([like], int(sequence.generate_state(1)[0])).normal()[0]
            drawn = draw_head(phi, log_s, self._targets, self._precision, normal)
            weight.copy_(drawn[:, : weight.shape[1]])
            for bias in self.names[1:]:
                state[bias].copy_(drawn[:, -1])
