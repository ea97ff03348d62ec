"""The UCI regression benchmark: 20 splits of each set, beside published numbers.

Every cell is a run of ``configs/uci_regression.yaml`` as it stands, 50 hidden units as in the
published ones, on one split. Nothing is chosen by a set: the configuration was chosen once, on rows
held out of the training rows of the sets' first splits (``choices``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tasks.data.uci import NUM_SPLITS, SETS
from tasks.experiments.experiment import Cell, Choices, Experiment
from tasks.experiments.overrides import ours
from tasks.experiments.tables import Column, Result, Results, Row, Table, at, paper_row
from tasks.uci import PUBLISHED

CONFIG = "../uci_regression.yaml"
#: Rows held out of the training rows of a set's first split.
VALIDATION = {"concrete": 185, "yacht": 60, "bostonHousing": 90, "energy": 140}


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
    sets: tuple[str, ...]
    thinning: int = 10
    other: Mapping[str, Any] = field(default_factory=dict)

    @property
    def differs(self) -> str:
        """What else differs, in words."""
        return ", ".join(f"{k.split('.')[-1]} {_short(v)}" for k, v in self.other.items())

    @property
    def name(self) -> str:
        """The name of its cells, without the set."""
        numbers = (self.optimizer, self.burn_in, self.steps, self.momentum, self.fraction)
        other = [f"{k.split('.')[-1]}{_short(v)}" for k, v in self.other.items()]
        return "-".join([*(f"{n:g}" for n in numbers), *other])

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
    return value["class_path"].rsplit(".", 1)[-1] if isinstance(value, dict) else str(value)


_PAIR = ("concrete", "yacht")
_VARIANCE = "sampler.prior.default"
_FLOOR = "sampler.preconditioner.floor"
_IDENTITY = {"sampler.preconditioner": ours("Identity")}
TRIALS = (
    Trial(1500, 2000, 4000, 0.95, 0.1, _PAIR),
    Trial(300, 2000, 5000, 0.99, 0.25, _PAIR),
    Trial(300, 2000, 5000, 0.998, 0.25, _PAIR),
    Trial(300, 2000, 5000, 0.998, 0.25, _PAIR, other={_VARIANCE: 0.02}),
    Trial(0, 2000, 5000, 0.998, 0.25, _PAIR),
    Trial(1500, 4000, 8000, 0.995, 0.1, ("yacht",)),
    Trial(1500, 4000, 8000, 0.998, 0.25, ("yacht",)),
    Trial(1500, 4000, 8000, 0.998, 0.25, _PAIR, other={_VARIANCE: 0.02}),
    Trial(1500, 6000, 12000, 0.998, 0.25, (*_PAIR, "bostonHousing"), other={_VARIANCE: 0.1}),
    Trial(1500, 6000, 12000, 0.998, 0.25, _PAIR, other={_FLOOR: 0.1}),
    Trial(1500, 5000, 12000, 0.998, 0.25, ("yacht",), other={_FLOOR: 10}),
    Trial(
        1500, 5000, 12000, 0.998, 0.25, ("yacht",), other={"sampler.preconditioner.alpha": 0.999}
    ),
    Trial(1500, 5000, 12000, 0.998, 0.25, ("yacht",), other={"net.activation": "tanh"}),
    Trial(1500, 5000, 12000, 0.998, 0.5, ("yacht",)),
    Trial(1500, 6000, 12000, 0.999, 0.25, (*_PAIR, "bostonHousing")),
    Trial(1500, 5000, 12000, 0.999, 0.15, ("yacht",)),
    Trial(1500, 5000, 12000, 0.9995, 0.2, ("concrete", "yacht", "energy"), thinning=20),
    Trial(1500, 5000, 12000, 0.998, 0.2, ("yacht", "energy"), thinning=20, other=_IDENTITY),
    Trial(
        1500,
        5000,
        12000,
        0.9995,
        0.2,
        ("concrete", "yacht", "energy"),
        thinning=20,
        other=_IDENTITY,
    ),
    Trial(1500, 5000, 12000, 0.998, 0.2, tuple(VALIDATION), thinning=20),
    Trial(1500, 20000, 40000, 0.998, 0.2, ("yacht",), thinning=50),
)


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


KINETIC = "diagnostics.kinetic_temperature"
CONFIGURATIONAL = "diagnostics.configurational_temperature.value"
RHAT = "diagnostics.mixing.predictions.rhat.median"


def _mean(path: str) -> Callable[[list[Result]], str]:
    """Return the function of all splits' runs that gives mean and standard error."""

    def read(runs: list[Result]) -> str:
        values = np.array([at(run, path) for run in runs])
        error = f" ± {values.std(ddof=1) / np.sqrt(len(values)):.2f}" if len(values) > 1 else ""
        return f"{values.mean():.2f}{error}" if len(values) else "-"

    return read


def _range(path: str) -> Callable[[list[Result]], str]:
    """Return the function of all splits' runs that gives median, smallest and largest."""

    def read(runs: list[Result]) -> str:
        values = [at(run, path) for run in runs]
        ends = f"({min(values):.2f} to {max(values):.2f})" if values else ""
        return f"{np.median(values):.2f} {ends}" if values else "-"

    return read


def _coverage(runs: list[Result]) -> str:
    # All splits of a set have equally many test rows.
    values = [at(run, "metrics.ensemble.coverage_90") for run in runs]
    return f"{100 * np.mean(values):.1f} %" if values else "-"


COLUMNS = [
    Column("splits", len, digits=0),
    Column("test RMSE", _mean("metrics.ensemble.rmse"), better="lower"),
    Column("test log-likelihood", _mean("metrics.ensemble.log_likelihood"), better="higher"),
    Column("coverage", _coverage),
    Column("kinetic temperature", _range(KINETIC)),
    Column("configurational temperature", _range(CONFIGURATIONAL)),
    Column("R-hat of predictions", _range(RHAT)),
]


def report(results: Results) -> list[str | Table]:
    """Return our means over splits beside the published ones."""
    rows = []
    for name in SETS:
        runs = [r for s in range(NUM_SPLITS) if (r := results.get(f"{name}-{s}")) is not None]
        rows.append(Row([name, "ours"], record=runs))
        rows += [
            paper_row(["", method], COLUMNS, (NUM_SPLITS, *numbers), empty="-")
            for method, numbers in PUBLISHED[name].items()
        ]
    return [
        "Mean ± standard error over the splits; coverage of 90 % bands pools their test rows; of "
        "temperatures and R-hat the median over splits, smallest and largest.",
        Table(["set", ""], COLUMNS, rows),
    ]


def _labels(name: str) -> list[str]:
    data, _, rest = name.partition("-")
    trial = next(t for t in TRIALS if t.name == rest and data in t.sets)
    numbers = [trial.optimizer, trial.burn_in, trial.steps]
    return [*map(str, numbers), f"{trial.momentum:g}", f"{trial.fraction:g}", trial.differs, data]


EXPERIMENT = Experiment(
    cells,
    report,
    Choices(
        choices,
        [
            Column("log-likelihood", "metrics.ensemble_val.log_likelihood", better="higher"),
            Column("coverage", "metrics.ensemble_val.coverage_90", "{:.0f} %", scale=100.0),
            Column("config. T", CONFIGURATIONAL),
            Column("kinetic T", KINETIC),
            Column("R-hat", RHAT),
        ],
        "On rows held out of the training rows: mean log-likelihood of the ensemble, coverage of "
        "90 % bands. Of the chains: configurational and kinetic temperature, median R-hat of "
        "predictions.",
        heading=["Adam", "burn-in", "steps", "momentum", "step", "else", "set"],
        labels=_labels,
    ),
)
