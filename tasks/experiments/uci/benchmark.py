"""The UCI regression benchmark: 20 splits of each set, beside published numbers.

Cells ``SET-SPLIT`` are runs of ``configs/uci_regression.yaml`` as it stands, 50 hidden units as in
the published ones, on one split; ``SET-wide-SPLIT`` have 200. The configuration was chosen once, by
no single set, on rows held out of the training rows of the sets' first splits; the width of 200 and
its number of steps were chosen for yacht.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.data.uci import NUM_SPLITS, SETS
from tasks.experiments.experiment import Cell, Experiment
from tasks.experiments.sheet import sheet, stated_numbers
from tasks.experiments.tables import (
    Result,
    Results,
    Row,
    Table,
    at,
    mean_and_error,
    median_and_range,
    paper_row,
)
from tasks.uci import PUBLISHED

SHEET = sheet("uci")
METRICS = SHEET.settings["metrics"]
#: What the rows of a set are called, what their cells' names add to it, and what they change.
ROWS: list[tuple[str, str, dict[str, Any]]] = [
    ("ours, 50 units", "", {}),
    ("ours, 200 units", "-wide", SHEET.settings["wide"]),
]


def cells() -> list[Cell]:
    """Return two runs a set and split, all sets' first splits first."""
    return [
        Cell(f"{n}{word}-{s}", SHEET.config, {"data.name": n, "data.split": s} | changes)
        for _, word, changes in ROWS
        for s in range(NUM_SPLITS)
        for n in SETS
    ]


def _labels(trial: str) -> list[str]:
    data, _, method, *words = trial.split("-")
    stated = stated_numbers(words)
    spelled = [f"{SHEET.settings['words'][k]} {number:g}" for k, number in stated.items()]
    return [method.upper(), ", ".join(spelled), data]


def summary(runs: list[Result]) -> Result:
    """Return what the table shows of all splits of a set, which have equally many test rows."""
    if not runs:
        return dict.fromkeys((column["at"] for column in SHEET.columns), "-") | {"splits": 0}
    metrics = {name: [at(run, path) for run in runs] for name, path in METRICS.items()}
    found: Result = {name: median_and_range(values) for name, values in metrics.items()}
    for name in ("rmse", "log_likelihood"):
        found[name] = mean_and_error(metrics[name], 2)
    unalarmed = sum(not at(run, "diagnostics.alarms") for run in runs)
    coverage = 100 * np.mean(metrics["coverage"])
    return found | {"splits": len(runs), "coverage": coverage, "unalarmed": unalarmed}


def report(results: Results) -> list[str | Table]:
    """Return our means over splits beside the published ones."""
    rows, columns = [], SHEET.made(SHEET.columns)
    for name in SETS:
        for label, word, _ in ROWS:
            names = [f"{name}{word}-{s}" for s in range(NUM_SPLITS)]
            runs = [run for n in names if (run := results.get(n)) is not None]
            rows.append(Row(["" if word else name, label], record=summary(runs)))
        rows += [
            paper_row(["", method], columns, (NUM_SPLITS, *numbers), empty="-")
            for method, numbers in PUBLISHED[name].items()
        ]
    return [SHEET.intro, Table(SHEET.heading, columns, rows)]


CHOICES = SHEET.choices(heading=["sampler", "settings", "set"], labels=_labels)
EXPERIMENT = Experiment(cells, report, CHOICES)
