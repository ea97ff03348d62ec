r"""Data sets of pressure-driven flow with a reaction, through random permeabilities.

    u = -kappa grad p,    div u + c p = f,

where `c >= 0` is the rate of a decay, or the storage of a step in time (compressibility over its
length). The discretisation is RT0/P0: with the mass matrix `A`, the divergence `B` and the diagonal
`R` of `c` times a cell's area,

    A u - B^T p = -D,    B u + R p = F.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from ..darcy.elimination_order import nested_dissection
from ..darcy.hybrid import factorize, local_matrices
from ..darcy.rt0 import OUTWARD, boundary_data, check_permeability, sum_over_cells
from ..darcy.solver import DarcySolution, check_sources
from ..errors import PdeError, check_conserved
from ..grid import Array, Grid
from .family import Arrays, Family
from .permeability import PRESSURE, PermeabilityDataSpec, RandomPermeabilities


@dataclass(frozen=True)
class ReactionDataSpec(PermeabilityDataSpec):
    """Random permeabilities, and reactive flow from left (pressure 1) to right (0) through each.

    The other arguments are those of `PermeabilityDataSpec`.

    Args:
        reaction: The rate c, the same everywhere.

    Raises:
        PdeError: A value that is not one of these.
    """

    format: ClassVar[str] = "pde reaction data"
    backends: ClassVar[tuple[str, ...]] = ("auto", "scipy")

    reaction: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_reaction(self.grid, self.reaction)

    def family(self, shared: Arrays, backend: str) -> Family:
        """What one worker keeps."""
        solver = ReactionSolver(self.grid, self.reaction, PRESSURE, self.source)
        return RandomPermeabilities(self, solver.solve)


def check_reaction(grid: Grid, reaction: Any) -> Array:
    """Return the rates `[ny, nx]`; raise `PdeError` unless all are finite and none negative."""
    rate = np.full(grid.shape, reaction) if np.ndim(reaction) == 0 else reaction
    rate = grid.cell_field("reaction", rate)
    if rate.min() < 0:
        raise PdeError(f"reaction={rate.min()}, expected rates that are not negative")
    return rate


class ReactionSolver:
    r"""Solve for many kappa by hybridisation, one sparse symmetric factorization each.

    With the local matrices of `pde.darcy.hybrid`, `M^-1 = kappa (H + w w^T / s)`, and `r` the
    reaction's integral over a cell, its pressure and outward fluxes under edge pressures `l` are

        p = (F + kappa w^T l) / (kappa s + r),    q = kappa w p - M^-1 l,

    and the fluxes of the two cells of an edge cancel.

    Args:
        grid: The grid.
        reaction: The rate c, `[ny, nx]` or a scalar.
        pressure: Pressure of the open sides, as for `DarcySolver`; at least one.
        source: `[ny, nx]` or a scalar.

    Raises:
        PdeError: A negative rate, no open side, or as for `DarcySolver`.
    """

    def __init__(
        self, grid: Grid, reaction: Any, pressure: Mapping[str, Any], source: Any = 0.0
    ) -> None:
        if not pressure:
            raise PdeError("the reaction solver needs a side of given pressure")
        self.grid = grid
        values = grid.cell_field("source", check_sources(grid, source, closed=False))
        self._source = values.reshape(-1, 1) * grid.cell_area
        self._rate = check_reaction(grid, reaction).reshape(-1, 1) * grid.cell_area
        signed, self._closed = boundary_data(grid, pressure)
        opened = np.concatenate([grid.boundary_edges(side) for side in pressure])
        self._edges = grid.cell_edges()
        self._given = np.zeros(grid.num_edges)
        self._given[self._edges] = signed[self._edges] * OUTWARD
        free = np.setdiff1d(np.arange(grid.num_edges), opened)
        self._free = nested_dissection(grid, free)
        self._cells_of_edge = np.bincount(self._edges.ravel())

    def solve(self, permeability: Any) -> DarcySolution:
        """Velocity and pressure of permeabilities `[..., ny, nx]`, as `DarcyFamily.solve`."""
        kappa = check_permeability(self.grid, permeability, many=True)
        flat = kappa.reshape(-1, 1, self.grid.num_cells)
        velocity = np.empty((len(flat), self.grid.num_edges))
        pressure = np.empty((len(flat), *self.grid.shape))
        for i, one in enumerate(flat):
            velocity[i], pressure[i] = self._solve(one.reshape(-1, 1))
            outflow = self.grid.divergence(velocity[i]) * self.grid.cell_area
            cells = pressure[i].reshape(1, -1)
            excess = (self._source - outflow.reshape(-1, 1)).T - self._rate.T * cells
            check_conserved(excess, velocity[i : i + 1] * self.grid.edge_lengths(), one, cells)
        return DarcySolution.of_batch(self.grid, velocity, pressure, kappa.shape)

    def _solve(self, kappa: Array) -> tuple[Array, Array]:
        grid, edges, free = self.grid, self._edges, self._free
        H, w = local_matrices(grid)
        total = kappa * w.sum() + self._rate
        local = kappa[..., None] * (H + np.outer(w, w) / w.sum() * (self._rate / total)[..., None])
        driven = kappa * w * self._source / total
        matrix = sum_over_cells(grid, local)
        rhs = np.bincount(edges.ravel(), driven.ravel()) - matrix @ self._given
        edge_pressure = self._given.copy()
        if free.size:
            factor = factorize(sparse.csc_array(matrix[free][:, free]))
            edge_pressure[free] = factor.solve(rhs[free])
        at_cells = edge_pressure[edges]
        pressure = (self._source + kappa * (at_cells @ w)[:, None]) / total
        flux = OUTWARD * (driven - np.einsum("cij,cj->ci", local, at_cells))
        outflow = np.bincount(edges.ravel(), flux.ravel())
        velocity: Array = outflow / (self._cells_of_edge * grid.edge_lengths())
        velocity[self._closed] = 0.0
        return velocity, pressure.reshape(grid.shape)
