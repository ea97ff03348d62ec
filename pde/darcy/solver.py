r"""Darcy flow by RT0/P0 mixed finite elements, one factorization for many sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from ..errors import IncompatibleSourceError, PdeError
from ..grid import Array, Grid, finite
from .hybrid import HybridSystem
from .rt0 import boundary_data, check_permeability, divergence_matrix, mass_matrix

BALANCE_TOLERANCE = 1e-10
BLOCK = 16  # right-hand sides at once: more no longer fit the cache


@dataclass(frozen=True)
class DarcySolution:
    """A flow field.

    Attributes:
        grid: The grid.
        velocity: Normal velocities `[..., num_edges]`, positive towards +x and +y.
        pressure: Cell means `[..., ny, nx]`; of zero mean when no side has a pressure.
    """

    grid: Grid
    velocity: Array
    pressure: Array

    @classmethod
    def of_batch(
        cls, grid: Grid, velocity: Array, pressure: Array, shape: tuple[int, ...]
    ) -> DarcySolution:
        """The solutions of n problems that are to have the leading dimensions of a shape."""
        edges = velocity.reshape(*shape[:-2], grid.num_edges)
        return cls(grid, edges, pressure.reshape(shape))

    def cell_velocity(self) -> Array:
        """Velocity vectors at the cell centres, `[..., ny, nx, 2]`."""
        return self.grid.cell_velocity(self.velocity)


class DarcySolver:
    r"""Solve `kappa^-1 u + grad p = 0, div u = f` exactly in RT0/P0.

    The mass matrix is integrated exactly. The system is hybridised, factored once, and every
    solution is refined once with the residual of the saddle-point system, which brings velocity
    and mass balance to round-off at contrasts of 1e7.

    Args:
        grid: The grid.
        permeability: Positive cell values kappa `[ny, nx]`.
        pressure: Pressure of the open sides `left, right, bottom, top`: a scalar, or one value an
            edge (its mean over the edge). Sides not named are closed, `u . n = 0`.

    Raises:
        PdeError: A permeability that is not positive, finite and `[ny, nx]`; an unknown side; a
            pressure that does not fit its side.

    Example:
        >>> import numpy as np
        >>> solver = DarcySolver(Grid(4, 4), np.ones((4, 4)), pressure={"left": 1.0, "right": 0.0})
        >>> bool(np.allclose(solver.solve(0.0).velocity[:20], 1.0))
        True
    """

    def __init__(
        self, grid: Grid, permeability: Any, pressure: Mapping[str, Any] | None = None
    ) -> None:
        self.grid = grid
        self.permeability = check_permeability(grid, permeability)
        self.pressure = dict(pressure or {})
        signed, self.closed_edges = boundary_data(grid, self.pressure)
        sides = [grid.boundary_edges(side) for side in self.pressure]
        open_edges = np.concatenate([*sides, np.empty(0, dtype=np.intp)])
        self._boundary_pressure = signed[:, None]
        self._lengths = grid.edge_lengths()[:, None]
        self._mass = mass_matrix(grid, self.permeability)
        self._divergence = divergence_matrix(grid)
        self._difference = sparse.csr_array(self._divergence.T).sign()
        self._system = HybridSystem(grid, self.permeability, self.closed_edges, open_edges)

    def solve(self, source: Any) -> DarcySolution:
        """Velocity and pressure for one or many sources.

        Args:
            source: `[..., ny, nx]`, the mean of f over each cell, so that a cell produces
                `source * hx * hy`; or a scalar, the same everywhere.

        Returns:
            The solution, with the source's leading dimensions.

        Raises:
            PdeError: A source of another shape, or that is not finite.
            IncompatibleSourceError: No side is open and the sources of a sample sum to more than
                1e-10 of the sum of their absolute values. (A smaller imbalance, which is rounding,
                is spread over the cells.)
        """
        values = check_sources(self.grid, source, closed=not self.pressure)
        flat = values.reshape(-1, self.grid.num_cells)
        velocity = np.empty((flat.shape[0], self.grid.num_edges))
        pressure = np.empty(flat.shape)
        for start in range(0, flat.shape[0], BLOCK):
            block = np.s_[start : start + BLOCK]
            u, p = self._solve_block(np.ascontiguousarray(flat[block].T) * self.grid.cell_area)
            velocity[block], pressure[block] = u.T, p.T
        return DarcySolution.of_batch(self.grid, velocity, pressure, values.shape)

    def _solve_block(self, source: Array) -> tuple[Array, Array]:
        """Solve for integrated sources `[num_cells, n]`; refine once on the saddle residual."""
        if self.pressure:
            load = -self._lengths * self._boundary_pressure
            load = np.broadcast_to(load, (self.grid.num_edges, source.shape[1]))
        else:
            load = None
            source = source - source.mean(axis=0)
        velocity, pressure = self._system.solve(load, source)
        # Differences of pressures are exact before they are multiplied: permeable channels at
        # nearly the pressure of their side lose four digits otherwise.
        residual = self._difference @ pressure
        residual -= self._boundary_pressure
        residual *= self._lengths
        residual -= self._mass @ velocity
        residual[self.closed_edges] = 0.0
        imbalance = source - self._divergence @ velocity
        du, dp = self._system.solve(residual, imbalance)
        velocity += du
        pressure += dp
        if not self.pressure:
            pressure -= pressure.mean(axis=0)
        return velocity, pressure


def check_sources(grid: Grid, source: Any, closed: bool) -> Array:
    """Return sources `[..., ny, nx]`, from a scalar too, that a domain, closed or not, can have.

    Raises:
        PdeError: Another shape, or a value that is not finite.
        IncompatibleSourceError: A source of a closed domain that does not sum to zero.
    """
    values = np.asarray(source, dtype=np.float64)
    if values.ndim == 0:
        values = np.broadcast_to(values, grid.shape)
    if values.shape[-2:] != grid.shape:
        raise PdeError(
            f"source of shape {values.shape}, expected (..., ny, nx) with "
            f"(ny, nx) = {grid.shape}, or a scalar"
        )
    finite("the source", values)
    if not closed:
        return values
    total, size = values.sum(axis=(-2, -1)), np.abs(values).sum(axis=(-2, -1))
    unbalanced = np.abs(total) > BALANCE_TOLERANCE * size
    if unbalanced.any():
        worst = np.max(np.abs(total) / np.where(size > 0, size, 1.0))
        raise IncompatibleSourceError(
            f"no side has a pressure, so each source must sum to zero; {unbalanced.sum()} of "
            f"{unbalanced.size} do not (off by {worst:.1e} of the sum of absolute values, at "
            f"most {BALANCE_TOLERANCE:.0e} allowed): subtract the mean, or open a side"
        )
    return values
