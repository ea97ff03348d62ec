"""Samplers and rivals on eight tasks, each network of theirs at as many gradients.

Cells ``TASK-METHOD-SEED``: four networks, or one with the gradients of four where a method takes
one. Data, network and prior of a task are the same for every method.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lightning_sgmcmc.callbacks.report.figures import new_figure
from tasks.experiments.agreement import compare
from tasks.experiments.experiment import Cell, Experiment, Study
from tasks.experiments.sheet import sheet
from tasks.experiments.tables import Results, Row, Table, at, mean_and_error

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHEET = sheet("leaderboard")
TASKS, SEEDS = SHEET.settings["tasks"], range(SHEET.settings["seeds"])
#: A number for each seed.
Values = NDArray[np.float64]


def cells() -> list[Cell | Study]:
    """Return the runs, the first seed of all first, and after them the distances from HMC."""
    runs = [run.but(run.name, _seeded(run.name)) for run in SHEET.runs()]
    studies = [_apart(run.name, {run.name for run in runs}) for run in runs if "-hmc-" in run.name]
    return sorted([*runs, *studies], key=lambda cell: cell.name.rpartition("-")[2])


def _apart(reference: str, names: set[str]) -> Study:
    others = [reference.replace("-hmc-", f"-{method}-") for method in SHEET.labels]
    runs = [name for name in others if name in names]
    name = reference.replace("-hmc-", "-agreement-")
    return Study(name, partial(compare, reference=reference, runs=runs))


def _seeded(name: str) -> dict[str, int]:
    task, _, seed = name.split("-")
    places = ["seed_everything", *filter(None, [TASKS[task].get("split")])]
    return dict.fromkeys(places, int(seed))


def numbers(results: Results, task: str, method: str, place: str) -> dict[int, float]:
    """Return a number of a method's runs by seed, of those that are finished."""
    found = {seed: at(results.get(f"{task}-{method}-{seed}"), place) for seed in SEEDS}
    return {seed: float(value) for seed, value in found.items() if value is not None}


def behind(results: Results, task: str) -> dict[str, Values]:
    """Return the NLL less that of the method with the lowest mean, by method, seed by seed.

    Methods are compared on the seeds that all of them have.
    """
    found = {m: numbers(results, task, m, "metrics.ensemble.nll") for m in SHEET.labels}
    found = {method: nll for method, nll in found.items() if nll}
    common = [seed for seed in SEEDS if all(seed in nll for nll in found.values())]
    if not found or not common:
        return {}
    nlls = {method: np.array([nll[seed] for seed in common]) for method, nll in found.items()}
    best = min(nlls.values(), key=lambda nll: float(nll.mean()))
    return {method: nll - best for method, nll in nlls.items()}


def standard_error(values: Values) -> float:
    """Return that of the mean, NaN of fewer than two."""
    return float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else np.nan


def leads(results: Results, task: str) -> list[str]:
    """Return the methods whose NLL is the lowest, or above it by one standard error at most."""
    found = behind(results, task)
    return [m for m, d in found.items() if d.mean() <= max(0.0, standard_error(d))]


def report(results: Results) -> Iterator[str | Table]:
    """Yield who leads where, then all numbers."""
    yield SHEET.settings["leading"]
    ahead = {task: behind(results, task) for task in TASKS}
    leading = {task: leads(results, task) for task in TASKS}
    rows = []
    for method, label in SHEET.labels.items():
        marks = {task: mean_and_error(list(ahead[task].get(method, ())), 3) for task in TASKS}
        led = [task for task in TASKS if method in leading[task]]
        marks |= {task: f"**{marks[task]}**" for task in led} | {"count": str(len(led))}
        rows.append(Row([label], record=marks))
    columns = [{"title": task, "at": task} for task in TASKS]
    columns.append({"title": "leads, or within one error", "at": "count"})
    yield Table(["NLL less the lowest's"], SHEET.made(columns), rows)
    yield SHEET.intro
    built = {run.name.rpartition("-")[0] for run in SHEET.runs()}
    rows = [
        Row([task, label], record=_row(results, task, method))
        for task in TASKS
        for method, label in (SHEET.labels | SHEET.settings["reference"]).items()
        if f"{task}-{method}" in built
    ]
    yield Table(SHEET.heading, SHEET.made(SHEET.columns), rows)


def _row(results: Results, task: str, method: str) -> dict[str, str]:
    settings = SHEET.settings
    places = settings["places"] | settings["kinds"][TASKS[task]["kind"]]
    found = {k: list(numbers(results, task, method, place).values()) for k, place in places.items()}
    written = {k: mean_and_error(values, 3) for k, values in found.items()}
    seconds = numbers(results, task, method, "wall_seconds").values()
    drawn = numbers(results, task, method, "temperature")
    alarms = [at(results[f"{task}-{method}-{i}"], "diagnostics.alarms") for i in drawn if drawn[i]]
    for name in ("agreement", "total_variation"):
        apart = [
            at(results.get(f"{task}-agreement-{i}"), f"metrics.{task}-{method}-{i}.{name}")
            for i in SEEDS
        ]
        written[name] = mean_and_error([value for value in apart if value is not None], 3)
    return written | {
        "seeds": str(len(found["nll"])),
        "unalarmed": str(sum(not each for each in alarms)) if alarms else "-",
        "behind": mean_and_error(list(behind(results, task).get(method, ())), 3),
        "seconds": f"{np.mean(list(seconds)):.0f}" if seconds else "-",
    }


def figures(results: Results, out: Path) -> Mapping[str, Figure | str]:
    """Return the NLL of each method less the lowest, task by task, with standard errors."""
    figure = new_figure(11, 5)
    panels = figure.subplots(2, -(-len(TASKS) // 2), sharey=True).ravel()
    for axes, task in zip(panels, TASKS, strict=True):
        ahead = behind(results, task)
        for place, method in enumerate(SHEET.labels):
            if method in ahead:
                error = np.nan_to_num(standard_error(ahead[method]))
                axes.errorbar(ahead[method].mean(), place, xerr=error, fmt="o", color=f"C{place}")
        axes.set(title=task, yticks=range(len(SHEET.labels)), yticklabels=SHEET.labels.values())
        axes.set_ylim(len(SHEET.labels) - 0.5, -0.5)
        axes.axvline(0, color="0.8", zorder=0)
    figure.supxlabel("NLL less the lowest mean")
    return {"leaderboard": figure}


EXPERIMENT = Experiment(cells, report, SHEET.choices(), figures=figures)
