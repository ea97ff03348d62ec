"""Logistic regression: its density, its Laplace approximation, its reference HMC."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from scipy.integrate import trapezoid
from scipy.optimize import approx_fprime, minimize
from scipy.special import expit
from torch import Tensor

from lightning_sgmcmc import PSGLD, SGLD, BatchStream, GaussianPrior
from lightning_sgmcmc.metrics import Bernoulli, Prediction
from tasks.experiments.logistic import sample_hmc, standard_error, with_intercept
from tasks.laplace import Laplace, laplace
from tasks.logistic import LogisticRegression, logits, mean_gradient
from tests.toy import trainer

SAMPLER = partial(SGLD, lr=1e-2, prior=GaussianPrior(variance=2.0))


def problem(count: int, dimension: int, seed: int = 0) -> tuple[Any, Any]:
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((count, dimension)) @ np.diag(np.linspace(0.5, 2, dimension))
    y = (generator.random(count) < expit(x @ generator.standard_normal(dimension))).astype(float)
    return x, y


def potential(w: Any, x: Any, y: Any, variance: float) -> float:
    """-log posterior, written out."""
    p = expit(x @ w)
    return float(-np.sum(y * np.log(p) + (1 - y) * np.log1p(-p)) + w @ w / (2 * variance))


def module_at(w: Any, intercept: bool) -> LogisticRegression:
    features = len(w) - intercept
    module = LogisticRegression(SAMPLER, num_features=features, intercept=intercept).double()
    with torch.no_grad():
        module.net.weight[0] = torch.as_tensor(w[:features])
        if intercept:
            module.net.bias[0] = w[-1]
    return module


@pytest.mark.parametrize("intercept", [False, True])
def test_nll_is_minus_the_log_of_the_bernoulli_probability(intercept: bool) -> None:
    x, y = problem(9, 3)
    w = np.random.default_rng(1).standard_normal(3 + intercept)
    module = module_at(w, intercept)
    batch = (torch.tensor(x), torch.tensor(y))
    p = expit((with_intercept(x) if intercept else x) @ w)
    expected = -np.log(np.where(y == 1, p, 1 - p))
    np.testing.assert_allclose(module.nll(batch).detach(), expected, rtol=1e-12)
    np.testing.assert_allclose(module.predictive(batch).detach(), p, rtol=1e-12)


@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_labels_may_be_whole_numbers(kind: torch.dtype) -> None:
    x, y = (torch.tensor(t) for t in problem(9, 3))
    module = module_at(np.array([1.0, -2.0, 0.5]), False)
    assert torch.equal(module.nll((x, y.to(kind))), module.nll((x, y)))


def test_a_chain_s_own_ensemble_has_the_weights_of_its_draws(tmp_path: Path) -> None:
    """Of draws of steps 1 and 2 whose predictions are contrary the first has all the weight."""

    class Contrary(LogisticRegression):
        def on_draw(self, weight: float) -> None:
            with torch.no_grad():
                self.net.weight.copy_(torch.eye(3)[:1] * (1 if weight > 1e-3 else -3))

    def drop(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LambdaLR:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 1.0 if k == 0 else 1e-4)

    module = Contrary(
        SAMPLER, num_features=3, intercept=False, schedule=drop, burn_in=0, thinning=1
    )
    trainer(tmp_path, 2, limit_val_batches=0).fit(module, datamodule=Pairs())
    assert module.kept.draw_weights[0] > 1000 * module.kept.draw_weights[1]
    x, y = (t.numpy() for t in Pairs().examples(1))
    found = module.describe(module.kept)
    expected = 100 * float(((x[:, 0] >= 0) != (y > 0.5)).mean())
    assert expected > 60
    assert found["chain_error_percent"] == [pytest.approx(expected)]
    assert found["draw_error_percent"]["mean"] == pytest.approx(50)


def test_what_is_not_of_the_posterior_of_all_weights_is_left_out(tmp_path: Path) -> None:
    """A part of the weights, and another N, have another Laplace approximation."""
    for name, given in {
        "part": {"sample": ["net.weight"]},
        "other N": {"num_data": 20_000},
        "all": {},
    }.items():
        module = LogisticRegression(
            SAMPLER, num_features=3, intercept=True, burn_in=0, thinning=1, **given
        )
        trainer(tmp_path / name, 3, limit_val_batches=0).fit(module, datamodule=Pairs())
        found = module.describe(module.kept)
        assert ("laplace" in found) == (name == "all")
        assert ("draw_error_percent" in found) == (name != "part")


def test_nll_stays_finite_where_the_probability_underflows() -> None:
    module = module_at(np.array([1.0]), False)
    x = torch.tensor([[800.0], [-800.0]], dtype=torch.float64)
    torch.testing.assert_close(
        module.nll((x, torch.tensor([0.0, 1.0], dtype=torch.float64))),
        torch.tensor([800.0, 800.0], dtype=torch.float64),
    )


@pytest.mark.parametrize("shared", [True, False])
def test_closed_form_gradient_is_autograd_s_and_finite_differences(shared: bool) -> None:
    """Of three chains, on one batch for all or on one each."""
    sets = [problem(7, 4, seed) for seed in range(1 if shared else 3)]
    theta = np.random.default_rng(5).standard_normal((3, 4))
    x, y = (torch.tensor(np.stack(part)) for part in zip(*sets, strict=True))
    if shared:
        x, y = x[0], y[0]
    found = mean_gradient(torch.tensor(theta), x, y)
    for k in range(3):
        xk, yk = sets[0 if shared else k]
        w = torch.tensor(theta[k]).requires_grad_()
        module = module_at(theta[k], False)
        nll = module.nll((torch.tensor(xk), torch.tensor(yk))).mean()
        (auto,) = torch.autograd.grad(nll, [module.net.weight])
        torch.testing.assert_close(found[k], auto[0], rtol=1e-12, atol=1e-14)
        numeric = approx_fprime(theta[k], potential, 1.5e-8, xk, yk, 1e12) / 7
        np.testing.assert_allclose(found[k], numeric, atol=1e-6)
        torch.testing.assert_close(
            logits(torch.tensor(theta), x)[k], torch.tensor(xk) @ w.detach(), rtol=1e-12, atol=0
        )


@pytest.mark.parametrize("variance", [0.1, 10.0, 1e6])
def test_laplace_is_scipy_s_mode_and_the_inverse_of_a_numerical_hessian(variance: float) -> None:
    x, y = problem(40, 3)
    found = laplace(x, y, variance)
    best = minimize(potential, np.zeros(3), (x, y, variance), tol=1e-12)
    np.testing.assert_allclose(found.mean, best.x, atol=2e-4)
    assert potential(found.mean, x, y, variance) <= best.fun + 1e-12

    def gradient(w: Any, i: int) -> float:
        theta = torch.tensor(w)[None]
        g = 40 * mean_gradient(theta, torch.tensor(x), torch.tensor(y))[0, i]
        return float(g) + w[i] / variance

    hessian = np.stack([approx_fprime(found.mean, lambda w, i=i: gradient(w, i)) for i in range(3)])
    np.testing.assert_allclose(found.covariance @ hessian, np.eye(3), atol=1e-5)


def test_laplace_converges_where_full_newton_steps_do_not() -> None:
    """Three separable examples and a weak prior: full steps swing between -3e5 and 3e5."""
    x, y = np.array([[-2.0, -3.0], [1.0, 0.0], [-31.0, -10.0]]), np.array([0.0, 0.0, 1.0])
    found = laplace(x, y, 1e4)
    gradient = x.T @ (expit(x @ found.mean) - y) + found.mean / 1e4
    np.testing.assert_allclose(gradient, 0, atol=1e-6)


def test_laplace_refuses_an_impossible_prior() -> None:
    with pytest.raises(ValueError, match="must be positive, got 0"):
        laplace(*problem(5, 2), 0.0)


def test_hmc_has_the_moments_of_quadrature_where_laplace_has_not() -> None:
    """Ten examples: a skewed posterior in two dimensions, integrated on a grid.

    A correct sampler's three means and three second moments each lie within 4 standard errors but
    for a probability of 4e-4 (normal), its own standard errors with 40 chains allowed for.
    """
    x, y = problem(10, 2, seed=3)
    grid = np.linspace(-14, 14, 561)
    w = np.stack(np.meshgrid(grid, grid, indexing="ij"), -1).reshape(-1, 2)
    f = w @ x.T
    log = -(np.logaddexp(0, f) - y * f).sum(1) - (w**2).sum(1) / (2 * 10.0)
    mass = np.exp(log - log.max())
    mass /= mass.sum()
    functions = np.stack([w[:, 0], w[:, 1], w[:, 0] ** 2, w[:, 1] ** 2, w[:, 0] * w[:, 1]], 1)
    truth = mass @ functions
    reference = sample_hmc(x, y, 10.0, chains=40, draws=300, burn_in=150, seed=0)
    d = reference.draws
    found = np.stack(
        [d[..., 0], d[..., 1], d[..., 0] ** 2, d[..., 1] ** 2, d[..., 0] * d[..., 1]], -1
    )
    z = (found.mean((0, 1)) - truth) / standard_error(found)
    assert np.abs(z).max() < 4, z
    assert reference.acceptance > 0.8
    # And the Laplace approximation would not have passed.
    approximate = laplace(x, y, 10.0)
    gap = (approximate.mean - truth[:2]) / standard_error(d)
    assert np.abs(gap).max() > 10


def test_laplace_and_hmc_agree_where_there_are_many_data() -> None:
    x, y = problem(1000, 2)
    approximate = laplace(x, y, 10.0)
    d = sample_hmc(x, y, 10.0, chains=40, draws=100, burn_in=60, seed=1).draws
    sd = np.sqrt(np.diag(approximate.covariance))
    assert np.abs((d.mean((0, 1)) - approximate.mean) / sd).max() < 0.1
    np.testing.assert_allclose(d.reshape(-1, 2).std(0), sd, rtol=0.06)


class Pairs(L.LightningDataModule):
    """Some examples to train and test on."""

    def __init__(self, width: int = 3, **batches: Any) -> None:
        super().__init__()
        self.width, self.batches = width, batches

    def examples(self, seed: int) -> tuple[Tensor, Tensor]:
        x, y = problem(60, self.width, seed)
        return torch.tensor(x).float(), torch.tensor(y).float()

    def train_dataloader(self) -> BatchStream:
        return BatchStream(self.examples(0), 20)

    def val_dataloader(self) -> Any:
        return []

    def test_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(*self.examples(1)), batch_size=60
        )


def test_drawn_labels_have_the_model_s_probability() -> None:
    """A label is 1 where its uniform number lies below p, so its mean over (0, 1) is p."""
    module = module_at(np.array([0.5, -1.0]), False)
    x = torch.tensor([[1.0, 2.0], [3.0, 0.5]], dtype=torch.float64)
    p = module.predictive((x, torch.zeros(2))).detach()
    y = torch.zeros(2, dtype=torch.float64)
    drawn = [module.draw_labels(((x, y), torch.full((2, 1), u)))[1] for u in np.linspace(0, 1, 999)]
    torch.testing.assert_close(torch.stack(drawn).mean(0), p, atol=2e-3, rtol=0)


def test_laplace_predictions_are_averages_of_sigmoids() -> None:
    """Against 200,000 draws: three probabilities within 5 standard errors but for 2e-6."""
    x, y = problem(12, 2)
    found = laplace(x, y, 10.0)
    w = np.random.default_rng(0).multivariate_normal(found.mean, found.covariance, 200_000)
    p = expit(w @ x[:3].T)
    error = p.std(0) / np.sqrt(len(w))
    assert np.abs((found.predict(x[:3]) - p.mean(0)) / error).max() < 5


@pytest.mark.parametrize("sd", [0.1, 1.0, 1.99, 2.0, 10.0, 100.0])
def test_laplace_predictions_are_exact_however_wide_the_law(sd: float) -> None:
    """Against the trapezoidal rule on 400,001 points."""
    z = np.linspace(-10, 10, 400_001)
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    for mean in sd * np.array([-3.0, -1.0, 0.0, 0.2, 2.0]):
        expected = trapezoid(expit(mean + sd * z) * density, z)
        found = Laplace(np.array([mean]), np.array([[sd**2]])).predict(np.ones((1, 1)))
        assert found[0] == pytest.approx(expected, abs=1e-6)


def test_metrics_are_error_nll_and_brier() -> None:
    module = LogisticRegression(SAMPLER, num_features=1)
    p = torch.tensor([0.9, 0.2, 0.6, 0.5], dtype=torch.float64)
    nll = torch.tensor([0.1, 0.2, 0.3, 0.6], dtype=torch.float64)
    y = torch.tensor([1.0, 1.0, 0.0, 1.0])
    values = module.metrics(
        Prediction(Bernoulli, p, torch.zeros(4), None, nll), (torch.zeros(4, 1), y)
    )
    assert values["error_percent"] == 50
    assert values["nll"] == pytest.approx(0.3)
    assert values["brier"] == pytest.approx((0.01 + 0.64 + 0.36 + 0.25) / 4)


def test_a_chain_starts_at_zero_and_refuses_other_data(tmp_path: Path) -> None:
    module = LogisticRegression(
        partial(PSGLD, lr=1e-3), num_features=4, burn_in=2, thinning=1, draw_budget=0
    )
    assert all(not p.any() for p in module.parameters())
    with pytest.raises(ValueError, match=r"\[60, 3\], not \[N, 4\]: set num_features"):
        trainer(tmp_path, 4).fit(module, datamodule=Pairs())
    with pytest.raises(ValueError, match="num_features must be positive"):
        LogisticRegression(SAMPLER, num_features=0)
