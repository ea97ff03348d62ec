"""Independent Laplace prior."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_sgmcmc.priors.base import Prior, positive, total


class LaplacePrior(Prior):
    """Every weight is Laplace(0, scale), independently.

    -log p(theta) = |theta|_1 / scale + d log(2 scale), so the gradient of -log p is
    sign(theta) / scale, taken as 0 at the kink theta = 0. A chain crosses the kink in steps, not
    smoothly: with h = lr/N and a metric C its moves C h / scale should be small beside the scale.

    Args:
        scale: Mean of |theta|, positive; the variance is 2 scale^2.

    Raises:
        ValueError: If the scale is not positive.
    """

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = positive(scale, "the prior's scale")

    def log_density(self, params: Sequence[Tensor]) -> Tensor:
        """Return log p(theta), differentiable, [] or [K]."""
        numel = sum(p.shape[self.chain_dims :].numel() for p in params)
        sizes = total((p.abs() for p in params), self.chain_dims)
        return -sizes / self.scale - numel * math.log(2 * self.scale)

    def add_gradient_(
        self, grads: Sequence[Tensor], params: Sequence[Tensor], scale: float
    ) -> None:
        """Add ``scale * sign(theta) / self.scale`` to ``grads``, in place."""
        torch._foreach_add_(
            list(grads), torch._foreach_sign(list(params)), alpha=scale / self.scale
        )
