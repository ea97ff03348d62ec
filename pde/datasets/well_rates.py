"""Wells whose rates vary from sample to sample, and the few flows that theirs are sums of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..darcy.cells import BoolArray
from ..darcy.solver import DarcySolver
from ..darcy.wells import Well, cells_of
from ..errors import PdeError
from ..fields.streams import WELLS, generator
from ..grid import Array, Grid


@dataclass(frozen=True)
class WellProblem:
    """Wells and sides on a grid.

    Attributes:
        grid: The grid.
        wells: The wells; rates with a spread vary.
        side_pressure: Pressures of sides and parts of sides.
        side_flux: `u . n` out of sides and parts of sides.
    """

    grid: Grid
    wells: tuple[Well, ...]
    side_pressure: Mapping[str, float]
    side_flux: Mapping[str, float]


def check_varying(grid: Grid, wells: Sequence[Well]) -> None:
    """Raise `PdeError` unless wells lie in cells of their own, and a rate varies."""
    cells_of(grid, wells)
    if not any(well.spread for well in wells):
        raise PdeError(
            "no well has a spread, so that all samples would be alike: give a well's rate the "
            "standard deviation that it varies by, in the column spread"
        )


def has_offset(problem: WellProblem) -> bool:
    """Whether there is flow without any rate: through sides, or from a well's pressure."""
    given = [*problem.side_pressure.values(), *problem.side_flux.values()]
    return any(given) or any(well.pressure for well in problem.wells)


def num_strengths(problem: WellProblem) -> int:
    """One for each rate, and one for the flow that there is without."""
    return sum(well.rate is not None for well in problem.wells) + has_offset(problem)


def well_strengths(problem: WellProblem, seed: int, samples: range) -> Array:
    """Rates N(rate, spread^2), then 1 if there is flow without them, `[n, num_strengths]`."""
    rates = [well for well in problem.wells if well.rate is not None]
    mean, spread = np.array([(well.rate, well.spread) for well in rates]).T
    normal = [generator(seed, WELLS, i).standard_normal(len(rates)) for i in samples]
    strengths = mean + spread * np.array(normal, dtype=np.float64).reshape(-1, len(rates))
    ones = np.ones((len(strengths), int(has_offset(problem))))
    return np.concatenate([strengths, ones], axis=1)


def well_flows(
    problem: WellProblem, permeability: Array, active: BoolArray | None
) -> dict[str, Array]:
    """The source of each strength, `patterns [m, ny, nx]`, and its flow, `basis_velocity [m, E]`.

    The flow's pressures are `basis_pressure [m, ny, nx]`.

    A pattern is the cell means of a unit rate, less that of the well that balances it; zero for the
    flow without rates.
    """
    grid, cells = problem.grid, cells_of(problem.grid, problem.wells)
    without = [replace(w, rate=0.0, spread=0.0) if w.rate is not None else w for w in problem.wells]
    quiet = [replace(w, pressure=0.0) if w.pressure is not None else w for w in without]
    still = DarcySolver(
        grid, permeability, dict.fromkeys(problem.side_pressure, 0.0), wells=quiet, active=active
    )
    balance = [cell for cell, well in zip(cells, problem.wells, strict=True) if well.balances]
    patterns = np.zeros((num_strengths(problem), *grid.shape))
    rated = [cell for cell, well in zip(cells, problem.wells, strict=True) if well.rate is not None]
    for pattern, cell in zip(patterns, rated, strict=False):
        pattern[cell] = 1 / grid.cell_areas[cell]
        part = next((part for part in still.floating if grid.nx * cell[0] + cell[1] in part), ())
        for other in balance:
            if grid.nx * other[0] + other[1] in part:
                pattern[other] = -1 / grid.cell_areas[other]
    basis = still.solve(patterns)
    if has_offset(problem):
        moved = DarcySolver(
            grid,
            permeability,
            problem.side_pressure,
            flux=problem.side_flux,
            wells=without,
            active=active,
        ).solve()
        basis.velocity[-1], basis.pressure[-1] = moved.velocity, moved.pressure
    flows = {"basis_velocity": basis.velocity, "basis_pressure": basis.pressure}
    return {"patterns": patterns} | flows
