"""Every sampler, started in stationarity, is still in the exact law of its discretised chain.

Thousands of chains, 200 steps, on Gaussians with scales 1 and 0.1 and with correlation 0.95; the
law includes the bias of the step. False-alarm rate: 1e-6 a statistic (tests/harness.py), 39
statistics a check (mean, variance and shape of six numbers, 15 products, and the like), fewer than
90 checks: one in 280 for the file, were the seeds changed.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lightning_sgmcmc import SGHMC
from tests.harness import (
    CASES,
    CORRELATED,
    SCALES,
    VARIANTS,
    Case,
    Chains,
    Setting,
    baoab,
    check_law,
    interleaved,
    invariant,
    langevin,
)
from tests.posteriors import LinearRegression

each_sampler = pytest.mark.parametrize("case", CASES + VARIANTS, ids=lambda c: c.name)
each_linear_sampler = pytest.mark.parametrize(
    "case", [c for c in CASES + VARIANTS if c.linear], ids=lambda c: c.name
)
NOISE = np.diag([9.0, 400.0])


@each_sampler
@pytest.mark.parametrize("posterior", [SCALES, CORRELATED], ids=["scales", "correlated"])
def test_stays_in_its_law(case: Case, posterior: LinearRegression) -> None:
    check_law(case, posterior)


@each_linear_sampler
def test_counts_gradient_noise(case: Case) -> None:
    check_law(case, SCALES, noise=lambda C: NOISE, steps=50, seed=2)


@each_sampler
def test_follows_the_temperature(case: Case) -> None:
    check_law(case, SCALES, temperature=0.3, fraction=0.2, steps=50, seed=3)


@pytest.mark.parametrize("mu", [0.0, 0.5, 0.95])
def test_sghmc_is_unbiased_on_a_gaussian_at_every_stable_step(mu: float) -> None:
    case = Case("SGHMC", SGHMC, baoab, {"momentum": mu})
    for fraction in (0.1, 0.5, 0.95):
        chains = Chains(case, CORRELATED, 1, fraction=fraction)
        P = chains.law.stationary(chains.noise_law())[:2, :2]
        np.testing.assert_allclose(P, np.linalg.inv(CORRELATED.precision), rtol=1e-9)
    check_law(case, CORRELATED, fraction=0.95, seed=4)


@pytest.mark.parametrize("mu", [0.0, 0.9])
def test_kinetic_temperature_is_that_of_the_law(mu: float) -> None:
    """w' C^-1 w / d of 40,000 coordinates, to five standard errors (6e-7)."""
    case = Case("SGHMC", SGHMC, baoab, {"momentum": mu})
    chains = Chains(case, SCALES, 20_000, fraction=0.25)
    expected = np.trace(chains.law.stationary(chains.noise_law())[2:, 2:]) / 2
    assert expected == pytest.approx(1.0, abs=1e-9)
    chains.start(chains.law.start(chains.noise_law()))
    assert chains.sampler.kinetic_temperature() is None
    chains.step(60)
    measured = chains.sampler.kinetic_temperature()
    assert measured == pytest.approx(expected, abs=5 * np.sqrt(2 / 40_000))


# The laws themselves


def test_langevin_law_is_the_closed_form() -> None:
    """P = (A - (h/2) A C A)^-1, and (1 + h C V / 2) / (a (1 - h a C / 2)) with noise."""
    C, h = np.diag([0.7, 0.02]), 0.1
    A = CORRELATED.precision
    P = langevin(Setting(A, C, h)).stationary(lambda P: np.zeros((2, 2)))
    np.testing.assert_allclose(P, np.linalg.inv(A - h / 2 * A @ C @ A), rtol=1e-12)
    law = langevin(Setting(SCALES.precision, C, h))
    a, g, v = 100.0, 0.02, 400.0
    exact = (1 + h * g * v / 2) / (a * (1 - h * a * g / 2))
    np.testing.assert_allclose(law.stationary(lambda P: NOISE)[1, 1], exact, rtol=1e-12)


@pytest.mark.parametrize("law", [langevin, baoab, interleaved, invariant])
def test_joint_law_in_stationarity_is_m_to_the_lag_times_p(law: object) -> None:
    """With theta and w started together, cov(theta_t+k, theta_t) = (M^k P) restricted to theta."""
    options = {"momentum": 0.8, "memory": 3}
    s = Setting(CORRELATED.precision, np.diag([0.5, 0.1]), 0.1, options=options)
    found = law(s)  # type: ignore[operator]
    P = found.stationary(lambda P: NOISE)
    joint = found.joint((400, 403), lambda P: NOISE)
    np.testing.assert_allclose(joint[:2, :2], P[:2, :2], rtol=1e-9)
    lagged = (np.linalg.matrix_power(found.M, 3) @ P)[:2, :2]
    np.testing.assert_allclose(joint[2:, :2], lagged, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("posterior", [SCALES, CORRELATED], ids=["scales", "correlated"])
def test_the_regressions_have_the_stated_posteriors(posterior: LinearRegression) -> None:
    """Mean 0, and mode, Hessian and gradient agree with autograd's."""
    mode, hessian = posterior.mode()
    np.testing.assert_allclose(mode, 0, atol=1e-12)
    np.testing.assert_allclose(posterior.precision, hessian, rtol=1e-9, atol=1e-12)
    theta = torch.randn(3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    theta.requires_grad_()
    potential = posterior.potential(theta).sum()
    (expected,) = torch.autograd.grad(potential, theta)
    likelihood = posterior.gradient(theta.detach(), posterior.data(torch.float64))
    found = posterior.num_data * likelihood + theta.detach() / posterior.prior_variance
    torch.testing.assert_close(found, expected)
