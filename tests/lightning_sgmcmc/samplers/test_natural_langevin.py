"""Natural Langevin dynamics does not see affine changes of a layer's inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_sgmcmc import SGLD, DiagonalFisher, NaturalLangevin, QuasiDiagonalFisher, Sampler
from lightning_sgmcmc.common.vectors import flatten
from tests.lightning_sgmcmc.problem import N, Problem


class AffineTanh(nn.Module):
    """scale * tanh(x) + shift."""

    def __init__(self, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.scale, self.shift = scale, shift

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * torch.tanh(x) + self.shift


def changed(sign: float = 1.0) -> Problem:
    """Return the problem with every layer's inputs changed, and weights that undo the change."""
    problem = Problem()
    generator = torch.Generator().manual_seed(0)
    maps = []
    for width in (4, 5):
        scale = torch.rand(width, generator=generator, dtype=torch.float64) * 5 + 0.2
        shift = torch.randn(width, generator=generator, dtype=torch.float64) * 3
        scale[0] *= sign
        maps.append((scale, shift))
    with torch.no_grad():
        problem.x.mul_(maps[0][0]).add_(maps[0][1])
        for (scale, shift), weight, bias in zip(
            maps, problem.params[::2], problem.params[1::2], strict=True
        ):
            weight.div_(scale)
            bias.sub_(weight @ shift)
    problem.net[1] = AffineTanh(*maps[1])
    return problem


def outputs(problem: Problem, make: Any, steps: int = 30, **kw: Any) -> Tensor:
    """Return the network's outputs on the data after every step."""
    sampler: Sampler = make(problem.params, num_data=N, **kw)
    sampler.attach(problem.target())
    result = []
    for step in range(steps):
        if step == 20:
            sampler.freeze()
        problem.run(sampler, 1)
        result.append(problem.net(problem.x).detach())
    return torch.stack(result)


def natural(params: Any, **kw: Any) -> Sampler:
    return NaturalLangevin(params, 0.03, eps=1e-30, **kw)


@pytest.mark.parametrize(("temperature", "sign"), [(0.0, 1.0), (0.0, -1.0), (1.0, 1.0)])
def test_the_trajectory_of_functions_is_invariant(temperature: float, sign: float) -> None:
    """The function after every step is the same, adapting and frozen, to rounding.

    At T = 1 with the same z, because A of the changed problem is P A for the map P of weights
    where scales are positive (a negative one turns the sign of a z).
    """
    before, after = Problem(), changed(sign)
    assert torch.allclose(before.net(before.x), after.net(after.x), rtol=1e-11)
    kw = {"temperature": temperature, "seed": 5}
    expected, found = outputs(before, natural, **kw), outputs(after, natural, **kw)
    assert (expected[-1] - expected[0]).abs().max() > 0.5
    assert torch.allclose(found, expected, rtol=1e-6, atol=1e-7)


def test_the_diagonal_metric_is_not_invariant() -> None:
    """It sees the shift; so the test above could fail."""

    def diagonal(params: Any, **kw: Any) -> Sampler:
        return SGLD(params, 0.03, preconditioner=DiagonalFisher(eps=1e-30), **kw)

    kw = {"temperature": 0.0}
    expected, found = outputs(Problem(), diagonal, **kw), outputs(changed(), diagonal, **kw)
    assert (found[-1] - expected[-1]).abs().max() > 0.1


def test_it_is_sgld_with_the_quasi_diagonal_metric() -> None:
    ours, theirs = Problem(), Problem()
    options: dict[str, Any] = {"labels": "model", "eps": 0.02, "power": 0.7}
    found = outputs(ours, lambda p, **kw: NaturalLangevin(p, 0.01, **options, **kw))
    metric = QuasiDiagonalFisher(**options)
    expected = outputs(theirs, lambda p, **kw: SGLD(p, 0.01, preconditioner=metric, **kw))
    assert torch.equal(found, expected)
    assert torch.equal(flatten(ours.params), flatten(theirs.params))
