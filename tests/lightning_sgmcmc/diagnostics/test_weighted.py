"""Weighted averages against repetition of draws and the variance written out."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import toeplitz
from scipy.signal import lfilter

from lightning_sgmcmc.diagnostics import (
    autocorrelation_time,
    effective_draws,
    weighted_ess,
    weighted_moments,
)


def test_a_weight_is_a_repetition() -> None:
    rng = np.random.default_rng(0)
    x, times = rng.standard_normal((2, 30, 4)), rng.integers(0, 4, (2, 30))
    repeated = np.concatenate([np.repeat(x[c], times[c], axis=0) for c in range(2)])
    mean, deviation = weighted_moments(x, 0.1 * times)
    np.testing.assert_allclose(mean, repeated.mean(0), rtol=1e-12)
    np.testing.assert_allclose(deviation, repeated.std(0), rtol=1e-12)
    mean, _ = weighted_moments(x, times[0])
    np.testing.assert_allclose(mean, weighted_moments(x, np.stack([times[0]] * 2))[0], rtol=1e-12)


def test_the_trace_of_a_single_quantity() -> None:
    rng = np.random.default_rng(4)
    x, w = rng.standard_normal((2, 50, 1)), rng.random(50)
    assert weighted_ess(x[..., 0], w) == weighted_ess(x, w)[0]


def test_kish() -> None:
    assert effective_draws(np.full(7, 0.3)) == pytest.approx(7)
    assert effective_draws([1, 0, 0]) == 1
    assert effective_draws([[1, 1], [1, 3]]) == pytest.approx(36 / 12)


def test_independent_draws_count_by_kish_and_equal_weights_by_autocorrelation() -> None:
    """Means over 100 quantities; 3 % is more than five standard errors."""
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((2, 4000, 100)), np.arange(1, 4001) ** -0.55
    assert weighted_ess(x, w).mean() == pytest.approx(effective_draws([w, w]), rel=0.03)
    np.testing.assert_allclose(
        weighted_ess(x, np.ones(4000)), 8000 / autocorrelation_time(x), rtol=1e-6
    )


def test_correlated_draws_with_decaying_weights() -> None:
    """AR(1), weights t^-.3: against w' R w with the whole correlation matrix; 8 %."""
    rng = np.random.default_rng(2)
    rho, draws = 0.8, 4000
    z = rng.standard_normal((1, draws, 60))
    z[:, 1:] *= np.sqrt(1 - rho**2)
    x = lfilter([1.0], [1.0, -rho], z, axis=1)
    w = np.arange(1, draws + 1) ** -0.3
    w /= w.sum()
    exact = 1 / (w @ toeplitz(rho ** np.arange(draws)) @ w)
    assert weighted_ess(x, w).mean() == pytest.approx(exact, rel=0.08)
    assert abs(effective_draws(w) / exact - 9) < 0.5  # what forgetting the correlation would say


def test_what_cannot_be_said_is_nan_and_bad_input_is_one_line() -> None:
    x = np.random.default_rng(3).standard_normal((2, 20, 3))
    x[:, :, 1] = 4.0
    x[0, 3, 2] = np.nan
    value = weighted_ess(x, np.arange(20))
    assert np.isfinite(value[0])
    assert np.isnan(value[1:]).all()
    with pytest.raises(
        ValueError, match=r"\[draws\] or \[chains, draws\] of traces \(2, 20\), got"
    ):
        weighted_moments(x, np.ones(19))
    for bad in (np.zeros(20), -np.ones(20), np.full(20, np.nan)):
        with pytest.raises(ValueError, match="finite, not negative and not all zero"):
            weighted_ess(x, bad)
