"""HASGLD-SA's metric as a full matrix, for problems of some hundred weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_sgmcmc import Preconditioner
from lightning_sgmcmc.common.vectors import dot, flatten, unflatten
from lightning_sgmcmc.noise import NoiseStream
from lightning_sgmcmc.preconditioners.lbfgs_operator import LBFGSOperator


class DenseLBFGS(Preconditioner):
    """C_k = (1 - omega_k) C_(k-1) + omega_k G~_k as a matrix, its noise by Cholesky.

    G~_k is the damped L-BFGS inverse of the last M pairs (Wang, Deng, Lin 2020, eq. 13), omega_k =
    min(1, c1 (k + c2)^-power). It is the exact form of ``AveragedLBFGS``, whose arguments it
    shares, at d^2 numbers a chain and d^3/3 operations a step while it adapts; stacked chains have
    a matrix each.

    Args:
        memory: Number of pairs M.
        r: Damping threshold in (0, 1).
        delta: Floor of gamma on the scale of the sum over the data.
        omega: (c1, c2, power).
    """

    adaptive = True
    needs_second_gradient = True

    def __init__(
        self,
        memory: int = 1,
        r: float = 0.25,
        delta: float = 1e-3,
        omega: tuple[float, float, float] = (5.0, 10.0, 0.9),
    ) -> None:
        super().__init__()
        self.memory, self.r, self.delta, self.omega = memory, r, delta, omega
        self.matrix = self._root = torch.eye(1)
        self._gamma = torch.ones(1)
        self._pairs: list[tuple[Tensor, Tensor]] = []
        self._count = 0

    def attach(self, params: Sequence[Tensor], chain_dims: int = 0) -> None:
        """Forget everything; C = I until the first gradient."""
        super().attach(params, chain_dims)
        vector = flatten([p.detach() for p in params], chain_dims)
        self._gamma = torch.ones_like(vector[..., :1])
        self._pairs, self._count = [], 0
        self._set(torch.diag_embed(torch.ones_like(vector)))

    def _set(self, matrix: Tensor) -> None:
        self.matrix = matrix
        self._root = torch.linalg.cholesky(matrix)

    def update(self, grads: Sequence[Tensor]) -> None:
        """Before the first pair, make the first move short: C = I / |g|_1."""
        if self._count == 0:
            vector = flatten(grads, self.chain_dims)
            self._gamma = vector.abs().sum(-1, keepdim=True)
            self._set(torch.diag_embed((1 / self._gamma).expand_as(vector)))

    def observe(
        self, moved: Sequence[Tensor], change: Sequence[Tensor], noise: NoiseStream
    ) -> None:
        """Take in a pair (s, y) and average the matrix that it makes into C."""
        s, y = flatten(moved, self.chain_dims), flatten(change, self.chain_dims)
        self._pairs = [*self._pairs, (s, y)][-self.memory :]
        sy = dot(s, y)
        gamma = (dot(y, y) / sy).clamp_min(self.delta / self.num_data)
        self._gamma = torch.where(sy > 0, gamma, self._gamma)
        newest = LBFGSOperator(
            [s.unsqueeze(-2) for s, _ in self._pairs],
            [y.unsqueeze(-2) for _, y in self._pairs],
            self._gamma.unsqueeze(-1),
            self.r,
        )
        c1, c2, power = self.omega
        rate = min(1.0, c1 * (self._count + c2) ** -power)
        self._count += 1
        rows = newest.apply(torch.diag_embed(torch.ones_like(s)))
        self._set(torch.lerp(self.matrix, rows, rate))

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
        """Return the matrix and the pairs."""
        return super().state_dict() | {
            "matrix": self.matrix,
            "gamma": self._gamma,
            "pairs": self._pairs,
            "count": self._count,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the matrix and the pairs."""
        super().load_state_dict(state)
        self._gamma, self._count = state["gamma"], state["count"]
        self._pairs = [(s, y) for s, y in state["pairs"]]
        self._set(state["matrix"])

    def __repr__(self) -> str:
        return f"DenseLBFGS(memory={self.memory}, r={self.r:g}, delta={self.delta:g})"
