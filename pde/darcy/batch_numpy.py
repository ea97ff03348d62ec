"""Darcy problems through their multiplier systems in NumPy and LAPACK, one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..grid import Array, Grid, IntArray
from .banded_cholesky import BandedCholesky
from .hybrid import local_matrices
from .rt0 import OUTWARD, boundary_data


@dataclass(frozen=True)
class Problem:
    """What problems share that differ in their permeability alone.

    Attributes:
        grid: The grid.
        source: The source's integral over each cell, `[ny, nx]`.
        closed: Whether no side has a pressure.
        boundary: Pressure times the outward normal's sign, `[num_edges]`, zero but on open sides.
        passable: 0 on edges that nothing flows through, otherwise 1, `[num_edges]`.
        free: Which edges carry an unknown multiplier, `[num_edges]`.
    """

    grid: Grid
    source: Array
    closed: bool
    boundary: Array
    passable: Array
    free: NDArray[np.bool_]

    @classmethod
    def of(cls, grid: Grid, pressure: Mapping[str, Any], source: Array) -> Problem:
        """The problem of a checked source `[ny, nx]`."""
        integral = source * grid.cell_area
        if not pressure:
            integral = integral - integral.mean()
        boundary, closed = boundary_data(grid, pressure)
        passable, free = np.ones(grid.num_edges), np.ones(grid.num_edges, dtype=bool)
        passable[closed] = 0.0
        for side in pressure:
            free[grid.boundary_edges(side)] = False
        return cls(grid, integral, not pressure, boundary, passable, free)

    def pins(self, kappa: Array) -> IntArray | None:
        """An edge of each sample whose multiplier is to be zero, where none is given.

        Of the most permeable cell, since the pressure is flattest there, and rounding least.
        """
        if not self.closed:
            return None
        cells = kappa.reshape(len(kappa), -1).argmax(axis=1)
        return np.asarray(self.grid.cell_edges()[cells, 0])


class OneByOne:
    """Solve one problem after the other, and refine it once with the saddle point's residual.

    The formulas are those of `hybrid`, with whole arrays in place of sparse matrices.

    Args:
        problem: What the samples share.
    """

    batch = 1

    def __init__(self, problem: Problem) -> None:
        self._problem, self.grid = problem, problem.grid
        self._factor = BandedCholesky(problem.grid, problem.free)
        H, w = local_matrices(problem.grid)
        # H = kappa [[a, b, -c, -c], [b, a, -c, -c], [-c, -c, d, e], [-c, -c, e, d]]
        self._H = (H[0, 0], H[0, 1], -H[0, 2], H[2, 2], H[2, 3])
        self._resistance, self._weight = 1 / w.sum(), w / w.sum()

    def solve(self, kappa: Array) -> tuple[Array, Array]:
        """Velocities `[n, num_edges]` and pressures `[n, ny, nx]` for `[n, ny, nx]`."""
        problem = self._problem
        self._factor.factorize(kappa.reshape(len(kappa), -1), problem.pins(kappa))
        shares = self._shares(kappa)
        load = np.broadcast_to(
            -self._problem.boundary * self.grid.edge_lengths(), (len(kappa), self.grid.num_edges)
        )
        source = np.broadcast_to(problem.source, kappa.shape)
        velocity, pressure = self._solve_once(kappa, shares, load, source)
        # One step of refinement on the saddle point, mass matrix and divergence as they are.
        residual = self._residual(kappa, velocity, pressure)
        imbalance = source - self._outflow(velocity)
        du, dp = self._solve_once(kappa, shares, residual, imbalance)
        velocity += du
        pressure += dp
        if problem.closed:
            pressure -= pressure.mean(axis=(1, 2), keepdims=True)
        return velocity, pressure

    def _sides(self, values: Array) -> tuple[Array, Array, Array, Array]:
        """Views of edge values at the left, right, bottom and top of each cell, `[n, ny, nx]`."""
        vertical, horizontal = self.grid.split(values)
        left, right = vertical[..., :-1], vertical[..., 1:]
        return left, right, horizontal[..., :-1, :], horizontal[..., 1:, :]

    def _edges(self, left: Array, right: Array, bottom: Array, top: Array) -> Array:
        """Sum cells' values onto the edges, `[n, num_edges]`."""
        result = np.zeros((len(left), self.grid.num_edges))
        for view, values in zip(self._sides(result), (left, right, bottom, top), strict=True):
            view += values
        return result

    def _shares(self, kappa: Array) -> list[Array]:
        """Weights that pass velocities and loads between an edge and its two cells.

        In proportion to the cells' resistance: in the permeable one both come from small
        differences of large numbers.
        """
        resistance = 1 / kappa
        total = self._edges(*[resistance] * 4) * self.grid.edge_lengths()
        sides = self._sides(self._problem.passable / total)
        return [sign * resistance * side for sign, side in zip(OUTWARD, sides, strict=True)]

    def _times_h(self, kappa: Array, d: list[Array]) -> list[Array]:
        """`kappa H d` in every cell."""
        a, b, c, f, g = self._H
        across, along = c * (d[2] + d[3]), c * (d[0] + d[1])
        return [
            kappa * (a * d[0] + b * d[1] - across),
            kappa * (b * d[0] + a * d[1] - across),
            kappa * (f * d[2] + g * d[3] - along),
            kappa * (g * d[2] + f * d[3] - along),
        ]

    def _solve_once(
        self, kappa: Array, shares: list[Array], load: Array, source: Array
    ) -> tuple[Array, Array]:
        """Solve `A u - B^T p = load, B u = source` through the multipliers."""
        g = [share * side for share, side in zip(shares, self._sides(load), strict=True)]
        w = self._weight
        driven = [w[i] * source + q for i, q in enumerate(self._times_h(kappa, g))]
        multiplier = self._factor.solve(np.where(self._problem.free, self._edges(*driven), 0.0))
        d = [a - b for a, b in zip(g, self._sides(multiplier), strict=True)]
        pressure = self._resistance / kappa * source
        pressure -= sum(w[i] * one for i, one in enumerate(d))
        flux = self._times_h(kappa, d)
        velocity = self._edges(
            *(share * (w[i] * source + flux[i]) for i, share in enumerate(shares))
        )
        return velocity, pressure

    def _residual(self, kappa: Array, velocity: Array, pressure: Array) -> Array:
        """`-D + B^T p - A u`, zero on edges that nothing passes."""
        # Differences of pressures are exact before they are multiplied: permeable channels at
        # nearly the pressure of their side lose four digits otherwise.
        residual = self._edges(-pressure, pressure, -pressure, pressure) - self._problem.boundary
        residual *= self.grid.edge_lengths()
        weight = self.grid.cell_area / 6 / kappa
        left, right, bottom, top = self._sides(velocity)
        residual -= self._edges(
            weight * (2 * left + right),
            weight * (left + 2 * right),
            weight * (2 * bottom + top),
            weight * (bottom + 2 * top),
        )
        residual *= self._problem.passable
        return residual

    def _outflow(self, velocity: Array) -> Array:
        left, right, bottom, top = self._sides(velocity)
        return (right - left) * self.grid.hy + (top - bottom) * self.grid.hx
