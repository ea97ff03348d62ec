"""A metric's fused Langevin step is its drift and its noise, taken apart."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lightning_sgmcmc import (
    SGLD,
    AveragedLBFGS,
    DiagonalFisher,
    GaussianPrior,
    QuasiDiagonalFisher,
    RMSProp,
)
from lightning_sgmcmc.preconditioners import Preconditioner
from tests.lightning_sgmcmc.problem import N, Problem

FUSED: dict[str, Callable[[], Preconditioner]] = {
    "RMSProp": lambda: RMSProp(eps=0.1),
    "DiagonalFisher": lambda: DiagonalFisher(eps=0.1),
    "QuasiDiagonalFisher": lambda: QuasiDiagonalFisher(eps=0.1),
    "AveragedLBFGS": lambda: AveragedLBFGS(memory=2),
    "AveragedLBFGS, three slots": lambda: AveragedLBFGS(memory=2, slots=3),
}


def learned(make: Callable[[], Preconditioner]) -> SGLD:
    """Return a sampler whose metric has seen five minibatches."""
    problem = Problem()
    sampler = SGLD(problem.params, 1e-3, num_data=N, preconditioner=make(), seed=4)
    sampler.attach(problem.target(GaussianPrior(1.0)))
    problem.run(sampler, 5)
    return sampler


@pytest.mark.parametrize("name", FUSED)
def test_it_is_drift_and_noise(name: str) -> None:
    moved: list[list[Tensor]] = []
    for apart in (False, True):
        sampler = learned(FUSED[name])
        metric = sampler.preconditioner
        assert metric.fused
        generator = torch.Generator().manual_seed(0)
        start = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in sampler.params]
        gradient = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in start]
        at = [p.clone() for p in start]
        step = Preconditioner.move_ if apart else type(metric).move_
        step(metric, at, gradient, sampler.stream, 0.3, 0.2)
        moved.append([a - s for a, s in zip(at, start, strict=True)])
    for fused, apart_ in zip(*moved, strict=True):
        torch.testing.assert_close(fused, apart_, rtol=1e-10, atol=1e-12)


def test_a_cold_step_stays_finite() -> None:
    """Where the noise is below rounding, the step is the drift."""
    steps = []
    for temperature in (0.0, 1e-70):
        problem = Problem()
        sampler = SGLD(
            problem.params,
            1e-2,
            num_data=N,
            preconditioner=RMSProp(eps=0.1),
            temperature=temperature,
        )
        steps.append(problem.run(sampler, 1))
    assert torch.equal(*steps)
