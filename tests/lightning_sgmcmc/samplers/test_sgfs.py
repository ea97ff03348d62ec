"""SGFS against the exact laws of its linear recursion, and its estimate of the scores' covariance.

Gradients are those of N examples whose posterior is N(0, Lambda^-1 / N): Lambda theta, with the
noise Lambda / n of independent minibatches of n.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import cholesky, solve_discrete_lyapunov
from torch import Tensor

from lightning_sgmcmc import SGFS, GaussianPrior
from lightning_sgmcmc.samplers import Stacked
from tests.harness import assert_normal

NUM_DATA, SIZE = 90, 10
FISHER = np.array([[2.0, 0.9], [0.9, 1.0]])
D = len(FISHER)


def scoring(
    variant: str, alpha: float, b: Any = "fisher", chains: int = 20_000, **kw: Any
) -> tuple[SGFS, Tensor]:
    """Return stacked chains at 0 whose metric is the exact Fisher matrix, or its diagonal."""
    theta = torch.zeros(chains, D, dtype=torch.float64, requires_grad=True)
    temperature = kw.get("temperature", 1.0)
    lr = SGFS.step_size(alpha, NUM_DATA, SIZE, temperature)
    sampler = SGFS(Stacked([theta]), lr, variant=variant, b=b, num_data=NUM_DATA, floor=1e-14, **kw)
    sampler.stack(one_generator=True)
    state = sampler.preconditioner.state_dict()
    state |= {"updates": 1, "batch_size": SIZE}
    exact = torch.tensor(FISHER)
    if variant == "diagonal":
        state["squares"] = [exact.diagonal().expand(chains, D)]
    else:
        state["J"] = [exact.expand(chains, 1, D, D)]
    sampler.preconditioner.load_state_dict(state)
    sampler.freeze()
    return sampler, theta


def run(sampler: SGFS, theta: Tensor, steps: int, seed: int = 1) -> None:
    generator = torch.Generator().manual_seed(seed)
    root = torch.tensor(cholesky(FISHER / SIZE, lower=True))
    for _ in range(steps):
        noise = torch.randn(theta.shape, generator=generator, dtype=theta.dtype) @ root.T
        theta.grad = theta.detach() @ torch.tensor(FISHER) + noise
        sampler.step()


def law(sampler: SGFS, b: np.ndarray, prior: np.ndarray | None = None) -> tuple[Any, Any]:
    """Return M and Q of theta <- M theta + N(0, Q), from D = gamma N I + 4B/eps (+ the prior)."""
    T, alpha = sampler.temperature, sampler.alpha
    gamma = 1 + NUM_DATA / (SIZE * T)
    B4 = alpha**2 * gamma * NUM_DATA * b
    metric = np.diag(np.diag(FISHER)) if sampler.variant == "diagonal" else FISHER
    precision = np.zeros((D, D)) if prior is None else prior
    dense = gamma * NUM_DATA * metric + B4 + (precision if sampler.count_prior else 0)
    K = np.linalg.inv(dense)
    A, V = NUM_DATA * FISHER + precision, NUM_DATA**2 / SIZE * FISHER
    return np.eye(D) - 2 * K @ A, 4 * K @ (V + T * B4) @ K


def check(sampler: SGFS, theta: Tensor, M: np.ndarray, Q: np.ndarray, P: np.ndarray) -> None:
    """Start in N(0, P); assert the joint law of two states one step apart, 20 steps later."""
    assert np.allclose(M @ P @ M.T + Q, P, rtol=1e-9)
    rng = np.random.default_rng(0)
    with torch.no_grad():
        theta.copy_(torch.from_numpy(rng.standard_normal(theta.shape) @ cholesky(P)))
    run(sampler, theta, 20)
    first = theta.detach().numpy().copy()
    run(sampler, theta, 1, seed=2)
    joint = np.block([[P, P @ M.T], [M @ P, P]])
    assert_normal(np.hstack([first, theta.detach().numpy()]), joint)


MATRIX = np.array([[0.7, -0.2], [-0.2, 1.5]])
CHOICES = {
    "fisher": ("fisher", FISHER),
    "number": (0.6, 0.6 * np.eye(D)),
    "diagonal": ([torch.tensor([0.3, 2.0])], np.diag([0.3, 2.0])),
    "matrix": (torch.tensor(MATRIX), MATRIX),
}


@pytest.mark.parametrize("alpha", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("name", CHOICES)
def test_full_is_exact_at_any_step_with_any_b(name: str, alpha: float) -> None:
    """N(0, (N I)^-1) stays, although lr is as large as it can be; 14 statistics at 1e-6."""
    b, dense = CHOICES[name]
    sampler, theta = scoring("full", alpha, b)
    M, Q = law(sampler, dense)
    check(sampler, theta, M, Q, np.linalg.inv(NUM_DATA * FISHER))
    if name == "fisher":  # lag-1 autocorrelation 1 - 2 / (gamma (1 + alpha^2))
        rho = 1 - 2 / ((1 + NUM_DATA / SIZE) * (1 + alpha**2))
        np.testing.assert_allclose(M, rho * np.eye(D), atol=1e-12)
        if alpha == 0:
            assert rho == pytest.approx((NUM_DATA - SIZE) / (NUM_DATA + SIZE))


@pytest.mark.parametrize("temperature", [0.3, 4.0])
def test_full_is_exact_at_other_temperatures(temperature: float) -> None:
    for name in ("fisher", "number"):
        b, dense = CHOICES[name]
        sampler, theta = scoring("full", 0.7, b, temperature=temperature)
        M, Q = law(sampler, dense)
        check(sampler, theta, M, Q, temperature * np.linalg.inv(NUM_DATA * FISHER))


@pytest.mark.parametrize("name", CHOICES)
def test_a_counted_prior_keeps_the_chain_exact(name: str) -> None:
    """With D = A + V + 4B/eps the law is N(0, A^-1), A the prior's precision included."""
    b, dense = CHOICES[name]
    variance = 1 / (0.5 * NUM_DATA)
    prior = GaussianPrior(variance)
    precision = np.eye(D) / variance
    exact = np.linalg.inv(NUM_DATA * FISHER + precision)
    sampler, theta = scoring("full", 0.4, b, count_prior=True, prior=prior)
    check(sampler, theta, *law(sampler, dense, precision), exact)
    # Without it the law is another, and the recursion's own.
    sampler, theta = scoring("full", 0.4, b, prior=prior)
    M, Q = law(sampler, dense, precision)
    P = solve_discrete_lyapunov(M, Q)
    assert np.abs(P / exact - 1).max() > 0.1
    check(sampler, theta, M, Q, P)


@pytest.mark.parametrize(("alpha", "ratio"), [(0.0, 0.75), (6.0, 0.99)])
@pytest.mark.parametrize("name", ["fisher", "number", "diagonal"])
def test_diagonal_follows_its_lyapunov_equation(name: str, alpha: float, ratio: float) -> None:
    """P = M P M' + 4 D^-1 (V + 4B/eps) D^-1: too narrow at large steps, right at small ones."""
    b, dense = CHOICES[name]
    dense = np.diag(np.diag(dense))
    sampler, theta = scoring("diagonal", alpha, b)
    M, Q = law(sampler, dense)
    P = solve_discrete_lyapunov(M, Q)
    ratios = np.diag(P) / np.diag(np.linalg.inv(NUM_DATA * FISHER))
    assert (ratios < 1).all()
    assert (ratios < ratio).all() if alpha == 0 else (ratios > ratio - 0.05).all()
    check(sampler, theta, M, Q, P)
