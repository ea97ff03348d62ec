"""A small analogue of pde_source: what recipes make of its predictions, beside a long HMC.

A network 2-64-64-20 with SiLU sees 100 examples of a linear map, as the flow is one of its sources,
with noise of one hundredth of their size unless given. The prior is that of torch's
initialisation, N(0, 1 / (3 fan-in)). The reference is Hamiltonian Monte Carlo under the collapsed
potential. Errors are those of the predictive mean and standard deviation (of the weights, without
noise) in units of the reference's deviation, inside the data's square and on an edge outside of it.

    python scripts/bench/analogue.py [--only WORD ...] [--reference 200] [--noise 0.01]
                                     [--record FILE]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
import torch
from steps import hardware
from torch import Tensor

from lightning_sgmcmc import (
    HMC,
    SGHMC,
    BatchStream,
    LayerwiseGaussianPrior,
    PriorMetric,
    RMSProp,
    Sampler,
)
from lightning_sgmcmc.adaptation import Adaptation, StepSize
from lightning_sgmcmc.baselines import Optimized
from lightning_sgmcmc.chain import OptimizerBurnIn
from lightning_sgmcmc.diagnostics import rhat
from tasks.experiments.costs import Cell, publish
from tasks.nets.mlp import MLP
from tasks.regression import RegressionTask

WIDTHS, OUTPUTS, EXAMPLES = (64, 64), 20, 100
HEAD = "net.layers.4"
PRIOR = LayerwiseGaussianPrior(
    {"net.layers.0.*": 1 / (3 * 2), "net.layers.*": 1 / (3 * 64)}, default=1.0
)


@dataclass(frozen=True)
class Problem:
    """Training examples, the noise's deviation and where predictions are compared."""

    x: Tensor
    y: Tensor
    sigma: float
    places: Tensor
    inside: Tensor

    @classmethod
    def make(cls, seed: int, noise: float) -> Problem:
        """Draw a linear map and its examples."""
        generator = torch.Generator().manual_seed(seed)
        x = 2 * torch.rand(EXAMPLES, 2, generator=generator) - 1
        inner = 1.6 * torch.rand(40, 2, generator=generator) - 0.8
        angle = 2 * torch.pi * torch.rand(40, 1, generator=generator)
        outer = torch.cat([angle.cos(), angle.sin()], 1)
        outer = 1.2 * outer / outer.abs().amax(1, keepdim=True)
        clean = x @ torch.randn(2, OUTPUTS, generator=generator)
        sigma = noise * float(clean.std())
        y = clean + sigma * torch.randn(clean.shape, generator=generator)
        return cls(x, y, sigma, torch.cat([inner, outer]), torch.arange(80) < 40)


def network(seed: int) -> MLP:
    """Return the network, as torch initialises it."""
    torch.manual_seed(seed)
    return MLP(WIDTHS, "silu", inputs=2, outputs=OUTPUTS)


@dataclass(frozen=True)
class Recipe:
    """How draws are made: optimizer steps, then steps of burn-in, then steps that draw."""

    sampler: Callable[..., Sampler]
    chains: int
    optimizer: int
    burn_in: int
    steps: int
    thinning: int
    batch: int = EXAMPLES
    fraction: float = 0.2
    collapse: bool = False

    def draws(self, problem: Problem, seed: int) -> tuple[Tensor, int]:
        """Return predictions [chains, draws, places, outputs], and gradients a chain."""
        optimizer = OptimizerBurnIn(partial(torch.optim.Adam, lr=1e-3), max(self.optimizer, 1))
        task = RegressionTask(
            network(seed),
            partial(self.sampler, prior=PRIOR, seed=seed),
            noise=problem.sigma,
            num_chains=self.chains,
            burn_in=self.optimizer + self.burn_in,
            burn_in_optimizer=optimizer if self.optimizer else None,
            collapse_head=self.collapse,
            gradients=None,
        )
        task.head = HEAD
        chain = task.chain
        chain.select()
        chain.place()
        chain.build()
        sampling: Any = "full" if self.batch == EXAMPLES else "reshuffled"
        chain.bind(BatchStream((problem.x, problem.y), self.batch, sampling))
        adaptation = Adaptation(
            chain, StepSize(self.fraction, 1 if sampling == "full" else 4, None)
        )
        adaptation.after_step()
        found = []
        for step in range(1, self.optimizer + self.burn_in + self.steps + 1):
            chain.advance(chain.minibatch())
            adaptation.after_step()
            sampled = step - self.optimizer - self.burn_in
            if sampled > 0 and sampled % self.thinning == 0:
                chain.complete()
                with torch.no_grad():
                    rows = chain.evaluate("predictive", (problem.places, None))
                found.append(rows.reshape(self.chains, *rows.shape[-2:]))
        return torch.stack(found, 1).double(), chain.num_gradients


def flagship(batch: int) -> Recipe:
    """Return pde_source's former recipe: Adam, then SGHMC with its frozen RMSProp, no bound."""
    metric = RMSProp(alpha=0.99, eps=1e-12, floor=0.5)
    sampler = partial(SGHMC, lr="auto", preconditioner=metric)
    return Recipe(sampler, 1, 3600, 90, 720, 9, batch, 0.02)


def collapsed(steps: int, fraction: float = 0.2) -> Recipe:
    """Return underdamped Langevin dynamics under the collapsed potential."""
    sampler = partial(SGHMC, lr="auto", preconditioner=PriorMetric())
    return Recipe(sampler, 4, 0, steps // 4, 3 * steps // 4, 5, fraction=fraction, collapse=True)


RECIPES = {
    "flagship, batches of a tenth": flagship(EXAMPLES // 10),
    "flagship, whole data": flagship(EXAMPLES),
    "deep ensemble of 24": Recipe(partial(Optimized, lr=1e-9), 24, 3600, 0, 1, 1),
    "collapsed head, SGHMC, 1,000 steps, 4 chains": collapsed(1000),
    "collapsed head, SGHMC, 4,000 steps, 4 chains": collapsed(4000),
}


def reference(draws: int) -> Recipe:
    """Return HMC under the collapsed potential."""
    sampler = partial(HMC, lr="auto", leapfrog_steps=20, preconditioner=PriorMetric(), chain=100)
    return Recipe(sampler, 8, 0, max(draws // 4, 50), draws, 1, collapse=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--only", nargs="*", default=[""], help="recipes whose names hold a word")
    parser.add_argument(
        "--reference", type=int, default=200, help="draws of the reference's chains"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--noise", type=float, default=0.01, help="relative to the outputs' size")
    parser.add_argument("--record", type=Path, help="where to keep the numbers")
    args = parser.parse_args()
    problem = Problem.make(args.seed, args.noise)
    start = time.process_time()
    truth, gradients = reference(args.reference).draws(problem, args.seed)
    seconds = time.process_time() - start
    mean, std = truth.mean((0, 1)), truth.flatten(0, 1).std(0)
    r = rhat(truth.flatten(2).numpy())
    rows = [row("half of the reference's chains", truth[:4], mean, std, problem)]
    rows[0] += [gradients, seconds / 2]
    for name, recipe in RECIPES.items():
        if any(word in name for word in args.only):
            start = time.process_time()
            found, gradients = recipe.draws(problem, args.seed + 1)
            rows.append(row(name, found, mean, std, problem))
            rows[-1] += [gradients, time.process_time() - start]
    said = (
        f"{hardware(torch.device('cpu'))}; reference: {truth.shape[0]} chains of {truth.shape[1]} "
        f"draws, 95 % of the predictions' R-hat below {np.quantile(r, 0.95):.3f}, a deviation of "
        f"{float(std.mean()) / problem.sigma:.2f} times the noise's."
    )
    heading = ["recipe", "means off by", "deviation", "gradients a chain", "processor seconds"]
    publish(said, heading, rows, args.record)


def row(name: str, draws: Tensor, mean: Tensor, std: Tensor, problem: Problem) -> list[Cell]:
    """Return how far a recipe's predictions are from the reference's, inside (on the edge)."""
    off = ((draws.mean((0, 1)) - mean) / std).square()
    ratio = draws.flatten(0, 1).std(0) / std
    cells: list[Cell] = [name]
    for values, root in ((off, True), (ratio.log(), False)):
        both = [values[part].mean() for part in (problem.inside, ~problem.inside)]
        inside, edge = (float(v.sqrt() if root else v.exp()) for v in both)
        cells.append(f"{inside:.2f} ({edge:.2f})")
    return cells


if __name__ == "__main__":
    main()
