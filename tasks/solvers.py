"""Our own solvers at less than full exactness: what a surrogate has to be cheaper than."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

import pde
from pde.darcy.five_point import FivePointSolver
from pde.datasets.family import Arrays
from pde.datasets.permeability import PRESSURE
from pde.grid import SIDES
from tasks.surrogates import Array

#: Residuals at which the conjugate gradients of the pressure on FNO's fine grid may end.
TOLERANCES = (1e-2, 1e-3, 1e-4)
#: The same on coarse grids, whose error is larger than what it leaves.
_COARSE_TOLERANCE = 1e-3
_COARSE_STRIDES = (4, 2, 1)


@dataclass(frozen=True)
class Solver:
    """A name, and a function from drawn inputs to outputs [n, D] as the surrogate gives them."""

    name: str
    solve: Callable[[Arrays], Array]


def solvers_of(spec: pde.DataSpec, family: pde.Family) -> list[Solver]:
    """Return solvers of a data set's problem, cheapest first; the last one made the data.

    Permeabilities on cells are also solved for their geometric means over blocks. FNO's law is
    solved on every node that is kept or fewer of them, and on its fine grid with looser tolerances.
    Sources on one permeability are sums of few flows, which nothing coarser is cheaper than; of own
    permeabilities nothing is known that would allow another grid.

    Args:
        spec: Of the data set.
        family: What solved it.
    """
    coarse: Iterator[Solver] = iter(())
    if isinstance(spec, pde.PermeabilityDataSpec):
        coarse = _coarse_flows(spec)
    elif isinstance(spec, pde.PdebenchDataSpec):
        coarse = _coarse_pressures(spec)
    elif isinstance(spec, pde.FnoDataSpec):
        coarse = _loose_pressures(spec)
    return [*coarse, Solver("the solver of the data", partial(_as_made, family))]


def _as_made(family: pde.Family, drawn: Arrays) -> Array:
    solution, spec = family.solve(drawn), family.spec
    if isinstance(solution, pde.DarcySolution):
        flow = not isinstance(spec, pde.PdebenchDataSpec)
        values = solution.velocity if flow else solution.pressure
    else:
        assert isinstance(spec, pde.FnoDataSpec)
        values = solution[:, :: spec.every, :: spec.every]
    return values.reshape(len(values), -1)


def _blocks(grid: pde.Grid) -> list[int]:
    """Return how many cells in each direction make a block, coarsest first."""
    shorter = min(grid.shape)
    return [k for k in range(shorter // 4, 1, -1) if not any(side % k for side in grid.shape)]


def _coarsened(grid: pde.Grid, cells: int) -> pde.Grid:
    return pde.Grid(grid.nx // cells, grid.ny // cells, lx=grid.lx, ly=grid.ly)


def block_means(permeability: Array, cells: int) -> Array:
    """Return geometric means over blocks of ``cells`` x ``cells``, [n, ny / cells, nx / cells]."""
    n, ny, nx = permeability.shape
    blocks = np.log(permeability).reshape(n, ny // cells, cells, nx // cells, cells)
    means: Array = np.exp(blocks.mean(axis=(2, 4)))
    return means


def between(known: Array, places: Array) -> Array:
    """Return the matrix [places, known] that interpolates linearly between values at points."""
    return np.stack([np.interp(places, known, row) for row in np.eye(len(known))], axis=1)


def refined_flow(grid: pde.Grid, velocity: Array, cells: int) -> Array:
    """Return a coarse RT0 flow [n, coarse edges] on the edges of a grid, [n, edges].

    A normal velocity is linear across a coarse cell and constant along its side.
    """
    coarse = _coarsened(grid, cells)
    ny, nx = coarse.shape
    vertical = velocity[:, : coarse.num_vertical].reshape(-1, ny, nx + 1)
    horizontal = velocity[:, coarse.num_vertical :].reshape(-1, ny + 1, nx)
    x, y = (between(cells * np.arange(n + 1.0), np.arange(cells * n + 1.0)) for n in (nx, ny))
    parts = (vertical @ x.T).repeat(cells, 1), (y @ horizontal).repeat(cells, 2)
    return np.concatenate([part.reshape(len(velocity), -1) for part in parts], axis=1)


def _coarse_flows(spec: pde.PermeabilityDataSpec) -> Iterator[Solver]:
    def solve(cells: int, family: pde.DarcyFamily, drawn: Arrays) -> Array:
        flow = family.solve(block_means(drawn["permeability"], cells))
        return refined_flow(spec.grid, flow.velocity, cells)

    for cells in _blocks(spec.grid):
        grid = _coarsened(spec.grid, cells)
        family = pde.DarcyFamily(grid, PRESSURE, spec.source)
        yield Solver(f"the solver on {grid.nx}x{grid.ny} cells", partial(solve, cells, family))


def _coarse_pressures(spec: pde.PdebenchDataSpec) -> Iterator[Solver]:
    def solve(cells: int, family: pde.DarcyFamily, drawn: Arrays) -> Array:
        pressure = family.solve(block_means(drawn["permeability"], cells)).pressure
        n, ny, nx = pressure.shape
        padded = np.pad(pressure, ((0, 0), (1, 1), (1, 1)))  # p = 0 on the sides
        y, x = (
            between(
                np.concatenate([[0.0], cells * (np.arange(m) + 0.5), [cells * m]]),
                np.arange(cells * m) + 0.5,
            )
            for m in (ny, nx)
        )
        found: Array = (y @ padded @ x.T).reshape(n, -1)
        return found

    for cells in _blocks(spec.grid):
        grid = _coarsened(spec.grid, cells)
        family = pde.DarcyFamily(grid, dict.fromkeys(SIDES, 0.0), spec.beta)
        yield Solver(f"the solver on {grid.nx}x{grid.ny} cells", partial(solve, cells, family))


def _loose_pressures(spec: pde.FnoDataSpec) -> Iterator[Solver]:
    def solve(stride: int, solver: FivePointSolver, drawn: Arrays) -> Array:
        """Solve at every so many of the fine grid's nodes, and take or interpolate those kept."""
        pressure = solver.solve(drawn["permeability"][:, ::stride, ::stride])
        kept = np.arange(float(spec.nx)) * float(spec.every)
        to_kept = between(np.arange(float(solver.nodes)) * float(stride), kept)
        found: Array = (to_kept @ pressure @ to_kept.T).reshape(len(pressure), -1)
        return found

    for skipped in _COARSE_STRIDES:
        if (spec.nx - 1) % skipped == 0 and (spec.nx - 1) // skipped >= 2:
            nodes = (spec.nx - 1) // skipped + 1
            solver = FivePointSolver(nodes, tolerance=_COARSE_TOLERANCE)
            name = f"the solver on {nodes}x{nodes} nodes"
            yield Solver(name, partial(solve, skipped * spec.every, solver))
    for tolerance in TOLERANCES:
        solver = FivePointSolver(spec.nodes, tolerance=tolerance)
        yield Solver(f"the solver to {tolerance:g} of the residual", partial(solve, 1, solver))
