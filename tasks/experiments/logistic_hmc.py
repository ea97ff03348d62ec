"""A long HMC run of a logistic regression, in the coordinates that Laplace's Gaussian whitens."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from lightning_sgmcmc import HMC
from tasks.experiments.loop import sample
from tasks.laplace import laplace

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Reference:
    """Draws of the posterior, and how they were made.

    Attributes:
        draws: Weights [K, draws, D].
        acceptance: Fraction of trajectories accepted after burn-in.
        divergences: Divergent ones among them.
        gradients: Full-data gradients of each chain.
    """

    draws: Array
    acceptance: float
    divergences: int
    gradients: int


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
    """Run K stacked Metropolis-corrected chains.

    With m the mode, H the Hessian of U there and H^-1 = R R', the chains move z where theta =
    m + R z: HMC with mass H. Each starts at a draw of N(m, H^-1).

    Args:
        x: Features [N, D]; an intercept is a column of ones.
        y: Labels [N], 0 or 1.
        prior_variance: s^2 of the independent N(0, s^2) priors.
        chains: K.
        draws: Draws of each chain after burn-in.
        burn_in: Steps in which the step size adapts.
        leapfrog_steps: Gradients in a trajectory; with mass H a trajectory of length 2 to 4
            crosses the posterior.
        target_acceptance: Mean acceptance that the step adapts to. Where the posterior is skewed,
            a chain in its narrow part accepts less than the mean, and below 0.9 may get stuck.
        seed: Seed of starts and noise.
        dtype: Type of data and chains.
    """
    count, dimension = x.shape
    mode, covariance = laplace(x, y, prior_variance)
    root = np.linalg.cholesky(covariance)
    starts = np.random.default_rng(seed).standard_normal((chains, dimension))
    z = torch.tensor(starts, dtype=dtype).requires_grad_()
    rotated = torch.tensor(x @ root, dtype=dtype)
    offset, labels = torch.tensor(x @ mode, dtype=dtype), torch.tensor(y, dtype=dtype)
    root_t, mode_t = torch.tensor(root.T, dtype=dtype), torch.tensor(mode, dtype=dtype)

    def potential(z: Tensor, step: int) -> Tensor:
        """Return U / N, the prior included: it is not isotropic in z."""
        f = offset + z @ rotated.T
        nll = functional.binary_cross_entropy_with_logits(
            f, labels.expand_as(f), reduction="none"
        ).mean(1)
        penalty = (mode_t + z @ root_t).square().sum(1) / (2 * prior_variance)
        total: Tensor = nll + penalty / count
        return total

    # U is about |z|^2 / 2, so that a time step of about 1 is stable.
    sampler = HMC(
        [z],
        count * 0.8,
        leapfrog_steps=leapfrog_steps,
        target_acceptance=target_acceptance,
        num_data=count,
        seed=seed,
    )
    sampler.stack()
    found = sample(sampler, steps=burn_in + draws, nll=potential, burn_in=burn_in, label="HMC")
    return Reference(
        mode + found @ root.T, sampler.acceptance, sampler.divergences, sampler.gradients
    )


def with_intercept(x: Array) -> Array:
    """Append a column of ones."""
    return np.concatenate([x, np.ones((len(x), 1))], axis=1)


def standard_error(draws: Array) -> Array:
    """Return the standard error of the mean over all draws from the chains' own means, [D]."""
    error: Array = draws.mean(1).std(0, ddof=1) / math.sqrt(len(draws))
    return error
