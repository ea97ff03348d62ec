"""Chains of a logistic regression without a trainer: on minibatches, and HMC on all the data."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from lightning_sgmcmc import BatchStream, GaussianPrior, Sampler, Target
from lightning_sgmcmc.chain import Sampling
from lightning_sgmcmc.samplers import Stacked
from lightning_sgmcmc.target import PerExample
from tasks.experiments.loop import Array, Reference, sample, whitened_hmc
from tasks.laplace import laplace
from tasks.logistic import mean_gradient


def sample_chains(
    make: Callable[..., Sampler],
    x: Array,
    y: Array,
    *,
    lr: float,
    prior_variance: float,
    batch_size: int,
    chains: int,
    steps: int,
    burn_in: int,
    thinning: int = 1,
    freeze: bool = True,
    one_generator: bool = False,
    sampling: Sampling = "independent",
    starts: Array | None = None,
    label: str = "sampling",
) -> tuple[Array, float]:
    """Run K chains in float32, and return their draws and the processor seconds after burn-in.

    Args:
        make: Called with the parameters, ``lr``, ``num_data`` and ``prior``.
        x: Features [N, D]; an intercept is a column of ones.
        y: Labels [N], 0 or 1.
        lr: Step size on the mean loss.
        prior_variance: s^2 of the independent N(0, s^2) priors.
        batch_size: Examples in a minibatch of one chain.
        chains: K, each with its own noise and minibatches.
        steps: Steps in all, burn-in included.
        burn_in: Steps before the first draw.
        thinning: Steps between draws.
        freeze: Freeze the preconditioner where burn-in ends.
        one_generator: Serve the noise of all chains from one generator, which is quicker.
        sampling: How minibatches are drawn.
        starts: First weights [K, D]; None starts at zero.
        label: Name of the progress bar.

    Returns:
        Weights [K, draws, D], and seconds.
    """
    first = np.zeros((chains, x.shape[1])) if starts is None else starts
    # The weight of a linear layer, [K, 1, D].
    theta = torch.tensor(first[:, None], dtype=torch.float32, requires_grad=True)
    sampler = make(Stacked([theta]), lr=lr, num_data=len(x), prior=GaussianPrior(prior_variance))
    sampler.stack(one_generator)
    target = stacked_target(theta, len(x))
    sampler.attach(target)
    data = (torch.tensor(x).float(), torch.tensor(y).float())
    stream = BatchStream(data, batch_size, sampling)
    stream.bind(torch.device("cpu"), seed=0, num_chains=chains)

    def gradient(theta: Tensor, step: int) -> Tensor:
        batch = stream.at(step)
        if "per_example" not in sampler.needs:
            return mean_gradient(theta[:, 0], *batch).unsqueeze(1)
        target.use(batch)
        with target.recording():
            (found,) = target.gradient(batch)
        return found

    def nll(theta: Tensor, step: int) -> Tensor:
        features, labels = stream.at(step)
        logits = theta[:, 0] @ features.T
        value: Tensor = functional.softplus(logits).mean(1) - (logits @ labels) / len(labels)
        return value

    draws, seconds = sample(
        sampler,
        steps=steps,
        gradient=gradient,
        nll=nll if sampling == "full" else None,
        burn_in=burn_in,
        thinning=thinning,
        freeze=freeze,
        label=label,
    )
    return draws[:, :, 0], seconds


def stacked_target(theta: Tensor, num_data: int) -> Target:
    """Return the likelihood of K logistic regressions, with per-example gradients.

    Args:
        theta: Weights [K, 1, D], which the target keeps; batches are x [K, n, D] and y [K, n].
        num_data: N.
    """
    net = nn.Linear(theta.shape[2], 1, bias=False)
    loss = functional.binary_cross_entropy_with_logits

    def alone(batch: tuple[Tensor, Tensor]) -> Tensor:
        return loss(net(batch[0]).squeeze(-1), batch[1], reduction="none")

    def together(batch: tuple[Tensor, Tensor]) -> Tensor:
        def chain(weight: Tensor, x: Tensor, y: Tensor) -> Tensor:
            logits = torch.func.functional_call(net, {"weight": weight}, (x,)).squeeze(-1)
            return loss(logits, y, reduction="none")

        return torch.func.vmap(chain)(theta, *batch)

    target = Target(together, [theta], num_data, chain_dims=1)
    target.per_example = PerExample(net, ["weight"], [theta], alone, chain_dims=1)
    return target


def sample_hmc(
    x: Array,
    y: Array,
    prior_variance: float,
    *,
    chains: int,
    draws: int,
    burn_in: int,
    leapfrog_steps: int = 5,
    target_acceptance: float = 0.95,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Reference:
    """Run K stacked Metropolis-corrected chains whose mass is the Hessian of U at the mode.

    Each starts at a draw of Laplace's Gaussian.

    Args:
        x: Features [N, D]; an intercept is a column of ones.
        y: Labels [N], 0 or 1.
        prior_variance: s^2 of the independent N(0, s^2) priors.
        chains: K.
        draws: Draws of each chain after burn-in.
        burn_in: Steps in which the step size adapts.
        leapfrog_steps: Gradients in a trajectory; with this mass a trajectory of length 2 to 4
            crosses the posterior.
        target_acceptance: Mean acceptance that the step adapts to. Where the posterior is skewed,
            a chain in its narrow part accepts less than the mean, and below 0.9 may get stuck.
        seed: Seed of starts and noise.
        dtype: Type of data and chains.
    """
    mode, covariance = laplace(x, y, prior_variance)
    starts = np.random.default_rng(seed).standard_normal((chains, x.shape[1]))
    features, labels = torch.tensor(x, dtype=dtype), torch.tensor(y, dtype=dtype)

    def potential(theta: Tensor) -> Tensor:
        logits = theta @ features.T
        nll = functional.softplus(logits).mean(1) - (logits @ labels) / len(labels)
        total: Tensor = nll + theta.square().sum(1) / (2 * prior_variance * len(labels))
        return total

    return whitened_hmc(
        potential,
        torch.tensor(mode, dtype=dtype),
        torch.tensor(np.linalg.cholesky(covariance), dtype=dtype),
        torch.tensor(starts, dtype=dtype),
        num_data=len(x),
        time_step=0.8,
        leapfrog_steps=leapfrog_steps,
        target_acceptance=target_acceptance,
        burn_in=burn_in,
        draws=draws,
        seed=seed,
    )


def with_intercept(x: Array) -> Array:
    """Append a column of ones."""
    return np.concatenate([x, np.ones((len(x), 1))], axis=1)


def standard_error(draws: Array) -> Array:
    """Return the standard error of the mean over all draws from the chains' own means, [D]."""
    error: Array = draws.mean(1).std(0, ddof=1) / math.sqrt(len(draws))
    return error
