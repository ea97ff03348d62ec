"""With real minibatches, every sampler has the covariance and autocorrelation of its own recursion.

On linear regression the minibatch noise is a known function of the weights' covariance, so that
P = M P M' + Q + gain (V0 + K(P)) gain' is exact at every stable step, and the autocovariance at
lag k is M^k P. Compared by means over independent chains; false-alarm rate: 1e-6 a statistic
(tests/harness.py), 22 a check, fewer than 30 checks: one in 1,500 for the file.
"""

from __future__ import annotations

import numpy as np
import pytest

from lightning_sgmcmc import SGFS
from tests.harness import (
    CASES,
    CORRELATED,
    VARIANTS,
    Case,
    Chains,
    Setting,
    check_law,
    check_moments,
    scoring,
)
from tests.posteriors import LinearRegression

SGLD_CASE = CASES[0]


@pytest.mark.parametrize("case", [c for c in CASES + VARIANTS if c.linear], ids=lambda c: c.name)
def test_independent_minibatches(case: Case) -> None:
    check_moments(case, CORRELATED)


def test_minibatches_without_replacement() -> None:
    check_moments(SGLD_CASE, CORRELATED, replacement=False, stated=False)


def test_the_two_ways_of_drawing_minibatches_differ() -> None:
    with pytest.raises(AssertionError, match="lag 0: not of the stated law"):
        check_moments(SGLD_CASE, CORRELATED, replacement=False)


# SGFS, Ahn et al. 2012


def exact_fisher(center: float, num_data: int = 20, variance: float = 0.7) -> LinearRegression:
    """Return a regression under a flat prior whose scores at the mode have covariance H / N.

    Every input comes with the residuals +r and -r, r^2 = variance (N - 1) / N. H is diagonal for
    ``center`` 0, as the matrix is with which SGFS starts its Fisher average.
    """
    half = np.random.default_rng(3).standard_normal((num_data // 2, 2))
    half[:, 1] = 3 * (half[:, 1] - half[:, 1].mean()) + center
    half[:, 0] = 1
    residual = np.full(num_data // 2, np.sqrt(variance * (num_data - 1) / num_data))
    return LinearRegression(
        np.vstack([half, half]), np.concatenate([residual, -residual]), 1e8, variance
    )


@pytest.mark.parametrize("fraction", [0.05, 0.5, 1.0])
def test_sgfs_is_exact_at_every_step_under_its_conditions(fraction: float) -> None:
    """Flat prior, Fisher matrix I exact, gradient noise (N / n) N I: variance that of the target.

    Also at the largest step, alpha = 0, where only the minibatches move the chain, and its
    autocorrelation is 1 - lr.
    """
    posterior = exact_fisher(0.0)
    case = Case("SGFS", SGFS, scoring, {"floor": 1e-12}, rows=10_000)

    def noise(C: np.ndarray) -> np.ndarray:
        return posterior.num_data * np.linalg.inv(C)  # n = N: the metric is learned on all data

    chains = Chains(case, posterior, 1, fraction=fraction, spread=0.0, noise=noise)
    exact = posterior.num_data * np.linalg.inv(posterior.hessian)
    np.testing.assert_allclose(chains.C, exact, rtol=0.01, atol=1e-6)
    chains.C = exact
    P = chains.law.stationary(lambda P: posterior.hessian)
    np.testing.assert_allclose(P, np.linalg.inv(posterior.precision), rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(chains.law.M, (1 - chains.sampler.lr) * np.eye(2), atol=1e-6)
    if fraction == 1.0:
        assert not chains.law.Q.any()
        assert chains.sampler.lr == pytest.approx(2 / chains.sampler.gamma)
    check_law(case, posterior, fraction=fraction, spread=0.0, noise=noise)


def test_sgfs_counting_a_gaussian_prior_is_exact_at_every_step() -> None:
    """D = A + V + 4 B / epsilon is exact with the prior in A."""
    H, N, n, variance = CORRELATED.hessian, 10, 4, CORRELATED.prior_variance
    A, V = CORRELATED.precision, N / n * H
    for h in (0.01, 0.03, 2 / (1 + N / n) / N):
        s = Setting(A, N * np.linalg.inv(H), h, 1.0, {"count_prior": True}, N, n, variance)
        np.testing.assert_allclose(
            scoring(s).stationary(lambda P: V), np.linalg.inv(A), rtol=1e-9, atol=1e-12
        )


def test_diagonal_sgfs_is_too_narrow_at_large_steps() -> None:
    """SGFS-d underestimates the variance of correlated weights, as its own law predicts."""
    posterior = exact_fisher(6.0)
    case = Case("SGFS-d", SGFS, scoring, {"variant": "diagonal"}, rows=10_000)

    def noise(C: np.ndarray) -> np.ndarray:
        return posterior.hessian

    chains = Chains(case, posterior, 1, fraction=0.9, spread=0.0, noise=noise)
    P = chains.law.stationary(chains.noise_law())
    ratio = np.diag(P) / np.diag(np.linalg.inv(posterior.precision))
    assert (ratio < 0.9).all()
    check_law(case, posterior, fraction=0.9, spread=0.0, noise=noise)


def test_sgfs_on_minibatches_without_replacement_is_caught() -> None:
    """Less noise than SGFS counts on leaves its law, at its own step sizes."""
    case = Case("SGFS", SGFS, scoring, rows=10_000)
    check_moments(case, CORRELATED)
    with pytest.raises(AssertionError, match="not of the stated law"):
        check_moments(case, CORRELATED, replacement=False)
