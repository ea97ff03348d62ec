"""Every prior: its gradient is that of its density, and stacked chains are chains alone."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from lightning_sgmcmc import SGLD, FlatPrior, GaussianPrior, LaplacePrior, Prior, Target
from tests.lightning_sgmcmc.priors.cases import CHAINS, PRIORS, SHAPES, attached, params
from tests.lightning_sgmcmc.problem import N, Problem

each_prior = pytest.mark.parametrize("prior", PRIORS, ids=repr)


def gradient(prior: Prior, theta: list[Tensor], scale: float) -> list[Tensor]:
    grads = [torch.full_like(p, 0.25) for p in theta]
    prior.add_gradient_(grads, [p.detach() for p in theta], scale)
    return grads


@each_prior
@pytest.mark.parametrize("scale", [1.0, 1 / 60])
@pytest.mark.parametrize("chains", [None, CHAINS])
def test_gradient_is_that_of_the_density(prior: Prior, scale: float, chains: int | None) -> None:
    theta = [p.requires_grad_() for p in params(chains)]
    prior = attached(prior, theta, chain_dims=0 if chains is None else 1)
    density = prior.log_density(theta)
    assert density.shape == (() if chains is None else (chains,))
    expected = [torch.full_like(p, 0.25) for p in theta]
    if density.requires_grad:
        exact = torch.autograd.grad(density.sum(), theta)
        expected = [e - scale * g for e, g in zip(expected, exact, strict=True)]
    for found, right in zip(gradient(prior, theta, scale), expected, strict=True):
        assert torch.allclose(found, right, rtol=1e-12)


@each_prior
def test_stacked_chains_are_chains_alone(prior: Prior) -> None:
    theta = params(CHAINS)
    stacked = attached(prior, theta, chain_dims=1)
    densities, grads = stacked.log_density(theta), gradient(stacked, theta, 0.1)
    curvatures = []
    for k in range(CHAINS):
        own = [p[k] for p in theta]
        alone = attached(prior, own)
        assert float(alone.log_density(own)) == pytest.approx(float(densities[k]), rel=1e-12)
        for found, expected in zip(grads, gradient(alone, own, 0.1), strict=True):
            assert torch.allclose(found[k], expected, rtol=1e-12)
        curvatures.append(alone.max_curvature(own))
    assert stacked.max_curvature(theta) == pytest.approx(max(curvatures), rel=1e-12)


@each_prior
def test_max_curvature_is_the_largest_eigenvalue(prior: Prior) -> None:
    theta = params()
    prior = attached(prior, theta)
    sizes = [p.numel() for p in theta]

    def negative(vector: Tensor) -> Tensor:
        parts = [v.view(p.shape) for v, p in zip(vector.split(sizes), theta, strict=True)]
        return -prior.log_density(parts)

    vector = torch.cat([p.reshape(-1) for p in theta])
    hessian = torch.autograd.functional.hessian(negative, vector)
    largest = max(float(torch.linalg.eigvalsh(hessian).max()), 0.0)
    trainable = [p.requires_grad_() for p in theta]
    assert prior.max_curvature(trainable) == pytest.approx(largest, rel=1e-9, abs=1e-12)


def test_kinks_have_no_gradient() -> None:
    zeros = [torch.zeros(3)]
    for prior in (LaplacePrior(0.1), PRIORS[-1]):
        prior.attach(zeros)
        grads = [torch.ones(3)]
        prior.add_gradient_(grads, zeros, 1.0)
        assert torch.equal(grads[0], torch.ones(3))


def test_properness() -> None:
    assert [prior.proper for prior in PRIORS] == [False] + [True] * (len(PRIORS) - 1)


@each_prior
def test_a_sampler_has_a_prior_of_its_own(prior: Prior) -> None:
    """One prior given to two samplers serves two chains, and a sampler's steps leave it be."""
    first, second = params(), params(CHAINS)
    one = SGLD(
        [(n, p.requires_grad_()) for n, p in zip(SHAPES, first, strict=True)], 0.1, prior=prior
    )
    many = SGLD(
        [(n, p.requires_grad_()) for n, p in zip(SHAPES, second, strict=True)], 0.1, prior=prior
    )
    many.stack()
    assert one.prior.log_density(first).shape == ()
    assert many.prior.log_density(second).shape == (CHAINS,)


def test_the_target_of_stacked_chains_has_a_density_a_chain() -> None:
    theta = params(CHAINS)
    target = Target(lambda b: torch.zeros(CHAINS, 2), theta, N, GaussianPrior(), chain_dims=1)
    alone = [GaussianPrior().log_density([p[k] for p in theta]) for k in range(CHAINS)]
    assert torch.allclose(target.potential(None), -torch.stack(alone))


@each_prior
def test_cold_sgld_descends_the_potential(prior: Prior) -> None:
    """T = 0: a step is minus lr times the gradient of U / N, prior included."""
    problem = Problem()
    names = ["net.0.weight", "net.1.bias", "net.2.weight", "scale"]
    sampler = SGLD(
        list(zip(names, problem.params, strict=True)), 0.1, num_data=N, prior=prior, temperature=0.0
    )
    target = problem.target(sampler.prior)
    potential = target.potential(problem.batch(0)) / N + 0 * sum(p.sum() for p in problem.params)
    exact = torch.autograd.grad(potential, problem.params)
    expected = [p.detach() - 0.1 * g for p, g in zip(problem.params, exact, strict=True)]
    problem.run(sampler, 1)
    for found, right in zip(problem.params, expected, strict=True):
        assert torch.allclose(found, right, rtol=1e-12)


@each_prior
def test_tensors_without_weights_change_nothing(prior: Prior) -> None:
    theta = params()
    more = [*theta, torch.zeros(0, 3, dtype=torch.float64), torch.zeros(2, 0, dtype=torch.float64)]
    found = []
    for tensors in (theta, more):
        own = copy.copy(prior)
        own.attach(tensors, 0, [*SHAPES, "net.3.weight", "net.4.weight"][: len(tensors)])
        grads = gradient(own, tensors, 1.0)[: len(theta)]
        found.append((float(own.log_density(tensors)), own.max_curvature(tensors), grads))
    assert found[0][:2] == pytest.approx(found[1][:2])
    assert all(map(torch.equal, found[0][2], found[1][2]))


def test_flat_prior_adds_nothing() -> None:
    theta = params()
    assert all((g == 0.25).all() for g in gradient(FlatPrior(), theta, 1.0))
