"""Logistic regression of MNIST's 7 against 9 (Ahn et al. 2012, section 5.1, Figures 1 and 2).

10,000 examples, 50 random projections and an intercept, prior N(0, 1), minibatches of 300. Every
method starts in a Gaussian approximation of the posterior, so that what it learns and what it
draws are of the posterior from the start.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lightning_sgmcmc import HMC, SGFS, SGLD, BatchStream, GaussianPrior, Sampler
from lightning_sgmcmc.diagnostics import RunningErrors
from lightning_sgmcmc.run.figures import new_figure
from lightning_sgmcmc.samplers import Stacked
from lightning_sgmcmc.samplers.sgfs import Variant
from tasks.data.mnist79 import sevens_and_nines
from tasks.experiments.experiment import Experiment, Study
from tasks.experiments.logistic_chains import stacked_target
from tasks.experiments.logistic_hmc import sample_hmc
from tasks.experiments.loop import Array
from tasks.experiments.sgfs import step_sizes
from tasks.experiments.sgfs.step_sizes import Moments, at_budget, errors_now
from tasks.experiments.tables import Results, Table
from tasks.laplace import Laplace, laplace
from tasks.logistic import mean_gradient

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Sampling = Literal["independent", "reshuffled", "full"]

N, BATCH, PRIOR = 10_000, 300, 1.0
CHAINS, BURN_IN, DRAWS = 32, 500, 12_000
HMC_CHAINS, LEAPFROGS = 4, 4_000
#: Draws between two looks at the errors.
BLOCK = 200
ALPHAS = (0.0, 1.0, 2.0, 6.0)
#: The paper's epsilon, twice the step on the sum.
EPSILONS = (1e-3, 3e-4, 1e-4, 1e-5, 1e-6)
TRAJECTORIES = (1, 3, 10, 30)
#: Processor seconds a chain, over the stacked chains, after which errors are compared.
BUDGETS = (0.02, 0.2)
LABELS = {
    "sgfs_full": "SGFS-f",
    "sgfs_diagonal": "SGFS-d",
    "sgfs_full_reshuffled": "SGFS-f, reshuffled epochs",
    "sgld": "SGLD",
    "hmc": "HMC",
}


def cells() -> list[Study]:
    """Return the reference, and one study a method over its step sizes."""
    return [
        Study("reference", _reference),
        Study("sgfs_full", partial(_sgfs, variant="full")),
        Study("sgfs_diagonal", partial(_sgfs, variant="diagonal")),
        Study("sgfs_full_reshuffled", partial(_sgfs, variant="full", sampling="reshuffled")),
        Study("sgld", _sgld),
        Study("hmc", _hmc),
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


def _sgfs(folder: Path, variant: Variant, sampling: Sampling = "independent") -> dict[str, Any]:
    def make(theta: Tensor, alpha: float) -> Sampler:
        lr = SGFS.step_size(alpha, N, BATCH)
        return SGFS(Stacked([theta]), lr, variant=variant, num_data=N, prior=GaussianPrior(PRIOR))

    return _over_steps(folder, "alpha", ALPHAS, make, sampling)


def _sgld(folder: Path) -> dict[str, Any]:
    def make(theta: Tensor, epsilon: float) -> Sampler:
        lr = epsilon * N / 2
        return SGLD(Stacked([theta]), lr, num_data=N, prior=GaussianPrior(PRIOR))

    return _over_steps(folder, "epsilon", EPSILONS, make, "independent")


def _hmc(folder: Path) -> dict[str, Any]:
    def make(theta: Tensor, leapfrogs: float) -> Sampler:
        return HMC(
            Stacked([theta]),
            1.0,
            leapfrog_steps=int(leapfrogs),
            num_data=N,
            prior=GaussianPrior(PRIOR),
        )

    return _over_steps(folder, "leapfrog steps", TRAJECTORIES, make, "full")


def _over_steps(
    folder: Path,
    parameter: str,
    values: tuple[float, ...],
    make: Callable[[Tensor, float], Sampler],
    sampling: Sampling,
) -> dict[str, Any]:
    x, y = sevens_and_nines(N)
    start = laplace(x, y, PRIOR)
    reference = step_sizes.read_moments(folder.parent / "reference")
    rows: list[dict[str, Any]] = []
    arrays: Moments = {}
    for value in values:
        chains = HMC_CHAINS if sampling == "full" else CHAINS
        starts = _starts(start, chains)[:, None]  # [K, 1, 51]: the weight of a linear layer
        theta = torch.tensor(starts, dtype=torch.float32, requires_grad=True)
        sampler = make(theta, value)
        steps = max(200, int(LEAPFROGS / value)) if sampling == "full" else DRAWS
        sampler.stack(one_generator=True)
        draws, errors, seconds = _run(sampler, theta, x, y, sampling, steps, reference)
        row: dict[str, Any] = {"parameter": parameter, "value": value, "draws": steps}
        if draws.size:
            reached, own = step_sizes.compare(draws, seconds, reference)
            row |= reached | {"errors": errors}
            arrays |= {f"{name}_{value:g}": array for name, array in own.items()}
        rows.append(row)
    np.savez(folder / "moments.npz", allow_pickle=False, **arrays)
    return {"rows": rows}


def _starts(start: Laplace, chains: int) -> Array:
    rng = np.random.default_rng(1)
    z = rng.standard_normal((chains, len(start.mean)))
    result: Array = start.mean + z @ np.linalg.cholesky(start.covariance).T
    return result


def _run(
    sampler: Sampler,
    theta: Tensor,
    x: Array,
    y: Array,
    sampling: Sampling,
    steps: int,
    reference: Moments,
) -> tuple[NDArray[np.float32], list[dict[str, float]], float]:
    """Return draws [K, steps, 51], running errors, and processor seconds of all chains."""
    chains = len(theta)
    stream = BatchStream((torch.tensor(x).float(), torch.tensor(y).float()), BATCH, sampling)
    stream.bind(torch.device("cpu"), seed=0, num_chains=chains)
    target = stacked_target(theta, N)
    sampler.attach(target)
    running = RunningErrors(reference["mean"], reference["covariance"])
    draws = np.empty((chains, steps, theta.shape[2]), dtype=np.float32)
    seconds, step = 0.0, 0

    def closure() -> Tensor:
        features, labels = batch = stream.at(step)
        if "per_example" in sampler.needs:
            target.use(batch)
            sampler.zero_grad()
            with target.recording():
                loss = target.mean_nll(batch)
                torch.autograd.backward(loss.sum())
            return loss.detach()
        with torch.no_grad():
            weights = theta[:, 0]
            theta.grad = mean_gradient(weights, features, labels).unsqueeze(1)
            if sampling != "full":
                return torch.zeros(chains)
            logits = weights @ features.T
            return nn.functional.softplus(logits).mean(1) - (logits @ labels) / len(labels)

    errors: list[dict[str, float]] = []
    began = time.process_time()
    for step in range(BURN_IN + steps):
        if step == BURN_IN:
            sampler.freeze()
            began = time.process_time()
        sampler.step(closure)
        done = step + 1 - BURN_IN
        if done < 1:
            continue
        draws[:, done - 1] = theta[:, 0].detach().numpy()
        if done % BLOCK == 0 or done == steps:
            seconds += time.process_time() - began
            block = draws[:, (done - 1) // BLOCK * BLOCK : done]
            if not np.isfinite(block).all():
                return draws[:, :0], errors, seconds
            errors.append(errors_now(running, block, seconds / chains))
            began = time.process_time()
    return draws, errors, seconds


def report(results: Results) -> list[str | Table]:
    """Return variances, mixing and errors of every method and step size."""
    rows = [row for n, label in LABELS.items() for row in step_sizes.rows(label, results.get(n))]
    return [Table(["method"], step_sizes.columns(BUDGETS, digits=0), rows)]


def figures(results: Results, out: Path) -> dict[str, Figure]:
    """Return marginals at the largest step (Figure 1) and errors over mixing (Figure 2)."""
    drawn = {}
    if results.get("sgfs_full") and results.get("sgfs_diagonal"):
        drawn["mnist79-marginals"] = _marginals(out)
    studies = {label: results.get(name) for name, label in LABELS.items()}
    if any(studies.values()):
        drawn["mnist79-errors"] = _errors(studies)
    return drawn


def _marginals(out: Path) -> Figure:
    chains = {
        f"{LABELS[name]}, alpha = 0": step_sizes.read_moments(out / name, "_0")
        for name in ("sgfs_full", "sgfs_diagonal")
    }
    reference = step_sizes.read_moments(out / "reference")
    figure, panels = step_sizes.marginals(reference, chains, 3.75, "b:")
    for axes, label, kind in panels:
        axes.set_title(f"{label.split(',')[0]}, {kind} pair")
        axes.legend()
    return figure


def _errors(studies: Results) -> Figure:
    figure = new_figure(9, 7)
    grid = figure.subplots(2, len(BUDGETS))
    for line, key, title in zip(grid, ("e1", "e2"), ("E1, mean", "E2, covariance"), strict=True):
        for axes, budget in zip(line, BUDGETS, strict=True):
            step_sizes.draw_errors(axes, studies, key, partial(at_budget, budget=budget))
            axes.set(ylabel=f"{title}, after {budget:g} s")
    grid[0, -1].legend()  # HMC makes a draw in the longer budget only
    return figure


EXPERIMENT = Experiment(cells, report, figures=figures)
