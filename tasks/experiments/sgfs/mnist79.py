"""Logistic regression of MNIST's 7 against 9 (Ahn et al. 2012, section 5.1, Figures 1 and 2).

10,000 examples, 50 random projections and an intercept, prior N(0, 1), minibatches of 300. Every
method starts in a Gaussian approximation of the posterior, so that what it learns and what it
draws are of the posterior from the start.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lightning_sgmcmc import HMC, SGFS
from lightning_sgmcmc.callbacks.report.figures import new_figure
from lightning_sgmcmc.samplers.sgfs import Variant
from tasks.data.mnist79 import sevens_and_nines
from tasks.experiments.experiment import Experiment, Study
from tasks.experiments.logistic import sample_chains, sample_hmc
from tasks.experiments.loop import Array
from tasks.experiments.sgfs import step_sizes
from tasks.experiments.sgfs.step_sizes import Make, Method
from tasks.experiments.tables import Results, Table
from tasks.laplace import laplace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

N, BATCH, PRIOR = 10_000, 300, 1.0
CHAINS, BURN_IN, DRAWS = 32, 500, 12_000
HMC_CHAINS, LEAPFROGS = 4, 4_000
#: Draws between two looks at the errors.
BLOCK = 200
ALPHAS = (0.0, 1.0, 2.0, 6.0)
#: The studies whose marginals are drawn.
SHOWN = ("sgfs_full", "sgfs_diagonal")
#: Processor seconds a chain, over the stacked chains, after which errors are compared.
BUDGETS = (0.02, 0.2)


def _sgfs(variant: Variant) -> Make:
    return lambda alpha, n: (partial(SGFS, variant=variant), SGFS.step_size(alpha, n, BATCH))


METHODS = {
    "sgfs_full": Method("alpha", ALPHAS, _sgfs("full")),
    "sgfs_diagonal": Method("alpha", ALPHAS, _sgfs("diagonal")),
    "sgfs_full_reshuffled": Method("alpha", ALPHAS, _sgfs("full"), "reshuffled"),
    "sgld": Method("epsilon", (1e-3, 3e-4, 1e-4, 1e-5, 1e-6), step_sizes.langevin),
    "hmc": Method(
        "leapfrog steps",
        (1, 3, 10, 30),
        lambda steps, n: (partial(HMC, leapfrog_steps=int(steps)), 1.0),
        "full",
    ),
}


def cells() -> list[Study]:
    """Return the reference, and one study a method over its step sizes."""
    return [
        Study("reference", _reference),
        *(Study(name, partial(compute, method)) for name, method in METHODS.items()),
    ]


def _reference(folder: Path) -> dict[str, Any]:
    x, y = sevens_and_nines(N)
    found = sample_hmc(x, y, PRIOR, chains=8, draws=4_000, burn_in=300, dtype=torch.float32)
    draws = found.draws.reshape(-1, x.shape[1])
    halves = [np.var(half, axis=0) for half in np.split(draws, 2)]
    np.savez(folder / "moments.npz", mean=draws.mean(0), covariance=np.cov(draws.T, bias=True))
    return {
        "draws": len(draws),
        "acceptance": found.acceptance,
        "largest_gap_of_variances_between_halves": float(np.abs(halves[0] / halves[1] - 1).max()),
    }


def compute(method: Method, folder: Path) -> dict[str, Any]:
    """Run a method at each of its step sizes, and compare it with the reference."""
    x, y = sevens_and_nines(N)
    reference = step_sizes.read_moments(folder.parent / "reference")
    run = partial(chains, method, x, y)
    return step_sizes.over_steps(folder, reference, method, run, block=BLOCK)


def chains(method: Method, x: Array, y: Array, value: float) -> tuple[Array, float]:
    """Return draws [K, draws, 51] at one step size, and processor seconds of all chains."""
    full = method.sampling == "full"
    approximation, count = laplace(x, y, PRIOR), HMC_CHAINS if full else CHAINS
    z = np.random.default_rng(1).standard_normal((count, x.shape[1]))
    make, lr = method.make(value, len(x))
    draws = max(200, int(LEAPFROGS / value)) if full else DRAWS
    return sample_chains(
        make,
        x,
        y,
        lr=lr,
        prior_variance=PRIOR,
        batch_size=BATCH,
        chains=count,
        steps=BURN_IN + draws,
        burn_in=BURN_IN,
        one_generator=True,
        sampling=method.sampling,
        starts=approximation.mean + z @ np.linalg.cholesky(approximation.covariance).T,
        label=f"{method.label}, {method.parameter} = {value:g}",
    )


def report(results: Results) -> list[str | Table]:
    """Return variances, mixing and errors of every method and step size."""
    found = {method.label: results.get(name) for name, method in METHODS.items()}
    rows = [row for label, result in found.items() for row in step_sizes.rows(label, result)]
    return [Table(["method"], step_sizes.columns(BUDGETS, digits=0), rows)]


def figures(results: Results, out: Path) -> dict[str, Figure | str]:
    """Return marginals at the largest step (Figure 1) and errors over mixing (Figure 2).

    The marginals need the arrays of the runs, which recorded results do not have.
    """
    drawn: dict[str, Figure | str] = {}
    if all(results.get(name) for name in SHOWN):
        lost = step_sizes.missing(out / name for name in ("reference", *SHOWN))
        drawn["mnist79-marginals"] = lost or _marginals(out)
    studies = {method.label: results.get(name) for name, method in METHODS.items()}
    if any(studies.values()):
        figure = new_figure(9, 7)
        drawn["mnist79-errors"] = figure
        grid = figure.subplots(2, len(BUDGETS))
        chosen = {f"after {b:g} s": partial(step_sizes.at_budget, budget=b) for b in BUDGETS}
        step_sizes.draw_errors(grid, studies, chosen)
        grid[0, -1].legend()  # HMC makes a draw in the longer budget only
    return drawn


def _marginals(out: Path) -> Figure:
    shown = {
        f"{METHODS[name].label}, alpha = 0": step_sizes.read_moments(out / name, "_0")
        for name in SHOWN
    }
    reference = step_sizes.read_moments(out / "reference")
    figure, panels = step_sizes.marginals(reference, shown, 3.75, "b:")
    for axes, label, kind in panels:
        axes.set_title(f"{label.split(',')[0]}, {kind} pair")
        axes.legend()
    return figure


EXPERIMENT = Experiment(cells, report, figures=figures)
