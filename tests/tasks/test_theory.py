"""The closed forms of ``theory`` against dense computations, its chains, and its records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tasks.experiments import reproduce
from tasks.experiments.gaussians import matrices
from tasks.experiments.theory import averages, hessian, pairs, scores
from tasks.experiments.theory.fits import fitted, jackknife, power
from tasks.experiments.theory.regression import Regressions, draws, posterior
from tasks.experiments.theory.time_average import exact

MEASURED = Path(__file__).resolve().parents[2] / "docs" / "measured" / "theory"
RECORDS = {cell.name: reproduce.read(MEASURED, cell) for cell in reproduce.load("theory").cells()}


def record(name: str) -> dict[str, Any]:
    found = RECORDS[name]
    assert found is not None
    return found


@pytest.mark.parametrize("thinning", [1, 3])
def test_mse_of_a_weighted_average_is_that_of_the_dense_covariance(thinning: int) -> None:
    """The recursion against var(w' theta^2) = 2 sum w_s w_t cov(theta_s, theta_t)^2."""
    steps, variance, sd, g = 12, 0.4, 0.7, 0.3
    h = 0.5 * np.arange(1, steps + 1) ** -0.4
    move, noise = 1 - h * g / variance, 2 * h * g + (h * g * sd) ** 2
    p = noise[0] / (1 - move[0] ** 2)
    covariance = np.zeros((steps, steps))
    for s in range(steps):
        p = move[s] ** 2 * p + noise[s]
        covariance[s, s:] = p * np.cumprod([1.0, *move[s + 1 :]])
    covariance = np.triu(covariance) + np.triu(covariance, 1).T
    w = h * (np.arange(1, steps + 1) % thinning == 0)
    w /= w.sum()
    bias = w @ np.diag(covariance) / variance - 1
    expected = bias**2 + 2 * w @ covariance**2 @ w / variance**2
    found = exact(h, np.array([g]), variance, sd, (6, steps), thinning)
    assert found[-1] == pytest.approx(expected, rel=1e-12)


def test_chains_have_the_closed_forms_error() -> None:
    """1,000 chains; seeded, four standard errors at each length and thinning."""
    lengths = (64, 128, 256)
    found, sampler = averages.gaussian(1 / 3, chains=1000, lengths=lengths, seed=2)
    g, h = matrices(sampler)[:, 0, 0], 0.6 * np.arange(1, 257) ** (-1 / 3)
    for k in (1, 8):
        closed = exact(h, g, 0.16, averages.NOISE, lengths, k)
        squares = found.squares(k)
        errors = squares.std(1) / np.sqrt(1000)
        assert (np.abs(squares.mean(1) - closed) < 4 * errors).all()


def test_the_bound_s_exponent_is_least_at_a_third() -> None:
    betas = np.linspace(0, 1, 301)[:-1]
    found = [averages.expected_power(beta) for beta in betas]
    assert betas[np.argmin(found)] == pytest.approx(1 / 3)
    assert min(found) == pytest.approx(-2 / 3)


def test_a_regression_s_gradient_is_that_of_its_examples() -> None:
    generator = np.random.default_rng(0)
    x, y = generator.standard_normal((3, 20, 2)), generator.standard_normal((3, 20))
    theta = torch.from_numpy(generator.standard_normal((3, 1, 2))).requires_grad_()
    problem = Regressions(theta, x, y, 5)
    features, responses = problem.batch(4)
    for k in range(3):
        own = {tuple(row) for row in x[k]}
        assert all(tuple(row) in own for row in features[k].tolist())
    loss = ((features @ theta[:, 0, :, None])[..., 0] - responses).square().mean(1).sum() / 2
    (expected,) = torch.autograd.grad(loss, theta)
    torch.testing.assert_close(problem.gradient(theta.detach(), 4), expected)
    mean, precision = posterior(x[0], y[0])
    np.testing.assert_allclose(mean, np.linalg.lstsq(x[0], y[0])[0])
    many = draws(generator, mean, precision, 100_000)
    np.testing.assert_allclose(np.linalg.inv(np.cov(many.T)), precision, rtol=0.05)


def test_bias_of_a_constant_metric() -> None:
    """With the whole data P = (A - (eps/2) A C A / N)^-1, theta's law in closed form."""
    x, y = hessian.data()
    _, A = posterior(x, y)
    C = np.diag([0.5, 1.0, 0.8])
    covariance = np.linalg.inv(A - 0.05 * A @ C @ A / hessian.EXAMPLES)
    found = hessian.constant_metric(hessian.Setting(lr=0.1), C)
    assert found == pytest.approx(np.trace(covariance @ A) / 3 - 1, rel=1e-6)
    assert hessian.constant_metric(hessian.Setting(batch=20), C) > 3 * found


@pytest.mark.parametrize("memory", [3, 5])
def test_states_that_a_metric_is_made_of(memory: int) -> None:
    """M + 1 consecutive states in HASGLD, 2M - 2 in HAMCMC, as the paper says."""
    assert pairs.states_of_metric(pairs.SAMPLERS["HASGLD"], memory)["states"] == memory + 1
    assert pairs.states_of_metric(pairs.SAMPLERS["HAMCMC"], memory)["states"] == 2 * memory - 2


def test_scores_vary_about_the_information(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mean of V - I = -1/N; 400 data sets of 32 examples, four standard errors."""
    monkeypatch.setattr(scores, "DATA_SETS", 400)
    monkeypatch.setattr(scores, "STEPS", 60)
    found, own = scores.averages(32, "exact", seed=1)
    difference = found - own
    assert abs(difference.mean() + 1 / 32) < 4 * difference.std() / np.sqrt(400)
    assert difference.std() < found.std()


def test_a_power_is_fitted_with_its_error() -> None:
    x = [1.0, 2.0, 4.0, 8.0]
    assert power(x, np.array(x) ** -0.7) == pytest.approx(-0.7)
    noise = np.random.default_rng(0).gamma(5.0, 0.2, (4, 4000))
    exponent, error = fitted(x, np.array(x)[:, None] ** -0.7 * noise)
    assert abs(exponent + 0.7) < 4 * error < 0.1
    mean, error_of_mean = jackknife(lambda s: s.mean(1), noise)
    np.testing.assert_allclose(mean, noise.mean(1))
    np.testing.assert_allclose(error_of_mean, noise.std(1) / np.sqrt(4000), rtol=0.5)


@pytest.mark.parametrize("name", averages.BETAS)
def test_recorded_exponents_are_the_closed_form_s_and_near_theorem_1(name: str) -> None:
    study = record(f"psgld-{name}")
    for row in study["rows"]:
        assert abs(row["exponent"] - row["closed_exponent"]) < max(4 * row["exponent_se"], 0.01)
    assert abs(study["far"] - study["theory"]) < 0.05


def test_recorded_metric_converges_as_omega() -> None:
    """Theorem 1: the exponent of omega_k is 1, within three standard errors."""
    for name in hessian.RATES:
        found = record(f"rate-{name}")
        assert abs(found["exponent"] - 1) < 3 * found["exponent_se"]


def test_recorded_bias_is_a_constant_metric_s_where_omega_is_small() -> None:
    for name in ("omega-0.1", "omega-decaying", "memory-1-decaying", "n-20-decaying"):
        found = record(f"bias-{name}")
        assert abs(found["bias"] - found["constant"]) < 3 * found["bias_se"]
    newest = record("bias-omega-1")
    assert newest["bias"] - newest["constant"] > 5 * newest["bias_se"]


def test_recorded_eigenvalues_lie_in_lemma_2_s_bounds() -> None:
    for name, found in RECORDS.items():
        if name.startswith("eigenvalues"):
            assert found is not None
            assert found["lower"] < found["smallest"] < found["a"]
            assert found["A"] < found["largest"] < found["upper"]
