"""Scale mixture of two Gaussians, the prior of Bayes by Backprop."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lightning_sgmcmc.priors.base import Prior, positive, total


class ScaleMixturePrior(Prior):
    """Every weight is N(0, std1^2) with probability pi and N(0, std2^2) otherwise, independently.

    With a = 1/std1^2, b = 1/std2^2 and r(theta) = pi N(theta; 0, std1^2) / p(theta),

        log p = sum_j log(pi N(theta_j; 0, std1^2) + (1 - pi) N(theta_j; 0, std2^2)),
        grad(-log p) = theta (r a + (1 - r) b),
        curvature    = r a + (1 - r) b - theta^2 r (1 - r) (a - b)^2,

    which is negative where a weight lies between the two. Source: Blundell et al. 2015, eq. 7,
    who choose pi among 1/4, 1/2 and 3/4, -log std1 among 0, 1 and 2 and -log std2 among 6, 7 and 8.

    Args:
        pi: Weight of the first Gaussian, in (0, 1).
        std1: Standard deviation of the first, positive.
        std2: Standard deviation of the second, positive.

    Raises:
        ValueError: If pi lies outside (0, 1) or a standard deviation is not positive.
    """

    def __init__(self, pi: float = 0.5, std1: float = 1.0, std2: float = math.exp(-6)) -> None:
        if not 0 < pi < 1:
            raise ValueError(f"the prior's pi must lie in (0, 1), got {pi}")
        self.pi = float(pi)
        self.std1 = positive(std1, "the prior's std1")
        self.std2 = positive(std2, "the prior's std2")

    def _logs(self, p: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logs of the two terms of p(theta)."""
        first = math.log(self.pi / self.std1) - 0.5 * math.log(2 * math.pi)
        second = math.log((1 - self.pi) / self.std2) - 0.5 * math.log(2 * math.pi)
        return first - 0.5 * (p / self.std1) ** 2, second - 0.5 * (p / self.std2) ** 2

    def _shares(self, p: Tensor) -> tuple[Tensor, Tensor]:
        """Return r and 1 - r, both to full relative precision: 1/std2^2 is large."""
        first, second = self._logs(p)
        return torch.sigmoid(first - second), torch.sigmoid(second - first)

    def log_density(self, params: Sequence[Tensor]) -> Tensor:
        """Return log p(theta), differentiable, [] or [K]."""
        return total((self._log_density(p) for p in params), self.chain_dims)

    def _log_density(self, p: Tensor) -> Tensor:
        """Return log(e^first + e^second); logaddexp has no second derivative where they differ."""
        first, second = self._logs(p)
        gap = (first - second).abs()
        return torch.maximum(first, second) - nn.functional.logsigmoid(gap)

    def add_gradient_(
        self, grads: Sequence[Tensor], params: Sequence[Tensor], scale: float
    ) -> None:
        """Add ``scale * theta (r a + (1 - r) b)`` to ``grads``, in place."""
        for g, p in zip(grads, params, strict=True):
            r, rest = self._shares(p)
            g.addcmul_(r / self.std1**2 + rest / self.std2**2, p, value=scale)

    @torch.no_grad()
    def max_curvature(self, params: Sequence[Tensor]) -> float:
        """Return the largest curvature over the weights, at least 0."""
        largest = 0.0
        for p in (p for p in params if p.numel()):
            r, rest = self._shares(p)
            bend = r * rest * (p * (self.std1**-2 - self.std2**-2)) ** 2
            curvature = r / self.std1**2 + rest / self.std2**2 - bend
            largest = max(largest, float(curvature.max()))
        return largest
