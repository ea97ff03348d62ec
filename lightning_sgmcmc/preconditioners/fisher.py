"""What the Fisher metrics share, and the diagonal one."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from lightning_sgmcmc.common.vectors import flatten, inner, unflatten
from lightning_sgmcmc.noise import NoiseStream
from lightning_sgmcmc.preconditioners.base import Preconditioner
from lightning_sgmcmc.preconditioners.diagonal import Diagonal

if TYPE_CHECKING:
    from lightning_sgmcmc.target import PerExample

Labels = Literal["data", "model"]


class Fisher(Preconditioner):
    """A metric from J, the moving average of products of per-example likelihood gradients.

    J <- (1 - gamma_t) J + gamma_t * mean over the minibatch of g g',   gamma_t = t^-power

    (Marceau-Caron and Ollivier 2017, Algorithm 1, with gamma_t = 1/sqrt(t)), of which a metric
    keeps the entries that it uses. g is an example's gradient of the negative log-likelihood; the
    prior's never enters. J's first term is that of the first minibatch.

    Args:
        labels: ``"data"`` takes the examples' own labels (outer product, "OP"); ``"model"`` draws
            them from the network's predictive distribution in a second backward pass, which makes
            J the Fisher matrix itself. The task then has a ``draw_labels(batch, uniforms)``.
        eps: Added to J's diagonal, positive (the paper's code has 1e-4).
        floor: Multiple of the mean of J's diagonal over all weights that is added to it as well.
        power: Decay of gamma_t, in [0, 1]; 1 makes J the plain average of all minibatches'.
        memory: Instead of a decaying gamma_t, the constant 1 - gamma_t in [0, 1).
        centred: Take g minus its minibatch mean, and n - 1 for n: the covariance of the scores.

    Raises:
        ValueError: If a value lies outside its range.
    """

    adaptive = True
    needs_per_example = True

    def __init__(
        self,
        labels: Labels = "data",
        eps: float = 1e-4,
        *,
        floor: float = 0.0,
        power: float = 0.5,
        memory: float | None = None,
        centred: bool = False,
    ) -> None:
        super().__init__()
        if labels not in ("data", "model"):
            raise ValueError(f"labels must be data or model, got {labels!r}")
        if not (eps >= 0 and floor >= 0 and 0 < eps + floor < math.inf):
            raise ValueError(f"eps must be positive, or floor, and finite, got {eps} and {floor}")
        if not 0 <= power <= 1:
            raise ValueError(f"power must lie in [0, 1], got {power}")
        if memory is not None and not 0 <= memory < 1:
            raise ValueError(f"memory must lie in [0, 1), got {memory}")
        self.labels, self.eps, self.floor = labels, eps, floor
        self.power, self.memory, self.centred = power, memory, centred
        #: Minibatches taken in so far.
        self.updates = 0
        #: n, the examples of the latest minibatch over all ranks.
        self.batch_size = 0

    def attach(self, params: Sequence[Tensor], chain_dims: int = 0) -> None:
        """Allocate J for these parameters."""
        super().attach(params, chain_dims)
        self.updates = self.batch_size = 0

    @property
    def horizon(self) -> int:
        """The memory 1 / (1 - memory), or ten minibatches for a gamma_t that decays."""
        return 10 if self.memory is None else round(1 / (1 - self.memory))

    def update(self, grads: Sequence[Tensor]) -> None:
        """Take the recorded minibatch into J.

        Raises:
            RuntimeError: If the target gives no per-example gradients, or none were recorded.
        """
        target = self.target
        if target is None or target.per_example is None:
            raise RuntimeError(
                f"{self!r} learns from per-example gradients: give it a target with per_example"
            )
        if self.labels == "model":
            target.record_drawn_labels()
        self.batch_size = target.per_example.count
        self._learn(target.per_example, grads, self._rate(self.updates + 1))
        target.per_example.clear()
        self.updates += 1
        self._refresh()

    def _rate(self, t: int) -> float:
        """Return gamma_t."""
        if t == 1:
            return 1.0
        return 1 - self.memory if self.memory is not None else math.pow(t, -self.power)

    def _unbiased(self) -> float:
        """Return n / (n - 1) for centred gradients, otherwise 1."""
        if not self.centred:
            return 1.0
        if self.batch_size < 2:
            raise RuntimeError("the covariance of gradients needs minibatches of two examples")
        return self.batch_size / (self.batch_size - 1)

    @abstractmethod
    def _learn(self, per_example: PerExample, grads: Sequence[Tensor], rate: float) -> None:
        """Move J's entries by ``rate`` towards the minibatch's."""

    @abstractmethod
    def inverse_noise(self, stream: NoiseStream) -> list[Tensor]:
        """Draw from N(0, C^-1)."""

    @abstractmethod
    def solve_shifted(
        self,
        vectors: list[Tensor],
        scale: float,
        diagonal: Sequence[Tensor],
        matrix: Tensor | None = None,
    ) -> list[Tensor]:
        """Return (scale C^-1 + diag(diagonal) + matrix)^-1 times ``vectors``.

        Args:
            vectors: Shaped like the parameters.
            scale: Positive.
            diagonal: Shaped like the parameters, not negative.
            matrix: [d, d], positive definite, for a metric of one block.
        """

    @abstractmethod
    def _refresh(self) -> None:
        """Make C from J."""

    def state_dict(self) -> dict[str, Any]:
        """Return how many minibatches J holds."""
        return super().state_dict() | {"updates": self.updates, "batch_size": self.batch_size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the count."""
        super().load_state_dict(state)
        self.updates, self.batch_size = int(state["updates"]), int(state["batch_size"])


class DiagonalFisher(Fisher, Diagonal):
    """C = diag(1 / (J_ii + eps)), the metric DOP of Marceau-Caron and Ollivier (2017).

    Before the first update C is the identity. The arguments are those of :class:`Fisher`.
    """

    #: J's diagonal, shaped like the parameters.
    squares: list[Tensor]
    # J, C^-1 and C^(1/2) as vectors, and the same memory as lists like the parameters.
    _flat: tuple[Tensor, Tensor, Tensor]
    _inverse: list[Tensor]
    _root: list[Tensor]
    _current: bool  # whether C is that of J

    def attach(self, params: Sequence[Tensor], chain_dims: int = 0) -> None:
        """Allocate the diagonal of J for these parameters."""
        super().attach(params, chain_dims)
        zeros = flatten([torch.zeros_like(p) for p in params], chain_dims)
        self._flat = (zeros, torch.ones_like(zeros), torch.ones_like(zeros))
        self.squares, self._inverse, self._root = (
            unflatten(v, params, chain_dims) for v in self._flat
        )
        self._current = True

    def _learn(self, per_example: PerExample, grads: Sequence[Tensor], rate: float) -> None:
        weight = rate * self._unbiased()
        per_example.accumulate_squares_(self.squares, 1 - rate, weight)
        if self.centred:
            torch._foreach_addcmul_(self.squares, list(grads), list(grads), value=-weight)
            self._flat[0].clamp_min_(0)

    def damping(self) -> float | Tensor:
        """Return what is added to J's diagonal, one number or one a chain, [1] or [K, 1]."""
        if not self.floor:
            return self.eps
        return self.eps + self.floor * self._flat[0].mean(-1, keepdim=True)

    def _refresh(self) -> None:
        self._current = False  # made when first asked for: a faster step may need J alone

    def inverse(self) -> list[Tensor]:
        """Return J_ii + eps, the diagonal of C^-1 but for what ties weights to each other."""
        if not self._current:
            self._current = True
            self._make()
        return self._inverse

    def root(self) -> list[Tensor]:
        """Return the diagonal of C's root."""
        self.inverse()
        return self._root

    def _make(self) -> None:
        """Make C and its root from J."""
        squares, inverse, root = self._flat
        torch.add(squares, self.damping(), out=inverse)
        torch.rsqrt(inverse, out=root)

    def apply_(self, vectors: list[Tensor]) -> list[Tensor]:
        """Multiply by C, in place."""
        torch._foreach_div_(vectors, self.inverse())
        return vectors

    def inverse_norm(self, vectors: Sequence[Tensor]) -> Tensor:
        """Return the sum of v^2 (J_ii + eps)."""
        return inner(vectors, torch._foreach_mul(list(vectors), self.inverse()), self.chain_dims)

    def inverse_noise(self, stream: NoiseStream) -> list[Tensor]:
        """Draw C^(-1/2) z."""
        z = stream.increments()
        torch._foreach_div_(z, self.root())
        return z

    def solve_shifted(
        self,
        vectors: list[Tensor],
        scale: float,
        diagonal: Sequence[Tensor],
        matrix: Tensor | None = None,
    ) -> list[Tensor]:
        """Divide by scale (J_ii + eps) + diagonal, in place."""
        assert matrix is None
        for v, inverse, d in zip(vectors, self.inverse(), diagonal, strict=True):
            v.div_(scale * inverse + d)
        return vectors

    def state_dict(self) -> dict[str, Any]:
        """Return J's diagonal."""
        return super().state_dict() | {"squares": self.squares}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore J's diagonal, and C from it."""
        super().load_state_dict(state)
        torch._foreach_copy_(self.squares, list(state["squares"]))
        if self.updates:
            self._refresh()
        else:
            self._flat[1].fill_(1.0)
            self._flat[2].fill_(1.0)
            self._current = True
