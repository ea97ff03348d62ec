"""SGNHT against the law of weights and friction, with and without gradient noise.

On a Gaussian its chain is not linear, so its law is tested where the step is small. False-alarm
rate: 1e-6 a statistic (tests/harness.py), 36 statistics.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lightning_sgmcmc import SGHMC, SGNHT, AveragedLBFGS, RMSProp
from lightning_sgmcmc.samplers.free_weights import count_free
from tests.harness import assert_normal
from tests.lightning_sgmcmc.problem import N, Problem


def stacked(start: np.ndarray, lr: float, **kw: Any) -> SGNHT:
    theta = torch.tensor(start).requires_grad_()
    sampler = SGNHT([theta], lr, **({"num_data": 1, "seed": 1} | kw))
    sampler.stack(one_generator=True)
    return sampler


@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("metric", [None, (2.0, 0.3)])
def test_weights_and_friction_have_their_joint_law(temperature: float, metric: Any) -> None:
    """theta ~ N(0, T Sigma) and xi ~ N(a, 1 / (d s^2)), independent, at a small step.

    d = 2 and s = 3 make xi wander about its mean by twice that mean, and below zero.
    """
    A = np.linalg.inv(np.array([[1.0, 0.8], [0.8, 1.0]]))
    covariance = temperature * np.linalg.inv(A)
    C = np.array(metric or (1.0, 1.0))
    a, s = -math.log(0.9), 3.0
    rng = np.random.default_rng(0)
    start = rng.standard_normal((20_000, 2)) @ np.linalg.cholesky(covariance).T
    sampler = stacked(
        start,
        0.04 / np.linalg.eigvals(C[:, None] * A).real.max(),
        momentum=0.9,
        thermostat=s,
        temperature=temperature,
        preconditioner=None if metric is None else RMSProp(alpha=0.0, eps=1e-5),
    )
    theta = sampler.params[0]
    if metric is not None:
        sampler.preconditioner.update([torch.tensor(1 / C - 1e-5).expand(20_000, 2)])
    sampler.freeze()
    precision = torch.tensor(A)
    for _ in range(200):
        theta.grad = theta.detach() @ precision
        sampler.step()
    found = np.hstack([theta.detach().numpy(), sampler.friction.numpy()[:, None] - a])
    law = np.zeros((3, 3))
    law[:2, :2], law[2, 2] = covariance, 1 / (2 * s**2)
    assert_normal(found, law)


def noisy_run(sampler: SGHMC, sd: float, steps: int) -> tuple[float, float]:
    """Return the mean kinetic temperature and variance on N(0, I) with gradient noise."""
    generator = torch.Generator().manual_seed(2)
    theta = sampler.params[0]
    kinetic, variance = [], []
    for step in range(steps):
        theta.grad = theta.detach() + sd * torch.randn(theta.shape, generator=generator)
        sampler.step()
        if step >= steps // 3:
            kinetic.append(sampler.kinetic_temperature())
            variance.append(float(theta.detach().square().mean()))
    return float(np.mean(kinetic)), float(np.mean(variance))


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_the_thermostat_absorbs_gradient_noise_that_heats_sghmc(temperature: float) -> None:
    """With noise of variance v on grad U the friction grows by about eta v / (2 T).

    A kick heats by eta v. SGHMC's temperature is T + mu^2 eta v / (1 - mu^2) just after the O
    step; SGNHT holds the mean of before and after at T, and the weights near it. The autocorrelated
    averages over 4,000 weights and 400 steps are good to 1 % (kinetic) and 10 %.
    """
    lr, mu, sd, d = 0.005, 0.98, 3.0, 4000
    start = math.sqrt(temperature) * torch.randn(d, generator=torch.Generator().manual_seed(3))
    kw: dict[str, Any] = {"num_data": 1, "momentum": mu, "temperature": temperature, "seed": 4}
    hot = SGHMC([start.clone().requires_grad_()], lr, **kw)
    kinetic, variance = noisy_run(hot, sd, 600)
    excess = hot.eta * sd**2 / (1 - mu**2)
    assert excess > 0.9
    assert kinetic == pytest.approx(temperature + mu**2 * excess, rel=0.07)
    assert variance == pytest.approx(temperature + excess, rel=0.12)

    cool = SGNHT([start.clone().requires_grad_()], lr, **kw)
    kinetic, variance = noisy_run(cool, sd, 600)
    assert kinetic == pytest.approx(temperature - cool.eta * sd**2 / 2, rel=0.015)
    assert variance == pytest.approx(temperature, rel=0.12)
    absorbed = float(cool.friction) + math.log(mu)
    assert absorbed == pytest.approx(cool.eta * sd**2 / (2 * temperature), rel=0.25)


def test_stays_stable_on_a_stiff_target() -> None:
    """Curvatures 1 and 1e4 at nine tenths of the stable step, from 30 deviations away."""
    curvature = torch.logspace(0, 4, 50, dtype=torch.float64)
    theta = (30 / curvature.sqrt()).requires_grad_()
    sampler = SGNHT([theta], 1.0, num_data=1)
    sampler.set_lr(0.9 * sampler.max_stable_lr(1e4))
    kinetic = []
    for step in range(4000):
        theta.grad = curvature * theta.detach()
        sampler.step()
        if step >= 1000:
            kinetic.append(sampler.kinetic_temperature())
    assert np.mean(kinetic) == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize("momentum", [0.5, 0.9])
def test_cold_sgnht_is_sgd_with_momentum(momentum: float) -> None:
    ours, theirs = Problem(), Problem()
    sampler = SGNHT(ours.params, 0.05, momentum=momentum, num_data=N, temperature=0.0)
    found = ours.run(sampler, 50)
    expected = theirs.run(torch.optim.SGD(theirs.params, 0.05, momentum=momentum), 50)
    assert torch.allclose(found, expected, rtol=1e-11, atol=1e-13)


def test_stacked_chains_move_as_they_would_alone() -> None:
    start = np.random.default_rng(6).standard_normal((4, 3))

    def run(sampler: SGNHT) -> Tensor:
        for _ in range(30):
            sampler.params[0].grad = sampler.params[0].detach() ** 3
            sampler.step()
        return sampler.params[0].detach()

    together = SGNHT([torch.tensor(start).requires_grad_()], 0.05, num_data=1, seed=7)
    together.stack()
    mask = torch.tensor([1.0, 0.0, 1.0])
    together.set_masks([mask.expand(4, 3)])
    found = run(together)
    for k in range(4):
        alone = SGNHT([torch.tensor(start[k]).requires_grad_()], 0.05, num_data=1, seed=7, chain=k)
        alone.set_masks([mask])
        torch.testing.assert_close(run(alone), found[k], rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(alone.friction, together.friction[k], rtol=1e-10, atol=0)
    assert together.friction.unique().numel() == 4


def test_friction_of_masked_chains_counts_free_weights() -> None:
    """Nine tenths of 4,000 weights are masked; the others' temperature stays at 1 (5 errors)."""
    theta = torch.randn(4000, generator=torch.Generator().manual_seed(5)).requires_grad_()
    sampler = SGNHT([theta], 0.02, num_data=1)
    sampler.set_masks([(torch.arange(4000) % 10 == 0).float()])
    kinetic = []
    for _ in range(300):
        theta.grad = theta.detach().clone()
        sampler.step()
        kinetic.append(sampler.kinetic_temperature())
    assert np.mean(kinetic[100:]) == pytest.approx(1, abs=0.03)
    assert float(sampler.friction) == pytest.approx(-math.log(0.95), abs=5 / (20 * 10))


# Errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"momentum": 0.0}, r"momentum must lie in \(0, 1\), got 0"),
        ({"momentum": 1.0}, r"momentum must lie in \(0, 1\), got 1"),
        ({"thermostat": 0.0}, "thermostat must be positive and finite, got 0"),
        ({"thermostat": math.inf}, "thermostat must be positive and finite, got inf"),
    ],
)
def test_arguments_out_of_range(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SGNHT([torch.zeros(1, requires_grad=True)], 0.1, **arguments)


def test_a_metric_without_an_inverse_is_refused() -> None:
    theta = torch.ones(2, requires_grad=True)
    theta.grad = torch.ones(2)
    sampler = SGNHT([theta], 0.1, num_data=1, preconditioner=AveragedLBFGS())
    with pytest.raises(RuntimeError, match="SGNHT measures w' C\\^-1 w, which AveragedLBFGS"):
        sampler.step()
    assert torch.equal(theta.detach(), torch.ones(2))


def test_masks_across_a_coupled_metric_are_refused() -> None:
    class Coupled(RMSProp):
        def inverse_norm(self, vectors: Any) -> Tensor:
            return vectors[0].sum().square() + super().inverse_norm(vectors)

    theta = torch.ones(4, requires_grad=True)
    theta.grad = torch.ones(4)
    sampler = SGNHT([theta], 0.1, num_data=1, preconditioner=Coupled())
    sampler.step()
    sampler.set_masks([torch.tensor([1.0, 0.0, 1.0, 0.0])])
    with pytest.raises(RuntimeError, match=r"cannot mask weights that Coupled.* ties to free ones"):
        sampler.step()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_free_weights_are_counted_in_any_type(dtype: torch.dtype) -> None:
    sampler = SGNHT([nn.Parameter(torch.zeros(70_001, dtype=dtype))], lr=1e-3, num_data=1)
    sampler.set_masks([(torch.arange(70_001) > 0).to(torch.float32)])
    assert float(count_free(sampler)) == 70_000
