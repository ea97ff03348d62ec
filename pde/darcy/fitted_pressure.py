"""A continuous pressure from a velocity alone, by small matrix products."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.linalg import eigh

from ..grid import Array, Grid
from .conforming import add_to_nodes, boundary_values, stiffness, stiffness_times
from .rt0 import check_permeability


def fitted_pressure(
    grid: Grid, permeability: Any, pressure: Mapping[str, float], velocity: Any
) -> Array:
    r"""The bilinear pressure whose gradient is nearest to `-kappa^-1 u`.

    It minimises `||grad p~ + kappa^-1 u||` over the continuous, bilinear p~ with the given boundary
    values. The norm has no weight, so that the system is the Laplacian of Q1 elements for every
    permeability: it is diagonal in products of the eigenvectors of two small matrices, which are
    computed once for a grid. A field then takes four products of matrices as large as its sides.

    Args:
        grid: The grid.
        permeability: Positive cell values `[..., ny, nx]`.
        pressure: Pressure of whole sides, one number each; the other sides are closed.
        velocity: `[..., num_edges]`; leading dimensions broadcast with the permeability's.

    Returns:
        Values at the nodes, `[..., ny + 1, nx + 1]`, row 0 at y = 0.

    Raises:
        PdeError: As for `pde.darcy.conforming.conforming_pressure`.
    """
    kappa = check_permeability(grid, permeability, many=True)
    given, _ = boundary_values(grid, pressure)
    flow = grid.cell_velocity(velocity)
    x = flow[..., 0] / kappa * grid.heights[:, None] / 2
    y = flow[..., 1] / kappa * grid.widths / 2
    forces = np.stack([x + y, -x + y, x - y, -x - y])  # -integral of kappa^-1 u . grad of a hat
    rhs = add_to_nodes(forces) - stiffness_times(stiffness(grid), np.ones(grid.shape), given)
    rows, columns, along_y, along_x, eigenvalues = _bases(grid, frozenset(pressure))
    inner = rhs[..., rows, columns]
    nodes = np.broadcast_to(given, rhs.shape).copy()
    nodes[..., rows, columns] += along_y @ ((along_y.T @ inner @ along_x) / eigenvalues) @ along_x.T
    return nodes


@lru_cache(maxsize=8)
def _bases(grid: Grid, given: frozenset[str]) -> tuple[slice, slice, Array, Array, Array]:
    """Free rows and columns of nodes, eigenvectors along y and x, eigenvalues of the Laplacian."""
    rows = slice(int("bottom" in given), grid.ny + 1 - int("top" in given))
    columns = slice(int("left" in given), grid.nx + 1 - int("right" in given))
    of_rows, along_y = _modes(grid.heights, rows)
    of_columns, along_x = _modes(grid.widths, columns)
    return rows, columns, along_y, along_x, of_rows[:, None] + of_columns


def _modes(widths: Array, free: slice) -> tuple[Array, Array]:
    """Eigenvalues and M-orthonormal eigenvectors of linear elements on intervals of some widths."""
    n = len(widths)
    K, M = np.zeros((2, n + 1, n + 1))
    for i, h in enumerate(widths):
        K[i : i + 2, i : i + 2] += np.array([[1, -1], [-1, 1]]) / h
        M[i : i + 2, i : i + 2] += np.array([[2, 1], [1, 2]]) * h / 6
    values, vectors = eigh(K[free, free], M[free, free])
    return values, vectors
