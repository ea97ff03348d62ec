"""HASGLD-SA's 2-D Gaussian (Wang, Deng, Lin 2020, section 5.1 and Figure 1).

Target N(0, [[s^2, -.95 s], [-.95 s, 1]]) with the paper's s = .12. SGLD is unstable then at every
step size that the paper lists (largest precision 721.5, limit h < .0028); with s^2 = .12 its limit
is .0211, just above the largest step listed. So both readings are run: "variance" (s^2 = .12) and
"printed" (s = .12). The gradient is exact; h is the step on the sum, T = 1/tau = 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_sgmcmc import HAMCMC, HASGLD, SGLD
from lightning_sgmcmc.callbacks.report.figures import new_figure
from tasks.experiments import gaussians
from tasks.experiments.drawing import legend_below
from tasks.experiments.experiment import Experiment, Study
from tasks.experiments.gaussians import Method
from tasks.experiments.loop import Array
from tasks.experiments.tables import Results, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS = tuple(0.02 * 0.8**i for i in (0, 1, 2, 4))
DRAWS, FIRST = 30_000, 2_500
READINGS = {"variance": 0.12, "printed": 0.12**2}


def target(reading: str) -> Array:
    """Return the covariance under a reading of "sigma_x = .12"."""
    variance = READINGS[reading]
    return np.array([[variance, -0.95 * variance**0.5], [-0.95 * variance**0.5, 1.0]])


_operators = partial(Method, closed=gaussians.frozen, chains=2, stacked=False)
METHODS = {
    "sgld": Method(SGLD, gaussians.frozen, constant=True),
    "hasgld_printed": Method(
        partial(HASGLD, memory=2, slots=1, paper_mode=True), chains=1, stacked=False
    ),
    "hasgld": _operators(partial(HASGLD, memory=2, slots=1)),
    "hasgld_four": _operators(partial(HASGLD, memory=2, slots=4)),
    "hasgld_averaged": Method(partial(HASGLD, memory=2, slots=None), gaussians.frozen),
    "hasgld_r001": _operators(partial(HASGLD, memory=5, r=1e-3, slots=1)),
    "hamcmc": Method(partial(HAMCMC, memory=3), chains=50, freeze=False, pool=5),
    "sghmc": replace(gaussians.UNDERDAMPED, constant=True),
}
LABELS = {name: method.label for name, method in METHODS.items()}


def cells() -> list[Study]:
    """Return one study a sampler and reading."""
    return [
        Study(f"{name}-{reading}", partial(compute, method, reading))
        for reading in READINGS
        for name, method in METHODS.items()
    ]


def compute(method: Method, reading: str, folder: Path) -> dict[str, Any]:
    """Run a sampler at every step size and keep its first states at the largest stable one."""
    rows, kept = [], None
    for h in STEPS:
        found, states = gaussians.row(method, target(reading), h, DRAWS // method.pool)
        rows.append(found)
        if kept is None and states is not None:
            kept = states[0, :FIRST]
            np.savez(folder / "path.npz", states=kept, h=h)
    return {"rows": rows}


def _labels(reading: str) -> dict[str, str]:
    return {f"{name}-{reading}": label for name, label in LABELS.items()}


def report(results: Results) -> Iterator[str | Table]:
    """Yield covariance errors and autocorrelation times of both readings."""
    yield f"Correlation -.95, sigma_y = 1, {DRAWS:,} draws an error, exact gradients."
    for reading, variance in READINGS.items():
        yield f"sigma_x^2 = {variance:g}"
        yield from gaussians.tables(results, _labels(reading), STEPS)


def figures(results: Results, out: Path) -> dict[str, Figure]:
    """Return error over autocorrelation time (Figure 1 b) and the paths (Figure 1 a)."""
    drawn = {}
    names = {reading: _labels(reading) for reading in READINGS}
    found = [
        reading
        for reading in READINGS
        if any("error" in row for name in names[reading] for row in gaussians.rows(results, name))
    ]
    if found:
        figure = new_figure(5 * len(found) + 1, 6)
        panels = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
        for axes, reading in zip(panels, found, strict=True):
            gaussians.error_over_time(axes, results, names[reading])
            axes.set_title(rf"$\sigma_x^2 = {READINGS[reading]:g}$")
        legend_below(figure)
        drawn["hasgld-gaussian"] = figure
    states = []
    for name in ("sgld", "hasgld_printed", "hasgld"):
        path = out / f"{name}-variance" / "path.npz"
        if path.is_file():
            with np.load(path) as stored:
                states.append((LABELS[name], target("variance"), stored["states"]))
    if states:
        drawn["hasgld-gaussian-paths"] = gaussians.paths([states], share=False)
    return drawn


EXPERIMENT = Experiment(cells, report, figures=figures)
