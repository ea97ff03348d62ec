"""Bayesian logistic regression on the Australian data: Figure 2 of pSGLD (Li et al. 2016).

690 examples, 14 standardised features and an intercept, prior N(0, 100), minibatches of 5, 5,000
iterations, 50 runs at each step size, as 50 stacked chains. The paper names neither start nor
burn-in: here the weights start at zero, and the first 1,000 iterations are burn-in. The paper's
step sizes end at 1e-4; two larger ones stand beside them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import zeros

from lightning_sgmcmc import PSGLD, SGLD, Sampler
from lightning_sgmcmc.callbacks.report.figures import new_figure
from lightning_sgmcmc.diagnostics import ess
from tasks.data.australian import AustralianData
from tasks.experiments.drawing import draw_lines
from tasks.experiments.experiment import Experiment, Study
from tasks.experiments.labels import of_sampler
from tasks.experiments.logistic import sample_chains, sample_hmc, standard_error, with_intercept
from tasks.experiments.loop import Array
from tasks.experiments.sheet import sheet
from tasks.experiments.tables import Result, Results, Row, Table
from tasks.laplace import laplace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PRIOR_VARIANCE = 100.0
BATCH, RUNS, STEPS, BURN_IN = 5, 50, 5000, 1000
#: The paper's epsilon, of Algorithm 1: lr = epsilon N / 2.
EPSILONS = (1e-7, 1e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3)
LAST_PUBLISHED = 1e-4


def _epsilon(row: Result) -> str:
    beyond = "" if row["epsilon"] <= LAST_PUBLISHED else " (not in the paper)"
    return f"{row['epsilon']:.0e}{beyond}"


SHEET = sheet("australian", epsilon=_epsilon)
#: The samplers, and whether they freeze where burn-in ends.
METHODS: dict[str, tuple[Callable[..., Sampler], bool]] = {
    "sgld": (SGLD, True),
    "psgld-published": (PSGLD, False),
    "psgld-frozen": (PSGLD, True),
}
LABELS = {
    name: of_sampler(make([zeros(1)], 1.0), freeze) for name, (make, freeze) in METHODS.items()
}


def cells() -> list[Study]:
    """Return the long HMC run and one study of every method over the step sizes."""
    return [
        Study("truth", truth),
        *(Study(name, partial(study, name)) for name in METHODS),
    ]


def examples() -> tuple[Array, Array]:
    """Return all the standardised features with a column of ones, [690, 15], and the labels."""
    data = AustralianData()
    data.prepare_data()
    data.setup()
    x, y = data.arrays("train")
    return with_intercept(x), y


def truth(folder: Path, chains: int = 100, draws: int = 500, burn_in: int = 200) -> dict[str, Any]:
    """Compute the posterior's mean and covariance by HMC.

    Args:
        folder: Not used: everything is in the result.
        chains: Stacked chains.
        draws: Draws of each.
        burn_in: Steps in which the step size adapts.
    """
    x, y = examples()
    run = sample_hmc(x, y, PRIOR_VARIANCE, chains=chains, draws=draws, burn_in=burn_in)
    approximation = laplace(x, y, PRIOR_VARIANCE)
    together = run.draws.reshape(-1, x.shape[1])
    sd = together.std(0)
    return {
        "mean": together.mean(0).tolist(),
        "covariance": np.cov(together.T).tolist(),
        "draws": len(together),
        **run.quality(),
        "gradients_a_chain": run.gradients,
        "max_standard_error_in_sd": float((standard_error(run.draws) / sd).max()),
        "laplace_mean_error_in_sd": (np.abs(approximation.mean - together.mean(0)) / sd).tolist(),
        "laplace_sd_ratio": (np.sqrt(np.diag(approximation.covariance)) / sd).tolist(),
    }


def study(method: str, folder: Path, epsilons: tuple[float, ...] = EPSILONS) -> dict[str, Any]:
    """Run a method at every step size, and compare each run with the truth.

    Args:
        method: Of ``METHODS``.
        folder: The study's; the truth is read from ``truth`` beside it, or computed.
        epsilons: Step sizes.
    """
    beside = folder.parent / "truth" / "results.json"
    known = json.loads(beside.read_text()) if beside.is_file() else truth(folder)
    mean, covariance = np.array(known["mean"]), np.array(known["covariance"])
    x, y = examples()
    rows = []
    for epsilon in epsilons:
        draws = chains(method, x, y, epsilon)
        rows.append({"epsilon": epsilon} | compare(draws, mean, covariance))
    return {"rows": rows}


def chains(method: str, x: Array, y: Array, epsilon: float, steps: int = STEPS) -> Array:
    """Return the draws after burn-in of the 50 runs at one step size, [50, draws, 15]."""
    make, freeze = METHODS[method]
    draws, _ = sample_chains(
        make,
        x,
        y,
        lr=0.5 * epsilon * len(x),
        prior_variance=PRIOR_VARIANCE,
        batch_size=BATCH,
        chains=RUNS,
        steps=steps,
        burn_in=BURN_IN,
        freeze=freeze,
        one_generator=True,
        label=f"{LABELS[method]}, epsilon {epsilon:g}",
    )
    return draws


def compare(draws: Array, mean: Array, covariance: Array) -> dict[str, float]:
    """Compare runs [K, draws, D] with the posterior's moments.

    Returns:
        ``min_ess``, the median over runs of the smallest ESS of a weight; and means over the runs
        and weights: ``mean_error`` of |m - mu| / sd; ``sd_error`` of |s / sd - 1|, ``sd_ratio`` of
        s / sd, and ``covariance_error`` of |c_ij - C_ij| / (sd_i sd_j). ``worth`` is 1 over the
        mean of ((m - mu) / sd)^2: the number of independent draws whose mean errs as much.
    """
    sd = np.sqrt(np.diag(covariance))
    gaps = (draws.mean(1) - mean) / sd
    covariances = np.stack([np.cov(run.T) for run in draws])
    ratios = np.sqrt(np.diagonal(covariances, axis1=1, axis2=2)) / sd
    smallest = [float(ess(run[None], "mean").min()) for run in draws]
    return {
        "min_ess": float(np.median(smallest)),
        "mean_error": float(np.abs(gaps).mean()),
        "sd_error": float(np.abs(ratios - 1).mean()),
        "sd_ratio": float(ratios.mean()),
        "covariance_error": float(np.abs((covariances - covariance) / np.outer(sd, sd)).mean()),
        "worth": float(1 / (gaps**2).mean()),
    }


def report(results: Results) -> Iterator[str | Table]:
    """Yield the errors at every step size, and how good the truth is; the paper has figures."""
    yield SHEET.intro
    rows = [
        Row([label], record=row)
        for name, label in LABELS.items()
        for row in (results.get(name) or {"rows": [None]})["rows"]
    ]
    yield Table(SHEET.heading, SHEET.made(SHEET.columns), rows)
    known = results.get("truth")
    if known is not None:
        yield SHEET.settings["truth"].format(
            **known,
            off=max(known["laplace_mean_error_in_sd"]),
            sd_off=100 * max(abs(r - 1) for r in known["laplace_sd_ratio"]),
        )


def figures(results: Results, out: Path) -> dict[str, Figure]:
    """Return ESS, error of the mean and sd over the step size, and error over error."""
    from matplotlib.ticker import NullFormatter

    figure = new_figure(9, 6.6)
    panels = figure.subplots(2, 2)
    columns = {
        "min_ess": f"smallest ESS of {STEPS - BURN_IN:,} draws",
        "mean_error": "error of the mean (posterior sd)",
        "sd_ratio": "sd of a run's draws / posterior sd",
    }
    for axes, (column, label) in zip(panels.flat, columns.items(), strict=False):
        _lines(axes, results, "epsilon", column)
        axes.set(xlabel=r"step size $\epsilon$", ylabel=label)
        axes.axvspan(LAST_PUBLISHED * 1.4, EPSILONS[-1] * 1.5, color="0.95", zorder=0)
        axes.set_xlim(EPSILONS[0] / 1.5, EPSILONS[-1] * 1.5)
    panels[1, 0].axhline(1, color="0.8", lw=1, zorder=0)
    last = panels[1, 1]
    _lines(last, results, "sd_error", "mean_error")
    last.set(ylabel=columns["mean_error"], xlabel="error of the sd (posterior sd)")
    last.set_xticks([0.2, 0.5, 1, 2, 4], ["0.2", "0.5", "1", "2", "4"])
    for axes in (panels[0, 1], last):
        axes.set_yticks([0.3, 0.5, 1, 2], ["0.3", "0.5", "1", "2"])
    for axis in (last.xaxis, last.yaxis, panels[0, 1].yaxis):
        axis.set_minor_formatter(NullFormatter())
    first = panels[0, 0]
    first.legend(frameon=False, fontsize=8)
    place: Any = {"xycoords": ("data", "axes fraction"), "fontsize": 7, "color": "0.4"}
    first.annotate("not in the paper", (LAST_PUBLISHED * 1.6, 0.02), **place)
    return {"australian": figure}


def _lines(axes: Axes, results: Results, x: str, y: str) -> None:
    lines = {
        fill(label, 36): [(row[x], row[y]) for row in (results.get(name) or {"rows": []})["rows"]]
        for name, label in LABELS.items()
    }
    draw_lines(axes, lines, SHEET.settings["looks"].values(), ms=4.5)
    axes.set(xscale="log", yscale="log")


EXPERIMENT = Experiment(cells, report, figures=figures)
