"""Effective draws per second of Bayesian logistic regression, ours beside NumPyro's NUTS.

The posterior is that of the Australian credit data: 690 examples, 15 weights, prior N(0, 100). The
smallest bulk ESS over the weights is divided by the processor seconds of sampling, and of
everything (warm-up, tuning, compilation). Stochastic-gradient chains have a bias that their ESS
does not show, so the largest errors of their means and standard deviations stand beside.

    python scripts/bench/nuts.py [--chains 1 64] [--data-root DIR] [--record FILE]

NumPyro is optional (python -m pip install numpyro).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
# Read when the peer's compiler starts; one thread, as for torch below.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)

import numpy as np
import torch
from numpy.typing import NDArray
from steps import hardware
from torch import Tensor

from lightning_sgmcmc import PSGLD, SGHMC, SGLD, BatchStream, GaussianPrior, RMSProp, Sampler
from lightning_sgmcmc.diagnostics import ess, rhat
from tasks.data.australian import AustralianData
from tasks.experiments.costs import Cell, publish
from tasks.experiments.logistic import sample_hmc, with_intercept
from tasks.experiments.loop import sample
from tasks.logistic import mean_gradient

Array = NDArray[np.float64]
PRIOR_VARIANCE = 100.0
BATCH = 50
DRAWS, WARM_UP = 1000, 500


@dataclass(frozen=True)
class Outcome:
    """Draws [K, draws, D] and the processor seconds of sampling, and of what comes before."""

    draws: Array
    sampling: float
    before: float


def hmc(x: Array, y: Array, chains: int) -> Outcome:
    """Run our HMC with the mass of the Laplace approximation, on all the data."""
    seconds = {}
    for draws in (1, DRAWS):  # the first run is the warm-up alone
        start = time.process_time()
        run = sample_hmc(
            x,
            y,
            PRIOR_VARIANCE,
            chains=chains,
            draws=draws,
            burn_in=WARM_UP,
            dtype=torch.float32,
        )
        seconds[draws] = time.process_time() - start
    return Outcome(run.draws, max(seconds[DRAWS] - seconds[1], 1e-9), seconds[1])


def stochastic(
    make: Callable[..., Sampler], lr: float, thinning: int, x: Array, y: Array, chains: int
) -> Outcome:
    """Run a sampler on minibatches from zero; C adapts in burn-in and freezes there."""
    theta = torch.zeros(chains, x.shape[1], requires_grad=True)
    prior = GaussianPrior(PRIOR_VARIANCE)
    sampler = make([theta], lr=lr, num_data=len(x), prior=prior)
    sampler.stack()
    data = (torch.from_numpy(x).float(), torch.from_numpy(y).float())
    stream = BatchStream(data, BATCH, "independent")
    stream.bind(torch.device("cpu"), seed=0, num_chains=chains)

    def gradient(theta: Tensor, step: int) -> Tensor:
        return mean_gradient(theta, *stream.at(step))

    start = time.process_time()
    burn_in = WARM_UP * thinning
    sample(sampler, steps=burn_in + 1, gradient=gradient, burn_in=burn_in, freeze=True)
    before = time.process_time() - start
    draws, seconds = sample(sampler, steps=DRAWS * thinning, gradient=gradient, thinning=thinning)
    return Outcome(draws, seconds, before)


def nuts(x: Array, y: Array, chains: int) -> Outcome:
    """Run NumPyro's NUTS with its own adaptation of step and diagonal mass."""
    jax, numpyro = import_module("jax"), import_module("numpyro")
    distributions, infer = import_module("numpyro.distributions"), import_module("numpyro.infer")

    def model(features: Any, labels: Any) -> None:
        scale = PRIOR_VARIANCE**0.5
        w = numpyro.sample("w", distributions.Normal(0, scale).expand([x.shape[1]]).to_event(1))
        numpyro.sample("y", distributions.Bernoulli(logits=features @ w), obs=labels)

    runner = infer.MCMC(
        infer.NUTS(model),
        num_warmup=WARM_UP,
        num_samples=DRAWS,
        num_chains=chains,
        chain_method="vectorized" if chains > 1 else "sequential",
        progress_bar=False,
    )
    start = time.process_time()
    runner.warmup(jax.random.PRNGKey(0), x, y)
    runner.run(jax.random.PRNGKey(1), x, y)  # compiles
    np.asarray(runner.get_samples()["w"])
    first = time.process_time() - start
    start = time.process_time()
    runner.post_warmup_state = runner.last_state
    runner.run(jax.random.PRNGKey(2), x, y)
    draws = np.asarray(runner.get_samples(group_by_chain=True)["w"], dtype=np.float64)
    sampling = time.process_time() - start
    return Outcome(draws, sampling, max(first - sampling, 0.0))


def methods(x: Array, y: Array) -> Iterator[tuple[str, Callable[[int], Outcome]]]:
    """Yield every method's name and what runs it with K chains."""

    def sghmc(params: Any, **kwargs: Any) -> Sampler:
        return SGHMC(params, momentum=0.9, preconditioner=RMSProp(), **kwargs)

    yield "HMC, Laplace's mass", lambda k: hmc(x, y, k)
    if find_spec("numpyro") is not None:
        yield "NUTS (NumPyro)", lambda k: nuts(x, y, k)
    yield f"SGHMC, RMSProp, n = {BATCH}", lambda k: stochastic(sghmc, 3e-4, 10, x, y, k)
    yield f"PSGLD, n = {BATCH}", lambda k: stochastic(PSGLD, 1e-3, 10, x, y, k)
    yield f"SGLD, n = {BATCH}", lambda k: stochastic(SGLD, 1e-2, 10, x, y, k)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--chains", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--data-root", default=None, help="folder that holds australian/")
    parser.add_argument("--record", type=Path, help="where to keep the numbers")
    args = parser.parse_args()
    torch.set_num_threads(1)
    data = AustralianData(args.data_root)
    data.prepare_data()
    data.setup()
    x, y = data.arrays("train")
    x = with_intercept(x)
    truth = sample_hmc(x, y, PRIOR_VARIANCE, chains=32, draws=500, burn_in=200, seed=1).draws
    mean, sd = truth.mean((0, 1)), truth.reshape(-1, x.shape[1]).std(0)

    rows: list[list[Cell]] = []
    for chains in args.chains:
        for name, run in methods(x, y):
            outcome = run(chains)
            smallest = float(ess(outcome.draws).min())
            found = outcome.draws.reshape(-1, x.shape[1])
            off = float((np.abs(found.mean(0) - mean) / sd).max())
            ratios = found.std(0) / sd
            rates = [smallest / t for t in (outcome.sampling, outcome.sampling + outcome.before)]
            words = f"{ratios.min():.2f} to {ratios.max():.2f}"
            worst = float(rhat(outcome.draws).max())
            rows.append([name, str(chains), smallest, worst, *rates, off, words])
    peers = [f", {n} {metadata.version(n)}" for n in ("numpyro", "jax") if find_spec(n) is not None]
    said = (
        f"{hardware(torch.device('cpu'))}{''.join(peers)}; processor seconds; {DRAWS:,} draws a "
        f"chain after {WARM_UP} of warm-up."
    )
    heading = ["method", "chains", "ESS", "R-hat", "ESS/s sampling", "ESS/s in all"]
    publish(said, [*heading, "mean off by up to", "sd ratios"], rows, args.record)


if __name__ == "__main__":
    main()
