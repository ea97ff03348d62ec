"""SMILE against the closed form of its variances under gradient noise, and its step.

Chance enters one statistic for each noise, whose seeds are fixed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from lightning_sgmcmc import MCLMC, SMILE, AveragedLBFGS, BatchStream, GaussianPrior, RMSProp
from lightning_sgmcmc.chain.checks import check_batches, target_notes

#: Curvatures of a Gaussian of 300 weights, and a step of a tenth of the largest stable one.
CURVATURE = np.logspace(0, 1, 300)
DT = 0.1 * 2 / math.sqrt(CURVATURE[-1])


def variances(shape: np.ndarray, heat: float, *, T: float = 1.0) -> tuple[np.ndarray, ...]:
    """Return the stationary variances over the target's, and those of the closed form.

    Args:
        shape: Of the noise over directions, of mean 1.
        heat: Its mean over what the chain injects, n / (1 - mu^2).
        T: The temperature, which scales the target and leaves the ratios as they are.
    """
    curvature = torch.tensor(CURVATURE)
    length = math.sqrt(T * float((1 / curvature).sum()))
    mu = math.exp(-math.sqrt(T * len(CURVATURE)) * DT / length)
    n = heat * (1 - mu**2) * shape
    scale = torch.tensor(np.sqrt(T * n) / DT)
    generator = torch.Generator().manual_seed(0)

    def normal() -> torch.Tensor:
        return torch.randn(30, len(CURVATURE), generator=generator, dtype=torch.float64)

    theta = (math.sqrt(T) * normal() / curvature.sqrt()).requires_grad_()
    sampler = SMILE([theta], DT**2, num_data=1, seed=1, length=length, temperature=T)
    sampler.stack()
    sampler.freeze()
    assert sampler.recursion(DT**2) == pytest.approx((mu, (1 + mu) / 2 * DT**2))
    found = []
    for step in range(1200):
        theta.grad = theta.detach() * curvature + scale * normal()
        sampler.step()
        if step >= 400:
            found.append((theta.detach().square() * curvature).mean(0).numpy() / T)
    return np.mean(found, axis=0), 1 + (n - n.mean()) / (1 - mu**2 + n.mean())


@pytest.mark.parametrize("heat", [0.3, 3.0])
def test_isotropic_noise_heats_nothing(heat: float) -> None:
    """Where SGHMC's variances are 1.3 and 4 times too large, each third is right within 1.5 %.

    A third of the weights has a standard error below .3 %; at three times the bath there are .9 %
    of higher order in the step.
    """
    found, _ = variances(np.ones(300), heat)
    assert [part.mean() for part in np.split(found, 3)] == pytest.approx([1, 1, 1], abs=0.015)


@pytest.mark.parametrize("T", [1.0, 0.25])
@pytest.mark.parametrize("heat", [0.3, 1.0])
def test_other_noise_warms_where_it_is_and_cools_where_it_is_not(heat: float, T: float) -> None:
    """Every second weight has the noise: 1 + a / (1 + a) and 1 / (1 + a) within .03.

    The closed form holds for many weights; the chain's differ by up to .025, in the same direction
    at a smaller step.
    """
    shape = np.tile([2.0, 0.0], 150)
    found, expected = variances(shape, heat, T=T)
    for i in (0, 1):
        assert found[i::2].mean() == pytest.approx(expected[i::2].mean(), abs=0.03)
    assert expected[:2] == pytest.approx([1 + heat / (1 + heat), 1 / (1 + heat)])


def test_noise_in_proportion_to_the_curvature() -> None:
    """As the noise of minibatches near a mode is: the stiffest third is too warm, within .03."""
    found, expected = variances(CURVATURE / CURVATURE.mean(), 1.0)
    for got, stated in zip(np.split(found, 3), np.split(expected, 3), strict=True):
        assert got.mean() == pytest.approx(stated.mean(), abs=0.03)


def test_on_the_whole_data_it_takes_the_steps_of_mclmc() -> None:
    """To the bit, also where L follows the chain."""
    start = torch.linspace(-1, 1, 12, dtype=torch.float64)
    ends = []
    for kind, options in ((SMILE, {}), (MCLMC, {"target_energy_variance": None})):
        theta = start.clone().requires_grad_()
        sampler: Any = kind([theta], 0.05, num_data=3, seed=4, prior=GaussianPrior(2.0), **options)
        for step in range(80):
            if step == 70:
                sampler.freeze()
            theta.grad = theta.detach() ** 3
            sampler.step()
        ends.append(theta.detach().clone())
    assert torch.equal(*ends)
    assert not torch.equal(ends[0], start)


def turned(w: np.ndarray, g: np.ndarray, C: np.ndarray, eps: float) -> np.ndarray:
    """Return B of half a step as the class writes it, g the gradient of U."""
    d, size = len(w), np.sqrt(g @ (C * g))
    e = -C * g / size
    c = e @ (w / C)
    y = eps * size / (2 * (d - 1))
    x = y * (1 + (d - 1) * (d - 2) / (3 * d * (d + 2)) * y**2)
    return (w + e * (np.sinh(x) + c * (np.cosh(x) - 1))) / (np.cosh(x) + c * np.sinh(x))


def test_the_velocity_has_length_one_in_the_metric_of_each_step_while_that_adapts() -> None:
    """Nothing is forgotten over this length: steps are a function of the first velocity."""
    num_data, lr, scale = 10, 0.05, torch.tensor([1.0, 3.0, 0.2], dtype=torch.float64)
    theta = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64, requires_grad=True)
    metric = RMSProp(alpha=0.5)
    sampler = SMILE([theta], lr, num_data=num_data, length=1e14, preconditioner=metric)
    eps = np.sqrt(3 * lr / num_data)
    for step in range(4):
        theta.grad = scale * theta.detach()
        g, before = num_data * theta.grad.numpy().copy(), theta.detach().numpy().copy()
        velocity = [v.numpy().copy() for v in sampler.velocity]
        sampler.step()
        if step:
            C = sampler.preconditioner.root()[0].numpy() ** 2
            w = velocity[0] / np.sqrt((velocity[0] ** 2 / C).sum())
            w = turned(turned(w, g, C, eps), g, C, eps)
            np.testing.assert_allclose(theta.detach().numpy(), before + eps * w, rtol=1e-6)


def test_it_counts_on_independent_minibatches() -> None:
    """Reshuffled ones cancel within a pass for the weights, and not for the velocity."""
    sampler = SMILE([torch.zeros(3, requires_grad=True)], 0.1, num_data=8, prior=GaussianPrior())
    data = (torch.zeros(8, 1), torch.zeros(8))
    for sampling, notes in (("independent", 0), ("reshuffled", 1)):
        stream = BatchStream(data, batch_size=2, sampling=sampling)
        check_batches(sampler, stream)
        assert len(target_notes(sampler, True, stream.sampling)) == notes


def test_what_it_cannot_sample_is_refused() -> None:
    theta = torch.zeros(1, requires_grad=True)
    theta.grad = torch.ones(1)
    with pytest.raises(RuntimeError, match="SMILE turns a velocity of constant length, which take"):
        SMILE([theta], 0.1, num_data=1).step()
    two = torch.zeros(2, requires_grad=True)
    two.grad = torch.ones(2)
    secant = SMILE([two], 0.1, num_data=1, preconditioner=AveragedLBFGS())
    with pytest.raises(RuntimeError, match=r"SMILE measures w' C\^-1 w, which AveragedLBFGS"):
        secant.step(lambda: torch.tensor(0.0))
    with pytest.raises(ValueError, match="SMILE has no limit at temperature 0"):
        SMILE([two], 0.1, temperature=0.0)
