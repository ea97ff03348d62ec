"""Stacked chains of logistic regressions: their per-example gradients, and what they draw."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from scipy.special import expit

from lightning_sgmcmc import SGFS
from tasks.experiments.logistic import sample_chains, stacked_target
from tasks.laplace import laplace
from tasks.logistic import mean_gradient


def test_gradients_and_their_squares_are_those_of_each_chain_s_own_examples() -> None:
    generator = np.random.default_rng(0)
    theta, x = (torch.from_numpy(generator.standard_normal(s)) for s in ((3, 1, 4), (3, 6, 4)))
    y = torch.from_numpy(generator.integers(0, 2, (3, 6)).astype(float))
    target = stacked_target(theta.requires_grad_(), 60)
    target.use((x, y))
    assert target.per_example is not None
    with target.recording():
        (gradient,) = target.gradient((x, y))
    squares = [torch.zeros_like(theta).detach()]
    target.per_example.accumulate_squares_(squares, 1.0, 1.0)
    theta = theta.detach()
    torch.testing.assert_close(gradient[:, 0], mean_gradient(theta[:, 0], x, y))
    for k in range(3):
        singles = ((x[k] @ theta[k, 0]).sigmoid() - y[k])[:, None] * x[k]
        torch.testing.assert_close(gradient[k, 0], singles.mean(0))
        torch.testing.assert_close(squares[0][k, 0], (singles**2).mean(0))


def test_fisher_scoring_draws_the_posterior_at_a_large_step() -> None:
    """2,000 examples, n = 100, 64 chains at .9 of the largest step: 190 relaxations each.

    In posterior standard deviations the standard errors of means and deviations are .0135 and
    .007, and HMC's draws are .035 away from Laplace's Gaussian in both: the bounds are 6 standard
    errors beyond that.
    """
    generator = np.random.default_rng(1)
    x = generator.standard_normal((2000, 3)) * [1.0, 3.0, 0.3]
    y = (generator.random(2000) < expit(x @ [0.5, -0.3, 1.0])).astype(float)
    draws, _ = sample_chains(
        partial(SGFS, count_prior=True),
        x,
        y,
        lr=0.9 * SGFS.step_size(0.0, 2000, 100),
        prior_variance=10.0,
        batch_size=100,
        chains=64,
        steps=2300,
        burn_in=300,
    )
    assert draws.shape == (64, 2000, 3)
    mean, covariance = laplace(x, y, 10.0)
    sd = np.sqrt(np.diag(covariance))
    together = draws.reshape(-1, 3)
    np.testing.assert_allclose((together.mean(0) - mean) / sd, 0, atol=0.115)
    np.testing.assert_allclose(together.std(0) / sd, 1, atol=0.077)
