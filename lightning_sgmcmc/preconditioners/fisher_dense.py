"""The full Fisher metric and its block-diagonal parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from lightning_sgmcmc.common.vectors import inner
from lightning_sgmcmc.noise import NoiseStream
from lightning_sgmcmc.preconditioners.blocks import Block, free_bytes
from lightning_sgmcmc.preconditioners.fisher import Fisher, Labels
from lightning_sgmcmc.preconditioners.keywords import CentredAverage, Dense, Unpack

if TYPE_CHECKING:
    from lightning_sgmcmc.target import PerExample, Target

Blocks = Literal["layer", "unit"]

# A low-rank update of the root costs 6 n m^2 operations, a new factor and its inverse 2/3 m^3.
_LOW_RANK = 9
# Low-rank updates after which rounding is cleared by a new factor.
_FRESH = 64


class SingularMetricError(RuntimeError):
    """A metric cannot be inverted in the type of its numbers."""


class DenseFisher(Fisher):
    """C = (J + eps I)^-1 for a J of dense blocks; subclasses say which.

    C = S S' with S = L^-T, L the Cholesky factor of J + eps I. A minibatch far smaller than a
    block changes S by Woodbury's identity instead: with the rows of X the gradients' share,

        J_t = keep J + X'X:  S_t = S (I + Y M Y') / sqrt(keep),  Y = S'X',
        M = Q diag(-c / (r (1 + r))) Q',  r = sqrt(1 + c lambda),  Y'Y = Q diag(lambda) Q'

    with c = 1 / keep, and a fresh factor whenever J has been renewed by half. Until then eps
    shrinks with the old J; where C freezes it gets a fresh factor too.

    Args:
        labels: This, ``eps`` and ``average`` as for
            :class:`~lightning_sgmcmc.preconditioners.fisher.Fisher`.
        diagonal_start: Let J begin as the diagonal of the first minibatch's, with the weight of
            one minibatch, so that it can be inverted before it has seen as many gradients as it
            has rows.
    """

    def __init__(
        self,
        labels: Labels = "data",
        eps: float = 1e-4,
        *,
        diagonal_start: bool = False,
        **average: Unpack[CentredAverage],
    ) -> None:
        super().__init__(labels, eps, **average)
        self.diagonal_start = diagonal_start
        self._blocks: list[Block] = []
        self._J: list[Tensor] = []  # [K, U, m, m]
        self._roots: list[Tensor] = []  # S, empty while C is the identity
        self._rows: dict[int, Tensor] = {}  # X of the blocks whose root takes a low-rank update
        # Low-rank updates since the last fresh factor, what is left of its J, and of the last J.
        self._since_fresh, self._kept, self._keep = 0, 1.0, 1.0
        self._params: list[Tensor] = []

    def attach(self, params: Sequence[Tensor], chain_dims: int = 0) -> None:
        """Take in the parameters, forgetting any J."""
        super().attach(params, chain_dims)
        self._params = list(params)
        self._allocate([])

    def _allocate(self, blocks: Sequence[Block]) -> None:
        """Make room for these blocks of J.

        Raises:
            ValueError: If J and a root of C do not fit into memory.
        """
        chains = self._params[0].shape[0] if self.chain_dims else 1
        like = self._params[0]
        shapes = []
        for block in blocks:
            first = self._params[block.indices[0]].shape[self.chain_dims :]
            sizes = [self._params[i].shape[self.chain_dims :].numel() for i in block.indices]
            units = {"whole": 1, "unit": first[0] if first else 1, "single": sizes[0]}[block.kind]
            shapes.append((chains, units, sum(sizes) // units, sum(sizes) // units))
        needed = 3 * like.element_size() * sum(torch.Size(s).numel() for s in shapes)
        free = free_bytes(like.device)
        if free is not None and needed > free:
            raise ValueError(
                f"{self!r} of {sum(p.numel() for p in self._params):,} weights takes "
                f"{needed:,} bytes for its matrix, a root and a factor, of which {free:,} are "
                "free: use a BlockFisher, a QuasiDiagonalFisher or a DiagonalFisher"
            )
        self._blocks = list(blocks)
        self._J = [torch.zeros(s, dtype=like.dtype, device=like.device) for s in shapes]
        self._roots, self._rows, self._since_fresh, self._kept = [], {}, 0, 1.0

    def _rate(self, t: int) -> float:
        return super()._rate(t + self.diagonal_start)

    def _learn(self, per_example: PerExample, grads: Sequence[Tensor], rate: float) -> None:
        n, weight = per_example.examples.count, rate * self._unbiased()
        starts = self.diagonal_start and not self.updates
        due = not self._roots or self._kept * (1 - rate) < 0.5 or self._since_fresh >= _FRESH
        for place, (block, J) in enumerate(zip(self._blocks, self._J, strict=True)):
            low_rank = not due and not per_example.shared_by_ranks and _LOW_RANK * n < J.shape[-1]
            apart = starts or per_example.shared_by_ranks
            total, keep = (torch.zeros_like(J), 0.0) if apart else (J, 1 - rate)
            rows = []
            for chunk in per_example.gradients(block.indices):
                X = self._block_rows(block, chunk, grads)
                scale = (1.0 if apart else weight) / n
                total.flatten(0, 1).baddbmm_(X.mT, X, beta=keep, alpha=scale)
                keep = 1.0
                if low_rank:
                    rows.append(X * scale**0.5)
            if low_rank:
                self._rows[place] = torch.cat(rows, dim=1)
            if apart:
                per_example.reduce_([total])
                old = torch.diag_embed(total.diagonal(dim1=-2, dim2=-1)) if starts else J
                J.copy_((1 - rate) * old + weight * total)
        self._since_fresh, self._kept = (
            (0, 1.0)
            if due
            else (
                self._since_fresh + 1,
                self._kept * (1 - rate),
            )
        )
        self._keep = 1 - rate

    def _block_rows(self, block: Block, chunk: list[Tensor], grads: Sequence[Tensor]) -> Tensor:
        """Return per-example gradients as X [K * U, n, m]."""
        X = block.pack(chunk, 2)
        if self.centred:
            X = X - self._pack(block, grads).unsqueeze(1)
        return X.transpose(1, 2).flatten(0, 1)

    def _pack(self, block: Block, vectors: Sequence[Tensor]) -> Tensor:
        packed = block.pack([vectors[i] for i in block.indices], self.chain_dims)
        return packed if self.chain_dims else packed.unsqueeze(0)

    def damping(self) -> float | Tensor:
        """Return what is added to J's diagonal, one number or [K, 1, 1, 1] of them."""
        if not self.floor:
            return self.eps
        diagonals = [J.diagonal(dim1=-2, dim2=-1).flatten(1) for J in self._J]
        means = torch.cat(diagonals, dim=1).mean(1)
        return self.eps + self.floor * means[:, None, None, None]

    def _refresh(self) -> None:
        fresh = self._factors(self._J, self.damping(), skip=self._rows)
        for place, X in self._rows.items():
            S = self._roots[place]
            Y = S.flatten(0, 1).mT @ X.mT
            fresh[place] = _low_rank_root(S.flatten(0, 1), Y, self._keep).view_as(S)
        self._roots = [fresh[place] for place in range(len(self._J))]
        self._rows = {}

    def freeze(self) -> None:
        """Keep C as J makes it, whose inverse :meth:`inverse_norm` takes."""
        super().freeze()
        if self._since_fresh:
            self._since_fresh, self._kept = 0, 1.0
            self._refresh()

    def _factors(
        self, matrices: Sequence[Tensor], damping: float | Tensor, skip: Container[int] = ()
    ) -> dict[int, Tensor]:
        """Return S with S S' = (matrix + damping I)^-1 for each, by place.

        Raises:
            SingularMetricError: If a matrix is not positive definite to rounding.
        """
        result = {}
        for place, matrix in enumerate(matrices):
            if place in skip:
                continue
            eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
            L, info = torch.linalg.cholesky_ex(matrix + damping * eye)
            if bool(info.any()):
                raise SingularMetricError(
                    f"{self!r} is not positive definite to rounding in {matrix.dtype}: raise eps "
                    "or floor, or compute in float64 (trainer.precision=64-true)"
                )
            result[place] = torch.linalg.solve_triangular(L.mT, eye, upper=True)
        return result

    def _times(
        self,
        vectors: Sequence[Tensor],
        product: Callable[[Tensor, Tensor], Tensor],
        matrices: Sequence[Tensor] | None = None,
    ) -> list[Tensor]:
        """Apply ``product(matrix, v)`` block by block to columns v [K, U, m, 1].

        Args:
            vectors: Shaped like the parameters.
            product: The product, for one block.
            matrices: One a block, S by default.
        """
        result = list(vectors)
        for block, matrix in zip(self._blocks, matrices or self._roots, strict=True):
            v = self._pack(block, vectors).unsqueeze(-1)
            out = block.unpack(product(matrix, v)[..., 0], [vectors[i] for i in block.indices])
            for i, t in zip(block.indices, out, strict=True):
                result[i] = t
        return result

    def apply_(self, vectors: list[Tensor]) -> list[Tensor]:
        """Return C times ``vectors``."""
        return self._times(vectors, lambda S, v: S @ (S.mT @ v)) if self._roots else vectors

    def noise(self, stream: NoiseStream) -> list[Tensor]:
        """Draw S z."""
        z = stream.increments()
        return self._times(z, torch.matmul) if self._roots else z

    def inverse_noise(self, stream: NoiseStream) -> list[Tensor]:
        """Draw (J + eps I) S z."""
        z = stream.increments()
        return self._metric_times(self._times(z, torch.matmul)) if self._roots else z

    def _metric_times(self, vectors: Sequence[Tensor]) -> list[Tensor]:
        """Return (J + eps I) times ``vectors``."""
        damping = self.damping()
        return self._times(vectors, lambda J, v: J @ v + damping * v, self._J)

    def solve_shifted(
        self,
        vectors: list[Tensor],
        scale: float,
        diagonal: Sequence[Tensor],
        matrix: Tensor | None = None,
    ) -> list[Tensor]:
        """Solve with a Cholesky factor of its own."""
        total = []
        for block, J in zip(self._blocks, self._J, strict=True):
            shift = torch.diag_embed(self._pack(block, diagonal))
            total.append(scale * J + shift if matrix is None else scale * J + shift + matrix)
        factors = self._factors(total, scale * self.damping())
        roots = [factors[place] for place in range(len(total))]
        return self._times(vectors, lambda S, v: S @ (S.mT @ v), roots)

    def inverse_norm(self, vectors: Sequence[Tensor]) -> Tensor:
        """Return v' (J + eps I) v."""
        if not self._roots:
            return inner(vectors, vectors, self.chain_dims)
        return inner(vectors, self._metric_times(vectors), self.chain_dims)

    def state_dict(self) -> dict[str, Any]:
        """Return J, and its root where that was not made afresh."""
        return super().state_dict() | {
            "blocks": [(block.indices, block.kind) for block in self._blocks],
            "J": self._J,
            "roots": self._roots if self._since_fresh else [],
            "since_fresh": (self._since_fresh, self._kept),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore J, and C from it."""
        super().load_state_dict(state)
        blocks = [Block(tuple(indices), kind) for indices, kind in state["blocks"]]
        self._allocate(blocks)
        for own, saved in zip(self._J, state["J"], strict=True):
            own.copy_(saved)
        self._since_fresh, self._kept = state["since_fresh"]
        if state["roots"]:
            self._roots = [r.to(J) for r, J in zip(state["roots"], self._J, strict=True)]
        elif self.updates:
            self._refresh()


class FullFisher(DenseFisher):
    """C = (J + eps I)^-1 with the whole Fisher matrix J.

    Natural Langevin dynamics without approximation (Marceau-Caron and Ollivier 2017, section 3).
    The arguments are those of :class:`DenseFisher`.

    Raises:
        ValueError: When attached, if J does not fit into memory.
    """

    def attach(self, params: Sequence[Tensor], chain_dims: int = 0) -> None:
        """Allocate J for these parameters."""
        super().attach(params, chain_dims)
        self._allocate([Block(tuple(range(len(self._params))), "whole")])


class BlockFisher(DenseFisher):
    """C = (J + eps I)^-1 with the block-diagonal part J of the Fisher matrix.

    Args:
        labels: As in :class:`~lightning_sgmcmc.preconditioners.fisher.Fisher`, like the rest.
        eps: Added to J's diagonal.
        blocks: ``"layer"``, all weights that one module owns; or ``"unit"``, the weights and the
            bias of each output unit of a ``Linear`` or ``Conv2d`` layer, other weights each by
            itself. Unit blocks are the unitwise outer-product metric of which the quasi-diagonal
            one keeps the diagonal and the bias row.
        **dense: As in :class:`DenseFisher`.

    Raises:
        ValueError: If a value lies outside its range; when bound, if J does not fit into memory.
    """

    def __init__(
        self,
        labels: Labels = "data",
        eps: float = 1e-4,
        blocks: Blocks = "layer",
        **dense: Unpack[Dense],
    ) -> None:
        super().__init__(labels, eps, **dense)
        if blocks not in ("layer", "unit"):
            raise ValueError(f"blocks must be layer or unit, got {blocks!r}")
        self.blocks = blocks

    def bind(self, target: Target) -> None:
        """Take in which weights make a block."""
        super().bind(target)
        if target.per_example is not None:
            blocks = self._partition(target.per_example)
            if blocks != self._blocks:
                self._allocate(blocks)

    def _partition(self, per_example: PerExample) -> list[Block]:
        if self.blocks == "layer":
            layers: dict[str, list[int]] = {}
            for i, name in enumerate(per_example.names):
                layers.setdefault(name.rpartition(".")[0], []).append(i)
            return [Block(tuple(indices), "whole") for indices in layers.values()]
        units = [Block((w,) if b is None else (w, b), "unit") for w, b in per_example.units]
        served = {i for block in units for i in block.indices}
        rest = [i for i in range(len(per_example.names)) if i not in served]
        return units + [Block((i,), "single") for i in rest]


def _low_rank_root(S: Tensor, Y: Tensor, keep: float) -> Tensor:
    """Return S (I + Y Y' / keep)^-1/2 / sqrt(keep) for S [U, m, m] and Y [U, m, n]."""
    c = 1 / keep
    eigenvalues, Q = torch.linalg.eigh(Y.mT @ Y)
    r = (1 + c * eigenvalues.clamp_min(0)).sqrt()
    M = (Q * (-c / (r * (1 + r))).unsqueeze(-2)) @ Q.mT
    changed: Tensor = S + (S @ Y) @ (M @ Y.mT)
    return changed / math.sqrt(keep)
