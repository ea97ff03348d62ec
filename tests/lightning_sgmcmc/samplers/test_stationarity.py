"""Every sampler stays in the exact law of its discretised chain.

False-alarm rate: 1e-6 a statistic (tests/harness.py), 18 statistics a test, 45 tests: one in a
thousand for the file, were the seeds changed.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from lightning_sgmcmc import PSGLD, SGHMC, SGLD, GaussianPrior
from tests.harness import (
    CASES,
    CORRELATED,
    NOISY,
    SCALES,
    Case,
    Gaussian,
    assert_normal,
    baoab,
    check,
    langevin,
    stable_lr,
)

each_sampler = pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)


@each_sampler
@pytest.mark.parametrize("target", [SCALES, CORRELATED], ids=["scales", "correlated"])
def test_stays_in_its_law(case: Case, target: Gaussian) -> None:
    check(case, target)


@each_sampler
def test_counts_gradient_noise(case: Case) -> None:
    check(case, NOISY, seed=2)


@each_sampler
def test_follows_the_temperature(case: Case) -> None:
    check(case, SCALES, temperature=0.3, fraction=0.2, seed=3)


def test_langevin_law_is_the_closed_form() -> None:
    """P = (A - (h/2) A C A)^-1, and (1 + h C V / 2) / (a (1 - h a C / 2)) with noise."""
    C, h = np.diag([0.7, 0.02]), 0.4
    A = CORRELATED.precision
    P = langevin(CORRELATED, C, h * CORRELATED.num_data, 1.0, 0).stationary()
    np.testing.assert_allclose(P, np.linalg.inv(A - h / 2 * A @ C @ A), rtol=1e-12)
    a, g, v = 100.0, 0.02, 20.0**2
    noisy = langevin(NOISY, C, h * NOISY.num_data, 1.0, 0).stationary()
    exact = (1 + h * g * v / 2) / (a * (1 - h * a * g / 2))
    np.testing.assert_allclose(noisy[1, 1], exact, rtol=1e-12)


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.95])
@pytest.mark.parametrize("mu", [0.0, 0.5, 0.95])
def test_sghmc_is_unbiased_on_a_gaussian_at_every_stable_step(mu: float, fraction: float) -> None:
    case = Case("SGHMC", SGHMC, baoab, mu, options={"momentum": mu})
    lr = stable_lr(case, CORRELATED, np.eye(2), fraction)
    law = baoab(CORRELATED, np.eye(2), lr, 1.0, mu)
    np.testing.assert_allclose(law.stationary()[:2, :2], CORRELATED.covariance, rtol=1e-9)
    if fraction == 0.95:
        check(case, CORRELATED, fraction=fraction, seed=4)


@pytest.mark.parametrize("mu", [0.0, 0.9])
def test_kinetic_temperature_is_that_of_the_law(mu: float) -> None:
    """w' C^-1 w / d of 40,000 coordinates, to five standard errors (6e-7)."""
    case = Case("SGHMC", SGHMC, baoab, mu, options={"momentum": mu})
    lr, N = stable_lr(case, SCALES, np.eye(2), 0.25), SCALES.num_data
    law = baoab(SCALES, np.eye(2), lr, 1.0, mu)
    expected = np.trace(law.stationary()[2:, 2:]) / 2
    assert expected == pytest.approx(1.0, abs=1e-9)
    rng = np.random.default_rng(0)
    theta = torch.tensor(rng.standard_normal((20_000, 2)) * [1, 0.1], dtype=torch.float32)
    theta.requires_grad_()
    sampler = SGHMC([theta], lr, momentum=mu, num_data=N, prior=GaussianPrior(2.0))
    assert sampler.kinetic_temperature() is None
    for _ in range(60):
        theta.grad = SCALES.gradient(theta, torch.Generator())
        sampler.step()
    measured = sampler.kinetic_temperature()
    assert measured == pytest.approx(expected, abs=5 * np.sqrt(2 / 40_000))


class HalfNoise(SGLD):
    def noise(self) -> list[Tensor]:
        return [z * 0.5**0.5 for z in super().noise()]


class ForgottenPrior(SGLD):
    def drift(self, grads: list[Tensor]) -> list[Tensor]:
        return self.preconditioner.apply_(grads)


class DoubleStep(SGLD):
    def drift(self, grads: list[Tensor]) -> list[Tensor]:
        return [2 * g for g in super().drift(grads)]


class PriorOnBoth(SGLD):
    """Adds the prior's gradient without the 1/N."""

    def drift(self, grads: list[Tensor]) -> list[Tensor]:
        self.prior.add_gradient_(grads, self.params, 1.0)
        return grads


class UnrootedNoise(PSGLD):
    """Scales the noise by C instead of its root."""

    def noise(self) -> list[Tensor]:
        return self.preconditioner.apply_(self.stream.normal())


@pytest.mark.parametrize(
    "wrong",
    [
        Case("noise halved", HalfNoise),
        Case("prior forgotten", ForgottenPrior),
        Case("step doubled", DoubleStep),
        Case("prior times N", PriorOnBoth),
        Case("C in place of its root", UnrootedNoise, metric=(2.0, 0.03), options={"alpha": 0.0}),
        Case("another momentum", SGHMC, baoab, 0.9, options={"momentum": 0.85}),
        Case("Euler noise in BAOAB's place", SGLD, baoab, 0.0),
    ],
    ids=lambda c: c.name,
)
def test_the_runner_catches_a_wrong_sampler(wrong: Case) -> None:
    with pytest.raises(AssertionError, match="not of the stated law"):
        check(wrong, SCALES, fraction=0.25)


def test_the_runner_catches_an_adapting_metric_without_gamma() -> None:
    """PSGLD that never freezes leaves N(0, 1) even at a hundredth of the stable step."""

    class Unfrozen(PSGLD):
        def freeze(self) -> None:
            pass

    case = Case("dropped Gamma", Unfrozen, options={"alpha": 0.9, "eps": 0.02})
    with pytest.raises(AssertionError, match="not of the stated law"):
        check(case, Gaussian(np.eye(2)), fraction=0.01, steps=500)


def test_the_assertion_sees_shape_as_well_as_variance() -> None:
    rng = np.random.default_rng(0)
    assert_normal(rng.standard_normal((20_000, 2)), np.eye(2))
    uniform = rng.uniform(-np.sqrt(3), np.sqrt(3), (20_000, 2))
    with pytest.raises(AssertionError, match="shape"):
        assert_normal(uniform, np.eye(2))


@pytest.mark.parametrize("replacement", [True, False])
def test_linear_regression_with_minibatches(replacement: bool) -> None:
    """SGLD's covariance with real minibatches solves P = M P M' + 2 h G + h^2 (V0 + K(P)).

    V0 = f (sum u_i u_i' - U U' / N) and K(P) = f (sum (x_i' P x_i) x_i x_i' / s^4 - H P H / N)
    with u_i the examples' gradients at the posterior mean and f = N/n with replacement,
    (N/n)(N-n)/(N-1) without. 8 looks at 10,000 chains, 20 steps apart: five standard errors by
    the empirical fourth moments of independent chains (6e-7 an entry).
    """
    rng = np.random.default_rng(5)
    N, n, d, R, s2, prior = 24, 6, 3, 10_000, 0.5, 1.5
    X = rng.standard_normal((N, d))
    y = X @ [1.0, -2.0, 0.5] + np.sqrt(s2) * rng.standard_normal(N)
    H = X.T @ X / s2
    A = H + np.eye(d) / prior
    mean = np.linalg.solve(A, X.T @ y / s2)
    u = X * ((X @ mean - y) / s2)[:, None]
    f = N / n if replacement else N / n * (N - n) / (N - 1)
    h = 0.35 / np.linalg.eigvalsh(A).max()
    M = np.eye(d) - h * A
    U = u.sum(0)
    V0 = f * (u.T @ u - np.outer(U, U) / N)
    P = np.linalg.inv(A)
    for _ in range(2000):
        K = f * (np.einsum("i,ij,ik->jk", ((X @ P) * X).sum(1), X, X) / s2**2 - H @ P @ H / N)
        P = M @ P @ M.T + 2 * h * np.eye(d) + h**2 * (V0 + K)
    assert np.trace(P) > 1.2 * np.trace(np.linalg.inv(A))

    theta = torch.tensor(mean + rng.standard_normal((R, d)) @ np.linalg.cholesky(P).T)
    theta = theta.float().requires_grad_()
    sampler = SGLD([theta], h * N, num_data=N, prior=GaussianPrior(prior), seed=6)
    Xt, yt = torch.tensor(X).float(), torch.tensor(y).float()
    generator = torch.Generator().manual_seed(7)
    looks = []
    for step in range(200):
        if replacement:
            indices = torch.randint(N, (R, n), generator=generator)
        else:
            indices = torch.rand(R, N, generator=generator).argsort(1)[:, :n]
        x, target = Xt[indices], yt[indices]
        residual = (x @ theta.detach()[..., None]).squeeze(-1) - target
        theta.grad = (x * residual[..., None]).mean(1) / s2
        sampler.step()
        if step >= 40 and step % 20 == 19:
            looks.append(theta.detach().double().numpy() - mean)
    deviation = np.stack(looks)
    products = np.einsum("tri,trj->trij", deviation, deviation).mean(0)
    error = products.std(0) / np.sqrt(R)
    assert (np.abs(products.mean(0) - P) < 5 * error).all(), products.mean(0) / P
    assert (error < 0.02 * np.abs(np.diag(P)).max()).all()
    center = deviation.mean(0)
    assert (np.abs(center.mean(0)) < 5 * center.std(0) / np.sqrt(R)).all()
