r"""Darcy flow by RT0/P0 mixed finite elements, one factorization for many sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from ..errors import IncompatibleSourceError, PdeError, check_conserved
from ..grid import Array, Grid, IntArray, finite
from .cells import check_active, check_tensor, connected_cells, grid_cells, passable_edges
from .hybrid import HybridSystem
from .rt0 import boundary_data, divergence_matrix, mass_matrix, on_sides
from .well_index import well_index
from .wells import Well, cells_of

BALANCE_TOLERANCE = 1e-10
BLOCK = 16  # right-hand sides at once: more no longer fit the cache


@dataclass(frozen=True)
class DarcySolution:
    """A flow field.

    Attributes:
        grid: The grid.
        velocity: Normal velocities `[..., num_edges]`, positive towards +x and +y.
        pressure: Cell means `[..., ny, nx]`; of zero mean where nothing has a pressure, and NaN in
            cells that are not active.
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
    r"""Solve `K^-1 u + grad p = 0, div u = f` exactly in RT0/P0.

    The mass matrix is integrated exactly. The system is hybridised, factored once, and every
    solution is refined once with the residual of the saddle-point system, which brings velocity
    and mass balance to round-off at contrasts of 1e7.

    Args:
        grid: The grid, of equal cells or not.
        permeability: Positive cell values kappa `[ny, nx]`, or `[ny, nx, 2]`, kappa along x and
            along y; anything in cells that are not active.
        pressure: Pressure of the open sides `left, right, bottom, top`, or of parts of them
            (`left:0.2:0.5`, see `Grid.boundary_edges`): a scalar, or one value an edge (its mean
            over the edge). All else is closed, `u . n = 0`, but for `flux`.
        flux: `u . n` out of sides or parts of them, by the same names: a scalar, or one value an
            edge. Edges of cells that are not active stay closed.
        wells: Wells with a rate, with a pressure, or the one that balances the others.
        active: Which cells there is flow in, `[ny, nx]`; all by default. The pressure of the others
            is NaN, their velocity zero.

    Raises:
        PdeError: A permeability that is not positive, finite and of these shapes; an unknown side;
            a value that does not fit its side, a side without an active cell, or an edge that has
            two values; a well outside the active cells, two in one cell, or one to balance others
            where a pressure does.

    Example:
        >>> import numpy as np
        >>> solver = DarcySolver(Grid(4, 4), np.ones((4, 4)), pressure={"left": 1.0, "right": 0.0})
        >>> bool(np.allclose(solver.solve(0.0).velocity[:20], 1.0))
        True
    """

    def __init__(
        self,
        grid: Grid,
        permeability: Any,
        pressure: Mapping[str, Any] | None = None,
        *,
        flux: Mapping[str, Any] | None = None,
        wells: Sequence[Well] = (),
        active: Any = None,
    ) -> None:
        self.grid, self.wells = grid, tuple(wells)
        self.active = check_active(grid, active)
        self.permeability = check_tensor(grid, permeability, self.active)
        self.pressure = dict(pressure or {})
        signed, closed = boundary_data(grid, self.pressure)
        reached = grid.cell_edges()[self.active.ravel()]
        for side in {**self.pressure, **(flux or {})}:
            if not np.isin(grid.boundary_edges(side), reached).any():
                raise PdeError(f"side {side!r} has no active cell, so that nothing can flow there")
        self.closed_edges, open_edges = passable_edges(grid, closed, self.active)
        self._boundary_pressure = signed[:, None]
        self._given = self._given_velocity(flux or {}, closed)
        self._lengths = grid.edge_lengths()[:, None]
        cells = np.expand_dims(self.active, -1) if self.permeability.ndim == 3 else self.active
        self._mass = mass_matrix(grid, np.where(cells, self.permeability, np.inf))
        self._divergence = divergence_matrix(grid)
        self._difference = sparse.csr_array(self._divergence.T).sign()
        self._well_cells = [grid.nx * i + j for i, j in cells_of(grid, self.wells)]
        self._index, self._well_pressure, self._rates = self._prescribed()
        groups = connected_cells(grid, self.active)
        fixed = np.append(grid_cells(grid, open_edges), np.flatnonzero(self._index))
        #: Groups of connected cells in which nothing has a pressure.
        self.floating = [group for group in groups if not np.isin(group, fixed).any()]
        self._balancing = self._balancing_wells()
        self._system = HybridSystem(
            grid,
            self.permeability,
            self.closed_edges,
            open_edges,
            self._index.reshape(grid.shape),
            self.floating,
        )

    def _given_velocity(self, flux: Mapping[str, Any], closed: IntArray) -> Array | None:
        """Velocities of the edges that `flux` names, `[num_edges, 1]`; None if there are none."""
        given, named = on_sides(self.grid, "flux", flux)
        named[closed] = False
        if named.any():
            raise PdeError(f"{named.sum()} edges have a pressure and a flux: give one of them")
        given[~np.isin(np.arange(given.size), self.grid.cell_edges()[self.active.ravel()])] = 0.0
        return given[:, None] if given.any() else None

    def _prescribed(self) -> tuple[Array, Array, Array]:
        """Indices and pressures of the wells that have one, and rates, `[num_cells]` each."""
        index, pressure, rate = np.zeros((3, self.grid.num_cells))
        tensor = self.permeability.reshape(self.grid.num_cells, -1)
        for cell, well in zip(self._well_cells, self.wells, strict=True):
            if not self.active.ravel()[cell]:
                raise PdeError(f"the well at ({well.x:g}, {well.y:g}) lies in a cell not active")
            if well.pressure is not None:
                i, j = divmod(cell, self.grid.nx)
                size = float(self.grid.widths[j]), float(self.grid.heights[i])
                index[cell] = well_index(well, (tensor[cell, 0], tensor[cell, -1]), size)
                pressure[cell] = well.pressure
            elif well.rate is not None:
                rate[cell] = well.rate
        return index, pressure, rate

    def _balancing_wells(self) -> list[tuple[int, IntArray]]:
        """Cells of the wells that balance the others, with the cells that they are connected to."""
        found: list[tuple[int, IntArray]] = []
        for cell, well in zip(self._well_cells, self.wells, strict=True):
            if well.balances:
                group = next((g for g in self.floating if cell in g), None)
                if group is None or any(group is other for _, other in found):
                    raise PdeError(
                        f"the well at ({well.x:g}, {well.y:g}) has no rate or pressure, and "
                        f"{'a pressure' if group is None else 'another such well'} balances the "
                        "others: give it a rate, or a pressure and a radius"
                    )
                found.append((cell, group))
        return found

    def solve(self, source: Any = 0.0) -> DarcySolution:
        """Velocity and pressure for one or many sources.

        Args:
            source: `[..., ny, nx]`, the mean of f over each cell, so that a cell of area `a`
                produces `source * a`; or a scalar, the same in every active cell. Wells add to it.

        Returns:
            The solution, with the source's leading dimensions.

        Raises:
            PdeError: A source of another shape, that is not finite, or not zero where a cell is not
                active.
            IncompatibleSourceError: No pressure is given in cells that are connected, no well
                balances them, and the sources of a sample less what flows out sum to more than
                1e-10 of the sum of their absolute values. (A smaller imbalance, which is rounding,
                is spread over the cells.)
            SingularError: The flow does not conserve mass in double precision, to 1e-6 of its
                largest value through an edge.
        """
        values = check_sources(self.grid, source, closed=False)
        if not self.active.all():
            if np.ndim(source) == 0:
                values = np.where(self.active, values, 0.0)
            elif values[..., ~self.active].any():
                raise PdeError("a source in cells that are not active: set it to zero there")
        flat = values.reshape(-1, self.grid.num_cells)
        velocity = np.empty((flat.shape[0], self.grid.num_edges))
        pressure = np.empty(flat.shape)
        areas = self.grid.cell_areas.reshape(-1, 1)
        for start in range(0, flat.shape[0], BLOCK):
            block = np.s_[start : start + BLOCK]
            u, p = self._solve_block(self._balanced(np.ascontiguousarray(flat[block].T) * areas))
            velocity[block], pressure[block] = u.T, p.T
        return DarcySolution.of_batch(self.grid, velocity, pressure, values.shape)

    def well_rates(self, solution: DarcySolution, source: Any = 0.0) -> Array:
        """What each well gives in a solution for a source, `[..., number of wells]`."""
        excess = (self.grid.divergence(solution.velocity) - source) * self.grid.cell_areas
        rates: Array = excess.reshape(*excess.shape[:-2], -1)[..., self._well_cells]
        return rates

    def _balanced(self, source: Array) -> Array:
        """Integrated sources `[num_cells, n]` with the wells', such that they can balance."""
        if self._rates.any():
            source = source + self._rates[:, None]
        for group in self.floating:
            net = source[group]
            if self._given is not None:
                net -= (self._divergence @ self._given)[group]
            for cell, cells in self._balancing:
                if cells is group:
                    source[cell] -= net.sum(axis=0)
                    break
            else:
                check_balance(net.sum(axis=0), np.abs(net).sum(axis=0))
                source[group] -= net.mean(axis=0)
        return source

    def _solve_block(self, source: Array) -> tuple[Array, Array]:
        """Solve for integrated sources `[num_cells, n]`; refine once on the saddle residual."""
        num, index = source.shape[1], self._index[:, None]
        load = None
        if self.pressure:
            load = -self._lengths * self._boundary_pressure
            load = np.broadcast_to(load, (self.grid.num_edges, num))
        driven = source
        if self._given is not None:
            lifted = -(self._mass @ self._given)
            load = np.repeat(lifted, num, axis=1) if load is None else load + lifted
            load[self.closed_edges] = 0.0
            driven = source - self._divergence @ self._given
        if index.any():
            driven = driven + index * self._well_pressure[:, None]
        velocity, pressure = self._system.solve(load, driven)
        if self._given is not None:
            velocity += self._given
        # Differences of pressures are exact before they are multiplied: permeable channels at
        # nearly the pressure of their side lose four digits otherwise.
        residual = self._difference @ pressure
        residual -= self._boundary_pressure
        residual *= self._lengths
        residual -= self._mass @ velocity
        residual[self.closed_edges] = 0.0
        imbalance = source - self._divergence @ velocity
        if index.any():
            imbalance += index * (self._well_pressure[:, None] - pressure)
        du, dp = self._system.solve(residual, imbalance)
        velocity += du
        pressure += dp
        excess = source - self._divergence @ velocity
        if index.any():
            excess += index * (self._well_pressure[:, None] - pressure)
        kappa = self.permeability[None, self.active]
        check_conserved(excess.T, (self._lengths * velocity).T, kappa, pressure.T)
        areas = self.grid.cell_areas.ravel()
        for group in self.floating:
            if self.grid.uniform:
                pressure[group] -= pressure[group].mean(axis=0)
            else:
                pressure[group] -= np.average(pressure[group], axis=0, weights=areas[group])
        pressure[~self.active.ravel()] = np.nan
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
    check_balance(values.sum(axis=(-2, -1)), np.abs(values).sum(axis=(-2, -1)))
    return values


def check_balance(total: Array, size: Array) -> None:
    """Raise `IncompatibleSourceError` unless sums are round-off of the sums of absolute values."""
    unbalanced = np.abs(total) > BALANCE_TOLERANCE * size
    if unbalanced.any():
        worst = np.max(np.abs(total) / np.where(size > 0, size, 1.0))
        raise IncompatibleSourceError(
            f"no side has a pressure, so each source must sum to zero; {unbalanced.sum()} of "
            f"{unbalanced.size} do not (off by {worst:.1e} of the sum of absolute values, at "
            f"most {BALANCE_TOLERANCE:.0e} allowed): subtract the mean, open a side, or "
            "add a well that has a pressure or takes what the others give"
        )
