"""Gaussian prior whose variance, one a tensor, has a prior of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_sgmcmc.common.vectors import per_chain
from lightning_sgmcmc.priors.base import Prior, finite, positive


class NormalInverseGammaPrior(Prior):
    """The weights of a tensor are N(mean, v) with one v ~ InverseGamma(a, b), integrated out.

    With S = ||theta - mean||^2 over the n entries of a tensor,

        log p = lgamma(a + n/2) - lgamma(a) + a log b - (n/2) log(2 pi) - (a + n/2) log(b + S/2),
        grad(-log p) = (n/2 + a) / (b + S/2) * (theta - mean),

    a multivariate t with 2a degrees of freedom and scale (b/a) I: each layer finds its own scale
    (Marceau-Caron and Ollivier 2017, who leave a and b open). Tensors are independent.

    Args:
        a: Shape of the inverse gamma, positive.
        b: Scale of the inverse gamma, positive.
        mean: Prior mean of each weight.

    Raises:
        ValueError: If a or b is not positive.
    """

    def __init__(self, a: float = 0.5, b: float = 0.5, mean: float = 0.0) -> None:
        self.a, self.b = positive(a, "the prior's a"), positive(b, "the prior's b")
        self.mean = finite(mean, "the prior's mean")

    def _scales(self, params: Sequence[Tensor]) -> list[tuple[int, Tensor]]:
        """Return n and b + S/2 of each tensor, the latter [] or [K]."""
        parts = []
        for p in params:
            rows = (p - self.mean).reshape(*p.shape[: self.chain_dims], -1)
            parts.append((rows.shape[-1], self.b + 0.5 * rows.square().sum(-1)))
        return parts

    def log_density(self, params: Sequence[Tensor]) -> Tensor:
        """Return log p(theta), differentiable, [] or [K]."""
        parts = []
        for n, scale in self._scales(params):
            shape = self.a + n / 2
            constant = math.lgamma(shape) - math.lgamma(self.a) + self.a * math.log(self.b)
            constant -= n / 2 * math.log(2 * math.pi)
            parts.append(constant - shape * scale.log())
        return torch.stack(parts).sum(0)

    def add_gradient_(
        self, grads: Sequence[Tensor], params: Sequence[Tensor], scale: float
    ) -> None:
        """Add ``scale * (n/2 + a) / (b + S/2) * (theta - mean)`` to ``grads``, in place."""
        for g, p, (n, total) in zip(grads, params, self._scales(params), strict=True):
            g.addcmul_(per_chain(1 / total, p), p - self.mean, value=scale * (n / 2 + self.a))

    @torch.no_grad()
    def max_curvature(self, params: Sequence[Tensor]) -> float:
        """Return the largest curvature over the tensors: that across theta - mean.

        It is (n/2 + a) / (b + S/2), and that along theta - mean lies below it by
        (n/2 + a) S / (b + S/2)^2; a single number has only the latter.
        """
        largest = 0.0
        for n, total in self._scales(params):
            across = (n / 2 + self.a) / total
            along = across * (2 * self.b - total) / total
            largest = max(largest, float((across if n > 1 else along).max()))
        return largest
