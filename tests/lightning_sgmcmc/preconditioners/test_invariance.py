"""The quasi-diagonal metric does not see an affine change of activities; other metrics do.

If the inputs a_i of a layer become alpha_i a_i + beta_i, the same function has the weights
w'_i = w_i / alpha_i and the bias b' = b - sum_i beta_i w'_i. Marceau-Caron and Ollivier (2017,
section 3) state that the chain with the quasi-diagonal outer-product metric is the same one in both
coordinates.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lightning_sgmcmc import (
    SGLD,
    BlockFisher,
    DiagonalFisher,
    Identity,
    NaturalLangevin,
    QuasiDiagonalFisher,
    RMSProp,
)
from lightning_sgmcmc.common.vectors import flatten, unflatten
from lightning_sgmcmc.preconditioners import Preconditioner
from tests.lightning_sgmcmc.problem import N, Problem

EPS = 1e-13  # the invariance is exact where eps is 0


class Affine(nn.Module):
    """a_i -> alpha_i a_i + beta_i."""

    def __init__(self, alpha: Tensor, beta: Tensor) -> None:
        super().__init__()
        self.alpha, self.beta = alpha, beta

    def forward(self, a: Tensor) -> Tensor:
        return self.alpha * a + self.beta


def changes(positive: bool) -> list[Affine]:
    """Return a change of the inputs and one of the hidden activities."""
    generator = torch.Generator().manual_seed(3)
    found = []
    for size in (4, 5):
        alpha, beta, sign = (torch.randn(size, generator=generator).double() for _ in range(3))
        found.append(Affine(alpha.exp() * (1 if positive else sign.sign()), 2 * beta))
    return found


def changed(problem: Problem, affine: list[Affine]) -> Problem:
    """Return the same function of the same data in the other coordinates."""
    other = problem.twin()
    with torch.no_grad():
        for (w, b), change in zip(layers(other), affine, strict=True):
            w.div_(change.alpha)
            b.sub_(w @ change.beta)
    first, tanh, last = other.net
    other.net = nn.Sequential(affine[0], first, tanh, affine[1], last)
    other.params = list(other.net.parameters())
    return other


def layers(problem: Problem) -> list[tuple[Tensor, Tensor]]:
    return list(zip(problem.params[::2], problem.params[1::2], strict=True))


def in_old_coordinates(vectors: list[Tensor], affine: list[Affine]) -> list[Tensor]:
    """Return the move of the weights that a move of the changed ones is."""
    found: list[Tensor] = []
    for w, b, change in zip(vectors[::2], vectors[1::2], affine, strict=True):
        found += [w * change.alpha, b + w @ change.beta]
    return found


def distance(metric: Preconditioner, steps: int = 25) -> float:
    """Run a chain in both coordinates; return how far they end apart, over how far one moved."""
    affine, original = changes(positive=True), Problem()
    start, other = original.weights(), changed(original, affine)
    ends = []
    for problem in (original, other):
        sampler = SGLD(problem.params, 1e-2, num_data=N, preconditioner=metric, seed=5)
        sampler.attach(problem.target())
        ends.append(problem.run(sampler, steps))
    there = unflatten(ends[1], other.params)
    back = flatten(in_old_coordinates(there, affine))
    return float((back - ends[0]).norm() / (ends[0] - start).norm())


@pytest.mark.parametrize(
    "metric", [QuasiDiagonalFisher(eps=EPS), BlockFisher(eps=EPS, blocks="unit")], ids=repr
)
def test_c_transforms_as_the_inverse_of_a_metric_does(metric: Preconditioner) -> None:
    """C = L C' L' with L the change of coordinates, also where an alpha is negative."""
    affine, original = changes(positive=False), Problem()
    matrices = []
    for problem in (original, changed(original, affine)):
        sampler = SGLD(problem.params, 1e-9, temperature=0.0, num_data=N, preconditioner=metric)
        sampler.attach(problem.target())
        for _ in range(6):
            problem.run(sampler, 1)
        units = torch.eye(len(problem.weights()), dtype=torch.float64)
        columns = [
            sampler.preconditioner.apply_(list(unflatten(e.clone(), problem.params))) for e in units
        ]
        matrices.append((torch.stack([flatten(c) for c in columns], 1), problem.params))
    (C, _), (other, params) = matrices
    L = torch.stack(
        [
            flatten(in_old_coordinates(list(unflatten(e, params)), affine))
            for e in torch.eye(len(C)).double()
        ],
        1,
    )
    scale = C.diagonal().sqrt()
    torch.testing.assert_close(
        (L @ other @ L.T) / scale / scale[:, None], C / scale / scale[:, None], rtol=0, atol=1e-6
    )


def test_the_chain_is_the_same_in_both_coordinates() -> None:
    """To the last draw: for alpha > 0 the root of C transforms with C, z by z."""
    assert distance(QuasiDiagonalFisher(eps=EPS)) < 1e-6


def test_natural_langevin_has_this_metric() -> None:
    sampler = NaturalLangevin(Problem().params, 1e-2)
    assert type(sampler.preconditioner) is QuasiDiagonalFisher


@pytest.mark.parametrize(
    "metric", [DiagonalFisher(eps=EPS), Identity(), RMSProp(eps=EPS)], ids=repr
)
def test_metrics_without_the_bias_row_see_the_change(metric: Preconditioner) -> None:
    assert distance(metric) > 0.1
