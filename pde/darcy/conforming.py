r"""Pressures that are continuous: bilinear on every cell, given by their values at the nodes.

On a cell of size `hx` by `hy` and permeability `kappa` the energy of nodal values
`p = (p_00, p_10, p_01, p_11)` is

    integral of kappa |grad p|^2 = kappa p^T (hy/hx X + hx/hy Y) p,

with `X` and `Y` below. The sum over the cells is the stiffness matrix of Q1 finite elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpbtrf, dpbtrs

from ..errors import PdeError, SingularError
from ..grid import SIDES, Array, Grid
from .rt0 import check_permeability
from .solver import check_sources

X = np.array([[2, -2, 1, -1], [-2, 2, -1, 1], [1, -1, 2, -2], [-1, 1, -2, 2]]) / 6
Y = X[[0, 2, 1, 3]][:, [0, 2, 1, 3]]


def conforming_pressure(
    grid: Grid, permeability: Any, pressure: Mapping[str, float], source: Any = 0.0
) -> Array:
    r"""The Q1 pressure of `-div(kappa grad p) = f`, the nearest of all bilinear ones.

    It minimises `||kappa^(1/2) grad(p~ - p)||` over the continuous, bilinear p~ with the given
    boundary values, so that no other one makes `pde.darcy.error_bound.energy_bound` smaller,
    whatever the velocity. A banded Cholesky factorization a field, of the nodes' system.

    Args:
        grid: The grid.
        permeability: Positive cell values `[..., ny, nx]`.
        pressure: Pressure of whole sides, one number each; the other sides are closed.
        source: `[ny, nx]` or a scalar, the mean of f over each cell.

    Returns:
        Values at the nodes, `[..., ny + 1, nx + 1]`, row 0 at y = 0.

    Raises:
        PdeError: A permeability or a source of another shape, no side of given pressure, or sides
            that meet with unlike pressures.
    """
    kappa = check_permeability(grid, permeability, many=True)
    given, free = boundary_values(grid, pressure)
    values = grid.cell_field("source", check_sources(grid, source, closed=False))
    quarter = values * grid.cell_areas / 4
    load = add_to_nodes(np.stack([quarter] * 4))
    solver = _Banded(grid, free)
    found = [solver.solve(one, given, load) for one in kappa.reshape(-1, *grid.shape)]
    return np.array(found).reshape(*kappa.shape[:-2], *given.shape)


def boundary_values(grid: Grid, pressure: Mapping[str, float]) -> tuple[Array, NDArray[np.bool_]]:
    """Nodal values, zero where they are not given, and where they are free, `[ny + 1, nx + 1]`.

    Raises:
        PdeError: No side of given pressure, an unknown side or a part of one, a value that is not a
            finite number, or sides that meet with unlike pressures.
    """
    lines: dict[str, Any] = {
        "left": np.s_[:, 0],
        "right": np.s_[:, -1],
        "bottom": np.s_[0],
        "top": np.s_[-1],
    }
    check_whole_sides(pressure)
    values = np.full((grid.ny + 1, grid.nx + 1), np.nan)
    for side, value in pressure.items():
        line = values[lines[side]]
        if (line[~np.isnan(line)] != value).any():
            raise PdeError(
                f"side {side!r} of pressure {value:g} meets a side of another pressure: no "
                "pressure of finite energy jumps there; give them the same, or close one"
            )
        values[lines[side]] = value
    free = np.isnan(values)
    return np.where(free, 0.0, values), free


def check_whole_sides(pressure: Mapping[str, float]) -> None:
    """Raise `PdeError` unless one or more whole sides have a finite pressure each."""
    if not pressure or not set(pressure) <= set(SIDES):
        raise PdeError(
            f"pressure on {', '.join(pressure) or 'no side'}, expected one or more whole sides of "
            f"{', '.join(SIDES)}"
        )
    for side, value in pressure.items():
        if np.ndim(value) or not np.isfinite(value):
            raise PdeError(f"pressure on side {side!r} is {value!r}, expected one finite number")


def stiffness(grid: Grid) -> Array:
    """`hy/hx X + hx/hy Y` of every cell, `[4, 4, ny, nx]`."""
    slope = grid.heights[:, None] / grid.widths
    return X[:, :, None, None] * slope + Y[:, :, None, None] / slope


def stiffness_times(local: Array, kappa: Array, values: Array) -> Array:
    """The stiffness matrix times nodal values, `[ny + 1, nx + 1]`."""
    at = np.stack([values[corner] for corner in _corners(kappa.shape)])
    return add_to_nodes(np.einsum("ijyx,jyx->iyx", local, at) * kappa)


def add_to_nodes(corners: Array) -> Array:
    """Sum what the cells give their four nodes, `[4, ..., ny, nx]`, to `[..., ny + 1, nx + 1]`."""
    *lead, ny, nx = corners.shape[1:]
    nodes = np.zeros((*lead, ny + 1, nx + 1))
    for place, values in zip(_corners((ny, nx)), corners, strict=True):
        nodes[..., place[0], place[1]] += values
    return nodes


def _corners(shape: tuple[int, ...]) -> list[tuple[slice, slice]]:
    """Where the cells' four nodes lie among all nodes, in the order of `X`."""
    ny, nx = shape
    return [np.s_[i : i + ny, j : j + nx] for i in (0, 1) for j in (0, 1)]


class _Banded:
    """The systems of the free nodes of a grid, numbered along its shorter side."""

    def __init__(self, grid: Grid, free: NDArray[np.bool_]) -> None:
        self._free = free
        order = np.flatnonzero(free.ravel())
        if grid.ny < grid.nx:  # column after column
            order = np.arange(free.size).reshape(free.shape).T.ravel()
            order = order[free.ravel()[order]]
        self._order = order
        position = np.full(free.size, -1)
        position[order] = np.arange(order.size)
        at = position.reshape(free.shape)
        places = np.stack([at[corner].ravel() for corner in _corners(grid.shape)])
        self._local = stiffness(grid)
        self._pairs = []
        band = 0
        for i in range(4):
            for j in range(4):
                cells = np.flatnonzero((places[i] >= places[j]) & (places[j] >= 0))
                gap = places[i, cells] - places[j, cells]
                band = max(band, int(gap.max(initial=0)))
                self._pairs.append((i, j, cells, gap, places[j, cells]))
        self._rows = band + 1

    def solve(self, kappa: Array, given: Array, load: Array) -> Array:
        """Nodal values of one permeability."""
        rhs = load - stiffness_times(self._local, kappa, given)
        entries = np.zeros(self._rows * self._order.size)
        for i, j, cells, gap, column in self._pairs:
            value = (self._local[i, j] * kappa).ravel()[cells]
            entries += np.bincount(column * self._rows + gap, value, minlength=entries.size)
        found = given.copy()
        if self._order.size:
            matrix = entries.reshape((self._rows, -1), order="F")
            factor, info = dpbtrf(matrix, lower=1, overwrite_ab=1)
            if info:
                raise SingularError
            found.ravel()[self._order] = dpbtrs(factor, rhs.ravel()[self._order], lower=1)[0]
        return found
