"""Autocorrelation times against the closed forms of AR(1) and of SGLD on a Gaussian."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.signal import lfilter

from lightning_sgmcmc import SGLD
from lightning_sgmcmc.diagnostics import atuc, autocorrelation_time, ess


def ar1(rho: float, chains: int, draws: int, quantities: int, seed: int) -> np.ndarray:
    """Return stationary AR(1) traces of unit variance."""
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((chains, draws, quantities))
    z[:, 1:] *= np.sqrt(1 - rho**2)
    return lfilter([1.0], [1.0, -rho], z, axis=1)


@pytest.mark.parametrize("rho", [-0.5, 0.0, 0.5, 0.95])
def test_ar1_has_its_closed_form(rho: float) -> None:
    """Means over 40 quantities have a standard error below 1.2 %; 6 % is five of them."""
    x = ar1(rho, 4, 10_000, 40, seed=0)
    expected = (1 + rho) / (1 - rho)
    assert autocorrelation_time(x).mean() == pytest.approx(expected, rel=0.06)
    assert autocorrelation_time(x, "psgld").mean() == pytest.approx(expected / 2, rel=0.06)


def test_the_conventions_are_those_of_the_papers() -> None:
    """SGLD itself, lr = eps N / 2: 4/(eps lambda) - 1 and 2/(eps lambda) - 1/2.

    32 stationary chains of 6,000 draws, two curvatures; the standard error is about 2 %.
    """
    num_data, eps = 20, 0.4
    curvature = torch.tensor([1.0, 0.3], dtype=torch.float64)
    variance = 1 / (curvature - eps / 4 * curvature**2)
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(32, 2, generator=generator, dtype=torch.float64) * variance.sqrt()
    theta = start.requires_grad_()
    sampler = SGLD([theta], lr=eps * num_data / 2, num_data=num_data, seed=1)
    path = []
    for _ in range(6000):
        theta.grad = curvature * theta.detach() / num_data
        sampler.step()
        path.append(theta.detach().numpy().copy())
    x = np.stack(path, axis=1)
    rate = eps * curvature.numpy()
    np.testing.assert_allclose(autocorrelation_time(x), 4 / rate - 1, rtol=0.08)
    np.testing.assert_allclose(autocorrelation_time(x, "psgld"), 2 / rate - 0.5, rtol=0.08)


def test_agrees_with_a_plain_sum_of_autocorrelations() -> None:
    """Lags summed directly up to the first negative pair, no FFT, no library.

    The pairs are monotone for this seed up to noise of a few percent.
    """
    x = ar1(0.7, 1, 4000, 1, seed=3)[0, :, 0]
    c = x - x.mean()
    rho = np.array([c[: len(c) - s] @ c[s:] for s in range(200)]) / (c @ c)
    pairs = rho[::2] + rho[1::2]
    last = int(np.argmax(pairs < 0))
    direct = -1 + 2 * np.minimum.accumulate(pairs[:last]).sum()
    assert float(autocorrelation_time(x[None])) == pytest.approx(direct, rel=0.03)


def test_chains_that_disagree_have_a_long_time() -> None:
    x = ar1(0.0, 2, 1000, 1, seed=4)
    x[0] += 3
    assert float(autocorrelation_time(x)[0]) > 100


def test_atuc_is_the_mean_time_of_an_independent_draw() -> None:
    """Two AR(1) of known times, 1 and 3 draws; a constant weight has none and counts for none."""
    x = np.concatenate([ar1(r, 2, 20_000, 1, seed=5) for r in (0.0, 0.5)], axis=-1)
    x = np.concatenate([x, np.ones((2, 20_000, 1))], axis=-1)
    assert atuc(x, 0.01) == pytest.approx(0.01 * (1 + 3) / 2, rel=0.06)
    with pytest.raises(ValueError, match="seconds_per_draw must be positive, got 0"):
        atuc(x, 0)
    assert np.isnan(atuc(np.ones((2, 100)), 1.0))


def test_what_cannot_be_said_is_nan() -> None:
    x = ar1(0.2, 2, 100, 3, seed=6)
    x[:, :, 1] = 0.1
    x[0, 0, 2] = np.nan
    assert np.isnan(autocorrelation_time(x)[1:]).all()
    assert np.isfinite(autocorrelation_time(x)[0])
    assert np.isnan(autocorrelation_time(x[:, :7])).all()
    assert autocorrelation_time(1e-40 * x)[0] == pytest.approx(autocorrelation_time(x)[0])
    with pytest.raises(ValueError, match="convention must be sgfs or psgld, got 'neal'"):
        autocorrelation_time(x, "neal")


def test_is_the_inverse_of_the_relative_ess() -> None:
    """Split chains estimate a little differently: 5 % at 20,000 draws."""
    x = ar1(0.6, 4, 5000, 10, seed=7)
    np.testing.assert_allclose(20_000 / ess(x, "mean"), autocorrelation_time(x), rtol=0.05)
