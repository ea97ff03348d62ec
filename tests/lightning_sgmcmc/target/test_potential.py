"""The potential's value, gradient and curvature against autograd on the whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from lightning_sgmcmc import GaussianPrior, Target
from lightning_sgmcmc.common.vectors import flatten, unflatten
from lightning_sgmcmc.noise import NoiseStream
from tests.lightning_sgmcmc.problem import N, Problem

PRIOR = GaussianPrior(variance=0.3, mean=0.2)


def dense_hessian(problem: Problem, batch: tuple[Tensor, Tensor], with_prior: bool) -> Tensor:
    """Return the Hessian of mean NLL (- log prior / N) by a functional second derivative."""
    names = [name for name, _ in problem.net.named_parameters()]

    def value(vector: Tensor) -> Tensor:
        parts = unflatten(vector, problem.params)
        out = functional_call(problem.net, dict(zip(names, parts, strict=True)), (batch[0],))
        loss = torch.nn.functional.cross_entropy(out, batch[1])
        return loss - (PRIOR.log_density(parts) / N if with_prior else 0)

    return torch.autograd.functional.hessian(value, problem.weights())


def test_value_and_gradient() -> None:
    problem = Problem()
    target = problem.target(PRIOR)
    batch = (problem.x, problem.y)
    expected = problem.nll(batch).sum() - PRIOR.log_density(problem.params)
    assert torch.allclose(target.potential(batch), expected, rtol=1e-12)
    whole = flatten(torch.autograd.grad(expected, problem.params))
    grads = target.gradient(batch)
    PRIOR.add_gradient_(grads, [p.detach() for p in problem.params], 1 / N)
    assert torch.allclose(N * flatten(grads), whole, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("with_prior", [True, False])
def test_curvature_is_the_hessian(with_prior: bool) -> None:
    problem = Problem()
    batches = [problem.batch(i) for i in range(5)]
    H = dense_hessian(problem, (problem.x, problem.y), with_prior)
    v = torch.randn(len(H), dtype=H.dtype, generator=torch.Generator().manual_seed(1))
    found = problem.target(PRIOR).curvature(unflatten(v, problem.params), batches, with_prior)
    assert torch.allclose(flatten(found), H @ v, rtol=1e-9, atol=1e-12)


def test_exact_diagonal() -> None:
    problem = Problem()
    target = problem.target(PRIOR)
    target.use(problem.batch(0))
    H = dense_hessian(problem, problem.batch(0), with_prior=False)
    diagonal = target.hessian_diagonal(0, NoiseStream(problem.params, 0))
    assert torch.allclose(flatten(diagonal), H.diagonal(), rtol=1e-9, atol=1e-12)


def test_hutchinson_is_unbiased() -> None:
    """The variance of one probe is sum_(j != i) H_ij^2: five standard errors of 1,000 probes."""
    problem = Problem()
    target = problem.target()
    target.use(problem.batch(0))
    H = dense_hessian(problem, problem.batch(0), with_prior=False)
    probes = 1000
    found = flatten(target.hessian_diagonal(probes, NoiseStream(problem.params, 3)))
    error = ((H**2).sum(1) - H.diagonal() ** 2).div(probes).sqrt()
    assert (error > 0).any()
    assert ((found - H.diagonal()).abs() <= 5 * error + 1e-12).all()


def test_reduction_is_applied_to_likelihood_terms_only() -> None:
    problem = Problem()

    def halve(tensors: list[Tensor]) -> None:
        torch._foreach_mul_(tensors, 0.5)

    target = Target(problem.nll, problem.params, N, PRIOR, reduce=halve)
    plain = problem.target(PRIOR)
    batch = problem.batch(2)
    v = [torch.ones_like(p) for p in problem.params]
    without = [flatten(t.curvature(v, [batch], with_prior=False)) for t in (target, plain)]
    whole = [flatten(t.curvature(v, [batch])) for t in (target, plain)]
    assert torch.allclose(without[0], without[1] / 2)
    assert torch.allclose(whole[0] - without[0], whole[1] - without[1])
    halves = [flatten(t.gradient(batch)) for t in (target, plain)]
    assert torch.allclose(halves[0], halves[1] / 2)


def test_needs_a_batch() -> None:
    with pytest.raises(RuntimeError, match=r"call target.use\(batch\) first"):
        _ = Problem().target().batch


def test_the_potential_is_unbiased_over_a_partition() -> None:
    problem = Problem()
    target = problem.target(PRIOR)
    whole = target.potential((problem.x, problem.y)).item()
    parts = [target.potential(problem.batch(i)).item() for i in range(5)]
    assert np.mean(parts) == pytest.approx(whole, rel=1e-12)
