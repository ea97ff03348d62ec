"""The UCI regression benchmark: 20 splits of each set, beside published numbers.

Every cell is a run of ``configs/uci_regression.yaml`` as it stands, 50 hidden units as in the
published ones, on one split. Nothing is chosen by a set: the configuration was chosen once, on rows
held out of the training rows of the sets' first splits (``choices``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tasks.data.uci import NUM_SPLITS, SETS
from tasks.experiments.experiment import Cell, Experiment
from tasks.experiments.sheet import sheet
from tasks.experiments.tables import Result, Results, Row, Table, at, paper_row
from tasks.uci import PUBLISHED

CONFIG = "../uci_regression.yaml"


@dataclass(frozen=True)
class Trial:
    """Settings that were tried before those of the configuration were chosen.

    Attributes:
        optimizer: Adam's steps; 0 for none.
        burn_in: All steps before the first draw.
        steps: All steps.
        momentum: mu.
        fraction: Of the largest stable step.
        sets: What it was tried on.
        thinning: Steps between draws.
        other: What else differs from the configuration, by its name under ``model``.
    """

    optimizer: int
    burn_in: int
    steps: int
    momentum: float
    fraction: float
    sets: Sequence[str]
    thinning: int = 10
    other: Mapping[str, Any] = field(default_factory=dict)

    def differs(self, between: str) -> list[str]:
        """Return what else differs, in words."""
        return [f"{k.rpartition('.')[2]}{between}{_short(v)}" for k, v in self.other.items()]

    @property
    def numbers(self) -> list[str]:
        """Adam's steps, burn-in, all steps, momentum and fraction."""
        numbers = (self.optimizer, self.burn_in, self.steps, self.momentum, self.fraction)
        return [f"{n:g}" for n in numbers]

    @property
    def name(self) -> str:
        """The name of its cells, without the set."""
        return "-".join([*self.numbers, *self.differs("")])

    def overrides(self) -> dict[str, Any]:
        """Return what the trial changes."""
        adam = ".steps" if self.optimizer else ""
        return {
            f"model.burn_in_optimizer{adam}": self.optimizer or None,
            "model.burn_in": self.burn_in,
            "trainer.max_steps": self.steps,
            "model.sampler.momentum": self.momentum,
            "model.step_fraction": self.fraction,
            "model.thinning": self.thinning,
        } | {f"model.{name}": value for name, value in self.other.items()}


def _short(value: Any) -> str:
    return value["class_path"].rpartition(".")[2] if isinstance(value, dict) else str(value)


def _all(path: str) -> Callable[[list[Result]], tuple[float, ...] | str]:
    """Return the function of all splits' runs that gives median, smallest and largest."""

    def read(runs: list[Result]) -> tuple[float, ...] | str:
        values = [at(run, path) for run in runs]
        return (float(np.median(values)), min(values), max(values)) if values else "-"

    return read


def _mean(metric: str) -> Callable[[list[Result]], str]:
    """Return the function of all splits' runs that gives mean and standard error."""

    def read(runs: list[Result]) -> str:
        values = np.array([run["metrics"]["ensemble"][metric] for run in runs])
        error = f" ± {values.std(ddof=1) / np.sqrt(len(values)):.2f}" if len(values) > 1 else ""
        return f"{values.mean():.2f}{error}" if len(values) else "-"

    return read


def _coverage(runs: list[Result]) -> str:
    # All splits of a set have equally many test rows.
    values = [run["metrics"]["ensemble"]["coverage_90"] for run in runs]
    return f"{100 * np.mean(values):.1f} %" if values else "-"


SHEET = sheet(
    "uci",
    splits=len,
    rmse=_mean("rmse"),
    log_likelihood=_mean("log_likelihood"),
    coverage=_coverage,
    kinetic=_all("diagnostics.kinetic_temperature"),
    configurational=_all("diagnostics.configurational_temperature.value"),
    rhat=_all("diagnostics.mixing.predictions.rhat.median"),
)
VALIDATION = SHEET.settings["validation"]
TRIALS = [Trial(*trial) for trial in SHEET.settings["trials"]]


def cells() -> list[Cell]:
    """Return one run a set and split, all sets' first splits first."""
    return [
        Cell(f"{name}-{split}", CONFIG, {"data.name": name, "data.split": split})
        for split in range(NUM_SPLITS)
        for name in SETS
    ]


def choices() -> list[Cell]:
    """Return the runs that the configuration was chosen from."""
    held_out = {s: {"data.name": s, "data.num_val": rows} for s, rows in VALIDATION.items()}
    return [
        Cell(f"{name}-{trial.name}", CONFIG, held_out[name] | trial.overrides())
        for trial in TRIALS
        for name in trial.sets
    ]


def report(results: Results) -> list[str | Table]:
    """Return our means over splits beside the published ones."""
    rows, columns = [], SHEET.made(SHEET.columns)
    for name in SETS:
        runs = [r for s in range(NUM_SPLITS) if (r := results.get(f"{name}-{s}")) is not None]
        rows.append(Row([name, "ours"], record=runs))
        rows += [
            paper_row(["", method], columns, (NUM_SPLITS, *numbers), empty="-")
            for method, numbers in PUBLISHED[name].items()
        ]
    return [SHEET.intro, Table(SHEET.heading, columns, rows)]


def _labels(name: str) -> list[str]:
    data, _, rest = name.partition("-")
    trial = next(t for t in TRIALS if t.name == rest)
    return [*trial.numbers, ", ".join(trial.differs(" ")), data]


HEADING = ["Adam", "burn-in", "steps", "momentum", "step", "else", "set"]
EXPERIMENT = Experiment(cells, report, SHEET.choices(choices, heading=HEADING, labels=_labels))
