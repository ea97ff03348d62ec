"""The configurational temperature against closed forms and a law that is not Gaussian."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lightning_sgmcmc import SGLD, GaussianPrior
from lightning_sgmcmc.diagnostics import (
    configurational_temperature,
    gradient_of_potential,
    mean_temperature,
)
from tests.lightning_sgmcmc.problem import Problem

A = np.array([[1.0, 0.6], [0.6, 0.5]])
MU = np.array([40.0, -7.0])


def gaussian(
    temperature: float, shape: tuple[int, int], seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return independent draws of exp(-U/T), U = (x - mu)' A (x - mu) / 2, and their gradients."""
    rng = np.random.default_rng(seed)
    root = np.linalg.cholesky(temperature * np.linalg.inv(A))
    x = MU + rng.standard_normal((*shape, 2)) @ root.T
    return x, (x - MU) @ A


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
def test_independent_draws_have_the_temperature_that_they_were_drawn_at(temperature: float) -> None:
    """Within 4 standard errors; they are about 1 % (a false alarm in 16,000)."""
    result = configurational_temperature(*gaussian(temperature, (4, 5000), seed=0)).total
    assert result.num_weights == 2
    assert result.standard_error < 0.02 * temperature
    assert abs(result.value - temperature) < 4 * result.standard_error


def test_the_error_of_a_mean_counts_correlation() -> None:
    """AR(1) of coefficient .5 around 1: the mean's deviation is sqrt((1 + a) / (1 - a) / D).

    Mean square over 400 series, whose error is some 5 %; the first 3 of 803 values are left out of
    the blocks, and not of the mean.
    """
    rng = np.random.default_rng(3)
    x = rng.standard_normal((400, 803))
    for t in range(1, 803):
        x[:, t] = 0.5 * x[:, t - 1] + np.sqrt(0.75) * x[:, t]
    found = [mean_temperature(1 + values) for values in x]
    errors = np.array([t.standard_error for t in found])
    assert np.sqrt((errors**2).mean()) == pytest.approx(np.sqrt(3 / 803), rel=0.1)
    spread = np.std([t.value for t in found])
    assert spread == pytest.approx(np.sqrt(3 / 803), rel=0.15)
    assert found[0].value == pytest.approx(1 + x[0].mean())
    assert np.isnan(mean_temperature(np.ones(7)).standard_error)


def test_a_law_that_is_not_gaussian() -> None:
    """U = x^4 / 4 at T = 2: x^4 / 4 / T is Gamma(1/4); T by 4 standard errors (about 1.5 %)."""
    rng = np.random.default_rng(1)
    x = (8 * rng.gamma(0.25, size=(2, 20_000, 3))) ** 0.25 * rng.choice([-1, 1], (2, 20_000, 3))
    result = configurational_temperature(x, x**3).total
    assert abs(result.value - 2) < 4 * result.standard_error
    assert result.standard_error < 0.05


def test_the_centre_costs_no_bias_in_few_draws() -> None:
    """2,000 chains of 16 independent draws: centring on the chain's own mean would give 15/16."""
    result = configurational_temperature(*gaussian(1.0, (2000, 16), seed=2)).total
    assert abs(result.value - 1) < 4 * result.standard_error
    assert result.standard_error < 0.0625 / 8


def test_the_standard_error_is_the_spread_of_the_estimates() -> None:
    """300 estimates: their deviation over the mean stated one lies within 4 of its own errors."""
    results = [
        configurational_temperature(*gaussian(1.0, (4, 64), seed=10 + i)).total for i in range(300)
    ]
    spread = np.std([r.value for r in results])
    stated = np.sqrt(np.mean([r.standard_error**2 for r in results]))
    assert abs(spread / stated - 1) < 4 / np.sqrt(600) + 0.05


def test_each_layer_has_its_own_and_still_weights_do_not_count() -> None:
    """First weights at T = 1, last ones at T = 4, between them one that is pruned."""
    x, g = gaussian(1.0, (4, 2000), seed=3)
    y, k = gaussian(4.0, (4, 2000), seed=4)
    zeros = np.zeros((4, 2000, 1))
    weights, gradients = np.concatenate([x, zeros, y], 2), np.concatenate([g, zeros + 5, k], 2)
    result = configurational_temperature(weights, gradients, {"a": 2, "pruned": 1, "b": 2})
    assert abs(result.layers["a"].value - 1) < 4 * result.layers["a"].standard_error
    assert abs(result.layers["b"].value - 4) < 4 * result.layers["b"].standard_error
    assert result.layers["pruned"].num_weights == 0
    assert np.isnan(result.layers["pruned"].value)
    assert result.total.num_weights == 4
    mean = (result.layers["a"].value + result.layers["b"].value) / 2
    assert result.total.value == pytest.approx(mean, rel=1e-12)


def test_chains_that_are_pruned_apart_have_the_temperature_of_their_own_weights() -> None:
    x, g = gaussian(1.0, (4, 2000), seed=3)
    x, g = np.tile(x, 2), np.tile(g, 2)
    for chain in range(4):
        x[chain, :, chain] = 0
    whole = configurational_temperature(x, g).total
    assert abs(whole.value - 1) < 4 * whole.standard_error
    assert whole.num_weights == 4
    alone = [configurational_temperature(x[k : k + 1], g[k : k + 1]).total.value for k in range(4)]
    assert whole.value == pytest.approx(np.mean(alone), rel=1e-12)


def test_sgld_shows_its_discretisation() -> None:
    """tr(A P) / d = 1 / (1 - h a / 2) = 1.43 for h a = .6; 64 chains, 4 standard errors (1.5 %)."""
    num_data, h = 10, 0.3
    theta = torch.zeros(64, 3, dtype=torch.float64, requires_grad=True)
    sampler = SGLD([theta], lr=h * num_data, num_data=num_data, seed=3)
    path = []
    for _ in range(1020):
        theta.grad = 2.0 * theta.detach() / num_data
        sampler.step()
        path.append(theta.detach().numpy().copy())
    x = np.stack(path[20:], axis=1)
    result = configurational_temperature(x, 2.0 * x).total
    assert abs(result.value - 1 / (1 - h * 2.0 / 2)) < 4 * result.standard_error
    assert result.standard_error < 0.02


def test_the_gradient_is_that_of_the_potential() -> None:
    """Against autograd on U itself; two half batches are the whole."""
    problem = Problem()
    target = problem.target(GaussianPrior(0.3, mean=0.1))
    everything = (problem.x, problem.y)
    expected = torch.autograd.grad(target.potential(everything), problem.params)
    halves = [(problem.x[:20], problem.y[:20]), (problem.x[20:], problem.y[20:])]
    for batches in ([everything], halves):
        for mine, truth in zip(gradient_of_potential(target, batches), expected, strict=True):
            torch.testing.assert_close(mine, truth, rtol=1e-10, atol=1e-10)


def test_what_cannot_be_said_is_nan_and_bad_input_is_one_line() -> None:
    x, g = gaussian(1.0, (2, 7), seed=5)
    assert np.isnan(configurational_temperature(x, g).total.value)
    with pytest.raises(ValueError, match=r"\[chains, draws, weights\], got shapes \(2, 7, 2\) and"):
        configurational_temperature(x, g[:, :6])
    with pytest.raises(ValueError, match="the layers have 3 weights together, the draws 2"):
        configurational_temperature(x, g, {"a": 1, "b": 2})
