"""HMC leaves its target alone at every step size, and its bookkeeping is exact.

False-alarm rate: 1e-6 a statistic (tests/harness.py), some 50 statistics.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

from lightning_sgmcmc import HMC, GaussianPrior, RMSProp, SpikeAndSlabPrior
from lightning_sgmcmc.samplers import NonFiniteGradientError
from lightning_sgmcmc.samplers.dual_averaging import DualAveraging
from tests.harness import FALSE_ALARM, assert_normal
from tests.lightning_sgmcmc.problem import N, Problem

Nll = Callable[[Tensor], Tensor]


def closure_of(sampler: HMC, nll: Nll) -> Callable[[], Tensor]:
    """Return the closure of a mean NLL that maps [..., d] to [...]."""

    def closure() -> Tensor:
        sampler.zero_grad()
        loss = nll(sampler.params[0])
        loss.sum().backward()
        return loss.detach()

    return closure


def stacked(start: np.ndarray, lr: float, **kw: Any) -> HMC:
    theta = torch.tensor(start).requires_grad_()
    sampler = HMC([theta], lr, **({"seed": 1, "target_acceptance": None} | kw))
    sampler.stack(one_generator=True)
    return sampler


def run(sampler: HMC, nll: Nll, steps: int) -> np.ndarray:
    closure = closure_of(sampler, nll)
    for _ in range(steps):
        sampler.step(closure)
    return sampler.params[0].detach().numpy()


# The law


@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("metric", [None, (2.0, 0.3)])
def test_stays_in_a_correlated_gaussian(temperature: float, metric: Any) -> None:
    """At a step so large that two fifths are rejected, through which any error would show."""
    n, prior, posterior = 50, 2.0, np.array([[1.0, 0.95], [0.95, 1.0]])
    likelihood = torch.tensor(np.linalg.inv(posterior) - np.eye(2) / prior) / n
    rng = np.random.default_rng(0)
    covariance = temperature * posterior
    start = rng.standard_normal((20_000, 2)) @ np.linalg.cholesky(covariance).T
    preconditioner = None if metric is None else RMSProp(alpha=0.0, eps=1e-5)
    sampler = stacked(
        start,
        n * (0.13 if metric is None else 0.14),
        num_data=n,
        prior=GaussianPrior(prior),
        temperature=temperature,
        leapfrog_steps=3,
        preconditioner=preconditioner,
    )
    if metric is not None:
        gradient = 1 / torch.tensor(metric, dtype=torch.float64) - 1e-5
        sampler.preconditioner.update([gradient.expand(20_000, 2)])
    sampler.freeze()
    end = run(sampler, lambda t: 0.5 * torch.einsum("ki,ij,kj->k", t, likelihood, t), 15)
    assert 0.3 < sampler.acceptance < 0.85
    assert sampler.divergences == 0
    assert_normal(end, covariance)


def test_stays_in_a_double_well() -> None:
    """exp(-(x^4/4 - x^2) ) in one dimension, against quadrature, by Kolmogorov-Smirnov."""
    grid = np.linspace(-5, 5, 20_001)
    density = np.exp(-(grid**4 / 4 - grid**2))
    cdf = integrate.cumulative_trapezoid(density, grid, initial=0)
    cdf /= cdf[-1]
    rng = np.random.default_rng(1)
    start = np.interp(rng.random((20_000, 1)), cdf, grid)
    sampler = stacked(start, 0.7, num_data=1, leapfrog_steps=3)
    end = run(sampler, lambda t: (t**4 / 4 - t**2).sum(-1), 15)[:, 0]
    assert 0.4 < sampler.acceptance < 0.95
    found = stats.kstest(end, lambda x: np.interp(x, grid, cdf))
    assert found.pvalue > FALSE_ALARM


def test_stays_in_a_banana() -> None:
    """x ~ N(0, 1) and y ~ N(x^2, 1/4) given x, whose curvature changes along a trajectory."""
    rng = np.random.default_rng(2)
    white = rng.standard_normal((20_000, 2))
    start = np.stack([white[:, 0], white[:, 0] ** 2 + 0.5 * white[:, 1]], 1)
    sampler = stacked(start, 7 * 0.09, num_data=7, leapfrog_steps=5)

    def nll(t: Tensor) -> Tensor:
        x, y = t.unbind(-1)
        return (0.5 * x**2 + 2 * (y - x**2) ** 2) / 7

    end = run(sampler, nll, 15)
    assert 0.4 < sampler.acceptance < 0.95
    assert_normal(np.stack([end[:, 0], 2 * (end[:, 1] - end[:, 0] ** 2)], 1), np.eye(2))


# The trajectory, against NumPy


class Reference:
    """Leapfrog on U = N * nll - log p of a quartic in three dimensions, with a diagonal C."""

    num_data, variance = 12, 0.7
    A = np.array([[1.0, 0.3, 0.0], [0.3, 2.0, -0.4], [0.0, -0.4, 0.5]])

    def __init__(self, C: np.ndarray, mask: np.ndarray) -> None:
        self.C, self.mask = C, mask

    def nll(self, t: Tensor) -> Tensor:
        A = torch.tensor(self.A)
        return 0.5 * torch.einsum("...i,ij,...j->...", t, A, t) + 0.1 * (t**4).sum(-1)

    def potential(self, x: np.ndarray) -> float:
        quartic = 0.5 * x @ self.A @ x + 0.1 * (x**4).sum()
        return self.num_data * quartic + 0.5 * x @ x / self.variance

    def force(self, x: np.ndarray) -> np.ndarray:
        return -self.mask * (self.num_data * (self.A @ x + 0.4 * x**3) + x / self.variance)

    def leapfrog(
        self, x: np.ndarray, w: np.ndarray, dt: float, steps: int
    ) -> tuple[np.ndarray, np.ndarray, float]:
        """Return the end, its velocity and the energy error."""
        energy = self.potential(x) + 0.5 * (w**2 / self.C).sum()
        for _ in range(steps):
            w = w + 0.5 * dt * self.C * self.force(x)
            x = x + dt * w
            w = w + 0.5 * dt * self.C * self.force(x)
        return x, w, self.potential(x) + 0.5 * (w**2 / self.C).sum() - energy


def follow(
    reference: Reference, x: np.ndarray, w: np.ndarray, dt: float, steps: int
) -> tuple[np.ndarray, float]:
    """Return where HMC's trajectory ends and its acceptance probability."""
    theta = torch.tensor(x).requires_grad_()
    n = reference.num_data
    sampler = HMC(
        [theta],
        n * dt**2,
        jitter=0.0,
        leapfrog_steps=steps,
        num_data=n,
        prior=GaussianPrior(reference.variance),
        preconditioner=RMSProp(alpha=0.0, eps=1e-9),
    )
    sampler.preconditioner.update([torch.tensor(1 / reference.C - 1e-9)])
    sampler.preconditioner.freeze()
    sampler.set_masks([torch.tensor(reference.mask)])
    sampler.noise = lambda: [torch.tensor(w)]
    found = []
    sampler._adaptation.update = found.append  # type: ignore[method-assign]
    sampler.stream.uniform = lambda *_: torch.zeros((), dtype=torch.float64)
    sampler.step(closure_of(sampler, reference.nll))
    return theta.detach().numpy(), 0.8 - found[0]


@pytest.mark.parametrize("mask", [(1.0, 1.0, 1.0), (1.0, 0.0, 1.0)])
def test_a_trajectory_equals_an_independent_leapfrog_and_reverses(mask: Any) -> None:
    rng = np.random.default_rng(3)
    reference = Reference(np.array([0.5, 2.0, 1.0]), np.array(mask))
    losses = 0
    for _ in range(30):
        x, w = reference.mask * rng.standard_normal(3), reference.mask * rng.standard_normal(3)
        expected, w_end, error = reference.leapfrog(x, w, 0.15, 7)
        end, probability = follow(reference, x, w, 0.15, 7)
        if error > 740:
            np.testing.assert_array_equal(end, x)
            continue
        np.testing.assert_allclose(end, expected, rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose(probability, min(1, math.exp(-error)), rtol=1e-9, atol=1e-15)
        losses += probability < 0.99
        back, _ = follow(reference, end, -w_end, 0.15, 7)
        np.testing.assert_allclose(back, x, rtol=1e-9, atol=1e-10)
    assert losses > 2


def test_energy_error_is_of_second_order() -> None:
    """Over one time span, the error falls by four where the step halves."""
    reference = Reference(np.array([0.5, 2.0, 1.0]), np.ones(3))
    rng = np.random.default_rng(4)
    starts = rng.standard_normal((40, 2, 3))
    errors = []
    for halvings in (0, 1, 2):
        dt, steps = 0.04 / 2**halvings, 10 * 2**halvings
        lost = [-math.log(follow(reference, x, w, dt, steps)[1]) for x, w in starts]
        errors.append(np.mean(lost))
    np.testing.assert_allclose(np.log2(errors[:-1]) - np.log2(errors[1:]), 2, atol=0.15)


# Adaptation


@pytest.mark.parametrize("target", [0.6, 0.9])
@pytest.mark.parametrize("lr", [1e-6, 1e3])
def test_acceptance_reaches_its_target(target: float, lr: float) -> None:
    """Ten chains in 20 dimensions, 300 steps from six orders of magnitude off.

    Dual averaging is known to end somewhat above a low target; the standard error is under .01.
    """
    scales = torch.logspace(-1, 1, 20, dtype=torch.float64)

    def nll(t: Tensor) -> Tensor:
        return 0.5 * (t / scales).square().sum(-1)

    start = np.random.default_rng(5).standard_normal((10, 20)) * scales.numpy()
    sampler = stacked(start, lr, target_acceptance=target, num_data=1, leapfrog_steps=5)
    run(sampler, nll, 300)
    sampler.freeze()
    adapted = sampler.lr
    run(sampler, nll, 300)
    assert sampler.lr == adapted
    assert sampler.acceptance == pytest.approx(target, abs=0.1)


def test_dual_averaging_is_that_of_hoffman_and_gelman() -> None:
    """x_(t+1) = mu - sqrt(t) / (gamma (t + t0)) sum H, with weights t^-kappa in the average."""
    found, average = DualAveraging(), 0.0
    shortfalls = np.random.default_rng(2).uniform(-0.2, 0.8, 30)
    for t, H in enumerate(shortfalls, start=1):
        found.update(float(H))
        x = math.log(10) - math.sqrt(t) / (0.05 * (t + 10)) * shortfalls[:t].sum()
        average = t**-0.75 * x + (1 - t**-0.75) * average
        assert found.log_step == pytest.approx(x, rel=1e-9)
        assert found.averaged == pytest.approx(average, rel=1e-9)
    found.finish()
    assert found.log_step == found.averaged


def test_a_scheduler_does_not_undo_the_adaptation() -> None:
    problem = Problem()
    sampler = HMC(problem.params, 1e-3, num_data=N)
    schedule = torch.optim.lr_scheduler.LambdaLR(sampler, lambda _: 1.0)
    closure = whole(problem, sampler)
    for _ in range(20):
        sampler.step(closure)
        adapted = sampler.lr
        schedule.step()
        assert sampler.lr == adapted
    assert adapted > 2e-3
    sampler.set_lr(0.5)
    assert sampler.lr == pytest.approx(0.5)


def test_a_resumed_chain_does_not_choose_its_first_step_anew() -> None:
    first, second = (HMC([torch.ones(3).requires_grad_()], "auto", num_data=10) for _ in range(2))
    assert first.auto_lr
    first.set_lr(0.1)  # what "auto" found, from which it adapts on
    second.load_state_dict(first.state_dict())
    assert not second.auto_lr


# Bookkeeping


def whole(problem: Problem, sampler: HMC, count: list[int] | None = None) -> Callable[[], Tensor]:
    """Return the closure over all of a problem's data; ``count`` gets a number a call."""

    def closure() -> Tensor:
        sampler.zero_grad()
        loss = problem.nll((problem.x, problem.y)).mean()
        loss.backward()
        if count is not None:
            count.append(1)
        return loss.detach()

    return closure


def test_a_step_costs_its_leapfrog_steps_and_sees_changes_from_outside() -> None:
    problem, calls = Problem(), []
    sampler = HMC(
        problem.params, 0.02, leapfrog_steps=4, num_data=N, prior=GaussianPrior(1.0), seed=3
    )
    closure = whole(problem, sampler, calls)
    for i in range(1, 6):
        before = closure()
        calls.pop()
        assert torch.equal(sampler.step(closure), before)
        assert len(calls) == sampler.gradients == 1 + 4 * i
    with torch.no_grad():
        problem.params[0].data.mul_(0.5)
    before = closure()
    calls.pop()
    assert torch.equal(sampler.step(closure), before)
    assert len(calls) == 26
    sampler.set_masks([torch.arange(p.numel()).view(p.shape) % 2 for p in problem.params])
    before = closure()
    calls.pop()
    assert torch.equal(sampler.step(closure), before)
    assert len(calls) == sampler.gradients == 31


def test_what_the_prior_learns_may_change_the_loss() -> None:
    """While a prior adapts, the loss at the weights is evaluated anew for each trajectory."""
    problem, calls = Problem(), []
    prior = SpikeAndSlabPrior(v0=0.5, v1=4.0)
    sampler = HMC(problem.params, 1e-3, leapfrog_steps=2, num_data=N, prior=prior)
    closure = whole(problem, sampler, calls)
    for i in range(1, 4):
        sampler.step(closure)
        assert len(calls) == 3 * i
    sampler.freeze()
    for i in range(1, 4):
        sampler.step(closure)
        assert len(calls) == 9 + 1 + 2 * i


def test_stacked_chains_move_as_they_would_alone() -> None:
    start = np.random.default_rng(6).standard_normal((4, 3))
    reference = Reference(np.ones(3), np.ones(3))
    settings: dict[str, Any] = {
        "num_data": 12,
        "prior": GaussianPrior(0.7),
        "target_acceptance": None,
        "leapfrog_steps": 3,
        "seed": 7,
    }
    theta = torch.tensor(start).requires_grad_()
    together = HMC([theta], 12 * 0.04, **settings)
    together.stack()
    found = run(together, reference.nll, 30)
    accepted = 0
    for k in range(4):
        alone = HMC([torch.tensor(start[k]).requires_grad_()], 12 * 0.04, chain=k, **settings)
        np.testing.assert_allclose(run(alone, reference.nll, 30), found[k], rtol=1e-9)
        accepted += round(30 * alone.acceptance)
    assert 40 < accepted < 120
    assert accepted == round(120 * together.acceptance)


def test_a_divergent_chain_is_rejected_without_its_neighbours() -> None:
    """Chain 0 stands beside a wall behind which the loss and its gradient are not finite."""

    def nll(t: Tensor) -> Tensor:
        return (0.5 * t**2 - torch.log(2 - t)).sum(-1)

    start = np.array([[1.999999], [0.0], [-1.0]])
    sampler = stacked(start, 1e-2, num_data=1, leapfrog_steps=4)
    sampler.noise = lambda: [torch.tensor([[1e3], [0.5], [0.5]], dtype=torch.float64)]
    end = run(sampler, nll, 1)
    assert end[0, 0] == 1.999999
    assert (end[1:] > start[1:]).all()
    assert sampler.divergences == 1
    assert sampler.acceptance == pytest.approx(2 / 3)
    alone = HMC([torch.tensor(start[0]).requires_grad_()], 1e-2, num_data=1)
    alone.noise = lambda: [torch.tensor([1e3], dtype=torch.float64)]
    assert run(alone, nll, 3)[0] == 1.999999
    assert (alone.divergences, alone.acceptance) == (3, 0)
    assert alone.lr < 1e-2


def test_what_burn_in_rejected_is_not_counted() -> None:
    sampler = HMC([torch.ones(3).requires_grad_()], 1e4, num_data=10, target_acceptance=None)
    run(sampler, lambda t: 0.5 * t.square().sum(), 3)
    assert (sampler.divergences, sampler.acceptance) == (3, 0)
    sampler.freeze()
    sampler.set_lr(1e-6)
    run(sampler, lambda t: 0.5 * t.square().sum(), 3)
    assert (sampler.divergences, sampler.acceptance) == (0, 1)


def test_the_lbfgs_metric_learns_from_trajectories() -> None:
    """On a quadratic the secant holds, C y = s, at no more than a trajectory's gradients."""
    from lightning_sgmcmc import AveragedLBFGS

    H = torch.tensor([[3.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    theta = torch.tensor([1.0, -1.0], dtype=torch.float64, requires_grad=True)
    metric = AveragedLBFGS(memory=1, omega=(1e9, 1.0, 0.9))
    sampler = HMC([theta], 0.01, num_data=1, preconditioner=metric, leapfrog_steps=3)
    metric = sampler.preconditioner
    for _ in range(4):
        sampler.step(closure_of(sampler, lambda t: 0.5 * t @ H @ t))
    assert sampler.gradients == 13
    s, y = metric.state_dict()["recent"][-1]
    torch.testing.assert_close(y, H @ s)
    torch.testing.assert_close(metric.apply_([y.clone()])[0], s)
    sampler.freeze()
    assert not sampler.needs


# Errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"leapfrog_steps": 0}, "leapfrog_steps must be at least 1, got 0"),
        ({"jitter": 1.0}, r"jitter must lie in \[0, 1\), got 1.0"),
        ({"jitter": -0.1}, r"jitter must lie in \[0, 1\), got -0.1"),
        ({"target_acceptance": 1.0}, r"target_acceptance must be None or lie in \(0, 1\)"),
        ({"temperature": 0.0}, "HMC has no limit at temperature 0"),
    ],
)
def test_arguments_out_of_range(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HMC([torch.zeros(1, requires_grad=True)], 0.1, **arguments)


def test_bad_closures_move_nothing() -> None:
    theta = torch.ones(2, dtype=torch.float64, requires_grad=True)
    sampler = HMC([theta], 0.1, num_data=1)
    theta.grad = torch.ones_like(theta)
    with pytest.raises(RuntimeError, match=r"call step\(closure\) with a closure that returns"):
        sampler.step()
    with pytest.raises(RuntimeError, match="returned nothing: HMC needs the mean NLL"):
        sampler.step(lambda: None)
    with pytest.raises(RuntimeError, match=r"a loss of shape \[2\]: .*, of shape \[\]"):
        sampler.step(lambda: torch.ones(2))
    with pytest.raises(RuntimeError, match="the loss at the current weights is not finite"):
        sampler.step(lambda: math.inf)
    theta.grad.fill_(math.nan)
    with pytest.raises(NonFiniteGradientError):
        sampler.step(lambda: 0.0)
    assert torch.equal(theta.detach(), torch.ones(2, dtype=torch.float64))
    assert sampler.steps_taken == 0


def test_an_interrupted_trajectory_is_taken_back() -> None:
    problem = Problem()
    sampler = HMC(problem.params, 1e-2, num_data=N)
    plain, calls = whole(problem, sampler), []

    def closure() -> Tensor:
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return plain()

    before = problem.weights()
    with pytest.raises(KeyboardInterrupt):
        sampler.step(closure)
    assert torch.equal(problem.weights(), before)
