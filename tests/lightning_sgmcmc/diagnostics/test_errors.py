"""E1 and E2 against NumPy's moments and the definition written out."""

from __future__ import annotations

import numpy as np
import pytest

from lightning_sgmcmc.diagnostics import RunningErrors, relative_errors

RNG = np.random.default_rng(0)
MEAN = np.array([1.0, -2.0, 0.0])
COVARIANCE = np.array([[2.0, 0.3, 0.0], [0.3, 1.0, -0.2], [0.0, -0.2, 0.5]])
X = RNG.standard_normal((4, 50, 3)) * 1.3 + 0.4


def written_out(x: np.ndarray) -> tuple[float, float]:
    """Equation 14 of Ahn et al. as sums over indices."""
    t = len(x)
    mean = sum(x) / t
    e1 = sum(abs(mean[i] - MEAN[i]) for i in range(3)) / sum(abs(m) for m in MEAN)
    c = sum(np.outer(row - mean, row - mean) for row in x) / t
    e2 = sum(abs(c[i, j] - COVARIANCE[i, j]) for i in range(3) for j in range(3))
    return e1, e2 / sum(abs(v) for v in COVARIANCE.ravel())


def test_each_chain_has_the_papers_errors() -> None:
    errors = relative_errors(X, MEAN, COVARIANCE)
    for c in range(4):
        e1, e2 = written_out(X[c])
        assert errors.mean[c] == pytest.approx(e1, rel=1e-12)
        assert errors.covariance[c] == pytest.approx(e2, rel=1e-12)
    pooled = relative_errors(X.reshape(1, -1, 3), MEAN, COVARIANCE)
    assert (pooled.mean[0], pooled.covariance[0]) == pytest.approx(written_out(X.reshape(-1, 3)))


def test_streaming_is_the_error_of_all_draws_so_far_at_every_time() -> None:
    running, start = RunningErrors(MEAN, COVARIANCE), 0
    for stop in (1, 2, 9, 10, 37, 50):
        running.update(X[:, start:stop], seconds=0.1 * stop)
        start = stop
    assert [e.draws for e in running.history] == [1, 2, 9, 10, 37, 50]
    assert [e.seconds for e in running.history] == pytest.approx([0.1, 0.2, 0.9, 1.0, 3.7, 5.0])
    for e in running.history:
        for c in range(4):
            e1, e2 = written_out(X[c, : e.draws])
            assert (e.mean[c], e.covariance[c]) == pytest.approx((e1, e2), rel=1e-11)


def test_no_cancellation_far_from_zero() -> None:
    """A mean of 1e7 costs E2 nothing: sums of squares would lose all its digits."""
    far = RunningErrors(MEAN + 1e7, COVARIANCE)
    near = RunningErrors(MEAN, COVARIANCE)
    for part in np.split(X, 10, axis=1):
        far.update(part + 1e7)
        near.update(part)
    np.testing.assert_allclose(far.history[-1].covariance, near.history[-1].covariance, rtol=1e-6)


def test_draws_of_the_reference_lose_their_error_as_one_over_root_t() -> None:
    """E1 of independent draws falls by sqrt(100); 200 chains put 15 % around the ratio."""
    rng = np.random.default_rng(1)
    x = MEAN + rng.standard_normal((200, 2000, 3)) @ np.linalg.cholesky(COVARIANCE).T
    few, many = (relative_errors(x[:, :n], MEAN, COVARIANCE) for n in (20, 2000))
    assert few.mean.mean() / many.mean.mean() == pytest.approx(10, rel=0.15)
    assert few.covariance.mean() / many.covariance.mean() == pytest.approx(10, rel=0.15)


def test_bad_input_is_one_line() -> None:
    with pytest.raises(ValueError, match=r"mean \[W\] and a covariance \[W, W\], got"):
        RunningErrors(MEAN, COVARIANCE[:2])
    with pytest.raises(ValueError, match="reference's mean must be finite and not all zero"):
        RunningErrors(np.zeros(3), COVARIANCE)
    with pytest.raises(ValueError, match="reference's covariance must be finite"):
        RunningErrors(MEAN, np.nan * COVARIANCE)
    running = RunningErrors(MEAN, COVARIANCE)
    running.update(X)
    with pytest.raises(ValueError, match=r"\[4, n, 3\], got shape \(2, 50, 3\)"):
        running.update(X[:2])
    with pytest.raises(ValueError, match=r"\[4, n, 3\], got shape \(4, 50\)"):
        running.update(X[..., 0])
