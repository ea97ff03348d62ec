r"""A bound of a flow's distance to the RT0 solution on its grid that needs no solution.

With the mass matrix A, the fluxes B out of the cells and the work D of the given pressures, the RT0
solution is `A u_h = B^T p_h - D`, `B u_h = F` (:mod:`pde.darcy.rt0`). For a flow u with `B u = F`
and any cell pressures p, the difference `u - u_h` has no flux out of any cell, hence

    ||u - A^-1 (B^T p - D)||_A^2 = ||u - u_h||_A^2 + ||u_h - A^-1 (B^T p - D)||_A^2,

the identity of Prager and Synge (1947) for matrices. With the residual `rho = A u + D - B^T p` the
left side is `rho^T A^-1 rho`. Mass couples an edge with the two opposite ones alone, so that `A^-1`
takes a tridiagonal solve along each row and column of cells.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.linalg import eigh, solveh_banded

from ..grid import Array, Grid
from .conforming import check_whole_sides
from .error_bound import check_balance
from .rt0 import MASS, boundary_data, check_permeability
from .solver import check_sources


def discrete_bound(
    grid: Grid,
    permeability: Any,
    pressure: Mapping[str, float],
    velocity: Any,
    source: Any = 0.0,
) -> Array:
    r"""An upper bound of `||kappa^(-1/2) (u - u_h)||`, u_h the RT0 solution on the grid.

    It is `sqrt(rho^T A^-1 rho)` with the cell pressures that make the residual
    `rho = A u + D - B^T p` least in the norm that the lumped mass of permeability 1 gives. Their
    system is the five-point Laplacian for every permeability: four products of matrices as large as
    the grid's sides, and two tridiagonal solves a field. The bound holds for every permeability,
    and is near the distance where that varies moderately. `energy_bound` is that of the distance to
    the exact flow.

    Args:
        grid: The grid.
        permeability: Positive cell values `[..., ny, nx]`.
        pressure: Pressure of whole sides, one number each; the other sides are closed.
        velocity: RT0 velocities `[..., num_edges]` that balance the source in every cell and do not
            pass closed sides; leading dimensions broadcast with the permeability's.
        source: `[ny, nx]` or a scalar, the mean of f over each cell.

    Returns:
        The bounds, `[...]`.

    Raises:
        PdeError: Velocities that do not balance or pass closed sides, no side of given pressure, a
            part of a side, or a permeability of another shape or that is not positive.
    """
    kappa = check_permeability(grid, permeability, many=True)
    check_whole_sides(pressure)
    check_balance(grid, velocity, check_sources(grid, source, closed=False), pressure)
    x, y = _lines(grid, frozenset(pressure))
    work = grid.split(boundary_data(grid, pressure)[0])
    flow = grid.split(velocity)
    weights = grid.cell_areas / kappa, _turned(grid.cell_areas / kappa)
    along_x = x.mass(weights[0], flow[0]) + x.lengths * work[0]
    along_y = y.mass(weights[1], _turned(flow[1])) + y.lengths * _turned(work[1])
    modes = y.modes.T @ (x.out(along_x) + _turned(y.out(along_y))) @ x.modes
    p = y.modes @ (modes / (y.eigenvalues[:, None] + x.eigenvalues)) @ x.modes.T
    energy = x.energy(weights[0], along_x - x.gradient(p))
    energy = energy + y.energy(weights[1], along_y - y.gradient(_turned(p)))
    return np.asarray(np.sqrt(energy), dtype=np.float64)


@lru_cache(maxsize=8)
def _lines(grid: Grid, given: frozenset[str]) -> tuple[_Lines, _Lines]:
    x = _Lines(grid.widths, grid.heights, ("left" in given, "right" in given))
    return x, _Lines(grid.heights, grid.widths, ("bottom" in given, "top" in given))


def _turned(values: Array) -> Array:
    return np.swapaxes(values, -1, -2)


class _Lines:
    """Lines of n cells each, which are the last axis, and the n + 1 edges across every line.

    Args:
        widths: Of a line's cells, `[n]`.
        lengths: Of the edges of each line, `[m]`.
        opened: Whether the first and the last edge are open.

    Attributes:
        lengths: `[m, 1]`.
        modes: Eigenvectors of the three-point Laplacian that are orthonormal in the widths.
        eigenvalues: Theirs.
    """

    def __init__(self, widths: Array, lengths: Array, opened: tuple[bool, bool]) -> None:
        self.lengths = lengths[:, None]
        self._open = np.pad(np.ones(len(widths) - 1), 1, constant_values=opened)
        around = np.pad(widths, 1)
        self._per_distance = 2 * self._open / (around[1:] + around[:-1])
        slopes = np.diff(np.eye(len(widths) + 1), axis=0)
        self.eigenvalues, self.modes = eigh(slopes * self._per_distance @ slopes.T, np.diag(widths))

    def mass(self, weight: Array, velocity: Array) -> Array:
        """The mass matrix of the cells' areas over permeabilities times velocities."""
        product = self._diagonal(weight) * velocity
        product[..., 1:] += MASS[0, 1] * weight * velocity[..., :-1]
        product[..., :-1] += MASS[0, 1] * weight * velocity[..., 1:]
        return product

    def out(self, residual: Array) -> Array:
        """B times residuals over the lumped mass."""
        return np.diff(residual * self._per_distance, axis=-1)

    def gradient(self, p: Array) -> Array:
        """B^T times cell pressures."""
        beyond = [(0, 0)] * (p.ndim - 1) + [(1, 1)]
        return -self.lengths * np.diff(np.pad(p, beyond), axis=-1)

    def energy(self, weight: Array, residual: Array) -> Array:
        """`rho^T A^-1 rho` over open edges, summed over the lines."""
        rho = residual * self._open
        diagonal = np.where(self._open, self._diagonal(weight), 1.0)
        beside = np.zeros_like(diagonal)  # between an edge and the one before
        beside[..., 1:] = MASS[0, 1] * weight * self._open[1:] * self._open[:-1]
        shape = np.broadcast_shapes(rho.shape, diagonal.shape)
        bands = [np.broadcast_to(band, shape).ravel() for band in (beside, diagonal)]
        solved = solveh_banded(np.stack(bands), np.broadcast_to(rho, shape).ravel())
        return np.asarray((rho * solved.reshape(shape)).sum((-2, -1)))

    @staticmethod
    def _diagonal(weight: Array) -> Array:
        ends = np.zeros((*weight.shape[:-1], weight.shape[-1] + 1))
        ends[..., 1:] += MASS[0, 0] * weight
        ends[..., :-1] += MASS[0, 0] * weight
        return ends
