"""Which cells there is flow in, and what connects them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from ..errors import PdeError
from ..grid import Array, Grid, IntArray
from .rt0 import cells_to_edges, positive

BoolArray = NDArray[np.bool_]


def check_active(grid: Grid, active: Any) -> BoolArray:
    """Return which cells are active, `[ny, nx]`, from None too.

    Raises:
        PdeError: Another shape, values that are not true or false, or no active cell.
    """
    if active is None:
        return np.ones(grid.shape, dtype=bool)
    values = np.asarray(active)
    if values.dtype.kind in "iuf" and np.isin(values, (0, 1)).all():
        values = values.astype(bool)
    if values.shape != grid.shape or values.dtype != np.bool_:
        raise PdeError(
            f"active of type {values.dtype} and shape {values.shape}, expected true or false in "
            f"(ny, nx) = {grid.shape}"
        )
    if not values.any():
        raise PdeError("no cell is active")
    return values


def check_tensor(grid: Grid, permeability: Any, active: BoolArray) -> Array:
    """Return the permeability `[ny, nx]`, or `[ny, nx, 2]`, zero in cells that are not active.

    Raises:
        PdeError: Another shape, or an active cell that is not positive and finite.
    """
    kappa = np.asarray(permeability, dtype=np.float64)
    if kappa.shape not in (grid.shape, (*grid.shape, 2)):
        raise PdeError(
            f"permeability of shape {kappa.shape}, expected (ny, nx) = {grid.shape}, or "
            f"{(*grid.shape, 2)} along x and y"
        )
    if active.all():
        return positive(kappa)
    cells = active[..., None] if kappa.ndim == 3 else active
    positive(np.where(cells, kappa, 1.0))
    return np.where(cells, kappa, 0.0)


def passable_edges(grid: Grid, closed: IntArray, active: BoolArray) -> tuple[IntArray, IntArray]:
    """Edges whose velocity is given, and boundary edges whose pressure is.

    Args:
        grid: The grid.
        closed: Boundary edges without a pressure.
        active: Which cells are active.
    """
    edges = grid.cell_edges()
    inside = np.bincount(edges[active.ravel()].ravel(), minlength=grid.num_edges)
    cells = np.bincount(edges.ravel(), minlength=grid.num_edges)
    shut = inside < cells
    shut[closed] = False  # they are listed already
    opened = cells == 1
    opened[closed] = False
    return np.concatenate([closed, np.flatnonzero(shut)]), np.flatnonzero(opened & ~shut)


def connected_cells(grid: Grid, active: BoolArray) -> list[IntArray]:
    """Active cells, a group for each set that edges connect."""
    if active.all():
        return [np.arange(grid.num_cells)]
    beside = cells_to_edges(grid, np.ones((grid.num_cells, 4)))
    chosen = np.flatnonzero(active)
    beside = sparse.csr_array(beside[:, chosen])
    count, label = connected_components(beside.T @ beside, directed=False)
    return [chosen[label == number] for number in range(count)]


def grid_cells(grid: Grid, boundary: IntArray) -> IntArray:
    """The cells of boundary edges."""
    return np.flatnonzero(np.isin(grid.cell_edges(), boundary).any(axis=1))
