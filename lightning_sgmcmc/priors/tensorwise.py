"""Gaussian priors with a variance for each parameter tensor."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

from torch import Tensor

from lightning_sgmcmc.priors.base import Prior, total


def fan_in(p: Tensor, chain_dims: int) -> int:
    """Return the number of inputs that an output of a weight [out, in, ...] sums; 1 of a bias."""
    shape = p.shape[chain_dims:]
    return max(1, shape[1:].numel()) if len(shape) > 1 else 1


class TensorwiseGaussianPrior(Prior):
    """Every weight of tensor l is N(0, v_l), independently.

    -log p(theta) = sum_l ||theta_l||^2 / (2 v_l) + (n_l / 2) log(2 pi v_l), n_l entries; the
    gradient of -log p in tensor l is theta_l / v_l. Subclasses say what the v_l are.
    """

    @abstractmethod
    def variances(self, params: Sequence[Tensor]) -> list[float]:
        """Return v_l for each tensor."""

    def log_density(self, params: Sequence[Tensor]) -> Tensor:
        """Return log p(theta), differentiable, [] or [K]."""
        variances = self.variances(params)
        pairs = list(zip(params, variances, strict=True))
        constant = sum(
            p.shape[self.chain_dims :].numel() * math.log(2 * math.pi * v) for p, v in pairs
        )
        return -0.5 * (total((p**2 / v for p, v in pairs), self.chain_dims) + constant)

    def add_gradient_(
        self, grads: Sequence[Tensor], params: Sequence[Tensor], scale: float
    ) -> None:
        """Add ``scale * theta_l / v_l`` to ``grads``, in place."""
        for g, p, v in zip(grads, params, self.variances(params), strict=True):
            g.add_(p, alpha=scale / v)

    def max_curvature(self, params: Sequence[Tensor]) -> float:
        """Return 1 / the smallest variance."""
        return 1 / min(self.variances(params))
