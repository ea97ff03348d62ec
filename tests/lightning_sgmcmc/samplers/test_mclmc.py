"""MCLMC: its formula, its order, its laws on Gaussians, what it adapts, and what it refuses.

Chance enters five statistics, whose seeds are fixed; each is bounded at a false-alarm rate of 1e-6
or less as its test states.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from lightning_sgmcmc import MCLMC, AveragedLBFGS, RMSProp, Target
from lightning_sgmcmc.chain.split import state_of
from lightning_sgmcmc.noise import NoiseStream
from lightning_sgmcmc.samplers.energy import mean_nll
from lightning_sgmcmc.samplers.energy_step import EnergyStep
from lightning_sgmcmc.samplers.spread import Spread
from tests.toy import Toy, ToyData, trainer

Potential = Callable[[Tensor], Tensor]


def quartic(theta: Tensor) -> Tensor:
    """Return sum_i a_i theta_i^4 / 4 + theta_i^2 / 2 + theta_1 theta_2 / 2, [] or [K]."""
    a = torch.linspace(0.5, 2, theta.shape[-1], dtype=theta.dtype)
    own = (a * theta**4 / 4 + theta**2 / 2).sum(-1)
    return own + theta[..., 0] * theta[..., 1] / 2


def gaussian(theta: Tensor) -> Tensor:
    return theta.square().sum(-1) / 2


def closure_of(sampler: MCLMC, potential: Potential) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        sampler.zero_grad()
        values = potential(sampler.params[0])
        values.sum().backward()
        return values.detach()

    return closure


def sampler_of(start: Any, lr: float, *, stacked: bool = False, **kw: Any) -> MCLMC:
    theta = torch.as_tensor(start, dtype=torch.float64).clone().requires_grad_()
    settings = {"num_data": 1, "seed": 1, "length": 2.0, "target_energy_variance": None} | kw
    sampler = MCLMC([theta], lr, **settings)
    if stacked:
        sampler.stack()
    return sampler


def run(sampler: MCLMC, potential: Potential, steps: int) -> np.ndarray:
    """Take steps, return where the chain was after each, [steps, ...]."""
    closure, found = closure_of(sampler, potential), []
    for _ in range(steps):
        sampler.step(closure)
        found.append(sampler.params[0].detach().numpy().copy())
    return np.array(found)


def kick(w: np.ndarray, g: np.ndarray, eps: float) -> tuple[np.ndarray, float]:
    """Return B and the kinetic energy gained, as the class docstring has them."""
    d, size = len(w), np.linalg.norm(g)
    e, y = -g / size, eps * size / (2 * (d - 1))
    x = y * (1 + (d - 1) * (d - 2) / (3 * d * (d + 2)) * y**2)
    c = e @ w
    scale = np.cosh(x) + c * np.sinh(x)
    return (w + e * (np.sinh(x) + c * (np.cosh(x) - 1))) / scale, (d - 1) * np.log(scale)


def test_steps_and_energies_are_the_formulas() -> None:
    """Against hyperbolic functions in NumPy, with the chain's own numbers; rtol 1e-10."""
    lr, length, d = 0.09, 2.0, 5
    start = torch.linspace(-1, 1, d, dtype=torch.float64)
    sampler = sampler_of(start, lr, length=length)
    sampler.freeze()
    found = run(sampler, quartic, 6)
    stream = NoiseStream([start], seed=1)

    def normal() -> np.ndarray:
        return stream.normal()[0].numpy().copy()

    def both(theta: np.ndarray) -> tuple[float, np.ndarray]:
        t = torch.tensor(theta, requires_grad=True)
        value = quartic(t)
        value.backward()
        return float(value.detach()), t.grad.numpy()

    eps = math.sqrt(d * lr)
    mu, w, theta = math.exp(-eps / length), normal(), start.numpy().copy()
    w /= np.linalg.norm(w)
    value, g = both(theta)
    squares = []
    for step in range(6):
        w, before = kick(w, g, eps)
        theta = theta + eps / 2 * w
        w = mu * w + math.sqrt((1 - mu**2) / d) * normal()
        w /= np.linalg.norm(w)
        theta = theta + eps / 2 * w
        np.testing.assert_allclose(found[step], theta, rtol=1e-10)
        old = value
        value, g = both(theta)
        w, after = kick(w, g, eps)
        squares.append((value - old + before + after) ** 2 / d)
    assert sampler.energy_variance == pytest.approx(np.mean(squares[:-1]), rel=1e-8)


def end_of_path(dt: float, time: float = 2.0) -> tuple[np.ndarray, float]:
    """Return where a chain that forgets nothing is at a time, and its last step's energy error.

    The first step's half kick, the same at every dt, belongs to the path.
    """
    start = np.array([0.3, -0.8, 0.5])
    sampler = sampler_of(start, dt**2, length=1e12)
    sampler.freeze()
    run(sampler, quartic, round(time / dt))
    closure = closure_of(sampler, quartic)
    end = sampler.params[0].detach().numpy().copy()
    squares = sampler.energy_variance * max(sampler._counted, 1)
    sampler.step(closure)
    return end, math.sqrt(3 * (sampler.energy_variance * sampler._counted - squares))


def test_the_splitting_is_of_second_order() -> None:
    """Paths differ by O(dt^2) from their limit, the energy of a step by O(dt^3)."""
    ends, errors = zip(*(end_of_path(0.2 / 2**i) for i in range(5)), strict=True)
    gaps = [np.linalg.norm(a - b) for a, b in itertools.pairwise(ends)]
    orders = np.log2(np.array(gaps[:-1]) / gaps[1:])
    assert orders[-1] == pytest.approx(2, abs=0.15), orders
    steps = np.log2(np.array(errors[:-1]) / errors[1:])
    assert steps[-1] == pytest.approx(3, abs=0.25), steps


@pytest.mark.parametrize("size", [1e-200, 1e3, 1e12])
def test_any_gradient_leaves_a_velocity_of_length_one(size: float) -> None:
    """A huge one turns it all the way: the weights move by eps down the slope, but for O."""
    slope = torch.tensor([3.0, -4.0, 0.0], dtype=torch.float64) / 5
    sampler = sampler_of(torch.zeros(3), 0.01, length=1e9)
    sampler.freeze()
    for _ in range(3):
        before = sampler.params[0].detach().clone()
        run(sampler, lambda theta: size * (theta @ slope), 1)
        moved = sampler.params[0].detach() - before
        eps = math.sqrt(3 * 0.01)
        assert float(moved.norm()) == pytest.approx(eps, rel=1e-6)
        if size > 1:
            torch.testing.assert_close(moved, -eps * slope, rtol=0, atol=1e-4 * eps)
    assert math.isfinite(sampler.energy_variance)


def test_the_temperature_scales_a_gaussian() -> None:
    """At T the chain on N(0, I) goes through sqrt(T) times the places that it has at 1."""
    start = torch.linspace(-1, 1, 8, dtype=torch.float64)
    warm = run(sampler_of(start, 0.2), gaussian, 20)
    T = 0.3
    cold = sampler_of(math.sqrt(T) * start, 0.2, length=2 * math.sqrt(T), temperature=T)
    np.testing.assert_allclose(run(cold, gaussian, 20), math.sqrt(T) * warm, rtol=1e-9)


def test_a_metric_is_a_change_of_variables() -> None:
    """With C the chain in theta is C^(1/2) times the one in phi with the identity, to rounding."""
    C = torch.tensor([4.0, 0.25, 1.0], dtype=torch.float64)
    start = torch.tensor([0.4, -0.2, 0.1], dtype=torch.float64)
    metric = sampler_of(start * C.sqrt(), 0.1, preconditioner=RMSProp(alpha=0.0, eps=1e-5))
    metric.preconditioner.update([1 / C - 1e-5])
    metric.freeze()
    found = run(metric, lambda theta: quartic(theta / C.sqrt()), 15)
    plain = sampler_of(start, 0.1)
    plain.freeze()
    np.testing.assert_allclose(found / C.sqrt().numpy(), run(plain, quartic, 15), rtol=1e-9)


def test_stacked_chains_go_where_each_goes_alone() -> None:
    """To the bit, at a fixed step and L."""
    start = torch.randn(3, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    together = sampler_of(start, 0.1, stacked=True)
    found = run(together, quartic, 12)
    for k in range(3):
        alone = run(sampler_of(start[k], 0.1, chain=k), quartic, 12)
        assert np.array_equal(found[:, k], alone)


def test_a_chain_of_a_stack_goes_on_alone() -> None:
    """From its part of the state, to the bit, with the step and the L that the stack adapted."""
    start = torch.randn(3, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kw = {"length": "auto", "target_energy_variance": 5e-4}
    together = sampler_of(start, 0.1, stacked=True, **kw)
    run(together, quartic, 60)
    together.freeze()
    places = run(together, quartic, 5)[-1]
    state = copy.deepcopy(together.state_dict())
    found = run(together, quartic, 10)
    for k in range(3):
        alone = sampler_of(places[k], 0.7, chain=k, **kw)
        alone.load_state_dict(state_of(state, k, 3))
        assert alone.lr == together.lr
        assert np.array_equal(found[:, k], run(alone, quartic, 10))


def test_velocities_are_uniform_on_the_sphere() -> None:
    """Each coordinate of a uniform point of the sphere in R^3 is uniform on [-1, 1] (Archimedes).

    1,000 chains, three Kolmogorov-Smirnov tests at 3e-7 each.
    """
    rng = np.random.default_rng(0)
    sampler = sampler_of(rng.standard_normal((1000, 3)), 0.02, stacked=True, length=1.0)
    sampler.freeze()
    run(sampler, gaussian, 40)
    w = sampler.velocity[0].numpy()
    np.testing.assert_allclose(np.linalg.norm(w, axis=1), 1, rtol=1e-12)
    for column in w.T:
        assert stats.kstest(column, stats.uniform(-1, 2).cdf).pvalue > 3e-7
    assert abs(np.corrcoef(w[:, 0], sampler.params[0].detach()[:, 0])[0, 1]) < 5 / math.sqrt(1000)


@pytest.mark.parametrize(("d", "bound"), [(5, 0.02), (30, 0.01)])
def test_variances_on_a_gaussian(d: int, bound: float) -> None:
    """At dt = .8, .16 of the largest step, they are off by .1 and .4 % (20,000 chains).

    Without the term in k it is 3.6 and 5.2 %. With standard errors of .003 and .001 the bounds lie
    five of them and more beyond those.
    """
    rng = np.random.default_rng(1)
    start = rng.standard_normal((1000, d))
    sampler = sampler_of(start, 0.64, stacked=True, length=math.sqrt(d))
    sampler.freeze()
    squares = (run(sampler, gaussian, 60)[10:] ** 2).mean((0, 2))
    assert squares.std() / math.sqrt(1000) < 0.0035
    assert abs(squares.mean() - 1) < bound


@pytest.mark.parametrize("lr", [1e-4, 10.0])
def test_step_and_length_adapt_to_the_target(lr: float) -> None:
    """From a step far off, to E[dE^2] / d = 5e-4 within .4, L^2 to the trace within .15.

    The first has a deviation of about .08, since dt is known to 1.3 %; the second of about .02.
    """
    variance = torch.logspace(0, -1, 40, dtype=torch.float64)
    start = torch.randn(8, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kw = {"length": "auto", "target_energy_variance": 5e-4}
    sampler = sampler_of(start * variance.sqrt(), lr, stacked=True, **kw)

    def potential(theta: Tensor) -> Tensor:
        return (theta.square() / variance).sum(-1) / 2

    run(sampler, potential, 800)
    sampler.freeze()
    chosen = sampler.lr
    run(sampler, potential, 600)
    assert sampler.lr == chosen
    assert sampler.energy_variance == pytest.approx(5e-4, rel=0.4)
    length = sampler.decoherence_length
    assert length.shape == (8,)
    assert float(length[0] ** 2) == pytest.approx(float(variance.sum()), rel=0.15)


def test_the_step_of_a_known_error_is_found() -> None:
    """Where x = c dt^6 the step becomes c^(-1/6) within 200 updates, and an overflow lowers it."""
    for c in (1e4, 1e-3):
        step = EnergyStep()
        for _ in range(200):
            step.update(c * math.exp(6 * step.log_step))
        assert step.log_step == pytest.approx(-math.log(c) / 6, abs=1e-3)
    lost = EnergyStep()
    lost.update(math.nan)
    assert lost.log_step < -2


def test_the_spread_is_the_trace_and_forgets_the_start() -> None:
    """Of 20,000 independent draws of N(5, diag(4, 1)) after one far off; six standard errors."""
    rng = np.random.default_rng(0)
    spread = Spread()
    draws = np.vstack([[[100.0, -100.0]], rng.standard_normal((20_000, 2)) * [2, 1] + 5])
    for row in draws:
        spread.update([torch.tensor(row)], lambda v: v[0].square().sum())
    effective = 20_000 * 7 / 16  # (sum a)^2 / sum a^2 of weights that grow as n^3
    error = math.sqrt(2 * (16 + 1) / effective)
    assert float(spread.total) == pytest.approx(5, abs=6 * error)


def test_the_spread_weighs_the_states_as_it_says() -> None:
    """The covariance's trace under weights a_n prod_(m > n) (1 - a_m), a_n = 4 / (n + 4)."""
    states = np.random.default_rng(1).standard_normal((12, 2))
    spread, weights = Spread(), np.zeros(0)
    for n, state in enumerate(states):
        spread.update([torch.tensor(state)], lambda v: v[0].square().sum())
        weights = np.append(weights * (1 - 4 / (n + 4)), 4 / (n + 4))
        seen = states[: n + 1]
        expected = weights @ ((seen - weights @ seen) ** 2).sum(1)
        assert float(spread.total) == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_the_energy_is_that_of_all_ranks() -> None:
    """The loss that a closure returns on one rank's data is averaged over the ranks."""
    sampler = sampler_of(torch.ones(3), 0.1)
    assert mean_nll(sampler, torch.tensor(3.0)) == 3

    def reduce(tensors: list[Tensor]) -> None:
        for t in tensors:
            t.add_(5).div_(2)  # as if another rank had 5

    sampler.attach(Target(quartic, sampler.params, 1, reduce=reduce))
    own = torch.tensor(3.0)
    assert mean_nll(sampler, own) == 4
    assert own == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"length": 0.0}, 'length must be a positive number or "auto", got 0.0'),
        ({"length": "far"}, "got 'far'"),
        ({"length": math.inf}, "got inf"),
        ({"target_energy_variance": 0.0}, "must be None or positive, got 0.0"),
        ({"target_energy_variance": math.nan}, "must be None or positive, got nan"),
        ({"temperature": 0.0}, "MCLMC has no limit at temperature 0"),
    ],
)
def test_arguments_out_of_range(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MCLMC([torch.zeros(2, requires_grad=True)], 0.1, **arguments)


def test_what_it_cannot_sample_is_refused() -> None:
    theta = torch.zeros(2, 2, requires_grad=True)
    sampler = MCLMC([theta], 0.1, num_data=1)
    theta.grad = torch.ones_like(theta)
    with pytest.raises(RuntimeError, match=r"adapts its step to the energy: call step\(closure\)"):
        sampler.step()
    with pytest.raises(RuntimeError, match="returned nothing: MCLMC needs the mean NLL"):
        sampler.step(lambda: None)
    with pytest.raises(RuntimeError, match=r"a loss of shape \[2\]: MCLMC needs"):
        sampler.step(lambda: torch.zeros(2))
    sampler.set_masks([torch.tensor([[1.0, 0.0], [0.0, 0.0]])])
    with pytest.raises(RuntimeError, match="takes at least two weights that move"):
        sampler.step(lambda: 0.0)
    secant = MCLMC([theta], 0.1, num_data=1, preconditioner=AveragedLBFGS())
    with pytest.raises(RuntimeError, match=r"MCLMC measures w' C\^-1 w, which AveragedLBFGS"):
        secant.step(lambda: 0.0)
    assert not theta.any()


def test_a_step_that_adapts_needs_a_burn_in(tmp_path: Path) -> None:
    """Else the chain would keep the step it was given, whatever the energy's change."""
    module = Toy(partial(MCLMC, lr=0.1))
    with pytest.raises(ValueError, match="burn_in leaves it none"):
        trainer(tmp_path, 20).fit(module, datamodule=ToyData())
    assert module.chain.steps == 0
