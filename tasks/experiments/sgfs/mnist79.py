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

from lightning_sgmcmc import HMC, SGFS, SGLD, BatchStream, GaussianPrior, Sampler, Target
from lightning_sgmcmc.diagnostics import RunningErrors, atuc, autocorrelation_time
from lightning_sgmcmc.figures import new_figure
from lightning_sgmcmc.samplers import Stacked
from lightning_sgmcmc.samplers.sgfs import Variant
from lightning_sgmcmc.statistics import PerExample
from tasks.data.mnist79 import sevens_and_nines
from tasks.experiments.experiment import Study
from tasks.experiments.logistic_hmc import sample_hmc
from tasks.laplace import Laplace, laplace
from tasks.logistic import mean_gradient

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]
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


def _moments(folder: Path) -> tuple[Array, Array]:
    path = folder.parent / "reference" / "moments.npz"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: run the cell reference first")
    with np.load(path) as stored:
        return stored["mean"], stored["covariance"]


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
    start, reference = laplace(x, y, PRIOR), _moments(folder)
    rows, arrays = [], {}
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
            mean, covariance = reference
            flat = draws.reshape(-1, draws.shape[2]).astype(np.float64)
            found = np.cov(flat.T, bias=True)
            ratios = np.diag(found) / np.diag(covariance)
            arrays[f"covariance_{value:g}"], arrays[f"mean_{value:g}"] = found, flat.mean(0)
            row |= {
                "variance_ratio": [float(r) for r in np.quantile(ratios, (0, 0.5, 1))],
                "mean_error": float(
                    np.abs((flat.mean(0) - mean) / np.sqrt(np.diag(covariance))).max()
                ),
                "act": float(np.mean(autocorrelation_time(draws))),
                "atuc": atuc(draws, seconds / (chains * steps)),
                "errors": errors,
            }
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
    reference: tuple[Array, Array],
) -> tuple[NDArray[np.float32], list[dict[str, float]], float]:
    """Return draws [K, steps, 51], running errors, and processor seconds of all chains."""
    chains = len(theta)
    stream = BatchStream((torch.tensor(x).float(), torch.tensor(y).float()), BATCH, sampling)
    stream.bind(torch.device("cpu"), seed=0, num_chains=chains)
    target = _target(theta)
    sampler.attach(target)
    running = RunningErrors(*reference)
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
            now = running.update(block, seconds / chains)
            e1, e2 = float(now.mean.mean()), float(now.covariance.mean())
            errors.append({"seconds": seconds / chains, "e1": e1, "e2": e2})
            began = time.process_time()
    return draws, errors, seconds


def _target(theta: Tensor) -> Target:
    """Return the mean NLL of K stacked logistic regressions, with per-example gradients."""
    net = nn.Linear(theta.shape[2], 1, bias=False)
    one = nn.functional.binary_cross_entropy_with_logits

    def nll(batch: tuple[Tensor, Tensor]) -> Tensor:
        return one(net(batch[0]).squeeze(-1), batch[1], reduction="none")

    def stacked(batch: tuple[Tensor, Tensor]) -> Tensor:
        def chain(weight: Tensor, x: Tensor, y: Tensor) -> Tensor:
            output = torch.func.functional_call(net, {"weight": weight}, (x,))
            return one(output.squeeze(-1), y, reduction="none")

        return torch.func.vmap(chain)(theta, *batch)

    target = Target(stacked, [theta], N, lead=1)
    target.per_example = PerExample(net, ["weight"], [theta], nll, lead=1)
    return target


def render(results: dict[str, dict[str, Any] | None], chosen_from: bool) -> str:
    """Return variances, mixing and errors of every method and step size as Markdown."""
    lines = [
        "| method | step | variance / reference: least, median, largest | mean, in sd | "
        "autocorrelation time | 1/ATUC | "
        + " | ".join(f"E1, E2 after {budget:g} s" for budget in BUDGETS)
        + " |",
        "|" + "---|" * (6 + len(BUDGETS)),
    ]
    for name, label in LABELS.items():
        for row in (results.get(name) or {}).get("rows", []):
            step = f"{row['parameter']} = {row['value']:g}"
            if "act" not in row:
                lines.append(f"| {label} | {step} | diverges |" + " |" * (3 + len(BUDGETS)))
                continue
            low, median, high = row["variance_ratio"]
            cells = [
                label,
                step,
                f"{low:.3f}, {median:.3f}, {high:.3f}",
                f"{row['mean_error']:.3f}",
                f"{row['act']:.4g}",
                f"{1 / row['atuc']:,.0f}",
            ]
            for budget in BUDGETS:
                then = at_budget(row["errors"], budget)
                cells.append("" if then is None else f"{then['e1']:.3f}, {then['e2']:.3f}")
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def at_budget(errors: list[dict[str, float]], budget: float) -> dict[str, float] | None:
    """Return the last errors within a budget of processor seconds, None if the run was shorter."""
    if not errors or errors[-1]["seconds"] < budget:
        return None
    within = [e for e in errors if e["seconds"] <= budget]
    return within[-1] if within else None


def figures(results: dict[str, dict[str, Any] | None], out: Path) -> dict[str, Figure]:
    """Return marginals at the largest step (Figure 1) and errors over mixing (Figure 2)."""
    drawn = {}
    if results.get("sgfs_full") and results.get("sgfs_diagonal"):
        drawn["mnist79-marginals"] = _marginals(out)
    if any(results.get(name) for name in LABELS):
        drawn["mnist79-errors"] = _errors(results)
    return drawn


def _marginals(out: Path) -> Figure:
    """Draw two-standard-deviation ellipses of the best and the worst pair of weights."""
    mean, covariance = _moments(out / "figures")
    figure = new_figure(8, 7.5)
    axes = figure.subplots(2, 2)
    angles = np.linspace(0, 2 * np.pi, 200)
    circle = 2 * np.stack([np.cos(angles), np.sin(angles)])
    for line, name in zip(axes, ("sgfs_full", "sgfs_diagonal"), strict=True):
        with np.load(out / name / "moments.npz") as stored:
            found, centre = stored["covariance_0"], stored["mean_0"]
        for axis, (i, j), kind in zip(
            line, pair_extremes(found, covariance), ("best", "worst"), strict=True
        ):
            pair = np.ix_([i, j], [i, j])
            for m, C, style, label in (
                (mean, covariance, "r-", "HMC"),
                (centre, found, "b:", f"{LABELS[name]}, alpha = 0"),
            ):
                x, y = m[[i, j], None] + np.linalg.cholesky(C[pair]) @ circle
                axis.plot(x, y, style, label=label)
            axis.set(
                xlabel=f"weight {i}", ylabel=f"weight {j}", title=f"{LABELS[name]}, {kind} pair"
            )
            axis.legend()
    return figure


def pair_extremes(found: Array, reference: Array) -> list[tuple[int, int]]:
    """Return the pairs whose 2 x 2 covariances differ least and most, relative to the reference."""
    d = len(found)
    pairs = [(i, j) for i in range(d) for j in range(i)]
    gaps = []
    for i, j in pairs:
        pair = np.ix_([i, j], [i, j])
        gaps.append(
            float(np.abs(found[pair] - reference[pair]).sum() / np.abs(reference[pair]).sum())
        )
    return [pairs[int(np.argmin(gaps))], pairs[int(np.argmax(gaps))]]


def _errors(results: dict[str, dict[str, Any] | None]) -> Figure:
    figure = new_figure(9, 7)
    axes = figure.subplots(2, len(BUDGETS))
    markers = dict(zip(LABELS, "os^Dv", strict=True))
    for line, key, title in zip(axes, ("e1", "e2"), ("E1, mean", "E2, covariance"), strict=True):
        for axis, budget in zip(line, BUDGETS, strict=True):
            for name, label in LABELS.items():
                points = [
                    (1 / row["atuc"], then[key])
                    for row in (results.get(name) or {}).get("rows", [])
                    if "act" in row and (then := at_budget(row["errors"], budget))
                ]
                if points:
                    axis.plot(*zip(*points, strict=True), markers[name] + "-", label=label)
            axis.set(
                xscale="log",
                yscale="log",
                xlabel="1/ATUC, independent draws a second",
                ylabel=f"{title}, after {budget:g} s",
            )
    axes[0, -1].legend()  # HMC makes a draw in the longer budget only
    return figure
