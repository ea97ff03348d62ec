"""Airfoil self-noise and hourly bike sharing beside bde and its rivals, as bde publishes them.

Cells ``TABLE-METHOD-SEED``: a network of mean and log scale under one likelihood and one prior,
sampled by chains that begin at optimised networks; as many networks as a deep ensemble, and as
SWAG, at the same number of gradients; and a Laplace approximation over the ensemble's last layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from tasks.experiments.bde.last_layer import compute
from tasks.experiments.experiment import Cell, Experiment, Study
from tasks.experiments.sheet import expanded, sheet
from tasks.experiments.tables import Result, Results, Row, Table, at, mean_and_error, paper_row

SHEET = sheet("bde")
TABLES, SEEDS = SHEET.settings["tables"], range(SHEET.settings["seeds"])
SAMPLERS: dict[str, str] = SHEET.settings["samplers"]


def cells() -> list[Cell | Study]:
    """Return the runs, and after them what is computed from the ensembles' networks."""
    runs = [run.but(run.name, {"seed_everything": int(run.name[-1])}) for run in SHEET.runs()]
    prior = SHEET.rules["*"]["model.sampler"]["init_args"]["prior"]["init_args"]["default"]
    names = expanded([f"{{{','.join(TABLES)}}}-laplace"])
    studies = [
        Study(f"{name}-{seed}", partial(compute, name.partition("-")[0], seed, prior))
        for name in names
        for seed in SEEDS
    ]
    return [*runs, *studies]


def summary(runs: list[Result]) -> dict[str, Any]:
    """Return what the table shows of the finished seeds of a method."""
    found: dict[str, Any] = {"seeds": str(len(runs))}
    for column, (place, digits) in SHEET.settings["metrics"].items():
        values = [value for run in runs if (value := at(run, place)) is not None]
        whole = values and not digits
        found[column] = f"{np.mean(values):,.0f}" if whole else mean_and_error(values, digits)
    return found


def report(results: Results) -> Iterator[str | Table]:
    """Yield a table with a row for each method, ours beside the published ones."""
    rows, columns = [], SHEET.made(SHEET.columns)
    for table, title in TABLES.items():
        for method, label in SHEET.labels.items():
            names = [f"{table}-{method}-{seed}" for seed in SEEDS]
            runs = [run for name in names if (run := results.get(name)) is not None]
            rows.append(Row([title, label.format(SAMPLERS[table])], record=summary(runs)))
        rows += [
            paper_row([title, f"*published*: {name}"], columns[1:3], numbers, empty="-")
            for name, numbers in SHEET.published[table].items()
        ]
    yield SHEET.intro
    yield Table(SHEET.heading, columns, rows)


EXPERIMENT = Experiment(cells, report, SHEET.choices())
