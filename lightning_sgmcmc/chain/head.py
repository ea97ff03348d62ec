"""A chain whose last layer is integrated out, and drawn exactly at every draw."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lightning_sgmcmc.noise import NoiseStream
from lightning_sgmcmc.priors import GaussianPrior, Prior
from lightning_sgmcmc.priors.tensorwise import TensorwiseGaussianPrior
from lightning_sgmcmc.target import Batch
from lightning_sgmcmc.target.linear_head import Targets, collapsed_nll, draw_head, reduced

if TYPE_CHECKING:
    from lightning_sgmcmc.chain.chain import Chain

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
        chain: The chain, before its sampler is built.

    Raises:
        ValueError: If the task has no such head, or it is not sampled as a whole.
    """

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        name = chain.task.head
        if name is None:
            raise ValueError(
                f"{type(chain.task).__name__} has no head to integrate out: this takes a Gaussian "
                "likelihood whose mean is the output of a last linear layer, scaled by one number"
            )
        parameters = dict(chain.task.named_parameters())
        #: The names of the head's weight and, if there is one, its bias.
        self.names = [n for n in (f"{name}.weight", f"{name}.bias") if n in parameters]
        missing = sorted(set(self.names) - set(chain.sampled))
        if missing:
            raise ValueError(f"collapse_head needs all of the head sampled, {missing[0]} is not")
        if set(self.names) == set(chain.sampled):
            raise ValueError("no weight is left to move when the head is integrated out")
        self._targets = torch.empty(0)
        self._reduced = Targets(self._targets, self._targets, 0)
        self._log_units = self._precision = self._targets

    def bind(self, batch: Batch) -> None:
        """Take in the whole training set."""
        with torch.no_grad():
            targets, log_units = self.chain.task.head_targets(batch)
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
        own = dict(self.chain.task.named_parameters())
        prior = prior.restricted_to(self.names)
        head = [own[name].detach() for name in self.names]
        prior.attach(head, names=self.names)
        if isinstance(prior, GaussianPrior) and not prior.mean:
            variances = [prior.variance] * len(head)
        elif isinstance(prior, TensorwiseGaussianPrior):
            variances = prior.variances(head)
        else:
            raise ValueError(
                f"collapse_head needs a Gaussian prior of mean 0 over {self.names[0]}, not {prior!r}"
            )
        self._precision = torch.cat(
            [
                torch.full((p.shape[1] if p.dim() > 1 else 1,), 1 / v, dtype=torch.float64)
                for p, v in zip(head, variances, strict=True)
            ]
        )

    def nll(self, batch: Batch) -> Tensor:
        """Return -log p(Y | w) / N, [1] or [K, 1] in float64, for the whole training set."""
        features, log_sigma = self.chain.evaluate("head_features", batch)
        value = collapsed_nll(features, log_sigma, self._reduced, self._precision)
        return ((value + self._log_units) / len(self._targets))[..., None]

    @torch.no_grad()
    def draw(self) -> None:
        """Give the head of every chain a draw from its conditional at the present weights."""
        chain = self.chain
        assert chain.stream is not None
        features, log_sigma = chain.evaluate("head_features", chain.stream.at(0))
        for k, number in enumerate(chain.numbers):
            state = chain.state(k)
            weight = state[self.names[0]]
            rows = (features, log_sigma) if chain.stack is None else (features[k], log_sigma[k])
            normal = self._normal(number, torch.Size([len(weight), len(self._precision)]))
            drawn = draw_head(*rows, self._targets, self._precision, normal)
            weight.copy_(drawn[:, : weight.shape[1]])
            if len(self.names) > 1:
                state[self.names[1]].copy_(drawn[:, -1])

    def _normal(self, chain: int, shape: torch.Size) -> Tensor:
        """Return the standard normal numbers of a chain's head at the present step."""
        key = (chain, _HEAD, self.chain.steps)
        seed = np.random.SeedSequence(self.chain.sampler.seed, spawn_key=key).generate_state(1)
        return NoiseStream([self._targets.new_empty(shape)], int(seed[0])).normal()[0]
