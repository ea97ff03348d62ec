"""The RMSProp metric: its C, its root, its Gamma, its floor, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from lightning_sgmcmc import PSGLD, SGHMC, SGLD, GaussianPrior, RMSProp, Target
from lightning_sgmcmc.common.vectors import flatten
from lightning_sgmcmc.noise import NoiseStream
from tests.harness import assert_normal
from tests.lightning_sgmcmc.problem import N, Problem

D = torch.float64


def attached(d: int = 4, **arguments: object) -> RMSProp:
    preconditioner = RMSProp(**arguments)
    preconditioner.attach([torch.zeros(d, dtype=D)])
    return preconditioner


def diagonal(preconditioner: RMSProp, d: int = 4) -> Tensor:
    return preconditioner.apply_([torch.ones(d, dtype=D)])[0]


@pytest.mark.parametrize("floor", [0.0, 0.5])
def test_c_by_its_formula(floor: float) -> None:
    generator = torch.Generator().manual_seed(0)
    grads = torch.randn(7, 4, generator=generator, dtype=D)
    preconditioner = attached(alpha=0.8, eps=0.01, floor=floor)
    V = torch.zeros(4, dtype=D)
    for g in grads:
        preconditioner.update([g])
        V = 0.8 * V + 0.2 * g**2
    root = V.sqrt()
    expected = 1 / (0.01 + floor * root.mean() + root)
    assert torch.allclose(diagonal(preconditioner), expected, rtol=1e-12)
    v = torch.randn(4, generator=generator, dtype=D)
    energy = float(preconditioner.inverse_norm([v]))
    assert energy == pytest.approx(float((v * v / expected).sum()), rel=1e-12)


def test_floor_bounds_a_weight_without_gradient() -> None:
    preconditioner = attached(eps=1e-5, floor=0.5, alpha=0.0)
    preconditioner.update([torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=D)])
    assert float(diagonal(preconditioner).max()) == pytest.approx(1 / (1e-5 + 0.5 * 1.5))


def test_start_at_gradient() -> None:
    preconditioner = attached(alpha=0.9, eps=1e-3, start_at_gradient=True)
    g = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=D)
    preconditioner.update([g])
    assert torch.allclose(diagonal(preconditioner), 1 / (1e-3 + g))
    preconditioner.update([0 * g])
    assert torch.allclose(diagonal(preconditioner), 1 / (1e-3 + 0.9**0.5 * g))


@pytest.mark.parametrize("frozen", [False, True])
def test_noise_has_covariance_c(frozen: bool) -> None:
    preconditioner = attached(2, alpha=0.0, eps=1e-3)
    preconditioner.update([torch.tensor([0.3, 20.0], dtype=D)])
    if frozen:
        preconditioner.freeze()
    stream = NoiseStream([torch.zeros(2, dtype=D)], 0)
    draws = np.stack([preconditioner.noise(stream)[0].numpy().copy() for _ in range(5000)])
    assert_normal(draws, np.diag(diagonal(preconditioner, 2).numpy()))


def test_exact_gamma_is_the_divergence_of_c() -> None:
    """Against central differences of C after one update, on a potential that is not separable."""
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(20, 4, generator=generator, dtype=D)
    theta = torch.randn(4, generator=generator, dtype=D).requires_grad_()
    alpha, eps = 0.7, 0.05
    history = torch.rand(4, generator=generator, dtype=D)

    def nll(batch: Tensor) -> Tensor:
        return torch.nn.functional.softplus(batch @ theta) + 0.1 * (batch @ theta) ** 2

    target = Target(nll, [theta], 20)
    target.use(X)

    def metric() -> tuple[RMSProp, Tensor]:
        preconditioner = attached(alpha=alpha, eps=eps, gamma_probes=0)
        preconditioner.update([history])
        (g,) = target.gradient(X)
        preconditioner.update([g])
        return preconditioner, g

    preconditioner, g = metric()
    (gamma,) = preconditioner.gamma(target, [g], NoiseStream([theta], 0))
    step = 1e-5
    for i in range(4):
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                theta[i] += sign * step
            values.append(float(diagonal(metric()[0])[i]))
            with torch.no_grad():
                theta[i] -= sign * step
        assert float(gamma[i]) == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-6)


def test_gamma_of_a_weight_without_gradient_is_zero() -> None:
    theta = torch.tensor([1.0, 2.0], dtype=D, requires_grad=True)
    target = Target(lambda x: 0.5 * (x * theta[:1]) ** 2 + 0 * theta[1], [theta], 3)
    target.use(torch.ones(3, dtype=D))
    preconditioner = attached(2, gamma_probes=0)
    grads = target.gradient(target.batch)
    preconditioner.update(grads)
    (gamma,) = preconditioner.gamma(target, grads, NoiseStream([theta], 0))
    assert float(gamma[1]) == 0
    assert float(gamma[0]) < 0


def test_estimated_gamma_is_unbiased() -> None:
    """Mean of 600 one-probe estimates against the exact one, to five standard errors."""
    problem = Problem()
    target = problem.target()
    target.use(problem.batch(0))
    grads = target.gradient(problem.batch(0))
    stream = NoiseStream(problem.params, 1)

    def gamma(probes: int) -> Tensor:
        preconditioner = RMSProp(eps=0.1, gamma_probes=probes)
        preconditioner.attach(problem.params)
        preconditioner.update(grads)
        return flatten(preconditioner.gamma(target, grads, stream))

    exact = gamma(0)
    estimates = torch.stack([gamma(1) for _ in range(600)])
    error = estimates.std(0) / 600**0.5
    assert (error > 0).any()
    assert ((estimates.mean(0) - exact).abs() <= 5 * error + 1e-12).all()


def test_gamma_enters_the_step_as_lr_t_over_n() -> None:
    """Same noise with and without Gamma: the difference is lr T / N times Gamma."""
    lr, T = 0.01, 0.7
    weights = {}
    for probes in (None, 0):
        problem = Problem()
        start = problem.weights()
        sampler = PSGLD(problem.params, lr, eps=0.1, gamma_probes=probes, num_data=N, temperature=T)
        sampler.attach(problem.target())
        weights[probes] = problem.run(sampler, 1) - start
    problem = Problem()
    target, preconditioner = problem.target(), RMSProp(eps=0.1, gamma_probes=0)
    target.use(problem.batch(0))
    grads = target.gradient(problem.batch(0))
    preconditioner.attach(problem.params)
    preconditioner.update(grads)
    gamma = flatten(preconditioner.gamma(target, grads, NoiseStream(problem.params, 0)))
    difference = weights[0] - weights[None]
    assert torch.allclose(difference, lr * T / N * gamma, rtol=1e-6, atol=1e-14)


def test_only_sgld_has_gamma() -> None:
    theta = torch.zeros(1, requires_grad=True)
    with pytest.raises(ValueError, match="SGHMC has no Gamma term"):
        SGHMC([theta], 0.1, preconditioner=RMSProp(gamma_probes=0))


def test_frozen_has_no_gamma_and_keeps_c() -> None:
    problem = Problem()
    sampler = PSGLD(problem.params, 1e-3, gamma_probes=0, num_data=N)
    sampler.attach(problem.target())
    problem.run(sampler, 3)
    sampler.freeze()
    before = flatten(sampler.preconditioner.apply_([torch.ones_like(p) for p in problem.params]))
    grads = [torch.ones_like(p) for p in problem.params]
    assert sampler.preconditioner.gamma(problem.target(), grads, sampler.stream) is None
    problem.run(sampler, 3)
    after = flatten(sampler.preconditioner.apply_([torch.ones_like(p) for p in problem.params]))
    assert torch.equal(before, after)


def test_never_sees_the_prior() -> None:
    """Two priors, one gradient: one C."""
    metrics = []
    for prior in (None, GaussianPrior(1e-6, mean=3.0)):
        theta = torch.ones(4, dtype=D, requires_grad=True)
        sampler = PSGLD([theta], 1e-9, num_data=5, prior=prior)
        for i in range(3):
            theta.grad = torch.arange(4, dtype=D) + i
            sampler.step()
        metrics.append(diagonal(sampler.preconditioner))
    assert torch.equal(metrics[0], metrics[1])


def test_check_refuses_a_diverging_prior_drift() -> None:
    """C = 1/eps for a weight without gradient: lr C / (N variance) must stay below 2."""
    preconditioner = attached(eps=1e-5)
    preconditioner.update([torch.tensor([0.0, 1.0, 1.0, 1.0], dtype=D)])
    preconditioner.check(lr=0.019, num_data=1000, prior_precision=1.0)
    with pytest.raises(ValueError, match=r"C = 1e\+05.*lower lr below 0.02, raise eps, or set"):
        preconditioner.check(lr=0.021, num_data=1000, prior_precision=1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alpha": 1.0}, r"alpha must lie in \[0, 1\), got 1"),
        ({"alpha": -0.1}, r"alpha must lie in \[0, 1\), got -0.1"),
        ({"eps": 0.0}, "eps must be positive and finite, got 0"),
        ({"eps": float("inf")}, "eps must be positive and finite, got inf"),
        ({"floor": -1.0}, "floor must be finite and not negative, got -1"),
        ({"floor": float("nan")}, "floor must be finite and not negative, got nan"),
        ({"floor": float("inf")}, "floor must be finite and not negative, got inf"),
        ({"gamma_probes": -1}, "gamma_probes must be None, 0 or positive, got -1"),
    ],
)
def test_arguments_out_of_range(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RMSProp(**arguments)


def test_two_chains_of_one_metric_have_a_v_each() -> None:
    """What a second sampler is given, frozen or not, does not move the first one's C."""
    metric = RMSProp(alpha=0.5, eps=0.1)
    chains = [
        SGLD([torch.zeros(1, dtype=D, requires_grad=True)], 1e-3, num_data=9, preconditioner=metric)
        for _ in range(2)
    ]
    for scale, chain in zip((1.0, 4.0), chains, strict=True):
        chain.params[0].grad = torch.full_like(chain.params[0], scale)
        chain.step()
    chains[1].freeze()
    roots = [scale * 0.5**0.5 for scale in (1.0, 4.0)]
    for root, chain in zip(roots, chains, strict=True):
        found = chain.preconditioner.apply_([torch.ones(1, dtype=D)])[0]
        assert torch.allclose(found, torch.tensor([1 / (0.1 + root)], dtype=D), rtol=1e-12)
    assert not chains[0].preconditioner.frozen
    assert not metric.square_avg


def test_the_horizon_is_the_memory() -> None:
    assert [RMSProp(alpha=a).horizon for a in (0.0, 0.9, 0.99)] == [1, 10, 100]
