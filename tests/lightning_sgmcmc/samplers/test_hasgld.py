"""paper_mode is what the paper prints, and does not sample the posterior."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lightning_sgmcmc import HASGLD


@pytest.mark.parametrize("variance", [0.01, 1.0, 100.0])
def test_paper_mode_has_one_law_for_every_target(variance: float) -> None:
    """In one dimension a step is -lr sign(theta) +- sqrt(2 lr T): Laplace(T), variance 2 T^2.

    With omega = 1 throughout. A step of lr decorrelates over 4 T / lr = 20 steps, so 8,000 steps
    hold some 200 independent squares, whose variance is 5 times their mean's square: 60 % is four
    standard errors (6e-5), while the targets differ by factors of 100.
    """
    lr = 0.2
    theta = torch.tensor([0.1], dtype=torch.float64, requires_grad=True)
    sampler = HASGLD(
        [theta], lr, paper_mode=True, omega=(1e9, 10.0, 0.9), memory=1, num_data=1, seed=2
    )

    def closure() -> float:
        theta.grad = theta.detach() / variance
        return 0.0

    path = np.empty(8000)
    for i in range(len(path)):
        sampler.step(closure)
        path[i] = theta.item()
    moves = np.diff(path)
    sizes = np.abs(moves + lr * np.sign(path[:-1]))
    np.testing.assert_allclose(sizes, math.sqrt(2 * lr), rtol=1e-9)
    assert 0.8 < (path**2).mean() < 3.2


def test_paper_mode_steps_have_one_length_whatever_the_data() -> None:
    """In d dimensions |drift| = lr, |noise| = sqrt(2 lr T): N is nowhere."""
    moves = []
    for num_data in (1, 10_000):
        theta = torch.ones(20, dtype=torch.float64, requires_grad=True)
        sampler = HASGLD([theta], 0.1, paper_mode=True, num_data=num_data, temperature=0.0)

        def closure(theta: torch.Tensor = theta) -> float:
            theta.grad = theta.detach() ** 3
            return 0.0

        before = theta.detach().clone()
        sampler.step(closure)
        moves.append((theta.detach() - before).norm().item())
    assert moves == pytest.approx([0.1, 0.1])
