"""Slow, plain solutions of the saddle-point system, which benchmarks and tests compare with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import splu, spsolve

from pde.darcy.rt0 import (
    OUTWARD,
    boundary_data,
    check_permeability,
    divergence_matrix,
    mass_matrix,
    saddle_point,
)
from pde.darcy.solver import DarcySolution
from pde.grid import Array, Grid

Extended = NDArray[np.longdouble]


def saddle_point_solution(
    grid: Grid, permeability: Any, source: Array, pressure: Mapping[str, Any] | None = None
) -> DarcySolution:
    """Assemble the saddle point for one source `[ny, nx]` and give it to `spsolve`.

    Arguments as for `DarcySolver`. At contrasts of 1e7 its velocities are off by 1e-9 or so.
    """
    matrix, load, keep = _system(grid, permeability, source, pressure or {})
    solution = np.zeros(keep.size)
    solution[keep] = spsolve(matrix, load)
    return _result(grid, solution, pinned=not pressure)


def refined_solution(
    grid: Grid, permeability: Any, source: Array, pressure: Mapping[str, Any] | None = None
) -> DarcySolution:
    """The saddle point's solution refined with residuals in extended precision.

    The matrix is assembled in `np.longdouble` too, 64 bits of mantissa on x86 (where it is no
    wider than float64 the result is a refined one of working precision), and the iteration stops
    when corrections fall below 1e-18 of the solution or no longer shrink.
    """
    matrix, load, keep = _system(grid, permeability, source, pressure or {})
    factor = splu(matrix)
    exact_load = load.astype(np.longdouble)
    solution = np.zeros(keep.size, dtype=np.longdouble)
    last = np.inf
    for _ in range(20):
        residual = exact_load - _apply(grid, permeability, solution)[keep]
        # Velocities and pressures differ by orders of magnitude: each has its own scale.
        correction = np.zeros(keep.size)
        correction[keep] = factor.solve(residual.astype(np.float64))
        solution += correction
        size = max(
            float(np.abs(correction[part]).max() / max(np.abs(solution[part]).max(), 1e-300))
            for part in (np.s_[: grid.num_edges], np.s_[grid.num_edges :])
        )
        if size < 1e-18 or size > last / 2:
            break
        last = size
    return _result(grid, solution.astype(np.float64), pinned=not pressure)


def _system(
    grid: Grid, permeability: Any, source: Array, pressure: Mapping[str, Any]
) -> tuple[sparse.csc_array, Array, NDArray[np.bool_]]:
    kappa = check_permeability(grid, permeability)
    signed, closed = boundary_data(grid, pressure)
    work = signed * grid.edge_lengths()
    keep = np.ones(grid.num_edges + grid.num_cells, dtype=bool)
    keep[closed] = False
    if not pressure:
        keep[grid.num_edges + np.argmax(kappa)] = False
    load = -np.concatenate([work, np.asarray(source, dtype=np.float64).ravel() * grid.cell_area])
    matrix = saddle_point(mass_matrix(grid, kappa), divergence_matrix(grid))[keep][:, keep]
    return sparse.csc_array(matrix), load[keep], keep


def _apply(grid: Grid, permeability: Any, solution: Extended) -> Extended:
    """The saddle-point matrix times a vector, cell by cell in extended precision."""
    edges = grid.cell_edges()
    kappa = np.asarray(permeability).astype(np.longdouble).reshape(-1, 1)
    hx, hy = np.longdouble(grid.lx) / grid.nx, np.longdouble(grid.ly) / grid.ny
    velocity, p = solution[: grid.num_edges][edges], solution[grid.num_edges :, None]
    opposite = velocity[:, [1, 0, 3, 2]]
    outward = OUTWARD.astype(np.longdouble) * np.array([hy, hy, hx, hx])
    local = hx * hy / kappa * (2 * velocity + opposite) / 6 - outward * p
    rows = np.zeros(grid.num_edges, dtype=np.longdouble)
    np.add.at(rows, edges, local)
    return np.concatenate([rows, -(outward * velocity).sum(axis=1)])


def _result(grid: Grid, solution: Array, pinned: bool) -> DarcySolution:
    pressure = solution[grid.num_edges :].reshape(grid.shape)
    if pinned:
        pressure = pressure - pressure.mean()
    return DarcySolution(grid, solution[: grid.num_edges], pressure)
