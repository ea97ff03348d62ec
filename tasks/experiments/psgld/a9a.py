"""Bayesian logistic regression on a9a: Table 1 of pSGLD (Li, Chen, Carlson, Carin 2016).

The paper's two runs are runs of the task, by ``configs/papers/a9a.yaml``; other samplers and step
sizes take the same protocol in stacked chains without a trainer. All repeat it eight times, from
zero, with other noise and minibatches. Beside them stand two references for the posterior itself,
with and without an intercept: Laplace's Gaussian, by Newton's method with the exact Hessian, and
Metropolis-corrected HMC on all the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import zeros

from lightning_sgmcmc import (
    PSGLD,
    SGFS,
    SGHMC,
    SGLD,
    GaussianPrior,
    NaturalLangevin,
    RMSProp,
    Sampler,
)
from lightning_sgmcmc.callbacks.report.figures import new_figure
from lightning_sgmcmc.diagnostics import ess
from tasks.data.libsvm import A9AData
from tasks.experiments.experiment import Cell, Experiment, Study
from tasks.experiments.labels import of_sampler
from tasks.experiments.logistic import sample_chains, sample_hmc, with_intercept
from tasks.experiments.loop import Array
from tasks.experiments.sheet import sheet
from tasks.experiments.tables import Result, Results, Row, Table, paper_row
from tasks.laplace import Laplace, laplace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PRIOR_VARIANCE = 10.0
PUBLISHED = A9AData.paper["table"]


def _sghmc(params: Any, **kwargs: Any) -> Sampler:
    return SGHMC(params, momentum=0.9, preconditioner=RMSProp(), **kwargs)


#: Samplers beside the paper's; C adapts in burn-in and freezes there.
METHODS: dict[str, Callable[..., Sampler]] = {
    "sgld": SGLD,
    "psgld": PSGLD,
    "sghmc": _sghmc,
    "natural": NaturalLangevin,
    "sgfs": partial(SGFS, count_prior=True),
}
#: Validation examples: a tenth of the training set.
NUM_VAL = 3256
REFERENCES = {
    "laplace": (False, "Laplace"),
    "hmc": (False, "HMC"),
    "laplace-intercept": (True, "Laplace, intercept"),
    "hmc-intercept": (True, "HMC, intercept"),
}


def cells() -> list[Cell | Study]:
    """Return the references, the paper's two runs and one run of every method."""
    references: list[Cell | Study] = [
        Study(name, partial(reference, name.startswith("hmc"), intercept))
        for name, (intercept, _) in REFERENCES.items()
    ]
    chosen = [Study(method, partial(run, method, STEP[method], 0)) for method in METHODS]
    return [*references, *SHEET.runs(), *chosen]


def choices() -> list[Cell | Study]:
    """Return the runs that the step sizes were chosen from."""
    return [
        Study(f"{method}-lr{lr:g}", partial(run, method, lr, NUM_VAL))
        for method, steps in GRID.items()
        for lr in steps
    ]


def run(method: str, lr: float, num_val: int, folder: Path) -> dict[str, Any]:
    """Repeat the paper's protocol eight times with another sampler or step size.

    Args:
        method: One of ``METHODS``.
        lr: Step size on the mean loss.
        num_val: Training examples to hold out and predict; 0 predicts the test examples.
        folder: Not used: the draws need no file.
    """
    (x, y), held_out = _examples(num_val)
    draws, _ = sample_chains(
        METHODS[method],
        x,
        y,
        lr=lr,
        prior_variance=PRIOR_VARIANCE,
        batch_size=50,
        chains=8,
        steps=15_000,
        burn_in=500,
        thinning=50,
        label=f"{method}, lr {lr:g}",
    )
    return {"lr": lr} | errors(draws, *held_out, laplace(x, y, PRIOR_VARIANCE))


def _examples(num_val: int) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return training examples and those to predict: the validation examples if there are any."""
    data = A9AData(num_val=num_val)
    data.prepare_data()
    data.setup()
    return data.arrays("train"), data.arrays("val" if num_val else "test")


def reference(hmc: bool, intercept: bool, folder: Path) -> dict[str, Any]:
    """Compute what the posterior predicts, and how the test errors of its draws are spread.

    Args:
        hmc: Draw by HMC, 8 chains of 500 draws; otherwise 4,000 draws of Laplace's Gaussian.
        intercept: Whether the model has one.
        folder: Not used: the draws need no file.
    """
    (x, y), (test_x, test_y) = _examples(0)
    if intercept:
        x, test_x = with_intercept(x), with_intercept(test_x)
    approximation = laplace(x, y, PRIOR_VARIANCE)
    details: dict[str, float] = {}
    if hmc:
        found = sample_hmc(
            x, y, PRIOR_VARIANCE, chains=8, draws=500, burn_in=100, target_acceptance=0.8
        )
        draws, details = found.draws, found.quality()
    else:
        root = np.linalg.cholesky(approximation.covariance)
        normal = np.random.default_rng(0).standard_normal((8, 500, x.shape[1]))
        draws = approximation.mean + normal @ root.T
    return details | errors(draws, test_x, test_y, approximation)


def errors(draws: Array, x: Array, y: Array, approximation: Laplace) -> dict[str, Any]:
    """Return metrics of all draws [K, draws, D] together, of chains and of single draws.

    ``gap`` is the mean distance of the draws' probabilities from Laplace's. ``logit_sd`` and
    ``weight_sd`` are standard deviations of all draws together over Laplace's, of x'theta and of
    theta: the medians over the examples x and over the weights.
    """
    total = np.zeros(len(y))
    singles: list[float] = []
    chains: list[float] = []
    for chain in draws:
        p = 1 / (1 + np.exp(-(chain @ x.T)))
        singles += [100 * float(e) for e in ((p >= 0.5) != (y > 0.5)).mean(1)]
        chains.append(100 * float(((p.mean(0) >= 0.5) != (y > 0.5)).mean()))
        total += p.mean(0) / len(draws)
    likelihood = np.where(y > 0.5, total, 1 - total)
    covariance = np.atleast_2d(np.cov(draws.reshape(-1, draws.shape[2]).T))
    logit_ratios = _variances(x, covariance) / _variances(x, approximation.covariance)
    weight_ratios = np.diag(covariance) / np.diag(approximation.covariance)
    quantiles = (0.0, 0.025, 0.25, 0.5, 0.75, 0.975, 1.0)
    return {
        "error_percent": 100 * float(((total >= 0.5) != (y > 0.5)).mean()),
        "nll": -float(np.log(likelihood).mean()),
        "brier": float(((total - y) ** 2).mean()),
        "gap": float(np.abs(total - approximation.predict(x)).mean()),
        "draw_error_percent": {
            "mean": float(np.mean(singles)),
            "sd": float(np.std(singles)),
            "quantiles": {f"{q:g}": float(np.quantile(singles, q)) for q in quantiles},
            "at_most_published": float(np.mean(np.array(singles) <= PUBLISHED["pSGLD"])),
        },
        "chain_error_percent": chains,
        "ess": float(np.median(ess(draws))),
        "logit_sd": float(np.sqrt(np.median(logit_ratios))),
        "weight_sd": float(np.sqrt(np.median(weight_ratios))),
    }


def _variances(x: Array, covariance: Array) -> Array:
    """Return x_i' C x_i, [n]."""
    found: Array = ((x @ covariance) * x).sum(1)
    return found


def summary(result: Result | None) -> Result | None:
    """Return what the table shows of a run of the task or of a study, under the same names."""
    if result is None or "metrics" not in result:
        return result
    details = result["task_details"]
    weights = result["diagnostics"].get("mixing", {}).get("weights", {})
    return {
        "lr": result["sampler"]["lr"],
        "nll": result["metrics"]["ensemble"]["nll"],
        "gap": details["laplace"]["test"]["gap"],
        "draw_error_percent": details["draw_error_percent"],
        "chain_error_percent": details["chain_error_percent"],
        "ess": (weights.get("ess_bulk") or {}).get("median"),
    }


def _of_chains(values: Result) -> tuple[float, float]:
    """Return mean and standard deviation of the errors of single runs' ensembles."""
    chains = values["chain_error_percent"]
    return float(np.mean(chains)), float(np.std(chains, ddof=1))


def _of_draws(values: Result) -> tuple[float, float, float]:
    """Return the mean error of single draws, and the ends of their 95 % interval."""
    draws = values["draw_error_percent"]
    return draws["mean"], draws["quantiles"]["0.025"], draws["quantiles"]["0.975"]


SHEET = sheet("a9a", of_chains=_of_chains, of_draws=_of_draws)
STEP, GRID = SHEET.settings["step"], SHEET.settings["grid"]
LABELS = SHEET.built() | {
    name: of_sampler(make([zeros(1)], lr=1.0, prior=GaussianPrior(PRIOR_VARIANCE)))
    for name, make in METHODS.items()
}
NAMES = {name: label for name, (_, label) in REFERENCES.items()} | dict(LABELS)


def report(results: Results) -> Iterator[str | Table]:
    """Yield the paper's numbers and ours, and how good the references are."""
    yield SHEET.intro
    columns = SHEET.made(SHEET.columns)
    rows = [paper_row([f"*paper*: {n}"], columns, (None, v)) for n, v in PUBLISHED.items()]
    rows += [Row([label], record=summary(results.get(name))) for name, label in NAMES.items()]
    yield Table(SHEET.heading, columns, rows)
    for name, (_, label) in REFERENCES.items():
        result = results.get(name)
        if result is not None and "acceptance" in result:
            chains, draws = result["chain_error_percent"], result["draw_error_percent"]
            yield SHEET.settings["reference"].format(
                **result,
                label=label,
                lowest=min(chains),
                highest=max(chains),
                share=100 * draws["at_most_published"],
                published=PUBLISHED["pSGLD"],
            )


def figures(results: Results, out: Path) -> dict[str, Figure]:
    """Return the spread of the test errors, of single draws and of whole ensembles."""
    shown = {NAMES[n]: values for n in NAMES if (values := summary(results.get(n))) is not None}
    figure = new_figure(7.2, 0.8 + 0.42 * len(shown))
    axes = figure.subplots()
    for i, values in enumerate(shown.values()):
        mean, low, high = _of_draws(values)
        axes.plot([low, high], [-i, -i], color="0.75", lw=5, solid_capstyle="butt", zorder=1)
        axes.plot(mean, -i, "|", color="0.3", ms=11, zorder=2)
        chains = values["chain_error_percent"]
        axes.plot(chains, [-i] * len(chains), "o", color="0.0", mfc="none", ms=5, zorder=3)
    paper = PUBLISHED["pSGLD"]
    axes.axvline(paper, color="0.0", lw=1, ls=":")
    beside: Any = {"xytext": (3, 0), "textcoords": "offset points", "fontsize": 8}
    axes.annotate("published", (paper, 0.5), **beside)
    axes.set_yticks([-i for i in range(len(shown))], list(shown))
    axes.set_ylim(-len(shown) + 0.4, 0.9)
    axes.set_xlabel("test error (%)")
    axes.set_title("circles: ensembles of runs; bars: 95 % of single draws, and mean", fontsize=9)
    return {"a9a": figure}


CHOICES = SHEET.choices(
    choices, "Closest: {}.", lambda name: (name.split("-lr")[0], name.split("-lr")[1])
)
EXPERIMENT = Experiment(cells, report, CHOICES, figures=figures)
