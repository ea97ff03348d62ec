"""The spike and slab: its density, its updates, their fixed point, and exact resume."""

from __future__ import annotations

import copy
import io
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, optimize, stats
from torch import Tensor

from lightning_sgmcmc import HASGLD, PSGLD, SGLD, Sampler, SpikeAndSlabPrior
from lightning_sgmcmc.samplers.chains_in_turn import ChainsInTurn
from tests.lightning_sgmcmc.priors.cases import CHAINS, attached, params
from tests.lightning_sgmcmc.problem import N, Problem
from tests.toy import Toy, ToyData, trainer

V0, V1, A, NU, LAMBDA = 0.3, 4.0, 1.5, 2.0, 0.6


@pytest.mark.parametrize("theta", [0.0, 0.2, 1.5, -8.0])
def test_density_integrates_to_one(theta: float) -> None:
    """After updates, kappa0 and kappa1 are those of neither a Laplace nor a Gaussian."""
    prior = SpikeAndSlabPrior(v0=V0, v1=V1, delta=0.2, variance=2.0)
    start = torch.tensor([theta], dtype=torch.float64)
    prior.attach([start])
    prior.update([start])

    def density(x: float) -> float:
        return float(prior.log_density([torch.tensor([x], dtype=torch.float64)]).exp())

    mass = 2 * integrate.quad(density, 0, np.inf, epsabs=1e-10)[0]
    assert mass == pytest.approx(1, rel=1e-7)


@pytest.mark.parametrize(("included", "law"), [(1e-12, "laplace"), (1 - 1e-12, "norm")])
def test_density_at_either_end(included: float, law: str) -> None:
    prior = SpikeAndSlabPrior(v0=V0, v1=V1, delta=included, variance=2.0)
    theta = [p.float() for p in params()]
    prior.attach(theta)
    scale = 2**0.5 * (V0 if law == "laplace" else V1**0.5)
    exact = sum(getattr(stats, law).logpdf(p.numpy(), scale=scale).sum() for p in theta)
    assert float(prior.log_density(theta)) == pytest.approx(exact, rel=1e-5)


def test_updates_are_those_of_the_algorithm() -> None:
    """Two updates, against the formulas with SciPy's densities and NumPy's roots."""
    prior = SpikeAndSlabPrior(
        V0, V1, 0.2, A, b=7.0, nu=NU, scale=LAMBDA, variance=2.0, omega=(0.5, 2.0, 0.7)
    )
    prior.attach(params())
    sums = iter([11.0, 5.0])
    prior.bind_residuals(lambda: torch.tensor(next(sums)), 20)
    p, rho, delta, variance = 23, np.full(23, 0.2), 0.2, 2.0
    kappa0, kappa1 = (1 - rho) / V0, rho / V1
    for k, sse in enumerate([11.0, 5.0]):
        theta = params(seed=k)
        prior.update(theta)
        omega, sigma = 0.5 * (k + 2) ** -0.7, variance**0.5
        beta = torch.cat([t.reshape(-1) for t in theta]).numpy()
        slab = stats.norm.pdf(beta, scale=sigma * V1**0.5) * delta
        spike = stats.laplace.pdf(beta, scale=sigma * V0) * (1 - delta)
        rho = (1 - omega) * rho + omega * slab / (slab + spike)
        kappa0 = (1 - omega) * kappa0 + omega * (1 - rho) / V0
        kappa1 = (1 - omega) * kappa1 + omega * rho / V1
        delta = (1 - omega) * delta + omega * (rho.sum() + A - 1) / (A + 7 + p - 2)
        R_b, R_c = kappa0 @ abs(beta), sse + kappa1 @ beta**2 + NU * LAMBDA
        root = max(np.roots([20 + p + NU, -R_b, -R_c]))
        variance = (1 - omega) * variance + omega * root**2
    found = torch.cat([r.reshape(-1) for r in prior.rho]).numpy()
    np.testing.assert_allclose(found, rho, rtol=1e-10)
    assert float(prior.delta) == pytest.approx(delta, rel=1e-10)
    assert float(prior.noise_variance) == pytest.approx(variance, rel=1e-10)
    (e, c), sigma = prior.rates()[0], variance**0.5
    np.testing.assert_allclose(e.reshape(-1), kappa0[:6] / sigma, rtol=1e-10)
    np.testing.assert_allclose(c.reshape(-1), kappa1[:6] / variance, rtol=1e-10)


def test_sigma_is_the_mode_of_its_conditional() -> None:
    """With omega = 1 sigma^2 maximises the log posterior over log sigma, rho held."""
    prior = SpikeAndSlabPrior(V0, V1, variance=2.0, nu=NU, scale=LAMBDA, omega=(1.0, 1.0, 1.0))
    theta = params()
    prior.attach(theta)
    prior.bind_residuals(lambda: torch.tensor(31.0), 20)
    prior.update(theta)
    beta = torch.cat([t.reshape(-1) for t in theta]).numpy()
    rho = torch.cat([r.reshape(-1) for r in prior.rho]).numpy()

    def negative(log_sigma: float) -> float:
        s = np.exp(log_sigma)
        likelihood = 31.0 / (2 * s**2) + 20 * log_sigma
        spike = (1 - rho) @ -stats.laplace.logpdf(beta, scale=s * V0)
        slab = rho @ -stats.norm.logpdf(beta, scale=s * V1**0.5)
        # The density of log sigma that InverseGamma(nu/2, nu lambda/2) on sigma^2 implies.
        hyper = -stats.invgamma.logpdf(s**2, NU / 2, scale=NU * LAMBDA / 2) - 2 * log_sigma
        return float(likelihood + spike + slab + hyper)

    best = optimize.minimize_scalar(
        negative, bounds=(-5, 5), method="bounded", options={"xatol": 1e-9}
    )
    assert float(prior.noise_variance) == pytest.approx(np.exp(2 * best.x), rel=1e-6)


def fixed_point(ols: np.ndarray, rss: float, n: int) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Return theta, rho, delta and sigma^2 of EM on a design with X'X = n I.

    Per coordinate theta minimises (n/2)(theta - ols)^2 + kappa0 sigma |theta| + kappa1 theta^2 / 2.
    """
    p, rho, delta, variance = len(ols), np.full(len(ols), 0.5), 0.5, 1.0
    for _ in range(2000):
        sigma, k0, k1 = variance**0.5, (1 - rho) / 0.1, rho / 100
        theta = np.sign(ols) * np.maximum(n * abs(ols) - k0 * sigma, 0) / (n + k1)
        slab = stats.norm.pdf(theta, scale=10 * sigma) * delta
        spike = stats.laplace.pdf(theta, scale=0.1 * sigma) * (1 - delta)
        rho = slab / (slab + spike)
        delta = rho.sum() / (2 * p - 1)
        R_c = rss + n * ((theta - ols) ** 2).sum() + rho / 100 @ theta**2 + 1
        roots = np.roots([n + p + 1, -((1 - rho) / 0.1) @ abs(theta), -R_c])
        variance = max(roots) ** 2
    return theta, rho, delta, variance


def test_fixed_point_on_an_orthogonal_design() -> None:
    """T = 0: the stochastic approximation goes where EM goes, coordinate by coordinate.

    At zero weights the sign makes the chain step over the kink by lr kappa0 / (sigma N),
    which is 2e-4 in the end.
    """
    rng = np.random.default_rng(0)
    n, p = 100, 8
    X = np.linalg.qr(rng.standard_normal((n, p)))[0] * n**0.5
    truth = np.array([3.0, 1.0, -2.0, 0, 0, 0, 0, 0])
    y = X @ truth + 3**0.5 * rng.standard_normal(n)
    ols = X.T @ y / n
    theta, rho, delta, variance = fixed_point(ols, ((y - X @ ols) ** 2).sum(), n)
    assert set((rho > 0.5).tolist()) == {True, False}

    x, t = torch.from_numpy(X), torch.from_numpy(y)
    beta = torch.from_numpy(ols).requires_grad_()
    sampler = SGLD([beta], 0.1, num_data=n, prior=SpikeAndSlabPrior(), temperature=0.0)
    prior = sampler.prior
    assert isinstance(prior, SpikeAndSlabPrior)
    prior.bind_residuals(lambda: ((t - x @ beta.detach()) ** 2).sum(), n)
    for k in range(1500):
        sampler.set_lr(0.1 / (1 + k / 30))
        beta.grad = x.T @ (x @ beta.detach() - t) / n / prior.noise_variance
        sampler.step()
    np.testing.assert_allclose(beta.detach(), theta, rtol=2e-3, atol=3e-4)
    np.testing.assert_allclose(prior.rho[0], rho, rtol=1e-2, atol=1e-4)
    assert float(prior.delta) == pytest.approx(delta, rel=3e-3)
    assert float(prior.noise_variance) == pytest.approx(variance, rel=3e-3)


@pytest.mark.parametrize(("a", "trapped"), [(1.0, True), (2.0, False)])
def test_zero_is_a_trap_without_prior_mass_on_the_slab(a: float, trapped: bool) -> None:
    prior, zeros = SpikeAndSlabPrior(a=a), [torch.zeros(20)]
    prior.attach(zeros)
    prior.bind_residuals(lambda: torch.tensor(1000.0), 1000)  # holds sigma near 1
    for _ in range(200):
        prior.update(zeros)
    assert (float(prior.delta) < 1e-6) == trapped
    fitted = [torch.tensor([1.0] + [0.0] * 19)]
    for _ in range(200):
        prior.update(fitted)
    assert (float(prior.rho[0][0]) < 0.5) == trapped


def test_residuals_of_each_chain_reach_its_own_sigma() -> None:
    theta = params(CHAINS)
    prior = SpikeAndSlabPrior()
    prior.attach(theta, 1)
    prior.bind_residuals(lambda: torch.tensor([1.0, 50.0, 900.0]), 10)
    prior.update(theta)
    for k, sse in enumerate([1.0, 50.0, 900.0]):
        alone = SpikeAndSlabPrior()
        alone.attach([p[k] for p in theta])
        alone.bind_residuals(lambda sse=sse: torch.tensor(sse), 10)
        alone.update([p[k] for p in theta])
        assert float(alone.noise_variance) == pytest.approx(float(prior.noise_variance[k]))
        assert float(alone.delta) == pytest.approx(float(prior.delta[k]))


# In a sampler


def chain(problem: Problem, kind: type[Sampler], **kw: Any) -> Sampler:
    kw = {"num_data": N, "seed": 3, "prior": SpikeAndSlabPrior()} | kw
    sampler = kind(problem.params, 1e-3, **kw)
    sampler.attach(problem.target(sampler.prior))
    return sampler


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("kind", [SGLD, PSGLD])
@pytest.mark.parametrize("frozen", [False, True])
def test_resumes_to_the_bit(kind: type[Sampler], frozen: bool) -> None:
    problem = Problem()
    sampler = chain(problem, kind)
    problem.run(sampler, 5)
    if frozen:
        sampler.freeze()
    state, other = through_a_file(sampler.state_dict()), problem.twin()
    expected = problem.run(sampler, 5)
    resumed = chain(other, kind, seed=99)
    resumed.load_state_dict(state)
    assert torch.equal(other.run(resumed, 5), expected)
    assert torch.equal(hyper(resumed.prior), hyper(sampler.prior))
    assert resumed.prior.frozen == frozen


def hyper(prior: Any) -> Tensor:
    parts = [*prior.rho, *prior._kappa0, *prior._kappa1, prior.delta, prior.noise_variance]
    return torch.cat([t.reshape(-1) for t in parts]).clone()


def test_follows_the_chain_once_a_step_until_frozen() -> None:
    problem = Problem()
    given = SpikeAndSlabPrior()
    sampler = chain(problem, SGLD, prior=given)
    expected = copy.copy(given)
    expected.attach(problem.params)
    for _ in range(4):
        problem.run(sampler, 1)
        expected.update([p.detach() for p in problem.params])
    assert torch.equal(hyper(sampler.prior), hyper(expected))
    sampler.freeze()
    before = hyper(sampler.prior)
    problem.run(sampler, 3)
    assert torch.equal(hyper(sampler.prior), before)


def test_chains_in_turn_refuse_an_adapting_prior() -> None:
    params = [("w", torch.zeros(2, 3, requires_grad=True))]
    with pytest.raises(ValueError, match="adapts to its chain, and HASGLD cannot run several"):
        ChainsInTurn(lambda own: HASGLD(own, 0.1, prior=SpikeAndSlabPrior()), params)


def test_a_loaded_state_is_not_shared() -> None:
    first = attached(SpikeAndSlabPrior(), params())
    second = SpikeAndSlabPrior()
    second.attach(params())
    second.load_state_dict(first.state_dict())
    before = hyper(first)
    second.update(params(seed=1))
    assert torch.equal(hyper(first), before)
    assert not torch.equal(hyper(second), before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"v0": 0.0}, "v0 must be positive, got 0.0"),
        ({"v1": -1.0}, "v1 must be positive, got -1.0"),
        ({"delta": 1.0}, r"delta must lie in \(0, 1\), got 1.0"),
        ({"a": 0.5}, "a and b must be at least 1, got 0.5 and None"),
        ({"b": 0.0}, "a and b must be at least 1, got 1.0 and 0.0"),
        ({"nu": 0.0}, "nu must be positive"),
        ({"scale": 0.0}, "scale must be positive"),
        ({"variance": float("nan")}, "variance must be positive"),
        ({"omega": (5.0, 10.0, 0.5)}, r"power in \(1/2, 1\]"),
    ],
)
def test_arguments_out_of_range(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SpikeAndSlabPrior(**arguments)


def test_a_prior_that_learns_needs_a_burn_in(tmp_path: Path) -> None:
    """Else it would freeze as it was given, without a word."""
    module = Toy(partial(SGLD, lr=1e-3, prior=SpikeAndSlabPrior()))
    with pytest.raises(ValueError, match="learns during burn-in, but burn_in is 0"):
        trainer(tmp_path, 20).fit(module, datamodule=ToyData())
