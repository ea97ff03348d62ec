"""Every sampler against HMC on Bayesian logistic regression, and HMC against quadrature.

The data have the shape of the Australian credit set, 690 examples of 14 standardised features and
an intercept under a N(0, 100) prior, and are that set itself where SGMCMC_DATA_ROOT is given.
256 chains start from HMC's draws and run 400 steps, in which their slowest direction forgets its
start; their means, and variances relative to those of the step's known bias, are then within
sampling error of HMC's. False-alarm rate: 1e-6 a statistic (tests/harness.py), 30 a test.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from lightning_sgmcmc import HMC, SGLD
from tests.harness import BOUND, CASES, Case, Chains, assert_close, invariant
from tests.posteriors import LogisticRegression

REFERENCE = Case("HMC", HMC, invariant, {"leapfrog_steps": 12})
CHAINS = 256


def simulated(num_data: int = 690, dim: int = 15, seed: int = 0) -> LogisticRegression:
    """Correlated features of uneven skewness, as in credit data."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((num_data, dim)) @ (
        np.eye(dim) + 0.3 * rng.standard_normal((dim, dim)) / dim**0.5
    )
    x[:, dim // 2 :] = np.exp(0.7 * x[:, dim // 2 :])
    x = (x - x.mean(0)) / x.std(0)
    x[:, 0] = 1
    theta = 0.8 * rng.standard_normal(dim)
    y = (rng.random(num_data) < 1 / (1 + np.exp(-x @ theta))).astype(float)
    return LogisticRegression(x, y, 100.0)


def australian() -> LogisticRegression:
    """Return the credit data, standardised, with an intercept."""
    root = os.environ.get("SGMCMC_DATA_ROOT")
    path = Path(root or ".") / "australian" / "australian.dat"
    if not root or not path.exists():
        pytest.skip("needs $SGMCMC_DATA_ROOT/australian/australian.dat")
    table = np.loadtxt(path)
    x = (table[:, :-1] - table[:, :-1].mean(0)) / table[:, :-1].std(0)
    return LogisticRegression(np.column_stack([np.ones(len(x)), x]), table[:, -1], 100.0)


POSTERIORS = {"simulated": simulated, "australian": australian}


@cache
def reference(name: str) -> tuple[LogisticRegression, np.ndarray]:
    """Return HMC's draws, [draws, chains, d]."""
    posterior = POSTERIORS[name]()
    hessian = posterior.mode()[1]
    chains = Chains(REFERENCE, posterior, CHAINS)
    chains.set_step(0.2, hessian)
    chains.start(np.linalg.inv(hessian))
    chains.step(20)
    draws = np.stack([chains.step() for _ in range(40)])
    assert chains.sampler.acceptance > 0.7
    return posterior, draws


def check_against_hmc(case: Case, name: str) -> None:
    """Compare means and variances with HMC's, the step's bias taken off.

    On a Gaussian of HMC's covariance the step's stationary covariance is known; the ratio of the
    variances is that of these two up to the step times the skewness of the posterior.
    """
    posterior, draws = reference(name)
    chains = Chains(case, posterior, CHAINS)
    flat = draws.reshape(-1, posterior.dim)
    center, covariance = flat.mean(0), np.cov(flat.T)
    precision = np.linalg.inv(covariance)
    chains.set_step(min(0.15, 4 * case.fraction), precision)
    law = chains.law_at(precision)
    P = law.stationary(lambda P: np.zeros_like(P))
    scale, expected = np.sqrt(np.diag(covariance)), np.diag(P)[: posterior.dim]
    chains.set(draws[-1])
    chains.step(200)
    found = np.stack([chains.step() for _ in range(200)])

    def compare(ours: np.ndarray, theirs: np.ndarray, limit: float, what: str) -> None:
        difference = ours.mean((0, 1)) - theirs.mean((0, 1))
        errors = [a.mean(0).std(0) / CHAINS**0.5 for a in (ours, theirs)]
        error = np.hypot(*errors)
        assert error.max() < limit
        score = difference / error
        assert np.abs(score).max() < BOUND, f"{what}: not HMC's: {difference}, scores {score}"

    z = (found - center) / scale
    compare(z, (draws - center) / scale, 0.07, "mean")
    squares = z**2 * np.diag(covariance) / expected
    compare(squares, ((draws - center) / scale) ** 2, 0.09, "variance")


@pytest.mark.parametrize("name", POSTERIORS)
@pytest.mark.parametrize("case", [c for c in CASES if c.build is not HMC], ids=lambda c: c.name)
def test_agrees_with_hmc(case: Case, name: str) -> None:
    check_against_hmc(case, name)


class HalfNoise(SGLD):
    def noise(self) -> list[Tensor]:
        return [z * 0.5**0.5 for z in super().noise()]


def test_half_of_the_noise_does_not_agree() -> None:
    with pytest.raises(AssertionError, match="not HMC's"):
        check_against_hmc(Case("half", HalfNoise), "simulated")


def test_hmc_agrees_with_quadrature() -> None:
    """Mean and second moments of a skew posterior of 12 observations."""
    rng = np.random.default_rng(1)
    x = np.column_stack([np.ones(12), 2 * rng.standard_normal(12)])
    posterior = LogisticRegression(x, (rng.random(12) < 0.8).astype(float), 4.0)
    mean, second = posterior.moments()
    assert np.abs(mean - posterior.mode()[0]).max() > 0.1
    chains = Chains(REFERENCE, posterior, 10_000, fraction=0.3)
    chains.start(second - np.outer(mean, mean))
    chains.step(10)
    path = np.stack([chains.step() for _ in range(20)])
    assert_close(path.mean(0), mean, "mean")
    assert_close(np.einsum("tri,trj->rij", path, path) / len(path), second, "second moment")


def test_hmc_agrees_with_importance_sampling() -> None:
    """Means in 15 dimensions from 20,000 weighted draws of the Laplace approximation."""
    posterior, draws = reference("simulated")
    mode, hessian = posterior.mode()
    rng = np.random.default_rng(2)
    z = 1.1 * rng.standard_normal((20_000, posterior.dim))
    theta = mode + z @ np.linalg.inv(np.linalg.cholesky(hessian))
    eta = theta @ posterior.x.T
    log_density = (posterior.y * eta - np.logaddexp(0, eta)).sum(1) - (theta**2).sum(1) / 200
    log_weight = log_density + (z**2).sum(1) / 2 / 1.1**2
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    assert 1 / (weight**2).sum() > 4_000
    mean = weight @ theta
    error = np.sqrt(weight**2 @ (theta - mean) ** 2)
    theirs = draws.mean(0)
    combined = np.hypot(error, theirs.std(0) / CHAINS**0.5)
    assert (np.abs(theirs.mean(0) - mean) < BOUND * combined).all()
    assert np.abs((mode - mean) / combined).max() > BOUND
