"""The metric of a Gaussian prior."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lightning_sgmcmc.common.vectors import inner
from lightning_sgmcmc.preconditioners.diagonal import Diagonal

if TYPE_CHECKING:
    from lightning_sgmcmc.target import Target


class PriorMetric(Diagonal):
    """C = diag(v), v the variances of a Gaussian prior; a constant.

    In theta / sqrt(v) the prior is N(0, I) and C the identity. So a chain crosses the prior in the
    same number of steps in every layer, however its widths differ. It fits a posterior that is
    close to its prior in most directions, such as that of a network with a collapsed head.
    """

    #: The prior is known from the target.
    needs_target = True

    def bind(self, target: Target) -> None:
        """Take the variances of the target's prior.

        Raises:
            ValueError: If its log density is not quadratic in every weight.
        """
        super().bind(target)
        shapes = [torch.zeros_like(p, dtype=torch.float64) for p in target.params]
        # A mixture of Gaussians has the slope of its wide one but near 0.
        values = (0.0, 1e-6, 1e-4, 1e-2, 1.0, 2.0)
        slopes = [[torch.zeros_like(z) for z in shapes] for _ in values]
        for value, slope in zip(values, slopes, strict=True):
            target.prior.add_gradient_(slope, [z + value for z in shapes], 1.0)
        for value, slope in zip(values[1:], slopes[1:], strict=True):
            for first, s in zip(slopes[0], slope, strict=True):
                s.sub_(first).div_(value)
        precision = slopes[-1]
        if not all(
            bool((p > 0).all()) and torch.allclose(p, q)
            for slope in slopes[1:]
            for p, q in zip(precision, slope, strict=True)
        ):
            raise ValueError(f"PriorMetric needs a Gaussian prior, got {target.prior!r}")
        precision = [s.to(p.dtype) for s, p in zip(precision, target.params, strict=True)]
        self._precision = precision
        self._root = [p.rsqrt() for p in precision]

    def root(self) -> list[Tensor]:
        """Return sqrt(v)."""
        return self._root

    def apply_(self, vectors: list[Tensor]) -> list[Tensor]:
        """Return v times ``vectors``, in place."""
        torch._foreach_div_(vectors, self._precision)
        return vectors

    def inverse_norm(self, vectors: Sequence[Tensor]) -> Tensor:
        """Return the sum of vectors^2 / v."""
        scaled = torch._foreach_mul(list(vectors), self._precision)
        return inner(scaled, vectors, self.chain_dims)
