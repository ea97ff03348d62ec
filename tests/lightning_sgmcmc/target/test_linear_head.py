"""A head integrated out: against dense Gaussians over all targets and all weights."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.func import jacrev

from lightning_sgmcmc.target.linear_head import (
    Targets,
    collapsed_nll,
    conditional_variance,
    draw_head,
    features_of,
    output_layer,
    reduced,
)

EPS = float(np.finfo(float).eps)


def problem(count: int, width: int, outputs: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return features, targets and precisions."""
    generator = np.random.default_rng(count)
    phi = generator.standard_normal((count, width))
    targets = generator.standard_normal((count, outputs))
    precision = generator.uniform(0.5, 5.0, width)
    return torch.tensor(phi), torch.tensor(targets), torch.tensor(precision)


def joint(phi: Tensor, precision: Tensor, outputs: int, sigma: Any) -> np.ndarray:
    """Return the covariance of vec(W) and vec(T), one output after another; sigma [] or [N]."""
    features = np.kron(np.eye(outputs), phi.numpy())
    prior = np.kron(np.eye(outputs), np.diag(1 / precision.numpy()))
    noise = np.diag(np.tile(np.broadcast_to(sigma, len(phi)) ** 2, outputs))
    cross = prior @ features.T
    return np.block([[prior, cross], [cross.T, features @ prior @ features.T + noise]])


# More examples than features and fewer; more outputs than examples.
SIZES = [(9, 4, 3), (5, 8, 2), (4, 3, 11)]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("sigma", [1.0, 1e-3, "by example"])
def test_potential_is_the_dense_marginal(sizes: tuple[int, int, int], sigma: Any) -> None:
    count, width, outputs = sizes
    sigma = np.linspace(0.2, 1.7, count) if sigma == "by example" else sigma
    phi, targets, precision = problem(*sizes)
    weights = outputs * width
    covariance = joint(phi, precision, outputs, sigma)[weights:, weights:]
    expected = -stats.multivariate_normal(cov=covariance).logpdf(targets.mT.reshape(-1).numpy())
    log_sigma = torch.tensor(sigma, dtype=torch.float64).log()
    found = collapsed_nll(phi, log_sigma, reduced(targets, EPS), precision)
    assert float(found) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("log_scales", [-0.7, [-0.7, 0.1, -2.0, 0.4, -0.3, 1.2]])
def test_gradient_and_curvature_are_the_dense_marginal_s(log_scales: Any) -> None:
    phi, targets, precision = problem(6, 3, 8)
    log_sigma = torch.tensor(log_scales, dtype=torch.float64)
    columns = reduced(targets, EPS)
    assert columns.columns.shape == (6, 6)

    def ours(phi: Tensor, log_sigma: Tensor) -> Tensor:
        return collapsed_nll(phi, log_sigma, columns, precision)

    def dense(phi: Tensor, log_sigma: Tensor) -> Tensor:
        noise = torch.diag(torch.exp(2 * log_sigma).expand(6))
        covariance = phi @ torch.diag(1 / precision) @ phi.mT + noise
        law = torch.distributions.MultivariateNormal(torch.zeros(6).double(), covariance)
        return -law.log_prob(targets.mT).sum()

    for argument in (0, 1):
        for derivative in (jacrev, lambda f, i: jacrev(jacrev(f, i), i)):
            found = derivative(ours, argument)(phi, log_sigma)
            expected = derivative(dense, argument)(phi, log_sigma)
            torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)


def test_curvature_is_right_where_features_span_few_dimensions() -> None:
    """A condition number of 1e14, as pde_source has it, against differences of 80 digits."""
    generator = np.random.default_rng(0)
    basis = generator.standard_normal((3, 8))
    phi = 1e5 * generator.standard_normal((20, 3)) @ basis
    targets = phi @ generator.standard_normal((8, 2)) + generator.standard_normal((20, 2))
    along = phi @ generator.standard_normal((8, 8)) / np.linalg.norm(phi)
    sigma, precision, outputs = 0.01, 3.0, 2
    ridge = sigma**2 * precision
    condition = np.linalg.eigvalsh(phi.T @ phi)[-1] / ridge
    assert 1e14 < condition < 1e17

    with mpmath.workdps(80):
        exact, way, y = mpmath.matrix(phi), mpmath.matrix(along), mpmath.matrix(targets)
        noise = mpmath.mpf(sigma) ** 2

        def potential(step: mpmath.mpf) -> mpmath.mpf:
            moved = exact + step * way
            inner = moved.T * moved + noise * precision * mpmath.eye(8)
            mean = mpmath.inverse(inner) * moved.T * y
            misfit = mpmath.mnorm(y - moved * mean, "f") ** 2 / noise
            return (
                outputs * mpmath.log(mpmath.det(inner))
                + misfit
                + precision * mpmath.mnorm(mean, "f") ** 2
            ) / 2

        h = mpmath.mpf(10) ** -16
        expected = float((potential(h) - 2 * potential(0) + potential(-h)) / h**2)

    features = torch.tensor(phi, requires_grad=True)
    direction = torch.tensor(along)
    value = collapsed_nll(
        features,
        torch.tensor(sigma, dtype=torch.float64).log(),
        reduced(torch.tensor(targets), EPS),
        torch.full((8,), precision, dtype=torch.float64),
    )
    (slope,) = torch.autograd.grad(value, features, create_graph=True)
    (curvature,) = torch.autograd.grad((slope * direction).sum(), features)
    assert float((curvature * direction).sum()) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("sigma", [0.3, [0.3, 0.1, 2.0, 0.9, 0.4, 0.3, 1.1]])
def test_draw_has_the_law_of_the_dense_conditional(sigma: Any) -> None:
    """It is affine in its normal numbers, so that mean and covariance can be read off exactly."""
    count, width, outputs = 7, 3, 2
    phi, targets, precision = problem(count, width, outputs)
    log_sigma = torch.tensor(sigma, dtype=torch.float64).log()

    def head(normal: Tensor) -> Tensor:
        drawn = draw_head(phi, log_sigma, targets, precision, normal.view(outputs, width))
        return drawn.reshape(-1)

    zero = torch.zeros(outputs * width, dtype=torch.float64)
    root = jacrev(head)(zero).numpy()
    full, n = joint(phi, precision, outputs, np.array(sigma)), outputs * width
    gain = full[:n, n:] @ np.linalg.inv(full[n:, n:])
    np.testing.assert_allclose(head(zero), gain @ targets.mT.reshape(-1).numpy(), rtol=1e-9)
    expected = full[:n, :n] - gain @ full[n:, :n]
    np.testing.assert_allclose(root @ root.T, expected, rtol=1e-9, atol=1e-12)
    combination = np.random.default_rng(1).standard_normal((outputs, width))
    found = conditional_variance(phi, log_sigma, precision, torch.tensor(combination.T[None]))
    assert float(found) == pytest.approx(combination.ravel() @ expected @ combination.ravel())


def test_targets_of_low_rank_need_few_columns() -> None:
    """Rounding of float32 adds columns that no precision of the targets holds."""
    generator = np.random.default_rng(0)
    low = generator.standard_normal((20, 2)) @ generator.standard_normal((2, 300))
    rounded = torch.tensor(low).float()
    assert np.linalg.matrix_rank(rounded.double().numpy()) == 20
    columns = reduced(rounded.double(), torch.finfo(torch.float32).eps)
    assert columns.columns.shape == (20, 2)
    phi, _, precision = problem(20, 4, 1)
    log_sigma = torch.tensor(1e-3, dtype=torch.float64).log()
    found = collapsed_nll(phi, log_sigma, columns, precision)
    whole = Targets(rounded.double(), torch.zeros(()).double(), 300)
    expected = collapsed_nll(phi, log_sigma, whole, precision)
    assert float(found) == pytest.approx(float(expected), rel=1e-9)
    of_each = log_sigma + torch.linspace(-1, 1, 20).double()
    found = collapsed_nll(phi, of_each, columns, precision)
    expected = collapsed_nll(phi, of_each, whole, precision)
    assert float(found) == pytest.approx(float(expected), rel=1e-9)


def test_what_columns_leave_out_is_misfit_that_no_head_takes() -> None:
    """Its trace over 2 sigma^2, value and slope, whether sigma is of all examples or of each."""
    phi, targets, precision = problem(6, 3, 8)
    columns = reduced(targets, EPS)
    more = columns._replace(rest=columns.rest + 2.5)
    log_sigma = torch.tensor(-0.4, dtype=torch.float64, requires_grad=True)
    bare = collapsed_nll(phi, log_sigma, columns, precision)
    expected = bare + 1.25 * torch.exp(-2 * log_sigma)
    (slope,) = torch.autograd.grad(expected, log_sigma, retain_graph=True)
    for of_each in (log_sigma, log_sigma.expand(6)):
        found = collapsed_nll(phi, of_each, more, precision)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
        (derivative,) = torch.autograd.grad(found, log_sigma)
        torch.testing.assert_close(derivative, slope, rtol=1e-10, atol=0)


def test_chains_along_the_first_axis_are_each_their_own() -> None:
    phi, targets, precision = problem(9, 4, 3)
    both = torch.stack([phi, 2 * phi])
    log_sigma = torch.tensor([0.1, -2.0], dtype=torch.float64)
    columns = reduced(targets, EPS)
    found = collapsed_nll(both, log_sigma, columns, precision)
    each = [collapsed_nll(p, s, columns, precision) for p, s in zip(both, log_sigma, strict=True)]
    torch.testing.assert_close(found, torch.stack(each), rtol=1e-12, atol=0)


def test_features_that_are_not_finite_give_no_potential() -> None:
    phi, targets, precision = problem(9, 4, 3)
    phi[0, 0] = torch.inf
    value = collapsed_nll(phi, torch.zeros(()).double(), reduced(targets, EPS), precision)
    assert torch.isnan(value)


class Scaled(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = 2 * super().forward(x)
        return result


def test_head_is_the_layer_that_gives_the_output() -> None:
    layers = [nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)]
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    assert output_layer(nn.Sequential(*layers), x) == "2"
    assert output_layer(nn.Linear(3, 2), x) == ""
    assert output_layer(nn.Sequential(*layers, nn.Tanh()), x) is None
    assert output_layer(nn.Sequential(*layers, nn.ReLU(inplace=True)), x) is None
    assert output_layer(Scaled(*layers), x) is None
    shared = nn.Sequential(layers[0], nn.Tanh(), layers[0])
    assert output_layer(shared, x) is None


@pytest.mark.parametrize("bias", [True, False])
def test_features_times_the_head_are_the_output(bias: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2, bias=bias))
    x, layer = torch.randn(4, 3), net[2]
    phi = features_of(layer, lambda: net(x))
    head = torch.cat([layer.weight, layer.bias[:, None]], 1) if bias else layer.weight
    torch.testing.assert_close(phi @ head.mT, net(x))
