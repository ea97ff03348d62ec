"""Measure how much too wide minibatches make the draws of a sampler with momentum, by estimator.

Bayesian logistic regression with 25 weights, N = 1,000, prior N(0, I), batches of 50; SGHMC with
momentum .95 at fractions of its largest stable step; 100 chains that start in the Laplace
approximation, the mode being the control variate's centre. The table gives the standard deviation
over that of the same chains with the gradients of the whole data, the mean over weights, and the
minibatch gradients that a step costs.

    python scripts/bench/estimators.py [--steps 1000] [--fractions 0.1 0.02 0.005]
                                       [--record FILE]

It takes about a minute on one CPU core.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import Tensor, nn
from torch.nn import functional

from lightning_sgmcmc import (
    SGHMC,
    SVRG,
    BatchStream,
    ControlVariate,
    GaussianPrior,
    GradientEstimator,
    Minibatch,
    SGMCMCModule,
)
from tasks.experiments.costs import Cell, publish

N, D, BATCH, MOMENTUM = 1000, 25, 50, 0.95
ESTIMATORS: dict[str, Callable[[], GradientEstimator]] = {
    "minibatch": Minibatch,
    "control variate at the mode": ControlVariate,
    "SVRG, a centre each 20 steps": partial(SVRG, 20),
}


@dataclass(frozen=True)
class Problem:
    """A logistic regression, the mode of its posterior, and the Hessian of U there."""

    x: Tensor
    y: Tensor
    mode: Tensor
    hessian: Tensor


def problem(seed: int) -> Problem:
    """Draw the data, and find the mode by Newton's method."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(N, D, generator=generator, dtype=torch.float64)
    true = torch.randn(D, generator=generator, dtype=torch.float64) / 2
    y = (torch.rand(N, generator=generator) < torch.sigmoid(x @ true)).double()
    w, hessian = torch.zeros_like(true), torch.eye(D, dtype=x.dtype)
    for _ in range(30):
        p = torch.sigmoid(x @ w)
        hessian = (x * (p * (1 - p))[:, None]).T @ x + torch.eye(D, dtype=x.dtype)
        w = w - torch.linalg.solve(hessian, x.T @ (p - y) + w)
    return Problem(x, y, w, hessian)


class Logistic(SGMCMCModule):
    """y in {0, 1}, logit w'x."""

    def nll(self, batch: Any) -> Tensor:
        """Return the negative log-likelihood of each example."""
        x, y = batch
        logit = self(x).squeeze(-1)
        return functional.binary_cross_entropy_with_logits(logit, y, reduction="none")


def variances(
    data: Problem,
    gradients: GradientEstimator,
    sampling: Any,
    fraction: float,
    *,
    chains: int,
    steps: int,
    seed: int,
) -> tuple[Tensor, float]:
    """Return the mean squares of the weights about the mode, [D], and the gradients of a step.

    Args:
        data: The problem.
        gradients: How gradients are estimated.
        sampling: How minibatches are drawn.
        fraction: The step size as a fraction of the largest stable one.
        chains: K.
        steps: Of each chain; the last three fifths are taken.
        seed: Of starts, noise and minibatches.
    """
    largest = float(torch.linalg.eigvalsh(data.hessian)[-1]) / N
    probe = SGHMC([nn.Parameter(torch.zeros(1))], 1.0, momentum=MOMENTUM)
    lr = fraction * probe.max_stable_lr(largest)
    module = Logistic(
        nn.Linear(D, 1, bias=False).double(),
        partial(SGHMC, lr=lr, momentum=MOMENTUM, prior=GaussianPrior(1.0), seed=seed),
        num_chains=chains,
        starts="same",
        gradients=gradients,
    )
    chain = module.chain
    chain.select()
    chain.place()
    chain.build()
    chain.bind(BatchStream((data.x, data.y), BATCH, sampling))
    assert chain.target is not None
    weights = chain.sampler.params[0]
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(D, chains, generator=generator, dtype=torch.float64)
    root = torch.linalg.cholesky(data.hessian)
    spread = torch.linalg.solve_triangular(root.mT, z, upper=True).mT
    with torch.no_grad():
        weights.copy_(data.mode.expand(chains, 1, D))
        chain.target.estimate(chain.minibatch())  # takes the centre
        weights.add_(spread[:, None])
    total = torch.zeros(D, dtype=torch.float64)
    warm = 2 * steps // 5
    for _ in range(steps):
        chain.advance(chain.minibatch())
        if chain.steps > warm:
            total += ((weights.detach()[:, 0] - data.mode) ** 2).mean(0) / (steps - warm)
    return total, chain.num_gradients / steps


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--fractions", type=float, nargs="+", default=[0.1, 0.02, 0.005])
    parser.add_argument("--record", type=Path, help="where to keep the numbers")
    args = parser.parse_args()
    data = problem(0)
    run = partial(variances, data, chains=100, steps=args.steps, seed=0)
    whole = {f: run(Minibatch(), "full", f)[0] for f in args.fractions}
    rows: list[list[Cell]] = []
    for name, make in ESTIMATORS.items():
        for sampling in ("independent", "reshuffled"):
            found = [run(make(), sampling, f) for f in whole]
            ratios = [
                float((v / w).sqrt().mean())
                for (v, _), w in zip(found, whole.values(), strict=True)
            ]
            rows.append([name, sampling, *ratios, found[0][1]])
            print(f"{name}, {sampling}", file=sys.stderr, flush=True)
    said = (
        "Deviation over that with the whole data's gradients, at fractions of the largest stable "
        "step; and the gradients of a step, in minibatches."
    )
    heading = ["gradient", "batches", *(f"{f:g}" for f in whole), "gradients a step"]
    publish(said, heading, rows, args.record)


if __name__ == "__main__":
    main()
