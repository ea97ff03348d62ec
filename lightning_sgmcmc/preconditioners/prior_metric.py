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
        zeros = [torch.zeros_like(p) for p in target.params]
        slopes = []
        for value in (0.0, 1.0, 2.0):
            slopes.append([torch.zeros_like(p) for p in target.params])
            target.prior.add_gradient_(slopes[-1], [z + value for z in zeros], 1.0)
        precision = [b - a for a, b in zip(slopes[0], slopes[1], strict=True)]
        again = [b - a for a, b in zip(slopes[1], slopes[2], strict=True)]
        if not all(
            bool((p > 0).all()) and torch.allclose(p, q)
            for p, q in zip(precision, again, strict=True)
        ):
            raise ValueError(f"PriorMetric needs a Gaussian prior, got {target.prior!r}")
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
