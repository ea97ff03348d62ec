"""Shampoo's metric, for every sampler of lightning_sgmcmc that takes one."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_sgmcmc import Preconditioner


class Shampoo(Preconditioner):
    """C v = L^-1/4 V R^-1/4 for each tensor v, as a matrix V of outputs by everything else.

    L and R are moving averages of G G' and G' G, G the gradient of the mean likelihood as such a
    matrix, with eps on their diagonals (Gupta, Koren and Singer 2018, Algorithm 1, which sums).
    C = S S' with S z = L^-1/8 Z R^-1/8. Until the first ``every`` gradients C is the identity.

    Args:
        alpha: Memory of the averages, in [0, 1).
        eps: Positive; bounds C by eps^-1/2.
        every: Steps between new roots.
    """

    adaptive = True

    def __init__(self, alpha: float = 0.95, eps: float = 1e-6, every: int = 10) -> None:
        super().__init__()
        if not (0 <= alpha < 1 and eps > 0 and every >= 1):
            raise ValueError(f"need 0 <= alpha < 1, eps > 0, every >= 1: {alpha}, {eps}, {every}")
        self.alpha, self.eps, self.every, self.updates = alpha, eps, every, 0

    def attach(self, params: Sequence[Tensor], chain_dims: int = 0) -> None:
        """Begin with L = R = 0 and C = I."""
        super().attach(params, chain_dims)
        self.updates = 0
        #: L and R of each tensor in turn, and the roots of C that they made, [..., n, n].
        self.averages = [m for p in params for m in (p.new_zeros(s) for s in self._sides(p))]
        self.roots = [m + torch.eye(m.shape[-1]).to(m) for m in self.averages]

    def _sides(self, p: Tensor) -> list[list[int]]:
        chains, out = list(p.shape[: self.chain_dims]), self._matrix(p).shape[-2:]
        return [[*chains, n, n] for n in out]

    def _matrix(self, v: Tensor) -> Tensor:
        chains = v.shape[: self.chain_dims]
        rows = v.shape[self.chain_dims] if v.dim() > self.chain_dims else 1
        return v.reshape(*chains, rows, -1)

    def update(self, grads: Sequence[Tensor]) -> None:
        """Take a gradient into L and R."""
        matrices = [self._matrix(g) for g in grads]
        products = [m for G in matrices for m in (G @ G.mT, G.mT @ G)]
        weight = 1 / (self.updates + 1) if self.updates < 1 / (1 - self.alpha) else 1 - self.alpha
        torch._foreach_lerp_(self.averages, products, weight)
        self.updates += 1
        if self.updates % self.every == 0:
            self.roots = [self._power(m, -1 / 8) for m in self.averages]

    def _power(self, average: Tensor, power: float) -> Tensor:
        values, Q = torch.linalg.eigh(average.double())
        values = values.clamp_min(0) + self.eps
        return ((Q * values.pow(power).unsqueeze(-2)) @ Q.mT).to(average)

    def _between(self, vectors: Sequence[Tensor], sides: Sequence[Tensor]) -> list[Tensor]:
        """Return A V B for every tensor and its pair A, B."""
        pairs = zip(vectors, sides[::2], sides[1::2], strict=True)
        return [(A @ self._matrix(v) @ B).reshape(v.shape) for v, A, B in pairs]

    def apply_(self, vectors: list[Tensor]) -> list[Tensor]:
        """Return C v."""
        return self._between(vectors, [A @ A for A in self.roots])

    def noise(self, stream: Any) -> list[Tensor]:
        """Draw from N(0, C)."""
        return self._between(stream.increments(), self.roots)

    def inverse_norm(self, vectors: Sequence[Tensor]) -> Tensor:
        """Return v' C^-1 v, which ``SGNHT`` and the kinetic temperature ask for."""
        whitened = self._between(vectors, [torch.linalg.inv(A.double()).to(A) for A in self.roots])
        squares = [w.double().square() for w in whitened]
        sums = [x.reshape(*x.shape[: self.chain_dims], -1).sum(-1) for x in squares]
        return torch.stack(sums).sum(0)

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resumed chain needs."""
        own = {"averages": self.averages, "roots": self.roots, "updates": self.updates}
        return super().state_dict() | own

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it."""
        super().load_state_dict(state)
        self.updates = state["updates"]
        for name in ("averages", "roots"):
            torch._foreach_copy_(getattr(self, name), list(state[name]))
