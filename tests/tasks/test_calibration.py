"""Simulation-based calibration: ranks that are uniform, and those of draws that are not right."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from tasks.experiments.calibration import uniformity

DRAWS, REPLICATES = 100, 400


def fractions(width: float, shift: float = 0.0) -> np.ndarray:
    """Return ranks where theta ~ N(0, 1), y ~ N(theta, 1), of draws of another width or mean."""
    rng = np.random.default_rng(0)
    theta = rng.normal(size=(REPLICATES, 3))
    y = theta + rng.normal(size=theta.shape)
    draws = y / 2 + shift + width * np.sqrt(0.5) * rng.normal(size=(DRAWS, *theta.shape))
    below: np.ndarray = (draws < theta).mean(0)
    return below


def test_ranks_of_the_exact_posterior_are_uniform() -> None:
    found = uniformity(fractions(1.0), DRAWS)
    assert found.corrected > 0.05
    assert found.corrected == min(1.0, 3 * found.p.min())
    np.testing.assert_allclose(found.spread, 1, atol=4 * np.sqrt(0.2 / REPLICATES))


@pytest.mark.parametrize(("width", "shift"), [(0.7, 0.0), (1.4, 0.0), (1.0, 0.3)])
def test_a_wrong_posterior_is_found(width: float, shift: float) -> None:
    found = uniformity(fractions(width, shift), DRAWS)
    assert found.corrected < 1e-3
    if not shift:
        assert np.all((found.spread > 1.1) if width < 1 else (found.spread < 0.9))


def test_one_of_each_rank_is_uniform_as_far_as_ten_bins_hold_101_values() -> None:
    ranks = np.arange(DRAWS + 1)[:, None] / DRAWS
    found = uniformity(ranks, DRAWS)
    assert found.p[0] == pytest.approx(1.0, abs=1e-12)
    assert found.spread[0] == pytest.approx(1.0, rel=1e-12)


def test_the_p_value_is_that_of_equal_bins() -> None:
    """With 99 draws the 100 ranks fill ten bins of ten."""
    rng = np.random.default_rng(1)
    ranks = rng.integers(0, 100, size=500)
    expected = stats.chisquare(np.histogram(ranks, bins=10, range=(0, 100))[0]).pvalue
    assert uniformity(ranks[:, None] / 99, 99).p[0] == pytest.approx(expected, rel=1e-12)
