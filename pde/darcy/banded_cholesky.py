"""Multiplier systems by LAPACK's banded Cholesky factorization, with what SciPy brings."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpbtrf, dpbtrs

from ..errors import SingularError
from ..grid import Array, Grid, IntArray
from .hybrid import local_matrices


class BandedCholesky:
    """The systems of one grid in the order of its lines, one factorization at a time.

    Edges follow each other along the shorter side, so that the half bandwidth is twice its number
    of cells; a sample's matrix is then written by one assignment for each of the six pairs of a
    cell's edges, and LAPACK's blocked `pbtrf` has no symbolic work to do.

    Args:
        grid: The grid.
        free: Which edges carry unknowns, `[num_edges]`.
    """

    def __init__(self, grid: Grid, free: NDArray[np.bool_]) -> None:
        place = np.rint(2 * grid.edge_midpoints() / [grid.hx, grid.hy])
        keys = place.T if grid.nx <= grid.ny else place.T[::-1]
        order = np.lexsort(keys)
        self._order = order[free[order]]
        position = np.full(grid.num_edges, -1)
        position[self._order] = np.arange(self._order.size)
        edges, H = grid.cell_edges(), local_matrices(grid)[0]
        at = position[edges]
        pairs = []
        for i, j in combinations(range(4), 2):
            cells = np.flatnonzero((at[:, i] >= 0) & (at[:, j] >= 0))
            ends = np.sort(np.stack([at[cells, i], at[cells, j]]), axis=0)
            pairs.append((cells, ends, H[i, j]))
        self._band = max((int((e[1] - e[0]).max()) for _, e, _ in pairs if e.size), default=0)
        rows = self._band + 1
        self._pairs = [(cells, e[0] * rows + e[1] - e[0], value) for cells, e, value in pairs]
        self._edges, self._diagonal = edges.T.ravel(), np.diag(H)
        self._num_edges, self._position = grid.num_edges, position
        self._matrix = np.zeros((rows, self._order.size), order="F")

    def factorize(self, permeability: Array, pins: IntArray | None) -> None:
        """Factor the system of one permeability `[1, num_cells]`.

        Args:
            permeability: Cell values.
            pins: An edge whose diagonal entry is doubled, `[1]`: it makes the singular matrix of a
                closed domain definite, and that multiplier zero.

        Raises:
            SingularError: The matrix is numerically singular.
        """
        (kappa,) = permeability
        self._matrix.fill(0.0)
        entries = self._matrix.reshape(-1, order="F")
        for cells, index, value in self._pairs:
            entries[index] = value * kappa[cells]
        weights = (self._diagonal[:, None] * kappa).ravel()
        diagonal = np.bincount(self._edges, weights, minlength=self._num_edges)
        if pins is not None:
            diagonal[pins[0]] *= 2
        self._matrix[0] = diagonal[self._order]
        if self._order.size == 0:
            return
        self._matrix, info = dpbtrf(self._matrix, lower=1, overwrite_ab=1)
        if info:
            raise SingularError

    def solve(self, rhs: Array) -> Array:
        """Solve for `[1, num_edges]`."""
        result = np.zeros_like(rhs)
        if self._order.size:
            result[0, self._order] = dpbtrs(self._matrix, rhs[0, self._order], lower=1)[0]
        return result
