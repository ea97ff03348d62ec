"""The guaranteed bound of a flow's error, on every kind of field that Table 2 asks about.

The flow is the mixed multiscale solver's, which balances mass exactly and misses the exact flow as
a good network does; the bounds ask of a flow nothing else. That of the distance to the grid's own
flow needs no solution. That of the distance to the exact one is had with a pressure that is fitted
to the flow (no solution either) and with the nearest bilinear one (a solution of another kind).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import pde
from pde.datasets.permeability import PRESSURE
from pde.fields.kle import MEANS
from tasks.experiments.hasgld.table2_shift import FIELDS, OTHERS, crops
from tasks.surrogates import Array

#: Blocks of the multiscale solver in each direction.
BLOCKS = 10


def bounds(folder: Path, grid: int = 50, fields: int = FIELDS) -> dict[str, Any]:
    """Bound the errors of flows through some fields of each kind.

    Args:
        folder: Of the cell; nothing is written to it.
        grid: Cells in each direction, a multiple of ``BLOCKS``.
        fields: Number of fields of each kind. Those of SPE10 are left out where it is not at hand.
    """
    rows = {name: measure(kappas) for name, kappas in _kinds(pde.Grid(grid, grid), fields)}
    return {"fields": fields, "blocks": BLOCKS, "rows": rows}


def _kinds(grid: pde.Grid, fields: int) -> Iterator[tuple[str, Array]]:
    for kind, mean in MEANS.items():
        for name, other in OTHERS.items():
            usual: dict[str, Any] = {"kind": kind, "mean": mean, "seed": 1}
            spec = pde.PermeabilityDataSpec(nx=grid.nx, ny=grid.ny, **(usual | other))
            label = "p = 64" if name == "as in training" else name
            yield f"{kind}, {label}", np.stack([spec.fields.sample(i) for i in range(fields)])
    channels = [pde.channelised_permeability(grid, seed) for seed in range(fields)]
    yield "synthetic channels", np.stack(channels)
    yield from crops(grid.nx, fields, 0.0).items()


def measure(kappas: Array, source: float = 1.0) -> dict[str, float]:
    """Return errors and bounds of the flows through permeabilities [n, ny, nx].

    The error is the distance to the RT0 flow on the same grid over that flow's size, both in the
    energy norm, median over fields. Of each bound there are the share of fields on which it holds,
    and the median and the largest of its ratio to the error.
    """
    grid = pde.Grid(kappas.shape[2], kappas.shape[1])
    solver, family = (
        pde.MultiscaleSolver(grid, (BLOCKS, BLOCKS)),
        pde.DarcyFamily(grid, PRESSURE, source),
    )
    flows = np.stack([solver.solve(k, source, PRESSURE).solution.velocity for k in kappas])
    exact = family.solve(kappas).velocity
    size = pde.energy_norm(grid, kappas, exact)
    errors = pde.energy_norm(grid, kappas, flows - exact)
    found = {"error_percent": 100 * float(np.median(errors / size))}
    given = grid, kappas, PRESSURE, flows
    ways: dict[str, Callable[[], Array]] = {
        "discrete": lambda: pde.discrete_bound(*given, source),
        "fitted": lambda: pde.energy_bound(*given, source, pde.fitted_pressure(*given)),
        "best": lambda: pde.energy_bound(*given, source),
    }
    for name, bound in ways.items():
        began = time.process_time()
        found_bounds = bound()
        milliseconds = 1e3 * (time.process_time() - began) / len(kappas)
        ratio = found_bounds / errors
        found |= {
            f"{name}_holds": float((ratio >= 1).mean()),
            f"{name}_median": float(np.median(ratio)),
            f"{name}_largest": float(ratio.max()),
            f"{name}_milliseconds": milliseconds,
        }
    return found
