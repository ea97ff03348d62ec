"""SGFS's theorem on the averaged covariance of scores, and the cost of its metric.

Ahn, Korattikara, Welling 2012, Theorem 1: with theta_t from the posterior, V(theta_t) the
covariance of the scores of a minibatch and V_T its average, V_T -> I(theta_0) + O(1/N).

In a linear regression with unit noise and a flat prior, E V = (1 - 1/N) E x x' exactly, where E is
over data sets too: the residuals' variance 1 - h_ii and the weights' own, h_ii, add up to 1, and
the mean score that V leaves out has covariance E x x' / N. A single data set is off by N^(-1/2),
the sampling error of a mean of N terms.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lightning_sgmcmc import SGFS, FullFisher, Target
from lightning_sgmcmc.target import PerExample
from tasks.experiments.experiment import Study
from tasks.experiments.gaussians import matrices
from tasks.experiments.loop import Array, walk
from tasks.experiments.theory.fits import fitted, mean_and_error, power
from tasks.experiments.theory.regression import Regressions, posterior

SIZES, WEIGHTS, DATA_SETS, STEPS = (32, 64, 128, 256), 2, 2000, 150
WIDTHS, EXAMPLES, REPEATS = (512, 1024, 2048, 4096), 10, 3


def averages(size: int, draws: str, seed: int = 0) -> tuple[Array, Array]:
    """Return tr V_T / D - 1 of every data set, and what of it is its minibatches' own scatter.

    The second is that of the same minibatches' scores at the true theta_0, uncentred, whose mean
    over data sets is I(theta_0) = 1 exactly. Their difference has the mean of the first, and a
    far smaller variance.

    Args:
        size: N; minibatches have N/2 examples.
        draws: "exact" for theta_t of the posterior, "sgfs" for the chain of SGFS-f itself.
        seed: Of data, minibatches and draws.
    """
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((DATA_SETS, size, WEIGHTS))
    y = x.sum(2) + generator.standard_normal((DATA_SETS, size))
    mean, precision = posterior(x, y)
    root = np.linalg.cholesky(np.linalg.inv(precision))

    def exact() -> Tensor:
        z = generator.standard_normal((DATA_SETS, WEIGHTS, 1))
        return torch.from_numpy(mean + (root @ z)[..., 0]).unsqueeze(1)

    theta = exact().requires_grad_()
    lr = SGFS.step_size(2.0, size, size // 2)
    sampler = SGFS([theta], lr, variant="full", num_data=size, seed=seed)
    sampler.stack(one_generator=True)
    problem = Regressions(theta, x, y, size // 2, seed=seed)
    problem.attach(sampler)
    own = np.zeros(DATA_SETS)

    def each(step: int, state: Tensor) -> None:
        features, responses = problem.batch(step - 1)
        squares = (features.sum(2) - responses).square().unsqueeze(-1) * features.square()
        own[:] += squares.mean((1, 2)).numpy() / STEPS
        if draws == "exact":
            state.copy_(exact())

    walk(sampler, steps=STEPS, gradient=problem.gradient, each=each)
    # J is C^-1 less what ``floor`` adds to it.
    V = np.linalg.inv(matrices(sampler)) / (1 + sampler.preconditioner.floor)
    found: Array = np.trace(V, axis1=1, axis2=2) / WEIGHTS - 1
    return found, own - 1


def information(draws: str, folder: Path) -> dict[str, Any]:
    """Measure V_T - I(theta_0) over N: its mean over data sets, and its scatter."""
    means, scatter, closed = [], [], []
    for size in SIZES:
        found, own = averages(size, draws)
        means.append(found - own)
        scatter.append(np.square(found))
        closed.append(-1 / size)
    values = [mean_and_error(row) for row in means]
    exponent, exponent_se = fitted(SIZES, -np.stack(means))
    spread, spread_se = fitted(SIZES, np.stack(scatter))
    return {
        "N": SIZES,
        "bias": [value for value, _ in values],
        "bias_se": [error for _, error in values],
        "closed": closed,
        "scatter": [float(np.sqrt(row.mean())) for row in scatter],
        "exponent": exponent,
        "exponent_se": exponent_se,
        "scatter_exponent": spread / 2,
        "scatter_exponent_se": spread_se / 2,
    }


def seconds(width: int, memory: float, updates: int) -> list[float]:
    """Return processor seconds of an update of the full Fisher metric with D = ``width``.

    Args:
        width: D.
        memory: .99 changes J little, so that its root changes by Woodbury's identity, n D^2; .4
            forgets half of J at each minibatch, so that each takes a Cholesky factor, D^3.
        updates: How many are timed.
    """
    torch.manual_seed(0)
    net = nn.Linear(width, 1, bias=False)
    params = [net.weight]
    batch = (torch.randn(EXAMPLES, width), torch.randn(EXAMPLES))

    def nll(batch: tuple[Tensor, Tensor]) -> Tensor:
        residual: Tensor = net(batch[0]).squeeze(-1) - batch[1]
        return residual.square() / 2

    target = Target(nll, params, 1000)
    target.per_example = PerExample(net, ["weight"], params, nll)
    metric = FullFisher(eps=1e-3, diagonal_start=True, memory=memory)
    metric.attach(params)
    metric.bind(target)
    found = []
    for _ in range(updates + 2):
        target.use(batch)
        with target.recording():
            grads = target.gradient(batch)
        began = time.process_time()
        metric.update(grads)
        found.append(time.process_time() - began)
    return found[2:]


def cost(folder: Path) -> dict[str, Any]:
    """Time both ways of updating the metric, in turn, and return the ratio over D."""
    cheap, dear = np.empty((len(WIDTHS), REPEATS)), np.empty((len(WIDTHS), REPEATS))
    for i, width in enumerate(WIDTHS):
        for repeat in range(REPEATS):
            cheap[i, repeat] = np.median(seconds(width, 0.99, 4))
            dear[i, repeat] = np.median(seconds(width, 0.4, 2))
    ratio = dear / cheap
    root = np.sqrt(REPEATS)
    return {
        "D": WIDTHS,
        "n": EXAMPLES,
        "ratio": np.median(ratio, 1).tolist(),
        "ratio_se": (ratio.std(1, ddof=1) / root).tolist(),
        "cheap_exponent": power(WIDTHS, np.median(cheap, 1)),
        "dear_exponent": power(WIDTHS, np.median(dear, 1)),
    }


def cells() -> list[Study]:
    """Return the studies of V and of the cost."""
    return [
        *(Study(f"scores-{draws}", partial(information, draws)) for draws in ("exact", "sgfs")),
        Study("cost", cost),
    ]
