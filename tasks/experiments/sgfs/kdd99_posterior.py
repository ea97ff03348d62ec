"""The posterior of a small discriminative RBM on KDD Cup 99 (Ahn et al. 2012, Figures 4 and 5).

Two hidden units, the six most populous classes, lambda = 10: 100 weights. As in the paper every
chain starts at one mode. The reference is 30 HMC chains, acceptance .8, with the Fisher matrix at
the mode as mass. Draws stay correlated under it for hundreds of leapfrog steps. Therefore a draw
takes 15, where the paper has one, and the covariance of the draws so far then replaces the matrix.
SGFS-f has alpha = 2, 3, 4, 5, 10 and SGLD the paper's five epsilon.

The cells run on 20,000 training rows, fewer draws and iterations; those named ``full-`` on all
rows, with the paper's iterations. The prior's precision is counted in the matrix that SGFS inverts:
the likelihood does not see a shift of d, and without the prior that direction has no metric.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lightning_sgmcmc import SGFS, BatchStream, GaussianPrior, Sampler, Target
from lightning_sgmcmc.callbacks.report.figures import new_figure
from lightning_sgmcmc.diagnostics import autocorrelation_time
from lightning_sgmcmc.samplers import Stacked
from lightning_sgmcmc.target import PerExample
from tasks.data.kddcup99 import KDDCup99Data
from tasks.experiments.experiment import Experiment, Study
from tasks.experiments.loop import Array, sample, whitened_hmc
from tasks.experiments.sgfs import step_sizes
from tasks.experiments.sgfs.drbm_chains import FlatMachine, Machines, merged
from tasks.experiments.sgfs.step_sizes import Method, Moments, finite
from tasks.experiments.tables import Column, Results, Row, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HIDDEN, CLASSES, PRECISION, BATCH = 2, 6, 10.0, 500
#: Steps of a reference's trajectory; the paper has one.
LEAPFROGS = 15
#: Draws between two looks at the errors; processor seconds a chain after which they are compared.
BLOCK, BUDGET = 100, 1.0


def _sgfs(alpha: float, num_data: int) -> tuple[Callable[..., Sampler], float]:
    return partial(SGFS, count_prior=True), SGFS.step_size(alpha, num_data, BATCH)


METHODS = {
    "sgfs_full": Method("alpha", (2.0, 3.0, 4.0, 5.0, 10.0), _sgfs),
    "sgld": Method("epsilon", (5e-4, 1e-4, 5e-5, 1e-5, 5e-6), step_sizes.langevin),
}
LABELS = {name: method.label for name, method in METHODS.items()}


@dataclass(frozen=True)
class Size:
    """How much is computed.

    Attributes:
        rows: Training rows; None takes all.
        draws: HMC draws of each of 30 chains, after a quarter of that.
        chains: Chains of SGFS and SGLD, stacked.
        iterations: Their steps, of which a tenth is burn-in.
        thinning: Steps between their draws.
        hmc_chains: HMC chains.
    """

    rows: int | None
    draws: int
    chains: int
    iterations: int
    thinning: int
    hmc_chains: int = 30


SMALL = Size(rows=20_000, draws=1000, chains=4, iterations=100_000, thinning=20)
FULL = Size(rows=None, draws=1000, chains=1, iterations=1_000_000, thinning=50)


def cells() -> list[Study]:
    """Return the reference and a study a sampler, small, then of the paper's size."""
    found = []
    for prefix, size in (("", SMALL), ("full-", FULL)):
        found += [
            Study(f"{prefix}reference", partial(reference, size=size)),
            *(Study(prefix + n, partial(compute, m, size=size)) for n, m in METHODS.items()),
        ]
    return found


def left_out() -> tuple[list[str], str]:
    """Return the cells of the paper's size, which take hours."""
    names = [cell.name for cell in cells() if cell.name.startswith("full-")]
    return names, f"{', '.join(names)} take hours and are left out: ask for them with --cell"


def _examples(size: Size) -> tuple[Tensor, Tensor]:
    data = KDDCup99Data(classes=CLASSES, num_train=size.rows)
    data.prepare_data()
    data.setup()
    return data.tensors("train")


def reference(folder: Path, size: Size) -> dict[str, Any]:
    """Sample by HMC from the mode, and write moments and mode."""
    x, y = _examples(size)
    unique, labels, counts = merged(x, y)
    unique, counts = unique.double(), counts.double()
    machines = Machines(x.shape[1], HIDDEN, CLASSES)
    mode = machines.mode(unique, labels, counts, PRECISION)
    fisher = machines.fisher(mode, unique, counts) + PRECISION * torch.eye(machines.size)
    # Single precision: rounding moves the sum over rows by some 1e-3, the density by as much.
    examples, share = unique.float(), (counts / len(x)).float()

    def potential(theta: Tensor) -> Tensor:
        penalty = PRECISION * theta.square().sum(1) / (2 * len(x))
        total: Tensor = machines.nll(theta.float(), examples, labels) @ share + penalty
        return total

    # theta = mode + z R', R R' the inverse of the Fisher matrix, then the covariance of the draws
    # so far: the mass of z is the identity.
    root = torch.linalg.inv(torch.linalg.cholesky(fisher)).mT.contiguous()
    start = mode.repeat(size.hmc_chains, 1)
    for part in (4, 2, 1):
        found = whitened_hmc(
            potential,
            mode,
            root,
            torch.linalg.solve(root, (start - mode).mT).mT,
            num_data=len(x),
            time_step=0.3,
            leapfrog_steps=LEAPFROGS,
            target_acceptance=0.8,
            burn_in=size.draws // part // 4,
            draws=size.draws // part,
        )
        draws = torch.from_numpy(found.draws)
        start = draws[:, -1]
        root = torch.linalg.cholesky(torch.cov(draws.reshape(-1, len(mode)).T))
    flat = draws.reshape(-1, machines.size).numpy()
    covariance = np.cov(flat.T, bias=True)
    np.savez(folder / "moments.npz", mean=flat.mean(0), covariance=covariance, mode=mode.numpy())
    halves = [np.var(half, axis=0) for half in np.split(found.draws, 2)]
    return {
        "rows": len(x),
        "different_rows": len(unique),
        "draws": len(flat),
        **found.quality(),
        "act": float(np.mean(autocorrelation_time(found.draws))),
        "at_other_images": at_other_images(machines, mode, covariance, flat),
        "largest_gap_of_variances_between_halves": float(
            np.abs(halves[0].mean(0) / halves[1].mean(0) - 1).max()
        ),
    }


def at_other_images(machines: Machines, mode: Tensor, covariance: Array, draws: Array) -> float:
    """Return the fraction of draws nearer to another image of the mode than to the mode itself.

    Distances are those of the reference's covariance: with it a fraction of 0 says that chains
    have stayed in the place that they are compared at.
    """
    whiten = np.linalg.inv(np.linalg.cholesky(covariance))
    images = machines.images(mode).numpy() @ whiten.T
    white = draws @ whiten.T
    squares = np.stack([((white - image) ** 2).sum(1) for image in images])
    return float((squares.argmin(0) > 0).mean())


def compute(method: Method, folder: Path, size: Size) -> dict[str, Any]:
    """Run stacked chains at every step size, and compare each with the reference."""
    x, y = _examples(size)
    x = x.double()  # single precision loses the Fisher matrix's smallest eigenvalues
    machines = Machines(x.shape[1], HIDDEN, CLASSES)
    name = "full-reference" if folder.name.startswith("full-") else "reference"
    reference = step_sizes.read_moments(folder.parent / name)
    mode = torch.from_numpy(reference["mode"])

    def also(draws: Array) -> dict[str, Any]:
        flat = draws.reshape(-1, machines.size)
        return {"at_other_images": at_other_images(machines, mode, reference["covariance"], flat)}

    found = step_sizes.over_steps(
        folder,
        reference,
        method,
        lambda value: run(method, value, machines, mode, x, y, size),
        block=BLOCK,
        thinning=size.thinning,
        also=also,
    )
    return found | {"examples": len(x)}


def run(
    method: Method, value: float, machines: Machines, mode: Tensor, x: Tensor, y: Tensor, size: Size
) -> tuple[Array, float]:
    """Return draws [K, draws, d] on independent minibatches, and processor seconds of all chains.

    The seconds are those after burn-in, where C is frozen.
    """
    theta = mode.repeat(size.chains, 1).requires_grad_()
    make, lr = method.make(value, len(x))
    prior = GaussianPrior(1 / PRECISION)
    sampler = make(Stacked([theta]), lr=lr, num_data=len(x), prior=prior)
    sampler.stack(one_generator=True)
    stream = BatchStream((x, y), BATCH, "independent")
    stream.bind(torch.device("cpu"), seed=0, num_chains=len(theta))
    net = FlatMachine(machines)
    target = Target(lambda batch: machines.nll(theta, *batch), [theta], len(x), chain_dims=1)
    target.per_example = PerExample(net, ["theta"], [theta], net, chain_dims=1)
    sampler.attach(target)

    def gradient(theta: Tensor, step: int) -> Tensor:
        batch = stream.at(step)
        target.use(batch)
        if "per_example" in sampler.needs:
            with target.recording():
                pass  # no layer is tapped: the statistics take the minibatch itself
        return machines.gradient(theta, *batch)

    burn_in, thinning = size.iterations // 10, size.thinning
    return sample(
        sampler, steps=size.iterations, gradient=gradient, burn_in=burn_in, thinning=thinning
    )


COLUMNS = [
    *step_sizes.columns([BUDGET], digits=1),
    step_sizes.errors_column("in the end", lambda errors: errors[-1]),
    Column("at other images", "at_other_images", "{:.1f} %", scale=100),
]


REFERENCE = (
    "{rows:,} rows, {different_rows:,} of them different. HMC: {draws:,} draws, acceptance "
    "{acceptance:.2f}, {divergences} divergences, autocorrelation time {act:.3g}, R-hat at most "
    "{max_rhat:.3f}, {images:.1f} % of draws at other images of the mode; variances of its halves "
    "differ by up to {gap:.0f} %."
)


def report(results: Results) -> Iterator[str | Table]:
    """Yield the reference, then variances, mixing and errors of every step size."""
    for prefix in ("", "full-"):
        yield _of_reference(results.get(f"{prefix}reference"))
        found = {label: results.get(prefix + name) for name, label in LABELS.items()}
        rows = [step_sizes.rows(label, result) or [Row([label])] for label, result in found.items()]
        yield Table(["method"], COLUMNS, [row for each in rows for row in each])


def _of_reference(result: dict[str, Any] | None) -> str:
    if result is None:
        return "HMC: not run."
    images = 100 * result["at_other_images"]
    gap = 100 * result["largest_gap_of_variances_between_halves"]
    return REFERENCE.format(**result, images=images, gap=gap)


def figures(results: Results, out: Path) -> dict[str, Figure | str]:
    """Return marginals at the largest finite step (Figure 4), and errors over mixing (Figure 5).

    The marginals need the arrays of the runs, which recorded results do not have.
    """
    drawn: dict[str, Figure | str] = {}
    for prefix in ("", "full-"):
        found = {n: r for n in LABELS if (r := results.get(prefix + n)) is not None}
        if found and results.get(f"{prefix}reference"):
            name = f"{prefix}kdd99-posterior"
            lost = step_sizes.missing(out / f"{prefix}{n}" for n in ("reference", *found))
            drawn[f"{name}-marginals"] = lost or _marginals(found, out, prefix)
            drawn[f"{name}-errors"] = _errors({LABELS[n]: r for n, r in found.items()})
    return drawn


def _marginals(found: Results, out: Path, prefix: str) -> Figure:
    chains: dict[str, Moments] = {}
    for name, result in found.items():
        first = next(iter(finite(result)), None)
        if first is not None:
            value = f"{first['value']:g}"
            label = f"{LABELS[name]}, {first['parameter']} = {value}"
            chains[label] = step_sizes.read_moments(out / (prefix + name), f"_{value}")
        else:
            chains[LABELS[name]] = {}
    reference = step_sizes.read_moments(out / f"{prefix}reference")
    figure, panels = step_sizes.marginals(reference, chains, 3.75)
    for axes, _, kind in panels:
        axes.set_title(f"{kind} pair")
        axes.legend(fontsize="small")
    return figure


def _errors(studies: Results) -> Figure:
    figure = new_figure(9, 4)
    panels = figure.subplots(1, 2)
    step_sizes.draw_errors(panels[:, None], studies, {"in the end": lambda errors: errors[-1]})
    for axes in panels:
        axes.tick_params(axis="x", which="both", labelrotation=45)
    panels[0].legend()
    return figure


EXPERIMENT = Experiment(cells, report, left_out=left_out, figures=figures)
