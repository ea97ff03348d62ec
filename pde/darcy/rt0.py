r"""Lowest-order Raviart-Thomas elements on rectangles, integrated exactly.

On a cell of size `hx` by `hy` the velocity is `(u_L (1 - s) + u_R s, u_B (1 - t) + u_T t)` with
`s, t` in [0, 1] and `u_L, u_R, u_B, u_T` the normal components on its edges, so that

    integral of u . v / kappa = hx hy / kappa * (u_L, u_R) M (v_L, v_R)^T + the same for (B, T),
    M = [[1/3, 1/6], [1/6, 1/3]],

never the diagonal `M = [[1/2, 0], [0, 1/2]]` of a lumped mass, which is another (two-point flux)
scheme. The discrete problem `kappa^-1 u + grad p = 0, div u = f` is then

    A u - B^T p = -D,    B u = F,

with `A` the mass matrix, `B` the flux out of each cell, `F` the source's integral over each cell
and `D` the work of the prescribed pressures (Wang, Deng, Lin 2020, section 5.3, where both rows of
`B` carry the other sign).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from ..errors import PdeError
from ..grid import SIDES, Array, Grid, IntArray, finite

MASS = np.array([[1 / 3, 1 / 6], [1 / 6, 1 / 3]])
OUTWARD = np.array([-1.0, 1.0, -1.0, 1.0])  # outward normal against +x, +y on left, right, ...


def check_permeability(grid: Grid, permeability: Any, many: bool = False) -> Array:
    """Return the permeability as float64 `[ny, nx]`, or `[..., ny, nx]` if there may be many.

    Raises:
        PdeError: Another shape, or a cell that is not positive and finite.
    """
    kappa = np.asarray(permeability, dtype=np.float64)
    if kappa.shape[-2:] != grid.shape or (kappa.ndim > 2 and not many):
        shape = "(..., ny, nx) with (ny, nx)" if many else "(ny, nx)"
        raise PdeError(f"permeability of shape {kappa.shape}, expected {shape} = {grid.shape}")
    return positive(kappa)


def positive(kappa: Array) -> Array:
    """Return permeabilities; raise `PdeError` if a cell is not positive and finite."""
    bad = ~((kappa > 0) & np.isfinite(kappa))
    if bad.any():
        place = tuple(int(i) for i in np.argwhere(bad)[0])
        raise PdeError(
            f"permeability[{', '.join(map(str, place))}] = {kappa[place]} ({bad.sum()} such "
            "cells), expected positive finite values; mend the field before solving"
        )
    return kappa


def mass_matrix(grid: Grid, permeability: Array) -> sparse.csr_array:
    """The matrix `A_ij = integral of psi_i . psi_j / kappa`, `[num_edges, num_edges]`.

    Args:
        grid: The grid.
        permeability: Cell values `[ny, nx]`, or along x and y `[ny, nx, 2]`; infinite where a cell
            takes no part.
    """
    tensor = permeability.reshape(grid.num_cells, -1)
    weight = grid.cell_areas.reshape(-1, 1) / tensor
    local = np.zeros((grid.num_cells, 4, 4))
    local[:, :2, :2] = weight[:, 0, None, None] * MASS
    local[:, 2:, 2:] = weight[:, -1, None, None] * MASS
    matrix = sum_over_cells(grid, local)
    matrix.eliminate_zeros()
    return matrix


def divergence_matrix(grid: Grid) -> sparse.csr_array:
    """The matrix `B`, flux out of each cell (integral of the divergence), `[cells, num_edges]`."""
    values = OUTWARD * grid.edge_lengths()[grid.cell_edges()]
    return sparse.csr_array(cells_to_edges(grid, values).T)


def sum_over_cells(grid: Grid, local: Array) -> sparse.csr_array:
    """Sum cells' matrices `[num_cells, 4, 4]` into one `[num_edges, num_edges]`."""
    edges = grid.cell_edges()
    rows, columns = np.broadcast_arrays(edges[:, :, None], edges[:, None, :])
    entries = (local.ravel(), (rows.ravel(), columns.ravel()))
    return sparse.csr_array(sparse.coo_array(entries, shape=(grid.num_edges, grid.num_edges)))


def cells_to_edges(grid: Grid, values: Array) -> sparse.csr_array:
    """The matrix `[num_edges, num_cells]` with a cell's values `[num_cells, 4]` at its edges."""
    cells = np.repeat(np.arange(grid.num_cells), 4)
    entries = (values.ravel(), (grid.cell_edges().ravel(), cells))
    return sparse.csr_array(sparse.coo_array(entries, shape=(grid.num_edges, grid.num_cells)))


def boundary_data(grid: Grid, pressure: Mapping[str, Any]) -> tuple[Array, IntArray]:
    """The boundary pressures, and the edges through which nothing flows.

    Args:
        grid: The grid.
        pressure: Pressure of each open side, or part of a side as `Grid.boundary_edges` names it:
            a scalar, or one value an edge (the mean over the edge). All else is closed.

    Returns:
        The pressure times the outward normal's sign, `[num_edges]`, zero but on open edges (times
        the edges' lengths it is `D`), and the indices of the closed edges.

    Raises:
        PdeError: An unknown side, parts of a side that overlap, a shape that does not fit, or a
            value that is not finite.
    """
    signed, opened = on_sides(grid, "pressure", pressure)
    sides = np.concatenate([grid.boundary_edges(side) for side in SIDES])
    return signed, sides[~opened[sides]]


def on_sides(grid: Grid, what: str, given: Mapping[str, Any]) -> tuple[Array, NDArray[np.bool_]]:
    """Values on sides times the outward normal's sign, `[num_edges]`, and on which edges.

    Raises:
        PdeError: As for `boundary_data`.
    """
    signed, named = np.zeros(grid.num_edges), np.zeros(grid.num_edges, dtype=bool)
    for side, one in given.items():
        edges = grid.boundary_edges(side)
        values = np.asarray(one, dtype=np.float64)
        if values.shape not in ((), edges.shape):
            raise PdeError(
                f"{what} on side {side!r} has shape {values.shape}, "
                f"expected a scalar or one value for each of its {edges.size} edges"
            )
        if named[edges].any():
            raise PdeError(f"{what} on side {side!r} is given twice for {named[edges].sum()} edges")
        outward = OUTWARD[SIDES.index(side.split(":")[0])]
        signed[edges] = outward * finite(f"{what} on side {side!r}", values)
        named[edges] = True
    return signed, named


def saddle_point(A: sparse.csr_array, B: sparse.csr_array) -> sparse.csr_array:
    """The symmetric indefinite matrix `[[A, -B^T], [-B, 0]]` on all edges, then all cells.

    A problem is had by striking the rows and columns of its closed edges.
    """
    blocks: Any = [[A, -B.T], [-B, None]]
    return sparse.csr_array(sparse.block_array(blocks))
