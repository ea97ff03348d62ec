"""The quasi-diagonal Fisher metric."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lightning_sgmcmc.common.vectors import per_chain
from lightning_sgmcmc.noise import NoiseStream
from lightning_sgmcmc.preconditioners.fisher import DiagonalFisher, Labels
from lightning_sgmcmc.preconditioners.keywords import Average, Unpack

if TYPE_CHECKING:
    from lightning_sgmcmc.target import PerExample, Target


class QuasiDiagonalFisher(DiagonalFisher):
    """C = A A', from J's diagonal and its products of each weight with its unit's bias (QDOP).

    Of each output unit of a ``Linear`` or ``Conv2d`` layer, with the bias as index 0,

        m_i = J_0i / (J_00 + eps),   s_i = J_ii + eps - J_0i^2 / (J_00 + eps)
        A_00 = (J_00 + eps)^-1/2,    A_ii = s_i^-1/2,    A_0i = -m_i A_ii

    and A is zero elsewhere, so that

        (C v)_i = (v_i - m_i v_0) / s_i,   (C v)_0 = v_0 / (J_00 + eps) - sum_i m_i (C v)_i.

    (Marceau-Caron and Ollivier 2017, Algorithm 4, with A_0i = -A_00^2 A_ii J_0i: the A_0i J_0i
    printed there must read A_00 J_0i.) Other weights have the diagonal metric. For eps -> 0 the
    chain is invariant under an affine change a_i -> alpha_i a_i + beta_i of every input of a
    layer. Before the first update C is the identity. The arguments are those of
    :class:`~lightning_sgmcmc.preconditioners.fisher.Fisher`, but without ``centred``.
    """

    #: Index of a weight and of its unit's bias.
    units: list[tuple[int, int]]
    alone: list[int]  # the other weights
    products: list[Tensor]  # J_0i
    _means: list[Tensor]  # m_i
    _scratch: list[Tensor]
    _params: list[Tensor]

    def __init__(
        self, labels: Labels = "data", eps: float = 1e-4, **average: Unpack[Average]
    ) -> None:
        super().__init__(labels, eps, centred=False, **average)

    def attach(self, params: Sequence[Tensor], chain_dims: int = 0) -> None:
        """Allocate J for these parameters; the target says later which are biases."""
        super().attach(params, chain_dims)
        self._params = list(params)
        self._allocate([])

    def bind(self, target: Target) -> None:
        """Take in which bias belongs to which weights."""
        super().bind(target)
        if target.per_example is not None:
            units = [(w, b) for w, b in target.per_example.units if b is not None]
            if units != self.units:
                self._allocate(units)

    def _allocate(self, units: Sequence[tuple[int, int]]) -> None:
        self.units = list(units)
        self.products = [torch.zeros_like(self._params[w]) for w, _ in units]
        self._means = [torch.zeros_like(self._params[w]) for w, _ in units]
        self._scratch = [torch.empty_like(self._params[w]) for w, _ in units]
        self.alone = sorted(set(range(len(self._params))).difference(*units))

    def _learn(self, per_example: PerExample, grads: Sequence[Tensor], rate: float) -> None:
        super()._learn(per_example, grads, rate)
        per_example.accumulate_bias_products_(self.products, 1 - rate, rate)

    def _make(self) -> None:
        squares, inverse, root = self._flat
        damping = self.damping()
        torch.add(squares, damping, out=inverse)
        for (w, b), products, means in self._each_unit():
            schur = self._inverse[w]
            torch.div(products, _like(self._inverse[b], products), out=means)
            schur.addcmul_(products, means, value=-1)
            # At least eps but for rounding, by Cauchy and Schwarz.
            if isinstance(damping, Tensor):
                smallest = per_chain(damping.squeeze(-1), schur)
                torch.maximum(schur, smallest, out=schur)
            else:
                schur.clamp_min_(damping)
        torch.rsqrt(inverse, out=root)

    def _each_unit(self) -> Iterator[tuple[tuple[int, int], Tensor, Tensor]]:
        return zip(self.units, self.products, self._means, strict=True)

    def apply_(self, vectors: list[Tensor]) -> list[Tensor]:
        """Multiply by C, in place."""
        self.inverse()  # makes the m_i, too
        self.off_biases_(vectors)
        super().apply_(vectors)
        return self.onto_biases_(vectors)

    def noise(self, stream: NoiseStream) -> list[Tensor]:
        """Draw A z."""
        return self.onto_biases_(super().noise(stream))

    def inverse_noise(self, stream: NoiseStream) -> list[Tensor]:
        """Draw A^-T z."""
        z = super().inverse_noise(stream)
        for (w, b), _, means in self._each_unit():
            z[w].addcmul_(means, _like(z[b], means))
        return z

    def off_biases_(self, vectors: list[Tensor]) -> None:
        """Subtract m_i v_0 from v_i: A' without its diagonal."""
        for (w, b), _, means in self._each_unit():
            vectors[w].addcmul_(means, _like(vectors[b], means), value=-1)

    def onto_biases_(self, vectors: list[Tensor]) -> list[Tensor]:
        """Subtract sum_i m_i v_i from v_0: A without its diagonal, in place."""
        for ((w, b), _, means), scratch in zip(self._each_unit(), self._scratch, strict=True):
            torch.mul(means, vectors[w], out=scratch)
            vectors[b].sub_(scratch.sum(list(range(self.chain_dims + 1, means.dim()))))
        return vectors

    def inverse_norm(self, vectors: Sequence[Tensor]) -> Tensor:
        """Return |A^-1 v|^2, the sum of s_i v_i^2 and (J_00 + eps) (v_0 + sum_i m_i v_i)^2."""
        changed = list(vectors)
        for (w, b), _, means in self._each_unit():
            axes = list(range(self.chain_dims + 1, means.dim()))
            changed[b] = changed[b] + (means * vectors[w]).sum(axes)
        return super().inverse_norm(changed)

    def state_dict(self) -> dict[str, Any]:
        """Return J's diagonal and its products with biases."""
        return super().state_dict() | {"products": self.products, "units": self.units}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore J, and C from it."""
        units = [(int(w), int(b)) for w, b in state["units"]]
        if units != self.units:
            self._allocate(units)
        for own, saved, means in zip(self.products, state["products"], self._means, strict=True):
            own.copy_(saved)
            means.zero_()
        super().load_state_dict(state)


def _like(bias: Tensor, weight: Tensor) -> Tensor:
    """Give a value an output unit the axes with which it broadcasts against the unit's weights."""
    return bias.view(*bias.shape, *[1] * (weight.dim() - bias.dim()))
