"""The minibatches' temperature against the closed forms of linear regression."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import solve_discrete_lyapunov
from torch import Tensor

from lightning_sgmcmc import BatchStream, GaussianPrior, Identity, RMSProp, Target
from lightning_sgmcmc.adaptation import gradient_noise
from lightning_sgmcmc.target import ControlVariate

N, BATCH, D = 60, 6, 3
LR = 0.02


class Regression:
    """y = x' theta + noise with two parameter tensors, at the posterior's mean."""

    def __init__(self, chain_dims: int = 0) -> None:
        rng = np.random.default_rng(0)
        self.X = rng.standard_normal((N, D)) * [1.0, 2.0, 0.5]
        self.y = self.X @ [1.0, -1.0, 2.0] + rng.standard_normal(N)
        self.A = self.X.T @ self.X + np.eye(D) / 4
        mean = np.linalg.solve(self.A, self.X.T @ self.y)
        # The mean likelihood gradient of each example: u_i of ALGORITHMS without the factor N.
        self.u = (self.X @ mean - self.y)[:, None] * self.X
        self.V = np.cov(self.u.T, bias=True) / BATCH  # with replacement
        parts = [torch.tensor(mean[:1]), torch.tensor(mean[1:])]
        if chain_dims:
            parts = [p.repeat(2, 1) for p in parts]
        self.params = [p.requires_grad_() for p in parts]
        self.data = (torch.tensor(self.X), torch.tensor(self.y))
        self.target = Target(self.nll, self.params, N, GaussianPrior(4.0), chain_dims=chain_dims)

    def nll(self, batch: Any) -> Tensor:
        x, y = batch
        theta = torch.cat(self.params, dim=-1)
        return 0.5 * ((x @ theta[..., None])[..., 0] - y) ** 2

    def batches(self, count: int, chains: int | None = None) -> list[Any]:
        stream = BatchStream(self.data, BATCH, "independent")
        stream.bind(self.params[0].device, seed=1, num_chains=chains)
        return [stream.at(step) for step in range(count)]


def test_every_batch_gives_the_exact_ratio() -> None:
    """All N batches of one example: their sample covariance is V, with divisor N - 1 for N."""
    problem = Regression()
    batches = [(x[None], y[None]) for x, y in zip(*problem.data, strict=True)]
    noise = gradient_noise(problem.target, batches, Identity(), LR, names=["a", "b"])
    one = np.cov(problem.u.T, bias=True) * N / (N - 1)
    diagonal = LR * N / 2 * np.diag(one)
    assert noise.total.ratio == pytest.approx(diagonal.mean(), rel=1e-10)
    assert noise.tensors["a"].ratio == pytest.approx(diagonal[0], rel=1e-10)
    assert noise.tensors["b"].ratio == pytest.approx(diagonal[1:].mean(), rel=1e-10)


def test_independent_minibatches_give_the_closed_form() -> None:
    """3,000 batches: tr V has a standard error of 2.5 %, the tolerance is four of them."""
    problem = Regression()
    batches = problem.batches(3000)
    C = RMSProp(alpha=0.0)
    C.attach(problem.params)
    C.update([torch.tensor([2.0]), torch.tensor([3.0, 0.5])])
    metric = np.diag(1 / (np.array([2.0, 3.0, 0.5]) + 1e-5))
    noise = gradient_noise(problem.target, batches, C, LR, temperature=0.5)
    expected = LR * N * np.trace(metric @ problem.V) / (2 * D)
    assert noise.total.from_gradients == pytest.approx(expected, rel=0.1)
    assert noise.total.ratio == pytest.approx(expected / 0.5, rel=0.1)
    assert noise.total.effective == pytest.approx(0.5 + expected, rel=0.1)


def test_the_effective_temperature_is_the_chains_own() -> None:
    """Per direction of C A = I: the chain's covariance, from its recursion, is T_eff Sigma'.

    P = M P M' + 2 h T C + h^2 C (N^2 V) C with M = I - h C A; with C = A^-1 every direction decays
    alike, tr(A P) / d = (T + T_gradients) / (1 - h / 2).
    """
    problem = Regression()
    C, h = np.linalg.inv(problem.A), 0.3
    lr = h * N
    P = solve_discrete_lyapunov((1 - h) * np.eye(D), 2 * h * C + h**2 * C @ (N**2 * problem.V) @ C)

    class Dense(Identity):
        def apply_(self, vectors: list[Tensor]) -> list[Tensor]:
            flat = torch.cat(vectors) @ torch.tensor(C)
            return [flat[:1], flat[1:]]

    batches = [(x[None], y[None]) for x, y in zip(*problem.data, strict=True)]
    noise = gradient_noise(problem.target, batches, Dense(), lr).total
    gradients = noise.from_gradients / BATCH * (N - 1) / N
    expected = np.trace(problem.A @ P) / D * (1 - h / 2)
    assert 1 + gradients == pytest.approx(expected, rel=1e-10)
    assert gradients > 0.1


def test_a_control_variate_has_the_noise_of_the_difference() -> None:
    """x_i x_i' (theta - c) of each example, zero at the centre."""
    problem = Regression()
    estimator, target = ControlVariate(), problem.target
    estimator.bind(target, lambda: iter([problem.data]), 10)
    away = [torch.tensor(a, dtype=torch.float64) for a in ([0.3], [-0.2, 0.1])]
    with target.holding([p.detach() - a for p, a in zip(target.params, away, strict=True)]):
        estimator.prepare(0, 0, 0)
    target.correction = estimator.correction
    batches = [(x[None], y[None]) for x, y in zip(*problem.data, strict=True)]
    noise = gradient_noise(target, batches, Identity(), LR)
    difference = (problem.X @ [0.3, -0.2, 0.1])[:, None] * problem.X
    expected = LR * N / 2 * np.diag(np.cov(difference.T)).mean()
    assert noise.total.ratio == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("mu", [0.0, 0.6, 0.9])
def test_momentum_lengthens_every_gradient(mu: float) -> None:
    """BAOAB on one weight, a -> 0: excess of the variance over the thermal one is ratio / (1 - mu).

    The recursion of (theta, w) is solved with and without the kick's noise; corrections are of
    order h a = 1e-4.
    """
    a, lr, v = 1.0, 1e-4, 5.0  # N = 1: v is V and lr is h
    dt = np.sqrt(2 * lr / (1 + mu))
    B = np.array([[1, 0], [-dt * a, 1]])
    half = np.array([[1, dt / 2], [0, 1]])
    tail = half @ np.diag([1, mu]) @ half
    kick = tail @ np.diag([0, dt**2 * v]) @ tail.T
    thermal = half @ np.diag([0, 1 - mu**2]) @ half.T
    M = tail @ B
    excess = solve_discrete_lyapunov(M, kick)[0, 0] * a
    assert solve_discrete_lyapunov(M, thermal)[0, 0] * a == pytest.approx(1, rel=1e-3)

    theta = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    target = Target(lambda slope: slope * theta, [theta], 1)
    slopes = [torch.tensor([s * np.sqrt(v / 2)]) for s in (-1.0, 1.0)]  # sample variance v
    noise = gradient_noise(target, slopes, Identity(), lr, momentum=mu)
    assert noise.total.from_gradients == pytest.approx(excess, rel=2e-3)


def test_a_large_mean_gradient_costs_no_digits() -> None:
    """In float32, slopes of 1e6 + {-1, 0, 1}: the variance 1 survives."""
    theta = torch.zeros(1, requires_grad=True)
    target = Target(lambda slope: slope * theta, [theta], 1)
    slopes = [torch.tensor([1e6 + s]) for s in (-1.0, 0.0, 1.0)]
    assert gradient_noise(target, slopes, Identity(), 2.0).total.ratio == pytest.approx(1.0)


def test_masked_weights_and_stacked_chains() -> None:
    problem = Regression()
    batches = [(x[None], y[None]) for x, y in zip(*problem.data, strict=True)]
    masks = [torch.ones(1), torch.tensor([0.0, 1.0])]
    whole = gradient_noise(problem.target, batches, Identity(), LR)
    masked = gradient_noise(problem.target, batches, Identity(), LR, masks=masks)
    diagonal = LR * N / 2 * np.diag(np.cov(problem.u.T))
    assert masked.tensors["1"].ratio == pytest.approx(diagonal[2])
    assert masked.total.ratio == pytest.approx((diagonal[0] + diagonal[2]) / 2)

    stacked = Regression(chain_dims=1)
    two = [(x.expand(2, 1, D), y.expand(2, 1)) for x, y in batches]
    assert gradient_noise(stacked.target, two, Identity(), LR).total.ratio == pytest.approx(
        whole.total.ratio
    )
    lead = [m.expand(2, -1) for m in masks]
    both = gradient_noise(stacked.target, two, Identity(), LR, masks=lead)
    assert both.total.ratio == pytest.approx(masked.total.ratio)


def test_zero_temperature_and_bad_input() -> None:
    problem = Regression()
    batches = problem.batches(3)
    cold = gradient_noise(problem.target, batches, Identity(), LR, temperature=0.0).total
    assert cold.ratio == float("inf")
    assert cold.effective == cold.from_gradients > 0
    with pytest.raises(ValueError, match="two minibatches or more, got 1"):
        gradient_noise(problem.target, batches[:1], Identity(), LR)
    with pytest.raises(ValueError, match=r"lr > 0 and momentum in \[0, 1\), got 0.02 and 1"):
        gradient_noise(problem.target, batches, Identity(), LR, momentum=1.0)
