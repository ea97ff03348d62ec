"""Independent Gaussian prior."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_sgmcmc.priors.base import Prior, finite, positive, total


class GaussianPrior(Prior):
    """Every weight is N(mean, variance), independently.

    -log p(theta) = ||theta - mean||^2 / (2 variance) + (d/2) log(2 pi variance), so the gradient
    of -log p is (theta - mean) / variance: weight decay of 1 / (N variance) on the mean loss.

    Args:
        variance: Prior variance of each weight, positive.
        mean: Prior mean of each weight.

    Raises:
        ValueError: If the variance is not positive.
    """

    def __init__(self, variance: float = 1.0, mean: float = 0.0) -> None:
        self.variance = positive(variance, "the prior's variance")
        self.mean = finite(mean, "the prior's mean")

    def log_density(self, params: Sequence[Tensor]) -> Tensor:
        """Return log p(theta), differentiable, [] or [K]."""
        squares = total(((p - self.mean) ** 2 for p in params), self.chain_dims)
        numel = sum(p.shape[self.chain_dims :].numel() for p in params)
        return -0.5 * (squares / self.variance + numel * math.log(2 * math.pi * self.variance))

    def add_gradient_(
        self, grads: Sequence[Tensor], params: Sequence[Tensor], scale: float
    ) -> None:
        """Add ``scale * (theta - mean) / variance`` to ``grads``, in place."""
        weight = scale / self.variance
        torch._foreach_add_(list(grads), list(params), alpha=weight)
        if self.mean:
            torch._foreach_add_(list(grads), -weight * self.mean)

    def quadratic(self) -> tuple[float, float]:
        """Return 1 / variance and the mean."""
        return 1 / self.variance, self.mean

    def max_curvature(self, params: Sequence[Tensor]) -> float:
        """Return 1 / variance."""
        return 1 / self.variance
