"""With real minibatches, every sampler has the covariance and autocorrelation of its own recursion.

On linear regression the minibatch noise is a known function of the weights' covariance, so that
P = M P M' + Q + gain (V0 + K(P)) gain' is exact at every stable step, and the autocovariance at
lag k is M^k P. Compared by means over independent chains; false-alarm rate: 1e-6 a statistic
(tests/harness.py), 24 a check, some 20 checks: one in 2,000 for the file.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.harness import CASES, CORRELATED, Case, Chains, assert_close

LAGS = (0, 1, 2, 5, 10)


def check_moments(case: Case, batch_size: int = 4, replacement: bool = True) -> None:
    """Run chains on minibatches and compare E[theta] and E[theta_t+k theta_t'] with the law."""
    chains = Chains(
        case,
        CORRELATED,
        case.rows,
        batch_size=batch_size,
        replacement=replacement,
        seed=5,
    )
    noise, target = chains.noise_law(), np.trace(np.linalg.inv(CORRELATED.precision))
    for fraction in (0.3, 0.1, 0.03, 0.01):
        chains.set_step(fraction)
        try:
            law = chains.law
            P = law.stationary(noise)
        except ValueError:
            continue
        if np.trace(P[:2, :2]) < 1.5 * target:
            break
    assert 1.02 * target < np.trace(P[:2, :2]) < 1.5 * target
    chains.start_stationary()
    chains.step(20)  # the velocities find their law
    path = np.stack([chains.step() for _ in range(40)])
    assert_close(path.mean(0), CORRELATED.mean, "mean")
    for lag in LAGS:
        products = np.einsum("tri,trj->rij", path[lag:], path[: len(path) - lag])
        expected = (np.linalg.matrix_power(law.M, lag) @ P)[:2, :2]
        assert_close(products / (len(path) - lag), expected, f"autocovariance at lag {lag}")


@pytest.mark.parametrize("case", [c for c in CASES if c.linear], ids=lambda c: c.name)
def test_independent_minibatches(case: Case) -> None:
    check_moments(case)


def test_minibatches_without_replacement() -> None:
    check_moments(CASES[0], replacement=False)
