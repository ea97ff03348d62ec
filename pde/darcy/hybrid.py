r"""Hybridisation: the mixed system condensed to edge pressures, symmetric positive definite.

Continuity of the normal flux is imposed by a multiplier, the mean pressure on each edge. Within a
cell, with outward fluxes `q` over (left, right, bottom, top), multipliers `l` and loads `g`,

    M q - p 1 + l = g,    1^T q = F,

and `M^-1 = kappa (hy/hx [[4, 2], [2, 4]], hx/hy [[4, 2], [2, 4]])`, so with `w = M^-1 1` and
`s = 1^T w`

    p = (F + w^T (l - g)) / s,    q = w F / s + H (g - l),    H = M^-1 - w w^T / s.

On squares `H = kappa [[2.5, .5, -1.5, -1.5], ...]`. A tensor `diag(kx, ky)` has `kx` in the first
block of `M^-1` and `ky` in the second. A well of index `J` and pressure `P` gives `J (P - p)` to
its cell, so that `F` becomes `F + J P` and each `s` above `s + J`. Summing `q` over the two cells
of an edge gives the sparse system, exactly equivalent to the saddle point (Arnold, Brezzi 1985).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import SuperLU, splu

from ..errors import SingularError
from ..grid import Array, Grid, IntArray
from .elimination_order import nested_dissection
from .rt0 import OUTWARD, cells_to_edges, sum_over_cells


def local_matrices(grid: Grid) -> tuple[Array, Array]:
    """For a cell of unit permeability: `H` `[4, 4]` and `w` `[4]`; both are linear in kappa."""
    inverse = np.zeros((4, 4))
    inverse[:2, :2] = grid.hy / grid.hx * np.array([[4.0, 2.0], [2.0, 4.0]])
    inverse[2:, 2:] = grid.hx / grid.hy * np.array([[4.0, 2.0], [2.0, 4.0]])
    w = inverse.sum(axis=1)
    return inverse - np.outer(w, w) / w.sum(), w


def cell_matrices(grid: Grid, permeability: Array, index: Array) -> tuple[Array, Array, Array]:
    """Of every cell: `H` `[n, 4, 4]`, `w / (s + J)` `[n, 4]` and `1 / (s + J)` `[n, 1]`.

    Args:
        grid: The grid.
        permeability: `[ny, nx]`, or along x and y `[ny, nx, 2]`; zero where a cell takes no part.
        index: Well indices J, `[ny, nx]`.
    """
    if grid.uniform and permeability.ndim == 2 and permeability.all() and not index.any():
        H, w = local_matrices(grid)
        kappa = permeability.reshape(-1, 1)
        return kappa[:, :, None] * H, np.tile(w / w.sum(), (len(kappa), 1)), 1 / (kappa * w.sum())
    tensor = permeability.reshape(grid.num_cells, -1)
    slope = (grid.heights[:, None] / grid.widths).ravel()
    inverse = np.zeros((grid.num_cells, 4, 4))
    block = np.array([[4.0, 2.0], [2.0, 4.0]])
    inverse[:, :2, :2] = (tensor[:, 0] * slope)[:, None, None] * block
    inverse[:, 2:, 2:] = (tensor[:, -1] / slope)[:, None, None] * block
    w = inverse.sum(axis=2)
    total = w.sum(axis=1, keepdims=True) + index.reshape(-1, 1)
    resistance = np.divide(1.0, total, out=np.zeros_like(total), where=total > 0)
    local = inverse - w[:, :, None] * w[:, None, :] * resistance[:, :, None]
    return local, w * resistance, resistance


class HybridSystem:
    """The condensed system of one permeability, factored once.

    Args:
        grid: The grid.
        permeability: Values `[ny, nx]`, or along x and y `[ny, nx, 2]`; positive, and zero in cells
            that take no part.
        closed: Edges whose velocity is given; their multipliers are unknowns.
        open_edges: Boundary edges of given pressure; it enters through the load of `solve`.
        index: Well indices, `[ny, nx]`.
        floating: Groups of connected cells whose pressure is determined up to a constant. One
            multiplier of the cell of highest permeability of each is set to zero: there the
            pressure is flattest, and rounding least.
    """

    def __init__(
        self,
        grid: Grid,
        permeability: Array,
        closed: IntArray,
        open_edges: IntArray,
        index: Array,
        floating: Sequence[IntArray],
    ) -> None:
        edges, tensor = grid.cell_edges(), permeability.reshape(grid.num_cells, -1)
        # An edge's load and velocity belong to its two cells in proportion to their resistance:
        # in the permeable one both come from small differences of large numbers.
        inside = tensor[:, 0] > 0
        along = tensor[:, [0, 0, -1, -1]]
        resistance = np.divide(1.0, along, out=np.zeros_like(along), where=along > 0)
        total = np.bincount(edges.ravel(), resistance.ravel(), minlength=grid.num_edges)
        scale = (total * grid.edge_lengths())[edges]
        share = np.divide(resistance * OUTWARD, scale, out=np.zeros_like(along), where=scale > 0)
        share[np.isin(edges, closed)] = 0.0

        free = np.zeros(grid.num_edges, dtype=bool)
        free[edges[inside]] = True
        free[open_edges] = False
        for cells in floating:
            free[edges[cells[np.argmax(tensor[cells].max(axis=1))], 0]] = False
        self.free = nested_dissection(grid, np.flatnonzero(free))

        # Both unknowns and right-hand sides pass between cell and edge by the same weights.
        local, weight, self._resistance = cell_matrices(grid, permeability, index)
        to_load = local * share[:, None, :]
        self._rhs_load = sum_over_cells(grid, to_load)[self.free]
        self._velocity_load = sum_over_cells(grid, share[:, :, None] * to_load)
        self._velocity_multiplier = sparse.csr_array(self._rhs_load.T)
        self._rhs_source = cells_to_edges(grid, weight)[self.free]
        self._velocity_source = cells_to_edges(grid, weight * share)
        self._pressure_multiplier = sparse.csr_array(self._rhs_source.T)
        self._pressure_load = sparse.csr_array(self._velocity_source.T)
        matrix = sum_over_cells(grid, local)[self.free][:, self.free]
        self._factor = factorize(sparse.csc_array(matrix))

    def solve(self, load: Array | None, source: Array) -> tuple[Array, Array]:
        """Velocities `[num_edges, n]` and pressures `[num_cells, n]` of n right-hand sides.

        Solves `A u - B^T p = load, B u + J p = source` for loads `[num_edges, n]` (or None for
        zero) and integrated sources `[num_cells, n]`.
        """
        rhs = self._rhs_source @ source
        if load is not None:
            rhs += self._rhs_load @ load
        multiplier = self._factor.solve(rhs) if self.free.size else rhs
        velocity = self._velocity_source @ source - self._velocity_multiplier @ multiplier
        pressure = self._resistance * source + self._pressure_multiplier @ multiplier
        if load is not None:
            velocity += self._velocity_load @ load
            pressure -= self._pressure_load @ load
        return velocity, pressure


def factorize(matrix: sparse.csc_array) -> SuperLU:
    """Factor a symmetric positive definite matrix, eliminating in the order of its rows.

    Raises:
        SingularError: It is numerically singular.
    """
    options = {"SymmetricMode": True}
    try:
        return splu(matrix, permc_spec="NATURAL", diag_pivot_thresh=0.0, options=options)
    except RuntimeError as error:
        raise SingularError from error
