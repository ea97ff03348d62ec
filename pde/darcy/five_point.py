r"""The five-point scheme of `-div(a grad u) = f` on the nodes of a square, u = 0 on its boundary.

With h the distance of nodes and the arithmetic mean of the coefficient between two nodes,

    sum over the four neighbours j of i of (a_i + a_j) / 2 (u_i - u_j) = h^2 f_i

at every inner node. The matrix lies between `min a` and `max a` times the Laplacian's, which sine
transforms invert, so that conjugate gradients preconditioned by it converge by a factor of
`(sqrt c - 1) / (sqrt c + 1)` or better a step at a contrast c, on any grid: 1/3 for FNO's c = 4.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.fft import dstn

from ..errors import PdeError, SingularError, check_positive
from ..grid import Array, finite
from .rt0 import positive

#: Where iterations end unless told; the error is round-off then.
TOLERANCE = 1e-14
_LIMIT = 1000


class FivePointSolver:
    """Solve for many coefficients on the nodes of the unit square.

    Args:
        nodes: Number of nodes in each direction, those of the boundary included, at least 3.
        source: f at the nodes, `[nodes, nodes]`, or the same everywhere.
        tolerance: What is left of the residual, in the preconditioner's norm, where iterations end.

    Raises:
        PdeError: Fewer nodes, a source that is not finite or of another shape, or a tolerance that
            is not positive.
    """

    def __init__(self, nodes: int, source: Any = 1.0, tolerance: float = TOLERANCE) -> None:
        if nodes < 3:
            raise PdeError(f"{nodes} nodes in each direction, expected at least 3")
        f = np.asarray(source, dtype=np.float64)
        if f.shape not in ((), (nodes, nodes)):
            raise PdeError(f"source of shape {f.shape}, expected a number or {(nodes, nodes)}")
        self.nodes, self._tolerance = nodes, check_positive("tolerance", tolerance)
        inner = np.broadcast_to(finite("the source", f), (nodes, nodes))[1:-1, 1:-1]
        self._load = inner / (nodes - 1) ** 2
        k = np.arange(1, nodes - 1)
        one = 2 - 2 * np.cos(np.pi * k / (nodes - 1))
        # Two sine transforms multiply by (2 (nodes - 1))^2.
        self._inverse = 1 / ((one[:, None] + one) * (2 * (nodes - 1)) ** 2)

    def solve(self, coefficient: Any) -> Array:
        """Return u `[..., nodes, nodes]` of positive coefficients at the nodes.

        A sample's bits do not depend on the others. The residual ends at the tolerance times
        the source's, in the norm that the Laplacian's inverse gives; at 1e-14, the default, the
        error is round-off.

        Raises:
            PdeError: Another shape, or a coefficient that is not positive and finite.
            SingularError: The iterations do not converge; the contrast is too large.
        """
        a = np.asarray(coefficient, dtype=np.float64)
        if a.shape[-2:] != (self.nodes, self.nodes):
            raise PdeError(
                f"coefficient of shape {a.shape}, expected (..., {self.nodes}, {self.nodes})"
            )
        found = np.zeros(a.shape)
        for at in np.ndindex(a.shape[:-2]):
            found[at][1:-1, 1:-1] = self._solve(positive(a[at]))
        return found

    def _solve(self, a: Array) -> Array:
        across, along = (a[1:-1, 1:] + a[1:-1, :-1]) / 2, (a[1:, 1:-1] + a[:-1, 1:-1]) / 2
        diagonal = across[:, 1:] + across[:, :-1] + along[1:] + along[:-1]
        x, y = across[:, 1:-1], along[1:-1]
        residual = self._load.copy()
        u = np.zeros_like(residual)
        z = self._precondition(residual)
        direction, rz = z, _dot(residual, z)
        end = self._tolerance**2 * rz
        for _ in range(_LIMIT):
            if rz <= end:
                return u
            image = diagonal * direction
            image[:, 1:] -= x * direction[:, :-1]
            image[:, :-1] -= x * direction[:, 1:]
            image[1:] -= y * direction[:-1]
            image[:-1] -= y * direction[1:]
            step = rz / _dot(direction, image)
            u += step * direction
            residual -= step * image
            z = self._precondition(residual)
            before, rz = rz, _dot(residual, z)
            direction = z + rz / before * direction
        raise SingularError

    def _precondition(self, residual: Array) -> Array:
        """The Laplacian's inverse."""
        waves = dstn(residual, type=1)
        waves *= self._inverse
        found: Array = dstn(waves, type=1, overwrite_x=True)
        return found


def _dot(a: Array, b: Array) -> float:
    """A sum in an order that does not depend on the number of BLAS threads."""
    return float((a * b).sum())
