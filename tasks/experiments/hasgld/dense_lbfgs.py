"""HASGLD-SA's metric as a full matrix, for problems of some hundred weights."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lightning_sgmcmc import AveragedLBFGS
from lightning_sgmcmc.common.vectors import flatten, unflatten
from lightning_sgmcmc.noise import NoiseStream
from lightning_sgmcmc.preconditioners.lbfgs_operator import LBFGSOperator


class DenseLBFGS(AveragedLBFGS):
    """C_k = (1 - omega_k) C_(k-1) + omega_k G~_k as a matrix, its noise by Cholesky.

    G~_k is the damped L-BFGS inverse of the last M pairs (Wang, Deng, Lin 2020, eq. 13), omega_k =
    min(1, c1 (k + c2)^-power). It is the exact form of ``AveragedLBFGS``, at d^2 numbers a chain
    and d^3/3 operations a step while it adapts. Stacked chains have a matrix each.

    Args:
        memory: Number of pairs M.
        r: Damping threshold in (0, 1).
        delta: Floor of gamma on the scale of the sum over the data.
        omega: (c1, c2, power).
    """

    def __init__(
        self,
        memory: int = 1,
        r: float = 0.25,
        delta: float = 1e-3,
        omega: tuple[float, float, float] = (5.0, 10.0, 0.9),
    ) -> None:
        super().__init__(memory, r, delta, omega=(math.inf, 1.0, 1.0))
        self.averaging = omega
        self.matrix = self._root = torch.eye(1)

    def _set(self, matrix: Tensor) -> None:
        self.matrix = matrix
        self._root = torch.linalg.cholesky(matrix)

    def _start(self, gamma: Tensor) -> None:
        super()._start(gamma)
        vector = flatten([p.detach() for p in self._like], self.chain_dims)
        self._set(torch.diag_embed((1 / gamma).expand_as(vector)))

    def take_pair(
        self, s: Tensor, y: Tensor, products: tuple[Tensor, Tensor, Tensor], noise: NoiseStream
    ) -> None:
        """Average the matrix that a pair makes into C."""
        count = self._count
        super().take_pair(s, y, products, noise)
        if self._count == count:  # the pair was passed over
            return
        steps, changes = ([v.unsqueeze(-2) for v in vs] for vs in zip(*self._recent, strict=True))
        newest = LBFGSOperator(steps, changes, self._gamma.unsqueeze(-1), self.r)
        c1, c2, power = self.averaging
        rows = newest.apply(torch.diag_embed(torch.ones_like(s)))
        self._set(torch.lerp(self.matrix, rows, min(1.0, c1 * (count + c2) ** -power)))

    def apply_(self, vectors: list[Tensor]) -> list[Tensor]:
        """Return C times ``vectors``."""
        product = self.matrix @ flatten(vectors, self.chain_dims).unsqueeze(-1)
        return unflatten(product.squeeze(-1), vectors, self.chain_dims)

    def noise(self, stream: NoiseStream) -> list[Tensor]:
        """Draw from N(0, C)."""
        z = stream.increments()
        product = self._root @ flatten(z, self.chain_dims).unsqueeze(-1)
        return unflatten(product.squeeze(-1), z, self.chain_dims)

    def state_dict(self) -> dict[str, Any]:
        """Return the matrix too."""
        return super().state_dict() | {"matrix": self.matrix}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the matrix too."""
        super().load_state_dict(state)
        self._set(state["matrix"])

    def __repr__(self) -> str:
        return f"DenseLBFGS(memory={self.memory}, r={self.r:g}, delta={self.delta:g})"
