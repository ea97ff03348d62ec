"""Measure and draw the bias of a pSGLD that never freezes its preconditioner.

The target is N(0, 1) with N = 1; every coordinate of one tensor is a chain of its own. Writes
docs/figures/psgld-bias.png and prints the table of docs/psgld-bias.md.

    python scripts/figures/psgld_bias.py [--chains 20000] [--out docs/figures/psgld-bias.png]
                                         [--record FILE]
"""

from __future__ import annotations

import argparse
import math
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import torch
from rich.progress import Progress

from lightning_sgmcmc import PSGLD, RMSProp, Target
from tasks.experiments.costs import Cell, publish

STEPS = (0.1, 0.03, 0.01, 0.003)


@dataclass(frozen=True)
class Variant:
    """One way to run pSGLD, and how its line is drawn."""

    name: str
    style: str
    shade: str
    alpha: float = 0.99
    gradient_noise: float = 0.0
    gamma: bool = False
    freeze: bool = False


VARIANTS = (
    Variant("adapting, alpha = .9", "s-", "0.0", alpha=0.9),
    Variant("adapting, alpha = .99", "o-", "0.0"),
    Variant("adapting, alpha = .99, with Gamma", "x--", "0.35", gamma=True),
    Variant("adapting, alpha = .99, gradient noise of sd 5", "^:", "0.35", gradient_noise=5.0),
    Variant("frozen, alpha = .99", "D-", "0.6", freeze=True),
)


@dataclass(frozen=True)
class Result:
    """The variance found, its standard error, and what a constant C would give."""

    variance: float
    error: float
    constant: float


def measure(variant: Variant, h: float, chains: int, seed: int = 0) -> Result:
    """Run one variant at step size h, from the target, and return the variance of its chains.

    Freezing C and switching Gamma on happen after a first burn-in (from V = 0 the first values of
    Gamma have no bound), and a second one follows. The error comes from the chains'
    own averages over time, which are independent.
    """
    theta = torch.randn(chains, generator=torch.Generator().manual_seed(seed)).requires_grad_()
    sampler = PSGLD(
        [theta],
        h,
        alpha=variant.alpha,
        num_data=1,
        seed=seed,
    )
    target = Target(lambda _: 0.5 * (theta**2).sum().reshape(1), [theta], 1)
    target.use(None)
    sampler.attach(target)
    metric = sampler.preconditioner
    assert isinstance(metric, RMSProp)
    noise = torch.Generator().manual_seed(seed + 1)

    def step() -> None:
        theta.grad = theta.detach().clone()
        if variant.gradient_noise:
            theta.grad += variant.gradient_noise * torch.randn(chains, generator=noise)
        sampler.step()

    burn_in = max(4000, math.ceil(20 / h))
    for _ in range(burn_in):
        step()
    if variant.freeze or variant.gamma:
        if variant.freeze:
            sampler.freeze()
        else:
            metric.gamma_probes = 1  # one Hutchinson probe is exact: the Hessian is diagonal
        for _ in range(burn_in):
            step()
    squares, count = torch.zeros(chains, dtype=torch.float64), 0
    for i in range(burn_in):
        step()
        if i % 10 == 9:
            squares += theta.detach().double() ** 2
            count += 1
    averages = squares / count
    C = metric.apply_([torch.ones(chains)])[0].double()
    v = variant.gradient_noise**2
    if not variant.freeze:
        C = (1 / (1 + v) ** 0.5) * torch.ones(1, dtype=torch.float64)
    constant = ((1 + h * C * v / 2) / (1 - h * C / 2)).mean()
    return Result(
        float(averages.mean()), float(averages.std()) / math.sqrt(chains), float(constant)
    )


def draw(results: dict[str, list[Result]], path: Path) -> None:
    """Draw variance over step size, one line a variant."""
    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    for variant in VARIANTS:
        values = [r.variance for r in results[variant.name]]
        label = variant.name.replace("alpha", r"$\alpha$").replace("Gamma", r"$\Gamma$")
        axes.plot(STEPS, values, variant.style, color=variant.shade, label=label, ms=5)
    axes.axhline(1, color="0.8", lw=1, zorder=0)
    axes.set_xscale("log")
    axes.set_xticks(STEPS, [f"{h:g}" for h in STEPS])
    axes.minorticks_off()
    axes.set_xlabel("step size h = lr / N (dimensionless)")
    axes.set_ylabel("variance of the draws; the target's is 1")
    axes.legend(frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main() -> None:
    """Measure, draw, and print the table."""
    root = Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--chains", type=int, default=20_000)
    parser.add_argument("--out", type=Path, default=root / "docs/figures/psgld-bias.png")
    parser.add_argument("--record", type=Path, help="where to keep the numbers")
    args = parser.parse_args()
    results: dict[str, list[Result]] = {variant.name: [] for variant in VARIANTS}
    with Progress(transient=True) as progress:
        bar = progress.add_task("chains", total=len(VARIANTS) * len(STEPS))
        for variant in VARIANTS:
            for h in STEPS:
                results[variant.name].append(measure(variant, h, args.chains))
                progress.advance(bar)
    draw(results, args.out)
    rows: list[list[Cell]] = []
    for name, row in results.items():
        rows.append([name, *(f"{r.variance:.3f}" for r in row)])
        if name in (VARIANTS[3].name, VARIANTS[4].name):
            rows.append(["- a constant C's own", *(f"{r.constant:.3f}" for r in row)])
    worst = max(r.error / r.variance for row in results.values() for r in row)
    said = (
        f"{args.chains:,} independent chains, largest standard error {100 * worst:.2f} %; Python "
        f"{platform.python_version()}, torch {torch.__version__}."
    )
    heading = ["variance of the draws", *(f"h = {h:g}" for h in STEPS)]
    publish(said, heading, rows, args.record)


if __name__ == "__main__":
    main()
