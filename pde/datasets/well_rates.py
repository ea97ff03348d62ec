"""Wells whose rates vary from sample to sample, and the few flows that theirs are sums of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ..darcy.cells import BoolArray
from ..darcy.solver import DarcySolver
from ..errors import PdeError
from ..fields.streams import WELLS, generator
from ..grid import Array, Grid
from ..wells import Well, cells_of

if TYPE_CHECKING:
    from .source import SourceDataSpec


def check_varying(grid: Grid, wells: Sequence[Well]) -> None:
    """Raise `PdeError` unless wells lie in cells of their own, and a rate varies."""
    cells_of(grid, wells)
    if not any(well.spread for well in wells):
        raise PdeError(
            "no well has a spread, so that all samples would be alike: give a well's rate the "
            "standard deviation that it varies by, in the column spread"
        )


def has_offset(spec: SourceDataSpec) -> bool:
    """Whether there is flow without any rate: through sides, or from a well's pressure."""
    given = [*spec.side_pressure.values(), *spec.side_flux.values()]
    return any(given) or any(well.pressure for well in spec.wells)


def num_strengths(spec: SourceDataSpec) -> int:
    """One for each rate, and one for the flow that there is without."""
    return sum(well.rate is not None for well in spec.wells) + has_offset(spec)


def well_strengths(spec: SourceDataSpec, samples: range) -> Array:
    """Rates N(rate, spread^2), then 1 if there is flow without them, `[n, num_strengths]`."""
    rates = [well for well in spec.wells if well.rate is not None]
    mean, spread = np.array([(well.rate, well.spread) for well in rates]).T
    normal = [generator(spec.seed, WELLS, i).standard_normal(len(rates)) for i in samples]
    strengths = mean + spread * np.array(normal, dtype=np.float64).reshape(-1, len(rates))
    ones = np.ones((len(strengths), int(has_offset(spec))))
    return np.concatenate([strengths, ones], axis=1)


def well_flows(
    spec: SourceDataSpec, permeability: Array, active: BoolArray | None
) -> dict[str, Array]:
    """The source of each strength, `patterns [m, ny, nx]`, and its flow, `basis_velocity [m, E]`.

    A pattern is the cell means of a unit rate, less that of the well that balances it; zero for the
    flow without rates.
    """
    grid, cells = spec.grid, cells_of(spec.grid, spec.wells)
    quiet = [replace(w, pressure=0.0) for w in spec.wells if w.pressure is not None]
    still = DarcySolver(
        grid, permeability, dict.fromkeys(spec.side_pressure, 0.0), wells=quiet, active=active
    )
    balance = [cell for cell, well in zip(cells, spec.wells, strict=True) if well.balances]
    if balance and not still.floating:
        raise PdeError("a well has no rate or pressure, and a pressure balances the others")
    patterns = np.zeros((num_strengths(spec), *grid.shape))
    rated = [cell for cell, well in zip(cells, spec.wells, strict=True) if well.rate is not None]
    for pattern, cell in zip(patterns, rated, strict=False):
        pattern[cell] = 1 / grid.cell_areas[cell]
        for other in balance:
            pattern[other] = -1 / grid.cell_areas[other]
    basis = still.solve(patterns)
    if has_offset(spec):
        without = [
            replace(w, rate=0.0, spread=0.0) if w.rate is not None else w for w in spec.wells
        ]
        moved = DarcySolver(
            grid,
            permeability,
            spec.side_pressure,
            flux=spec.side_flux,
            wells=without,
            active=active,
        ).solve()
        basis.velocity[-1], basis.pressure[-1] = moved.velocity, moved.pressure
    arrays = {"patterns": patterns, "basis_velocity": basis.velocity}
    return arrays | ({"basis_pressure": basis.pressure} if spec.save_pressure else {})
