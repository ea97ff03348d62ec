"""paper_mode is what the paper prints, and does not sample the posterior."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lightning_sgmcmc import HASGLD, GaussianPrior
from tests.lightning_sgmcmc.preconditioners.test_lbfgs import dense_inverse


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


@pytest.mark.parametrize("prior_in_pairs", [False, True])
def test_metric_is_the_dense_bfgs_inverse_with_or_without_the_prior(prior_in_pairs: bool) -> None:
    """On a quadratic y = (H + P/N) s, or H s without the prior, for the moves s that were taken."""
    d, N, variance, memory = 4, 30, 0.02, 3
    rng = np.random.default_rng(0)
    root = rng.standard_normal((d, d))
    H = root @ root.T + 0.5 * np.eye(d)
    theta = torch.ones(d, dtype=torch.float64, requires_grad=True)
    sampler = HASGLD(
        [theta], 0.2, memory=memory, omega=(math.inf, 1.0, 1.0), r=1e-9, num_data=N,
        prior=GaussianPrior(variance), prior_in_pairs=prior_in_pairs,
    )  # fmt: skip

    def closure() -> float:
        theta.grad = torch.from_numpy(H) @ theta.detach()
        return 0.0

    path = [theta.detach().numpy().copy()]
    for _ in range(6):
        sampler.step(closure)
        path.append(theta.detach().numpy().copy())
    curvature = H + np.eye(d) / (variance * N) * prior_in_pairs
    pairs = [(s, curvature @ s) for s in np.diff(path, axis=0)[-memory:]]
    s, y = pairs[-1]
    expected, damped = dense_inverse(pairs, (y @ y) / (s @ y), 1e-9)
    assert not damped
    units = torch.eye(d, dtype=torch.float64)
    C = torch.stack([sampler.preconditioner.apply_([e.clone()])[0] for e in units]).numpy()
    np.testing.assert_allclose(C, expected, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(C @ curvature @ s, s, rtol=1e-8)
