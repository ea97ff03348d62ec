"""The UCI regression benchmark: 20 splits of each set, beside published numbers.

Every cell is a run of ``configs/uci_regression.yaml`` as it stands, 50 hidden units as in the
published ones, on one split. Nothing is chosen by a set: the configuration was chosen once, on rows
held out of the training rows of the sets' first splits.
"""

from __future__ import annotations

import numpy as np

from tasks.data.uci import NUM_SPLITS, SETS
from tasks.experiments.experiment import Cell, Experiment
from tasks.experiments.overrides import Overrides
from tasks.experiments.sheet import sheet
from tasks.experiments.tables import Result, Results, Row, Table, at, mean_and_error, paper_row
from tasks.uci import PUBLISHED

CONFIG, OURS, SHEET = "../uci_regression.yaml", "lightning_sgmcmc.", sheet("uci")
PLACES, METRICS = SHEET.settings["places"], SHEET.settings["metrics"]


def cells() -> list[Cell]:
    """Return one run a set and split, all sets' first splits first."""
    names = [(name, split) for split in range(NUM_SPLITS) for name in SETS]
    return [Cell(f"{n}-{s}", CONFIG, {"data.name": n, "data.split": s}) for n, s in names]


def _trials() -> dict[str, tuple[list[str], Overrides]]:
    """Return labels and overrides of the runs that the configuration was chosen from."""
    found: dict[str, tuple[list[str], Overrides]] = {}
    for *numbers, thinning, other, sets in SHEET.settings["trials"]:
        words = [f"{number:g}" for number in numbers]
        differs = [(k.split(".")[-1], str(v).removeprefix(OURS)) for k, v in other.items()]
        changes = dict(zip(PLACES.values(), numbers, strict=True)) | {"model.thinning": thinning}
        changes |= {f"model.{name}": value for name, value in other.items()}
        if not numbers[0]:
            changes["model.burn_in_optimizer"] = changes.pop(PLACES["Adam"]) or None
        for data in sets:
            name = "-".join([data, *words, *map("".join, differs)])
            held_out = {"data.name": data, "data.num_val": SHEET.settings["validation"][data]}
            found[name] = [*words, ", ".join(map(" ".join, differs)), data], held_out | changes
    return found


TRIALS = _trials()


def summary(runs: list[Result]) -> Result:
    """Return what the table shows of all splits of a set, which have equally many test rows."""
    if not runs:
        return dict.fromkeys((column["at"] for column in SHEET.columns), "-") | {"splits": 0}
    metrics = {name: [at(run, path) for run in runs] for name, path in METRICS.items()}
    found: Result = {name: _spread(values) for name, values in metrics.items()}
    for name in ("rmse", "log_likelihood"):
        found[name] = mean_and_error(metrics[name], 2)
    unalarmed = sum(not at(run, "diagnostics.alarms") for run in runs)
    coverage = 100 * np.mean(metrics["coverage"])
    return found | {"splits": len(runs), "coverage": coverage, "unalarmed": unalarmed}


def _spread(values: list[float | None]) -> tuple[float | None, ...]:
    """Return median and range of the splits that have a value, as short runs may not."""
    there = [value for value in values if value is not None]
    return (float(np.median(there)), min(there), max(there)) if there else (None, None, None)


def report(results: Results) -> list[str | Table]:
    """Return our means over splits beside the published ones."""
    rows, columns = [], SHEET.made(SHEET.columns)
    for name in SETS:
        runs = [run for s in range(NUM_SPLITS) if (run := results.get(f"{name}-{s}")) is not None]
        rows.append(Row([name, "ours"], record=summary(runs)))
        rows += [
            paper_row(["", method], columns, (NUM_SPLITS, *numbers), empty="-")
            for method, numbers in PUBLISHED[name].items()
        ]
    return [SHEET.intro, Table(SHEET.heading, columns, rows)]


CHOICES = SHEET.choices(
    lambda: [Cell(name, CONFIG, overrides) for name, (_, overrides) in TRIALS.items()],
    heading=[*PLACES, "else", "set"],
    labels=lambda name: TRIALS[name][0],
)
EXPERIMENT = Experiment(cells, report, CHOICES)
