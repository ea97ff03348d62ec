"""One damped L-BFGS matrix, and a root of it, from a few pairs of moves and gradient changes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]


class LBFGSOperator:
    """G = B_M^-1 and a root S with S S^T = G, from M damped pairs and B_0 = gamma I.

    With y_bar = theta y + (1 - theta) gamma s, where theta = (1-r) gamma s's / (gamma s's - s'y)
    if s'y < r gamma s's and 1 otherwise, BFGS gives, from the oldest pair to the newest,

        B <- B + y_bar y_bar' / (s'y_bar) - B s s' B / (s'B s)
        S <- (I - s (y_bar - sqrt(s'y_bar / s'B s) B s)' / (s'y_bar)) S

    (Wang, Deng, Lin 2020, eqs. 4 to 6, with the sign of the root corrected.) Every vector here is
    a combination of the rows of Z, the 2 M moves and changes, so that

        G = I / gamma + Z' M Z,   S = I / sqrt(gamma) + Z' R Z

    with small matrices that follow from Z Z' alone, as in the compact representations of Byrd,
    Nocedal and Schnabel (1994). A product reads Z twice.

    Args:
        steps: The moves s, oldest first, each [..., d].
        changes: The gradient changes y along them, each [..., d].
        gamma: Positive scale of B_0, [..., 1].
        r: Damping threshold in (0, 1).
        spare: Memory to use for Z if it has the size.
    """

    def __init__(
        self,
        steps: Sequence[Tensor],
        changes: Sequence[Tensor],
        gamma: Tensor,
        r: float,
        spare: Tensor | None = None,
    ) -> None:
        self.gamma, self.count = gamma, len(steps)
        self.rows: Tensor | None = None
        if not steps:
            return
        shape = (*steps[0].shape[:-1], 2 * len(steps), steps[0].shape[-1])
        reuse = spare is not None and spare.shape == shape
        rows = torch.stack([*steps, *changes], dim=-2, out=spare if reuse else None)
        self.rows = rows
        scale, gram = gamma.double(), (rows @ rows.mT).double()
        units = torch.eye(2 * self.count, dtype=gram.dtype, device=gram.device)
        past: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        product = root = torch.zeros_like(gram)
        for i in range(self.count):
            # Vectors are rows of coefficients on Z; x @ gram is x's product with each row of Z.
            s, y = units[i], units[self.count + i]
            a = scale * s
            base, sy = scale * gram[..., i, i, None], gram[..., i, self.count + i, None]
            theta = torch.where(sy < r * base, (1 - r) * base / (base - sy), torch.ones_like(sy))
            y_bar = a + theta * (y - a)
            for b, sb, a_old, sa_old in past:
                a = a + _times(b, gram[..., i, :]) / sb * b
                a = a - _times(a_old, gram[..., i, :]) / sa_old * a_old
            s_y_bar, sa = _times(y_bar, gram[..., i, :]), _times(a, gram[..., i, :])
            past.append((y_bar, s_y_bar, a, sa))
            w = y_bar - (s_y_bar / sa).sqrt() * a
            # S <- (I - s w'/sy) S and G <- (I - s y'/sy) G (I - y s'/sy) + s s'/sy
            gram_w, gram_y = _dense(gram, w), _dense(gram, y_bar)
            left = w / scale.sqrt() + _dense(root.mT, gram_w)
            root = root - _outer(s, left / s_y_bar)
            u = (y_bar / scale + _dense(product, gram_y)) / s_y_bar
            length = (1 + _times(u, gram_y)) / s_y_bar
            product = product - _outer(s, u) - _outer(u, s) + _outer(length * s, s)
        self._product, self._root = product.to(rows), root[..., : self.count, :].to(rows)

    @property
    def steps(self) -> list[Tensor]:
        """The moves s, oldest first."""
        return [] if self.rows is None else list(self.rows.unbind(-2)[: self.count])

    @property
    def changes(self) -> list[Tensor]:
        """The changes y, oldest first."""
        return [] if self.rows is None else list(self.rows.unbind(-2)[self.count :])

    def apply(self, vector: Tensor, out: Tensor | None = None) -> Tensor:
        """Return G times a vector [..., d], in ``out`` if given."""
        scaled = torch.div(vector, self.gamma, out=out)
        if self.rows is None:
            return scaled
        inner = _dense(self._product, _dense(self.rows, vector))
        return _add_rows_(scaled, self.rows, inner)

    def root(self, vector: Tensor, out: Tensor | None = None) -> Tensor:
        """Return S times a vector [..., d], in ``out`` if given."""
        scaled = torch.div(vector, self.gamma.sqrt(), out=out)
        if self.rows is None:
            return scaled
        inner = _dense(self._root, _dense(self.rows, vector))
        return _add_rows_(scaled, self.rows[..., : self.count, :], inner)

    def step(
        self, gradient: Tensor, z: Tensor, lr: float, size: float, out: Tensor | None = None
    ) -> Tensor:
        """Return size * S z - lr * G gradient, in ``out`` if given; both arguments are [..., d]."""
        result = torch.mul(z, size / self.gamma.sqrt(), out=out)
        result.addcmul_(gradient, -lr / self.gamma)
        if self.rows is None:
            return result
        inner = -lr * _dense(self._product, _dense(self.rows, gradient))
        inner[..., : self.count] += size * _dense(self._root, _dense(self.rows, z))
        return _add_rows_(result, self.rows, inner)

    def coefficients(self, on_gradient: Array, on_z: Array, lr: float, size: float) -> Array:
        """Return the rows' weights in size * S z - lr * G gradient.

        Args:
            on_gradient: The rows' products with the gradient, [m].
            on_z: Those with z, [count].
            lr: Weight of the drift.
            size: Weight of the noise.
        """
        weights: Array = -lr * (self._product.double().numpy() @ on_gradient)
        weights[: self.count] += size * (self._root.double().numpy() @ on_z)
        return weights


def _add_rows_(vector: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """Add the rows [..., m, d], weighted by [..., m], to a vector [..., d] in place."""
    if vector.dim() == 1:
        return vector.addmv_(rows.T, weights)
    return vector.add_(_dense(rows.mT, weights))


def _dense(matrix: Tensor, vector: Tensor) -> Tensor:
    """Return matrix [..., m, n] times vector [..., n]."""
    if matrix.dim() == 2 and vector.dim() == 1:
        return torch.mv(matrix, vector)
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def _times(x: Tensor, y: Tensor) -> Tensor:
    """Return the inner product over the last axis, which stays with length one."""
    return (x * y).sum(-1, keepdim=True)


def _outer(x: Tensor, y: Tensor) -> Tensor:
    """Return x y' over the last axis."""
    return x.unsqueeze(-1) * y.unsqueeze(-2)
