"""pSGLD's 2-D Gaussian (Li et al. 2016, Figures 1 and 6).

Target N(0, diag(.16, 1)); covariance error against autocorrelation time over step sizes. The
paper takes 200,000 draws; here 50 chains of 20,000, whose error is that of groups of ten. The
gradient carries noise of standard deviation .1, as in the authors' script, whose step is h on the
sum (the paper's epsilon is 2 h), with memory alpha = .9999 and lambda = 1e-4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from lightning_sgmcmc import PSGLD, SGLD, RMSProp, Sampler
from lightning_sgmcmc.callbacks.report.figures import new_figure
from tasks.experiments import gaussians
from tasks.experiments.drawing import legend_below
from tasks.experiments.experiment import Experiment, Study
from tasks.experiments.gaussians import Linear, Method
from tasks.experiments.loop import Array
from tasks.experiments.tables import Column, Results, Row, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS = tuple(0.3 * 0.8**i for i in (0, 1, 2, 4, 6, 8, 11, 14))
NOISE, LAMBDA = 0.1, 1e-4
CHAINS, DRAWS, GROUPS = 50, 20_000, 5
TARGET = np.diag([0.16, 1.0])
FIRST = 600
#: (a, h) of the paths: variance of the second coordinate and step size.
PATHS = ((0.5, 0.1), (1.0, 0.3), (2.0, 0.1))


def _published(params: list[Tensor], h: float) -> Sampler:
    metric = RMSProp(alpha=0.9999, eps=LAMBDA, start_at_gradient=True)
    return SGLD(params, h, preconditioner=metric)


def _fixed_point(sampler: Sampler, covariance: Array, h: float, sd: float) -> list[Linear]:
    C = gaussians.adapted(np.diag(covariance), h, LAMBDA, sd)
    return [gaussians.langevin(covariance, h, C, sd)]


_usual: dict[str, Any] = {"chains": CHAINS, "burn_in": 2_000, "pool": CHAINS // GROUPS}
_psgld = partial(PSGLD, alpha=0.99, eps=LAMBDA)
METHODS = {
    "sgld": Method(SGLD, gaussians.frozen, **_usual),
    "psgld": Method(
        _published,  # the authors' script
        _fixed_point,
        freeze=False,
        **(_usual | {"burn_in": 50_000}),
    ),
    "psgld_99": Method(_psgld, freeze=False, **_usual),  # the paper's text
    "psgld_frozen": Method(_psgld, gaussians.frozen, **_usual),
    "sghmc": replace(gaussians.UNDERDAMPED, **_usual),
}
LABELS = {name: method.label for name, method in METHODS.items()}


def cells() -> list[Study]:
    """Return one study a sampler, and the paths."""
    studies = [Study(name, partial(compute, method)) for name, method in METHODS.items()]
    return [*studies, Study("paths", first_states)]


def compute(method: Method, folder: Path) -> dict[str, Any]:
    """Run a sampler at every step size."""
    return {"rows": [row(method, h) for h in STEPS]}


def row(method: Method, h: float, chains: int = CHAINS, draws: int = DRAWS) -> dict[str, Any]:
    """Return what a sampler reaches at one step size, beside its closed form."""
    return gaussians.row(replace(method, chains=chains), TARGET, h, draws, NOISE)[0]


def first_states(folder: Path) -> dict[str, Any]:
    """Take the first 600 states for Figures 1 (b) and 6, with their mean error over 500 chains."""
    found, stored = [], {}
    for name in ("sgld", "psgld", "psgld_99"):
        for a, h in PATHS:
            covariance = np.diag([0.16, a])
            length: dict[str, Any] = {"chains": 500, "steps": FIRST, "burn_in": 0, "freeze": False}
            states, _ = gaussians.run(covariance, METHODS[name].make, h, sd=NOISE, **length)
            errors = [gaussians.error(covariance, np.cov(chain.T)) for chain in states]
            stored[f"{name}_{a:g}_{h:g}"] = states[0]
            median, worst = float(np.median(errors)), float(np.max(errors))
            row = {"sampler": name, "a": a, "h": h, "median_error": median, "worst_error": worst}
            found.append(row)
    np.savez(folder / "paths.npz", **stored)
    return {"rows": found}


PATH_COLUMNS = [
    Column("sampler", lambda row: LABELS[row["sampler"]]),
    Column("a", "a", "{:g}"),
    Column("h", "h", "{:g}"),
    Column("median error", "median_error", digits=3, better="lower"),
    Column("largest error", "worst_error", "{:.3g}", better="lower"),
]


def report(results: Results) -> Iterator[str | Table]:
    """Yield covariance errors and autocorrelation times, and the paths' errors."""
    yield (
        f"Target N(0, diag(.16, 1)), {CHAINS * DRAWS // GROUPS:,} draws an error, gradient noise "
        f"of sd {NOISE}."
    )
    yield from gaussians.tables(results, LABELS, STEPS)
    yield f"The covariance from the first {FIRST} states, 500 chains, target diag(.16, a)."
    yield Table([], PATH_COLUMNS, [Row([], record=r) for r in gaussians.rows(results, "paths")])


def figures(results: Results, out: Path) -> dict[str, Figure]:
    """Return error over autocorrelation time (Figure 1 a), and the paths (Figures 1 b and 6)."""
    drawn = {}
    if any(gaussians.rows(results, name) for name in METHODS):
        figure = new_figure(7, 6)
        gaussians.error_over_time(figure.subplots(), results, LABELS)
        legend_below(figure)
        drawn["psgld-gaussian"] = figure
    stored = out / "paths" / "paths.npz"
    if stored.is_file():
        with np.load(stored) as arrays:
            panels = [
                [
                    (
                        f"{title}: a = {a:g}, h = {h:g}",
                        np.diag([0.16, a]),
                        arrays[f"{n}_{a:g}_{h:g}"],
                    )
                    for a, h in PATHS
                ]
                for n, title in (("sgld", "SGLD"), ("psgld_99", "pSGLD"))
            ]
        drawn["psgld-gaussian-paths"] = gaussians.paths(panels)
    return drawn


EXPERIMENT = Experiment(cells, report, figures=figures)
