"""SGLD with moment-matched increments: weak order 1, and the exact law at small steps.

False-alarm rate: 1e-6 a statistic (tests/harness.py), 25 statistics.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lightning_sgmcmc import SGLD, GaussianPrior
from lightning_sgmcmc.noise import Increments
from tests.harness import assert_normal


def test_increments_have_the_moments_of_a_normal_up_to_the_third() -> None:
    """128 equally likely values: mean 0, variance 1, third moment 0, exactly; fourth 1.8.

    Frequencies of two million draws by chi-square on 127 degrees of freedom (5 deviations).
    """
    theta = torch.zeros(2_000_000, requires_grad=True)
    sampler = SGLD([theta], 0.5, increments="moment-matched", num_data=1)
    theta.grad = torch.zeros_like(theta)
    sampler.step()
    values, counts = np.unique(theta.detach().numpy(), return_counts=True)
    assert len(values) == 128
    assert abs(values.mean()) < 1e-4
    assert np.mean(values**2) == pytest.approx(1, abs=1e-4)
    assert abs(np.mean(values**3)) < 1e-3
    assert np.mean(values**4) == pytest.approx(1.8, abs=1e-3)
    expected = 2_000_000 / 128
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi_square - 127) < 5 * math.sqrt(2 * 127)


def bias(lr: float, increments: Increments) -> tuple[float, float]:
    """Return E[theta^2] minus its value under U = theta^2 / 2 + cos(2 theta), and its error."""
    grid = np.linspace(-8, 8, 40_001)
    density = np.exp(-(grid**2 / 2 + np.cos(2 * grid)))
    cdf = np.cumsum(density) / density.sum()
    exact = (density * grid**2).sum() / density.sum()
    start = np.interp(np.random.default_rng(1).random(60_000), cdf, grid)
    theta = torch.tensor(start).requires_grad_()
    sampler = SGLD([theta], lr, increments=increments, num_data=1, seed=2)
    looks = []
    for step in range(round(24 / lr)):
        theta.grad = theta.detach() - 2 * torch.sin(2 * theta.detach())
        sampler.step()
        if step * lr > 4:
            looks.append(theta.detach().numpy() ** 2)
    means = np.mean(looks, axis=0)
    return float(means.mean() - exact), float(means.std() / math.sqrt(len(means)))


@pytest.mark.parametrize("increments", ["gaussian", "moment-matched"])
def test_the_bias_halves_with_the_step(increments: Increments) -> None:
    """Weak order 1 on an anharmonic target, to five standard errors over independent chains."""
    biases, errors = zip(*[bias(lr, increments) for lr in (0.16, 0.08)], strict=True)
    assert abs(biases[0]) > 12 * errors[0]
    order = math.log2(biases[0] / biases[1])
    spread = math.hypot(errors[0] / biases[0], errors[1] / biases[1]) / math.log(2)
    assert abs(order - 1) < 5 * spread + 0.2  # 0.2 for the terms in lr^2
    assert order > 0.5


def test_stays_in_its_law_at_a_small_step() -> None:
    """On a correlated Gaussian: covariance (A - (h/2) A A)^-1, and normal in shape."""
    A = np.linalg.inv(np.array([[1.0, 0.8], [0.8, 1.0]]))
    n, prior, h = 20, 3.0, 0.01
    law = np.linalg.inv(A - h / 2 * A @ A)
    rng = np.random.default_rng(3)
    theta = torch.tensor(rng.standard_normal((20_000, 2)) @ np.linalg.cholesky(law).T).float()
    theta.requires_grad_()
    sampler = SGLD(
        [theta],
        h * n,
        increments="moment-matched",
        num_data=n,
        prior=GaussianPrior(prior),
        seed=4,
    )
    likelihood = torch.tensor((A - np.eye(2) / prior) / n).float()
    for _ in range(300):
        theta.grad = theta.detach() @ likelihood
        sampler.step()
    assert_normal(theta.detach().double().numpy(), law)


def test_an_unknown_kind_of_increments_is_refused() -> None:
    with pytest.raises(ValueError, match="increments must be gaussian or moment-matched, got 'u'"):
        SGLD([torch.zeros(1, requires_grad=True)], 0.1, increments="u")
