"""The largest eigenvalue of C^(1/2) H C^(1/2) against a dense eigensolver."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lightning_sgmcmc import HASGLD, PSGLD, SGHMC, SGLD, GaussianPrior, Sampler
from lightning_sgmcmc.adaptation import largest_eigenvalue, leading_directions
from lightning_sgmcmc.common.vectors import flatten, unflatten
from tests.lightning_sgmcmc.problem import N, Problem

PRIOR = GaussianPrior(0.5)


def dense(problem: Problem, sampler: Sampler) -> tuple[np.ndarray, np.ndarray]:
    """Return H (with prior) and C column by column."""
    batches = [problem.batch(i) for i in range(5)]
    target = problem.target(PRIOR)
    eye = torch.eye(sum(p.numel() for p in problem.params), dtype=torch.float64)

    def columns(f: object) -> np.ndarray:
        return torch.stack([flatten(f(unflatten(e.clone(), problem.params))) for e in eye]).numpy()

    H = columns(lambda v: target.curvature(v, batches))
    C = columns(sampler.preconditioner.apply_)
    return H, C


def masks_for(problem: Problem) -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [(torch.rand(p.shape, generator=generator) > 0.4).double() for p in problem.params]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", ["identity", "diagonal", "lbfgs"])
def test_against_a_dense_eigensolver(kind: str, masked: bool) -> None:
    problem = Problem()
    make = {"identity": SGLD, "diagonal": PSGLD, "lbfgs": HASGLD}[kind]
    sampler = make(problem.params, 1e-3, num_data=N, prior=PRIOR)
    problem.run(sampler, 6)
    sampler.freeze()
    masks = None
    if masked:
        masks = masks_for(problem)
        sampler.set_masks(masks)
    H, C = dense(problem, sampler)
    if masks is not None:
        M = np.diag(flatten(masks).numpy())
        H, C = M @ H @ M, M @ C @ M
    exact = np.linalg.eigvals(C @ H)
    exact = exact[np.abs(exact).argmax()]
    assert abs(exact.imag) < 1e-9 * abs(exact)
    batches = [problem.batch(i) for i in range(5)]
    target = problem.target(PRIOR)
    found = largest_eigenvalue(target, sampler.preconditioner, batches, 400, masks)
    assert found == pytest.approx(abs(exact), rel=1e-5)
    if kind != "lbfgs":
        few = largest_eigenvalue(target, sampler.preconditioner, batches, masks=masks)
        assert 0.7 * abs(exact) < few <= abs(exact) * (1 + 1e-9)


def test_eigenvalues_of_either_sign_do_not_cancel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A saddle point's: the Rayleigh quotient of the same vectors comes out anywhere below."""
    problem = Problem()
    sampler = SGLD(problem.params, 1.0, num_data=N)
    target = problem.target()
    size = sum(p.numel() for p in problem.params)
    diagonal = torch.ones(size, dtype=torch.float64)
    diagonal[: size // 2], diagonal[size // 2 :] = 5.0, -5.0
    monkeypatch.setattr(
        target, "curvature", lambda v, _: unflatten(diagonal * flatten(v), problem.params)
    )
    found = largest_eigenvalue(target, sampler.preconditioner, [problem.batch(0)])
    assert found == pytest.approx(5.0, rel=1e-9)


@pytest.mark.parametrize("iterations", [1, 2, 5, 8])
def test_it_is_that_of_the_whole_krylov_space(iterations: int) -> None:
    """Which keeps all its vectors; in float32, at a curvature far below the start's length."""
    theta = torch.zeros(1000, requires_grad=True)
    sampler = SGLD([theta], 1.0, num_data=10)
    curvatures = 1e-8 * torch.linspace(-1, 1, 1000) ** 3

    class Quadratic:
        params = (theta,)

        def curvature(self, vectors: list[Tensor], _: object) -> list[Tensor]:
            return [curvatures * vectors[0]]

    given: Any = Quadratic(), sampler.preconditioner, []
    found = largest_eigenvalue(*given, iterations)
    space = leading_directions(*given, count=1, iterations=iterations)
    assert found == pytest.approx(float(space.eigenvalues.abs().max()), rel=1e-5)


@pytest.mark.parametrize(
    "make", [SGLD, lambda p, lr, **kw: SGHMC(p, lr, momentum=0.9, **kw)], ids=["SGLD", "SGHMC"]
)
def test_stability_limit_is_sharp(make: object) -> None:
    """Just below max_stable_lr a quadratic stays bounded at T = 0; just above it explodes."""
    curvature = torch.tensor([4.0, 0.5], dtype=torch.float64)
    for factor, bounded in ((0.98, True), (1.02, False)):
        theta = torch.ones(2, dtype=torch.float64, requires_grad=True)
        sampler = make([theta], 1.0, num_data=10, temperature=0.0)
        sampler.set_lr(factor * sampler.max_stable_lr(4.0))
        for _ in range(2000):
            theta.grad = curvature * theta.detach()
            sampler.step()
        assert bool(theta.abs().max() < 10) is bounded


def test_flat_curvature_is_an_error() -> None:
    problem = Problem()
    target = problem.target()
    with torch.no_grad():
        for p in problem.params:
            p.fill_(float("nan"))
    sampler = SGLD(problem.params, 1.0, num_data=N)
    with pytest.raises(ValueError, match="curvature of the potential came out as nan"):
        largest_eigenvalue(target, sampler.preconditioner, [problem.batch(0)])
