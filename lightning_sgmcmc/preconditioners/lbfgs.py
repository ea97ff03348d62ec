"""Online damped L-BFGS, averaged by stochastic approximation: the metric of HASGLD-SA."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from lightning_sgmcmc.common.vectors import dot, flatten, unflatten
from lightning_sgmcmc.noise import NoiseStream
from lightning_sgmcmc.preconditioners.base import Preconditioner
from lightning_sgmcmc.preconditioners.lbfgs_operator import LBFGSOperator

#: Weights of a chain up to which ``slots="auto"`` averages all operators, as a matrix.
DENSE = 256
#: Operators that ``slots="auto"`` averages above.
SLOTS = 4


class AveragedLBFGS(Preconditioner):
    """C = average over k of the L-BFGS operators, by stochastic approximation.

    Wang, Deng, Lin 2020, eq. 13: G_k = (1 - omega_k) G_(k-1) + omega_k G~_k with
    omega_k = min(1, c1 (k + c2)^-power), started from the identity. Averaging the vectors G~g and
    S~z instead, as their Algorithm 2 prints, is momentum with a noise of the wrong covariance. So
    that drift and noise use the same matrix here, G_k is held in one of two ways:

    - ``slots=None``: the recursion's matrix itself, in 64 bits, at d^2 numbers a chain, with its
      noise by Cholesky, at d^3/3 operations a step while it adapts. Stacked chains have a matrix
      each.
    - ``slots=m``: m operators with weights 1/m; at each step each one is replaced by the newest
      with probability omega_k. The expected matrix is exactly the recursion's, the matrix in use
      is exactly the one that both drift and noise see, and the cost is m products. The noise is
      sum_j S_j z_j / sqrt(m) with independent z_j. With m = 1 nothing is averaged: C is the
      operator of some random step.
    - ``slots="auto"``: the matrix up to 256 weights, 4 operators above.

    With c1 infinite omega is 1: C is the newest operator, and many chains can share one
    computation, each with a C of its own.

    y is the change of the mean likelihood gradient on one minibatch, so C approximates the inverse
    Hessian of the mean loss (N times the paper's G) and ``lr`` is the paper's epsilon. Before the
    first pair C = I / |g|_1 with the last gradient g, so that the first move is short whatever the
    scale of the loss.
    gamma = max(y'y / s'y, delta / N) from the newest undamped pair; where s'y <= 0 the last gamma
    stays. Freeze it before keeping draws.

    Args:
        memory: Number of pairs M, at least 1.
        r: Damping threshold in (0, 1).
        delta: Floor of gamma on the scale of the sum over the data, positive.
        slots: Operators held, None for the average of all, or ``"auto"``.
        omega: (c1, c2, power) with power in (1/2, 1], or 0 for a constant rate, whose average does
            not settle; c1 = inf does not average.

    Attributes:
        held: Operators held, None where it is the matrix; known once it is attached.
        matrix: C, [d, d] or [K, d, d], None where it is operators.

    Raises:
        ValueError: If an argument lies outside its range.
    """

    adaptive = True
    needs_second_gradient = True

    def __init__(
        self,
        memory: int = 2,
        r: float = 0.25,
        delta: float = 1e-3,
        slots: int | Literal["auto"] | None = "auto",
        omega: tuple[float, float, float] = (5.0, 10.0, 0.9),
    ) -> None:
        super().__init__()
        if not (memory >= 1 and float(memory).is_integer()):
            raise ValueError(f"memory must be a whole number of at least 1, got {memory}")
        if not 0 < r < 1:
            raise ValueError(f"r must lie in (0, 1), got {r}")
        if not 0 < delta < math.inf:
            raise ValueError(f"delta must be positive and finite, got {delta}")
        if not (slots is None or slots == "auto" or (isinstance(slots, int) and slots >= 1)):
            raise ValueError(f"slots must be auto, None or at least 1, got {slots!r}")
        rates = tuple(omega)
        if len(rates) != 3 or not (min(rates[:2]) > 0 and (0.5 < rates[2] <= 1 or rates[2] == 0)):
            raise ValueError(f"omega must be (c1 > 0, c2 > 0, power in (1/2, 1] or 0), got {rates}")
        self.memory, self.r, self.delta, self.slots = memory, r, delta, slots
        self.omega = (float(omega[0]), float(omega[1]), float(omega[2]))
        self.held: int | None = None
        self.matrix: Tensor | None = None
        self._root = torch.ones(1, 1)
        self._like: list[Tensor] = []
        self._recent: list[tuple[Tensor, Tensor]] = []
        self._gamma = torch.ones(1)
        self._count = 0
        self._operators: list[LBFGSOperator] = []
        # Vectors [d] or [K, d] used over and over: fresh memory of their size is slow to come by.
        self._work: list[Tensor] = []
        self._spare: tuple[Tensor, Tensor] | None = None

    def attach(self, params: Sequence[Tensor], chain_dims: int = 0) -> None:
        """Forget everything; C = I until the first gradient."""
        super().attach(params, chain_dims)
        self._recent, self._count = [], 0
        self._like = list(params)
        self._work, self._spare = [], None
        self.held = self.slots if self.slots != "auto" else self._affordable()
        alike = self.held is None or self.omega[0] == math.inf
        reason = "each chain replaces its L-BFGS operators at moments of its own"
        self.unstackable = None if alike else reason
        self._start(torch.ones(1, dtype=params[0].dtype, device=params[0].device))

    @property
    def expected_eigenvalue(self) -> float:
        """1 while C adapts: any pair can make C the inverse Hessian, however short of it C is."""
        return 0.0 if self.frozen else 1.0

    def update(self, grads: Sequence[Tensor]) -> None:
        """Before the first pair, scale C by the gradient."""
        if self._count == 0:
            sizes = [g.abs().reshape(*g.shape[: self.chain_dims], -1).sum(-1) for g in grads]
            norm = torch.stack(sizes).sum(0).unsqueeze(-1)
            self._start(torch.where(norm > 0, norm, self._gamma))

    def _affordable(self) -> int | None:
        """Return what ``slots="auto"`` stands for."""
        count = sum(p.shape[self.chain_dims :].numel() for p in self._like)
        return None if count <= DENSE else SLOTS

    def _start(self, gamma: Tensor) -> None:
        """Make C the identity over gamma."""
        self._gamma = gamma
        identity = LBFGSOperator([], [], gamma, self.r)
        self._operators = [identity] * (self.held or 0)
        self.matrix = None
        if self.held is None:
            vector = flatten([p.detach() for p in self._like], self.chain_dims)
            self._hold(torch.diag_embed((1 / gamma.double()).expand(vector.shape)))

    def _hold(self, matrix: Tensor) -> None:
        self.matrix = matrix
        self._root = torch.linalg.cholesky(matrix)

    def rate(self) -> float:
        """Return omega of the newest operator, in (0, 1]."""
        c1, c2, power = self.omega
        decayed: float = c1 * (self._count + c2) ** -power
        return min(1.0, decayed)

    def newest(self, spare: Tensor | None = None) -> LBFGSOperator:
        """Return the operator of the pairs in memory, not averaged, in spare memory if any."""
        steps, changes = zip(*self._recent, strict=True) if self._recent else ((), ())
        return LBFGSOperator(steps, changes, self._gamma, self.r, spare)

    def observe(
        self, moved: Sequence[Tensor], change: Sequence[Tensor], noise: NoiseStream
    ) -> None:
        """Take in a pair (s, y) and average the operator that it makes into C.

        A move of length zero carries no curvature: its pair is passed over, in all chains.
        """
        outs = self._spare or (None, None)
        s, y = (flatten(v, self.chain_dims, o) for v, o in zip((moved, change), outs, strict=True))
        self.take_pair(s, y, (dot(s, s), dot(s, y), dot(y, y)), noise)

    def memory_for_pair(self) -> tuple[Tensor, Tensor]:
        """Return vectors [d] for the next pair, of the one that it replaces if there is one."""
        like = self.buffers()[0]
        return self._spare or (torch.empty_like(like), torch.empty_like(like))

    def take_pair(
        self, s: Tensor, y: Tensor, products: tuple[Tensor, Tensor, Tensor], noise: NoiseStream
    ) -> None:
        """Average in the operator that a pair makes, given s's, s'y and y'y."""
        ss, sy, yy = products
        if not bool((ss > 0).all()):
            return
        full = len(self._recent) == self.memory
        self._spare = self._recent.pop(0) if full else None
        self._recent.append((s, y))
        gamma = (yy / sy).clamp_min(self.delta / self.num_data)
        self._gamma = torch.where(sy > 0, gamma, self._gamma)
        rate = self.rate()
        self._count += 1
        if self.held is None:
            assert self.matrix is not None
            self._hold(torch.lerp(self.matrix, self._dense_newest(), rate))
            return
        chosen = [i for i in range(self.held) if rate == 1 or float(noise.uniform()) < rate]
        if not chosen:
            return
        left = [op for i, op in enumerate(self._operators) if i not in chosen]
        replaced = self._operators[chosen[0]]
        newest = self.newest(None if replaced in left else replaced.rows)
        for i in chosen:
            self._operators[i] = newest

    def _dense_newest(self) -> Tensor:
        """Return the operator of the pairs in memory as a matrix, in 64 bits."""
        pairs = [[v.double().unsqueeze(-2) for v in pair] for pair in self._recent]
        steps, changes = zip(*pairs, strict=True)
        newest = LBFGSOperator(steps, changes, self._gamma.double().unsqueeze(-1), self.r)
        return newest.apply(torch.diag_embed(torch.ones_like(steps[0].squeeze(-2))))

    def apply_(self, vectors: list[Tensor]) -> list[Tensor]:
        """Multiply by C, in place."""
        vector, result, _ = self.buffers()
        flatten(vectors, self.chain_dims, vector)
        if self.matrix is not None:
            torch._foreach_copy_(vectors, self._times(self.matrix, vector))
            return vectors
        for i, (weight, operator) in enumerate(self.weighted_operators()):
            product = operator.apply(vector, None if i else result)
            if weight != 1:
                product.mul_(weight)
            if i:
                result.add_(product)
        torch._foreach_copy_(vectors, unflatten(result, vectors, self.chain_dims))
        return vectors

    def noise(self, stream: NoiseStream) -> list[Tensor]:
        """Draw from N(0, C)."""
        vector, _, result = self.buffers()
        if self.matrix is not None:
            z = flatten(stream.increments(), self.chain_dims, vector)
            return self._times(self._root, z)
        for i, (weight, operator) in enumerate(self.weighted_operators()):
            z = flatten(stream.increments(), self.chain_dims, vector)
            eta = operator.root(z, None if i else result)
            if weight != 1:
                eta.mul_(weight**0.5)
            if i:
                result.add_(eta)
        return unflatten(result, self._like, self.chain_dims)

    def _times(self, matrix: Tensor, vector: Tensor) -> list[Tensor]:
        """Return a matrix times a vector over all weights, shaped like the parameters."""
        product = (matrix @ vector.to(matrix.dtype).unsqueeze(-1)).squeeze(-1)
        return unflatten(product.to(vector.dtype), self._like, self.chain_dims)

    def weighted_operators(self) -> list[tuple[float, LBFGSOperator]]:
        """Return the operators that C is the average of, with their weights; none of a matrix."""
        return [(1 / len(self._operators), operator) for operator in self._operators]

    def buffers(self) -> list[Tensor]:
        """Return three vectors: an argument, a product, and noise that outlives both."""
        if not self._work or self._work[0].device != self._like[0].device:
            first = flatten([torch.zeros_like(p) for p in self._like], self.chain_dims)
            self._work = [first, torch.zeros_like(first), torch.zeros_like(first)]
        return self._work

    def state_dict(self) -> dict[str, Any]:
        """Return the pairs, and the matrix or the operators."""
        return super().state_dict() | {
            "count": self._count,
            "gamma": self._gamma,
            "recent": self._recent,
            "matrix": self.matrix,
            "operators": [
                {"steps": op.steps, "changes": op.changes, "gamma": op.gamma}
                for op in self._operators
            ],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the pairs, and the matrix or the operators."""
        super().load_state_dict(state)
        device = self._like[0].device

        def here(tensors: Sequence[Tensor]) -> list[Tensor]:
            return [t.to(device) for t in tensors]

        self._count, self._gamma = state["count"], state["gamma"].to(device)
        self._recent = [(s.to(device).clone(), y.to(device).clone()) for s, y in state["recent"]]
        self._operators = [
            LBFGSOperator(here(op["steps"]), here(op["changes"]), op["gamma"].to(device), self.r)
            for op in state["operators"]
        ]
        if self.held is None:
            self._hold(state["matrix"].to(device, torch.float64))
