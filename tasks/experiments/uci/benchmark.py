"""The UCI regression benchmark: 20 splits of each set, beside published numbers.

Every cell is a run of ``configs/uci_regression.yaml`` as it stands, 50 hidden units as in the
published ones, on one split. Nothing is chosen by a set: the configuration was chosen once, on rows
held out of the training rows of the sets' first splits (``choices``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tasks.data.uci import NUM_SPLITS, SETS
from tasks.experiments.experiment import Cell
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

    def overrides(self) -> tuple[str, ...]:
        """Return the command line."""
        adam = (
            f"--model.burn_in_optimizer.steps={self.optimizer}"
            if self.optimizer
            else "--model.burn_in_optimizer=null"
        )
        return (
            adam,
            f"--model.burn_in={self.burn_in}",
            f"--trainer.max_steps={self.steps}",
            f"--model.sampler.momentum={self.momentum}",
            f"--model.step_fraction={self.fraction}",
            f"--model.thinning={self.thinning}",
            *(f"--model.{name}={value}" for name, value in self.other.items()),
        )


def _short(value: Any) -> str:
    return str(value).removeprefix("lightning_sgmcmc.")


_PAIR = ("concrete", "yacht")
_VARIANCE = "sampler.prior.default"
_FLOOR = "sampler.preconditioner.floor"
_IDENTITY = {"sampler.preconditioner": "lightning_sgmcmc.Identity"}
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
        Cell(f"{name}-{split}", CONFIG, (f"--data.name={name}", f"--data.split={split}"))
        for split in range(NUM_SPLITS)
        for name in SETS
    ]


def choices() -> list[Cell]:
    """Return the runs that the configuration was chosen from."""
    return [
        Cell(
            f"{name}-{trial.name}",
            CONFIG,
            (f"--data.name={name}", f"--data.num_val={VALIDATION[name]}", *trial.overrides()),
        )
        for trial in TRIALS
        for name in trial.sets
    ]


def render(results: dict[str, dict[str, Any] | None], chosen_from: bool) -> str:
    """Return our means over splits beside the published ones, or the choices, as Markdown."""
    return _render_choices(results) if chosen_from else _render_table(results)


def _render_table(results: dict[str, dict[str, Any] | None]) -> str:
    lines = [
        "Mean ± standard error over the splits; coverage of 90 % bands pools their test rows; of "
        "temperatures and R-hat the median over splits, smallest and largest.",
        "",
        "| set | | splits | test RMSE | test log-likelihood | coverage | kinetic temperature | "
        "configurational temperature | R-hat of predictions |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in SETS:
        found = [r for s in range(NUM_SPLITS) if (r := results.get(f"{name}-{s}")) is not None]
        ensembles = [r["metrics"]["ensemble"] for r in found]
        ranges = [_range([f(r) for r in found]) for f in (_kinetic, _configurational, _rhat)]
        lines.append(
            f"| {name} | ours | {len(found)} | {_mean(ensembles, 'rmse')} | "
            f"{_mean(ensembles, 'log_likelihood')} | {_coverage(ensembles)} | "
            f"{' | '.join(ranges)} |"
        )
        lines += [
            f"| | {method} | {NUM_SPLITS} | {rmse:.2f} | {density:.2f} | - | - | - | - |"
            for method, (rmse, density) in PUBLISHED[name].items()
        ]
    return "\n".join(lines)


def _mean(ensembles: list[dict[str, float]], key: str) -> str:
    if not ensembles:
        return "-"
    values = np.array([e[key] for e in ensembles])
    text = f"{values.mean():.2f}"
    if len(values) < 2:
        return text
    return f"{text} ± {values.std(ddof=1) / np.sqrt(len(values)):.2f}"


def _coverage(ensembles: list[dict[str, float]]) -> str:
    if not ensembles:
        return "-"
    # All splits of a set have equally many test rows.
    return f"{100 * np.mean([e['coverage_90'] for e in ensembles]):.1f} %"


def _kinetic(result: dict[str, Any]) -> float:
    return float(result["diagnostics"]["kinetic_temperature"])


def _configurational(result: dict[str, Any]) -> float:
    return float(result["diagnostics"]["configurational_temperature"]["value"])


def _rhat(result: dict[str, Any]) -> float:
    return float(result["diagnostics"]["mixing"]["predictions"]["rhat"]["median"])


def _range(values: list[float]) -> str:
    if not values:
        return "-"
    return f"{np.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _render_choices(results: dict[str, dict[str, Any] | None]) -> str:
    lines = [
        "On rows held out of the training rows: mean log-likelihood of the ensemble, coverage of "
        "90 % bands. Of the chains: configurational and kinetic temperature, median R-hat of "
        "predictions.",
        "",
        "| Adam | burn-in | steps | momentum | step | else | set | log-likelihood | coverage | "
        "config. T | kinetic T | R-hat |",
        "|---" * 12 + "|",
    ]
    for trial in TRIALS:
        for name in trial.sets:
            result = results.get(f"{name}-{trial.name}")
            lines.append(
                f"| {trial.optimizer} | {trial.burn_in} | {trial.steps} | {trial.momentum:g} | "
                f"{trial.fraction:g} | {trial.differs} | {name} | {_chosen_by(result)} |"
            )
    return "\n".join(lines)


def _chosen_by(result: dict[str, Any] | None) -> str:
    if result is None:
        return " | ".join("-" * 5)
    found = result["metrics"]["ensemble_val"]
    return (
        f"{found['log_likelihood']:.2f} | {100 * found['coverage_90']:.0f} % | "
        f"{_configurational(result):.2f} | {_kinetic(result):.2f} | {_rhat(result):.2f}"
    )
