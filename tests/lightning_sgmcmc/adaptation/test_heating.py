"""What minibatches do to a chain, against dense linear-Gaussian chains and simulation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import eigh, solve_discrete_lyapunov
from scipy.optimize import minimize
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from lightning_sgmcmc import SGFS, SGHMC, SGLD, SGNHT, SMILE, BatchStream, GaussianPrior, Identity
from lightning_sgmcmc.adaptation import StepSize, leading_directions, minibatch_noise
from lightning_sgmcmc.adaptation.directions import spectrum
from lightning_sgmcmc.adaptation.excess import BatchLaw
from lightning_sgmcmc.adaptation.gradients import Plan, plans, slowest_curvature
from lightning_sgmcmc.adaptation.heating import Heating, batch_law, jacobian, measure, scores_of
from lightning_sgmcmc.chain import Chain, OptimizerBurnIn, Task
from lightning_sgmcmc.chain.schedules import DrawSchedule
from lightning_sgmcmc.noise import NoiseStream
from lightning_sgmcmc.target import ControlVariate, FullGradient, GradientEstimator, Minibatch

N, D, BATCH = 120, 4, 12
SCALES = np.array([3.0, 1.0, 0.5, 0.2])


class Linear(Task):
    """y = x' theta + N(0, 1) under N(0, 4), at the mode."""

    def __init__(self, logistic: bool = False, scales: Any = SCALES) -> None:
        super().__init__()
        rng, size = np.random.default_rng(0), len(scales)
        self.X = rng.standard_normal((N, size)) * scales
        self.y = self.X @ np.ones(size) + rng.standard_normal(N)
        self.logistic = logistic
        if logistic:
            self.y = (rng.random(N) < 1 / (1 + np.exp(-self.X @ np.ones(size)))) * 1.0
        self.net = nn.Linear(size, 1, bias=False).double()
        self.A = self.X.T @ self.X + np.eye(size) / 4
        mode = np.linalg.solve(self.A, self.X.T @ self.y)
        with torch.no_grad():
            self.net.weight.copy_(torch.tensor(mode)[None])
        self.u = (self.X @ mode - self.y)[:, None] * self.X

    def nll(self, batch: Any) -> Tensor:
        x, y = batch
        out = self.net(x)[..., 0]
        if self.logistic:
            return functional.binary_cross_entropy_with_logits(out, y, reduction="none")
        return 0.5 * (out - y) ** 2

    def predictive(self, batch: Any) -> Tensor:
        out: Tensor = self.net(batch[0])[..., 0]
        return out

    def potential(self, theta: Any) -> Any:
        """Return U of the logistic regression."""
        nll = np.logaddexp(0, self.X @ theta) - self.y * (self.X @ theta)
        return nll.sum() + theta @ theta / 8

    def data(self) -> tuple[Tensor, Tensor]:
        return torch.tensor(self.X), torch.tensor(self.y)


def chain_of(
    make: Any,
    sampling: Any = "independent",
    task: Linear | None = None,
    draws: DrawSchedule | None = None,
    **more: Any,
) -> Chain:
    task = task or Linear()
    chain = Chain(task, make, draws or DrawSchedule(burn_in=10), **more)
    chain.select()
    chain.place()
    chain.build()
    chain.bind(BatchStream(task.data(), BATCH, sampling))
    return chain


def heating_of(chain: Chain) -> Heating:
    """Measure on all the data, one example a batch: moments are exact."""
    assert chain.target is not None
    task = chain.task
    assert isinstance(task, Linear)
    batches = [(x[None], y[None]) for x, y in zip(*task.data(), strict=True)]
    directions = leading_directions(chain.target, chain.sampler.preconditioner, [task.data()], D)
    J = jacobian(chain, batches[0])
    return measure(chain, directions, J, batches, scores_of(chain.target))


def plans_of(chain: Chain, masks: list[Tensor] | None = None) -> list[Plan]:
    """Return the kinds of gradients that a chain may take where its burn-in ends."""
    assert chain.stream is not None
    assert chain.target is not None
    chain.steps = 10
    batches = [chain.stream.at(i) for i in range(10)]
    C = chain.sampler.preconditioner
    directions = leading_directions(chain.target, C, batches, masks=masks)
    return plans(chain, directions, jacobian(chain, batches[0]), batches)


@pytest.mark.parametrize("mu", [0.0, 0.9])
def test_directions_and_predictions_are_those_of_a_dense_chain(mu: float) -> None:
    """All directions are leading ones: the chain's covariance, by SciPy, is 1 + e times the truth.

    The directions' noises are correlated; a direction's own variance does not depend on that.
    """
    make = partial(SGHMC, momentum=mu) if mu else SGLD
    chain = chain_of(partial(make, lr="auto", prior=GaussianPrior(4.0)))
    task, heating = chain.task, heating_of(chain)
    assert isinstance(task, Linear)
    values, vectors = np.linalg.eigh(task.A)
    assert heating.curvature[:D] == pytest.approx(values[::-1] / N, rel=1e-9)
    lr = 0.3 / heating.curvature[0]
    eta = 2 * lr / ((1 + mu) * N)
    eye, zero = np.eye(D), np.zeros((D, D))
    if mu:
        kick = np.block([[eye, zero], [-eta * task.A, eye]])
        half = np.block([[eye, eye / 2], [zero, eye]])
        after = half @ np.block([[eye, zero], [zero, mu * eye]]) @ half
        thermal = half @ np.block([[zero, zero], [zero, (1 - mu**2) * eta * eye]]) @ half.T
        enters = after @ np.vstack([zero, eta * N * eye])
        M = after @ kick
    else:
        M, thermal, enters = eye - lr / N * task.A, 2 * lr / N * eye, lr * eye
    V = np.cov(task.u.T, bias=True) / BATCH
    P = solve_discrete_lyapunov(M, thermal + enters @ V @ enters.T)[:D, :D]
    along = np.diag(vectors.T @ P @ vectors)[::-1] * values[::-1]
    assert 1 + heating.excess(chain.sampler, lr)[:D] == pytest.approx(along, rel=1e-6)
    assert along[0] > 1.2
    # The step that the bound asks for leaves just that error.
    lr = heating.bounded(chain.sampler, lr, 0.05)
    assert heating.worst(chain.sampler, lr).value == pytest.approx(0.05, rel=1e-3)


def test_what_leading_directions_leave_of_predictions() -> None:
    """With two of four directions: shares add up, and no noise is lost."""
    chain = chain_of(partial(SGLD, lr="auto", prior=GaussianPrior(4.0)))
    assert chain.target is not None
    task = chain.task
    assert isinstance(task, Linear)
    C = chain.sampler.preconditioner
    directions = leading_directions(chain.target, C, [task.data()], 2)
    batches = [(x[None], y[None]) for x, y in zip(*task.data(), strict=True)]
    # The probes are the outputs of the first batch, here of one example.
    J = jacobian(chain, batches[0])
    found = measure(chain, directions, J, batches, scores_of(chain.target))
    assert found.shares.sum(-1) == pytest.approx(1)
    assert len(found.curvature) == 3
    values, vectors = np.linalg.eigh(task.A)
    rest = vectors[:, :2] @ vectors[:, :2].T @ task.X[0]
    parts = np.array(
        [*(vectors[:, :1:-1].T @ task.X[0]) ** 2 / values[:1:-1], rest @ rest / values[2]]
    )
    assert found.shares[0] == pytest.approx(parts / parts.sum(), rel=1e-6)
    rest /= np.linalg.norm(rest)
    assert found.variance[2] == pytest.approx(np.var(task.u @ rest), rel=1e-6)


def test_of_several_chains_it_is_the_mean() -> None:
    """Two chains, one of them farther from the mode: the spread of scores, and the energy."""
    chain = chain_of(partial(SGLD, lr="auto", prior=GaussianPrior(4.0)), num_chains=2)
    task, target = chain.task, chain.target
    assert isinstance(task, Linear)
    assert target is not None
    values, vectors = np.linalg.eigh(task.A)
    away = np.outer([20.0, 50.0], vectors @ (1 / np.sqrt(values)))
    with torch.no_grad():
        mode = np.linalg.solve(task.A, task.X.T @ task.y)
        chain.sampler.params[0].copy_(torch.tensor(mode + away)[:, None])
    x, y = (t.expand(2, *t.shape) for t in task.data())
    C = chain.sampler.preconditioner
    directions = leading_directions(target, C, [(x, y)], D)
    batches = [(x[:, i : i + 1], y[:, i : i + 1]) for i in range(N)]
    J = jacobian(chain, batches[0])
    found = measure(chain, directions, J, batches, scores_of(target))
    scores = np.stack([(task.u + (task.X @ a)[:, None] * task.X) @ vectors for a in away])
    variance = scores.var(1)
    assert found.variance[:D] == pytest.approx(variance.mean(0)[::-1], rel=1e-6)
    force = np.abs(away @ task.A @ vectors) / N - 3 * np.sqrt(variance / N)
    energy = N * force.clip(0) ** 2 / (values / N)
    assert found.energy == pytest.approx(energy.mean(0).max(), rel=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_the_energy_along_stiff_directions_is_that_of_the_whole_gradient(
    temperature: float,
) -> None:
    """N g^2 / lambda of a quadratic, g of the likelihood and the prior, away from the mode."""
    make = partial(SGLD, lr="auto", prior=GaussianPrior(4.0), temperature=temperature)
    chain = chain_of(make)
    task = chain.task
    assert isinstance(task, Linear)
    values, vectors = np.linalg.eigh(task.A)
    away = 50 * vectors @ (1 / np.sqrt(values))  # as much energy along all directions
    with torch.no_grad():
        task.net.weight.add_(torch.tensor(away)[None])
    found = heating_of(chain)
    residual = task.X @ task.net.weight.detach().numpy()[0] - task.y
    errors = np.std((residual[:, None] * task.X) @ vectors, axis=0) / np.sqrt(N)
    force = np.abs(vectors.T @ task.A @ away) / N - 3 * errors
    expected = (N * force.clip(0) ** 2 / (values / N)).max()
    assert found.energy == pytest.approx(expected, rel=1e-6)
    assert found.energy > 100
    # The noise is set beside a tenth of that energy on the way, and beside T where there is none.
    far = found.on_the_way(temperature)
    lr = 0.1 / found.curvature[0]
    bias = found.noiseless().excess(chain.sampler, lr)[:D]
    noise, reduced = (h.excess(chain.sampler, lr)[:D] - bias for h in (found, far))
    assert reduced == pytest.approx(noise * 10 * temperature / expected, rel=1e-6)


def test_the_typical_variance_is_that_of_the_weights_that_move() -> None:
    """tr V over 40 of 400 weights, by two random directions: within a factor of two or so."""
    task = Linear(scales=np.full(400, 0.1))
    make = partial(SGLD, lr="auto", prior=GaussianPrior(4.0))
    chain, batch = chain_of(make, task=task), task.data()
    mask = (torch.arange(400) < 40).double()[None]
    chain.sampler.set_masks([mask])
    assert chain.target is not None
    u = (task.X @ task.net.weight.detach().numpy()[0] - task.y)[:, None] * task.X
    C = chain.sampler.preconditioner
    directions = leading_directions(chain.target, C, [batch], 2, masks=[mask])
    J = jacobian(chain, batch)
    found = measure(chain, directions, J, [batch], scores_of(chain.target))
    assert found.typical_variance == pytest.approx(u[:, :40].var(0).mean(), rel=0.7)


def test_the_typical_variance_is_not_that_of_leading_directions() -> None:
    """Two random directions z / d^(1/2) tell it, however steep the leading ones are."""
    task = Linear(scales=np.geomspace(3.0, 0.1, 40))
    chain, batch = (
        chain_of(partial(SGLD, lr="auto", prior=GaussianPrior(4.0)), task=task),
        task.data(),
    )
    assert chain.target is not None
    directions = leading_directions(chain.target, chain.sampler.preconditioner, [batch], 2)
    found = measure(chain, directions, jacobian(chain, batch), [batch], scores_of(chain.target))
    stream = NoiseStream(chain.sampler.params, seed=0)
    z = np.stack([stream.normal()[0][0].clone().numpy() for _ in range(2)]) / np.sqrt(40)
    expected = (task.u @ z.T).var(0).mean()
    assert found.typical_variance == pytest.approx(expected, rel=1e-6)
    assert expected < 0.5 * found.variance[:2].mean()


def test_predictions_have_no_part_in_masked_weights() -> None:
    chain = chain_of(partial(SGLD, lr="auto", prior=GaussianPrior(4.0)))
    mask = torch.tensor([[1.0, 0.0, 0.0, 1.0]]).double()
    chain.sampler.set_masks([mask])
    task = chain.task
    assert isinstance(task, Linear)
    x, y = task.data()
    found = jacobian(chain, (x[:8], y[:8]))
    assert found.numpy() == pytest.approx(task.X[:8] * mask.numpy())


def test_the_law_of_the_batches() -> None:
    chain = chain_of(partial(SGLD, lr="auto"), "reshuffled")
    assert batch_law(chain, 0) == BatchLaw(N, BATCH, True)
    data = TensorDataset(*Linear().data())
    for loader, reshuffled in (
        (DataLoader(data, batch_size=5, shuffle=True), True),
        (DataLoader(data, batch_size=5), False),
    ):
        chain.bind(loader)
        assert batch_law(chain, 5) == BatchLaw(N, 5, reshuffled)


@pytest.mark.parametrize("kind", [SGNHT, SMILE])
def test_a_thermostat_cools_what_has_no_noise(kind: Any) -> None:
    """A chain on two kinds of weights, of which one has noise: the other is too cold.

    4,000 weights of each over 200 relaxation times of ten steps: standard errors below .5 %; the
    tolerance is for what is of second order in kappa = .1.
    """
    count, sd, mu, lr = 4000, 0.2, 0.9, 0.01
    rng = np.random.default_rng(0)
    theta = torch.tensor(0.1 * rng.standard_normal((2, count))).requires_grad_()
    if kind is SGNHT:
        options = {"momentum": mu, "thermostat": 30.0}
    else:  # forgets as much in a step
        options = {"length": math.sqrt(2 * count * lr / 100) / -math.log(mu)}
    sampler = kind([theta], lr, num_data=100, **options)
    assert sampler.recursion(lr)[0] == pytest.approx(mu)
    spread = []
    for step in range(3000):
        theta.grad = theta.detach().clone()
        theta.grad[0] += torch.tensor(sd * rng.standard_normal(count))
        sampler.step()
        if step >= 1000 and step % 10 == 0:
            spread.append(100 * theta.detach().square().mean(dim=1))
    hot, cold = torch.stack(spread).mean(0).tolist()
    law, shares = BatchLaw(100, 1, False), np.zeros((0, 2))
    variance = np.array([sd**2, 0.0])
    one = Heating(np.ones(2), variance, 2, shares, law, typical_variance=sd**2 / 2)
    kappa = one.cooling(sampler, lr)
    assert kappa == pytest.approx(0.1, abs=0.01)
    assert cold == pytest.approx(1 - kappa / (1 + kappa), abs=0.02)
    assert one.worst(sampler, lr).value == pytest.approx(kappa / (1 + kappa), rel=0.1)
    even = replace(one, variance=np.full(2, sd**2 / 2), whole=True)
    assert even.worst(sampler, lr).value < 0.02
    assert 1 + one.excess(sampler, lr) == pytest.approx([hot, cold], abs=0.02)


@pytest.mark.parametrize("mu", [0.1, 0.5, 0.9])
def test_a_thermostat_takes_the_heat_of_the_velocities_before_and_after_its_friction(
    mu: float,
) -> None:
    """v <- mu (v - kick) from zero on: the mean of v^2 before and after the factor mu."""
    lr, variance, size, batch = 0.01, 3.0, 50, 5
    sampler = SGNHT([nn.Parameter(torch.zeros(3))], lr, num_data=size, momentum=mu, temperature=2.0)
    # Of grad U by a minibatch, times the squared time step.
    kick = 2 * lr / ((1 + mu) * size) * size**2 * variance / batch
    after = 0.0
    for _ in range(2000):
        before = after + kick
        after = mu**2 * before
    law = BatchLaw(size, batch, False)
    one = Heating(np.ones(1), np.ones(1), 1, np.ones((0, 1)), law, typical_variance=variance)
    heat = (before + after) / 2
    assert one.cooling(sampler, lr) == pytest.approx(heat / sampler.temperature)
    # On the way to a mode it counts beside the energy that the chain has.
    far = replace(one, far=3.0)
    assert far.cooling(sampler, lr) == pytest.approx(heat / (3 * sampler.temperature))


def test_what_is_too_hot_and_too_cold_in_a_prediction_cancels() -> None:
    """Under a thermostat: halves of a direction with twice the mean noise, and of one without."""
    sampler = SGNHT([nn.Parameter(torch.zeros(3))], 0.01, num_data=100, momentum=0.9)
    variance, shares = np.array([0.04, 0.08, 0.0]), np.array([[0.0, 0.5, 0.5]])
    law = BatchLaw(100, 1, False)
    one = Heating(np.ones(3), variance, 1, shares, law, typical_variance=0.04, whole=True)
    even, hot, cold = one.excess(sampler, 0.01)
    assert cold < -5 * abs(even) < 0 < 5 * abs(even) < hot
    worst = max(abs(even), abs(hot + cold) / 2)
    assert one.worst(sampler, 0.01).value == pytest.approx(worst, rel=1e-12)


def test_sgfs_has_no_error_where_its_law_is_exact() -> None:
    """H = I in C's metric and s = 1/n: e = 0 at every lr, and not where I is off by a half."""
    sampler = SGFS([nn.Parameter(torch.zeros(3))], "auto", num_data=N)
    sampler.batch_size = BATCH
    law = BatchLaw(N, BATCH, False)
    one = Heating(np.ones(1), np.ones(1), 1, np.ones((1, 1)), law)
    for fraction in (0.1, 0.9):
        lr = fraction * sampler.max_stable_lr(1.0)
        assert one.excess(sampler, lr) == pytest.approx(0, abs=1e-12)
    off = Heating(np.full(1, 1.5), np.full(1, 1.5), 1, np.ones((1, 1)), law)
    gamma = 1 + N / BATCH
    expected = lr * (1.5 * N / BATCH - gamma + 1.5) / (2 - 1.5 * lr)
    assert off.excess(sampler, lr) == pytest.approx(expected, rel=1e-12)


def test_the_choice_of_gradients_is_by_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of small batches takes a control variate, says so, and continues with it."""
    said: list[str] = []
    monkeypatch.setattr("lightning_sgmcmc.adaptation.step_size.rank_zero_info", said.append)
    make = partial(SGLD, lr="auto", prior=GaussianPrior(4.0))
    chain = chain_of(make, "reshuffled", Linear(logistic=True), gradients="auto")
    chain.steps = 10
    assert chain.stream is not None
    batches = [chain.stream.at(i) for i in range(10)]
    assert chain.target is not None
    directions = leading_directions(chain.target, chain.sampler.preconditioner, batches[:4])
    J = jacobian(chain, batches[0])
    options, slowest = (
        plans(chain, directions, J, batches),
        slowest_curvature(chain, J, batches[:4]),
    )
    largest = 0.1 * 2 / float(directions.eigenvalues[0])
    steps = [p.heating.bounded(chain.sampler, largest, 0.05) for p in options]
    prices = [p.price(chain.sampler, lr, slowest) for p, lr in zip(options, steps, strict=True)]
    assert [p.cost for p in options] == [1, 12, 2]
    settled = StepSize().settle(chain, batches)
    chosen = int(np.argmin(prices))
    assert type(chain.gradients) is options[chosen].kind
    assert settled["lr"] == pytest.approx(steps[chosen], rel=1e-6)
    assert settled["variance_error"] <= 0.05 * (1 + 1e-6)
    assert said[0].startswith(f"gradients: {options[chosen].name}, ")
    assert all(p.name in said[0] for p in options)
    other = Chain(Linear(), make, DrawSchedule(burn_in=10), gradients="auto")
    other.load_gradients(chain.gradients_state())
    assert type(other.gradients) is type(chain.gradients)


@pytest.mark.parametrize("kind", [SGHMC, SMILE])
def test_a_price_is_that_of_the_steps_in_which_the_recursion_relaxes(kind: Any) -> None:
    """x' = (1 + mu - h lambda) x - mu x_before shrinks by e in as many, at its matrix's radius."""
    options = {"momentum": 0.5} if kind is SGHMC else {"length": 0.05}
    lr, slowest = 0.05, 0.3
    sampler = kind([nn.Parameter(torch.zeros(3))], lr, num_data=100, **options)
    mu = sampler.recursion(lr)[0]
    assert 0.3 < mu < 0.7
    h = lr if kind is SGHMC else (1 + mu) / 2 * lr
    radius = max(abs(np.linalg.eigvals([[1 + mu - h * slowest, -mu], [1.0, 0.0]])))
    law = BatchLaw(100, 1, False)
    plan = Plan("", Minibatch, 2.0, Heating(np.ones(1), np.ones(1), 1, np.ones((0, 1)), law))
    assert plan.price(sampler, lr, slowest) == pytest.approx(-2 / np.log(radius))


def test_the_steepest_chain_sets_the_step() -> None:
    """A logistic regression at 0, where it is steepest, and far from there."""
    make = partial(SGLD, lr="auto", prior=GaussianPrior(4.0))
    chain = chain_of(make, task=Linear(logistic=True), num_chains=2)
    task = chain.task
    assert isinstance(task, Linear)
    x, y = (t.expand(2, *t.shape) for t in task.data())
    with torch.no_grad():
        chain.sampler.params[0].copy_(torch.tensor([[[5.0] * D], [[0.0] * D]]))
    curvature = np.linalg.eigvalsh((task.X.T @ task.X + np.eye(D)) / (4 * N))[-1]
    settled = StepSize().settle(chain, [(x, y)])
    assert settled["curvature"] == pytest.approx(curvature, rel=1e-6)
    assert settled["largest_stable_lr"] == pytest.approx(2 / curvature, rel=1e-6)


@pytest.mark.parametrize("step", [5, 10])
def test_before_burn_in_ends_noise_is_set_beside_the_energy(step: int) -> None:
    """At a quarter of the temperature; from where burn-in ends on, it is set beside T."""
    make = partial(SGLD, lr="auto", prior=GaussianPrior(4.0), temperature=0.25)
    chain = chain_of(make)
    stream, target, sampler = chain.stream, chain.target, chain.sampler
    assert stream is not None
    assert target is not None
    with torch.no_grad():
        sampler.params[0].add_(0.5)
    chain.steps = step
    batches = [stream.at(i) for i in range(10)]
    directions = leading_directions(target, sampler.preconditioner, batches[:4])
    J = jacobian(chain, batches[0])
    heating = measure(chain, directions, J, batches, scores_of(target))
    assert heating.energy > 100 * 0.25
    found = [
        replace(heating, far=far).bounded(sampler, 0.1 * 2 / heating.curvature[0], 0.05)
        for far in (1.0, heating.energy / 10, heating.energy / (10 * 0.25))
    ]
    assert found[0] < 0.9 * found[1] < 0.8 * found[2]
    settled = StepSize(0.1).settle(chain, batches)
    assert settled["lr"] == pytest.approx(found[2 if step < 10 else 0], rel=1e-6)
    assert settled["gradient_noise"] == 0.05  # what has set it


def test_the_bound_alone_sets_a_step_on_minibatches() -> None:
    """Fisher scoring counts the noise as its own, so that more than a tenth is within the bound."""
    chain = chain_of(partial(SGFS, lr="auto", prior=GaussianPrior(4.0)))
    assert chain.stream is not None
    batches = [chain.stream.at(i) for i in range(10)]
    chain.set_lr(1e-3)
    for batch in batches:
        chain.advance(batch)
    settled = StepSize().settle(chain, batches)
    assert 0.11 < settled["fraction"] <= 0.25
    assert settled["variance_error"] <= 0.05 * (1 + 1e-6)
    unbounded = StepSize(max_gradient_noise=None).settle(chain, batches)
    assert unbounded["fraction"] == pytest.approx(0.1)


class Settled:
    """Chains with 4 steps of an optimizer and a burn-in of 40, settled where they are put."""

    draws = DrawSchedule(burn_in=40, optimizer_steps=4)
    prior = GaussianPrior(4.0)
    make = staticmethod(partial(SGNHT, lr="auto", prior=prior))
    mode = minimize(Linear(True).potential, np.zeros(D)).x

    def __init__(self, make: Any = make) -> None:
        adam = OptimizerBurnIn(torch.optim.Adam, 4)
        self.more: dict[str, Any] = {"gradients": "auto", "burn_in_optimizer": adam}
        self.chain = chain_of(make, "reshuffled", Linear(True), self.draws, **self.more)

    def at(self, step: int, away: float, largest: float = math.inf) -> float:
        """Return lr where the chain is after so many steps, so far from the mode."""
        chain = self.chain
        assert chain.stream is not None
        chain.steps = step
        with torch.no_grad():
            there = self.mode + away * np.array([1.0, -1.0, 1.0, -1.0])
            chain.sampler.params[0].copy_(torch.tensor(there)[None])
        batches = [chain.stream.at(i) for i in range(10)]
        lr = StepSize().settle(chain, batches, largest)["lr"]
        chain.gradients.prepare(step, 4, 40)
        return lr


@pytest.mark.parametrize("step", [8, 40])
def test_a_control_variate_that_is_left_behind_waits(step: int) -> None:
    """It is in use near its centre, and gives way far from it, wherever lr is set."""
    near = Settled()
    before = near.at(4, 0.0)
    assert type(near.chain.gradients) is ControlVariate
    centre = near.chain.gradients.centre
    for later in (6, step):
        assert near.at(later, 0.01) == pytest.approx(before, rel=0.1)
        assert near.chain.gradients.centre is centre
    far = Settled()
    far.at(4, 0.0)
    assert far.at(step, 10.0) > before
    assert type(far.chain.gradients) not in (ControlVariate, type(near.chain.gradients))
    assert (far.chain.control is None) is (step == 40)  # where burn-in ends that is kept
    if far.chain.control is None:
        return
    other = Chain(Linear(True), far.make, far.draws, **far.more)
    other.load_gradients(far.chain.gradients_state())
    assert type(other.gradients) is type(far.chain.gradients)
    counted = []
    for chain in (far.chain, other):
        assert chain.control is not None
        assert chain.control.centre is not None
        assert chain.control.centre[0].numpy()[0] == pytest.approx(far.mode)
        counted.append((chain.gradients.evaluations, chain.control.evaluations))
    assert counted[0] == counted[1]
    # Where it is near again it is taken again, and no other centre before that.
    far.at(step, 9.0)
    assert type(far.chain.gradients) is not ControlVariate
    cost = far.chain.num_gradients
    assert far.at(40, 0.01) == pytest.approx(before, rel=0.1)
    assert type(far.chain.gradients) is ControlVariate
    assert far.chain.num_gradients == cost + 2 * 10  # U here and at the centre
    assert far.chain.gradients.centre is not None
    assert far.chain.gradients.centre[0].numpy()[0] == pytest.approx(far.mode)
    assert far.chain.control is None


def test_a_control_variate_that_is_not_chosen_keeps_the_centre_it_was_offered_with() -> None:
    """A new one would have no noise wherever it is looked at."""
    far = Settled(partial(SGHMC, lr="auto", momentum=0.99, prior=Settled.prior))
    far.at(4, 0.0)
    for away in (0.0, 10.0):
        assert type(far.chain.gradients) is Minibatch
        assert far.chain.control is not None
        assert far.chain.control.centre is not None
        assert far.chain.control.centre[0].numpy()[0] == pytest.approx(far.mode)
        far.at(8, away)


def test_from_a_draw_draws_are_twice_as_far_in_the_square_as_from_a_mode() -> None:
    """A control variate's noise about both, whose variance on a linear model is that distance's."""
    make = partial(SGLD, lr="auto", prior=GaussianPrior(4.0))
    adam = OptimizerBurnIn(torch.optim.Adam, 10)
    draws = DrawSchedule(burn_in=10, optimizer_steps=10)
    chains = [
        chain_of(make, "reshuffled", gradients="auto"),
        chain_of(make, "reshuffled", draws=draws, gradients="auto", burn_in_optimizer=adam),
    ]
    found = [p.heating for chain in chains for p in plans_of(chain) if p.kind is ControlVariate]
    of_a_draw, of_a_mode = found
    assert of_a_draw.variance == pytest.approx(2 * of_a_mode.variance)


def test_the_noise_of_a_control_variate_is_in_proportion_to_the_temperature() -> None:
    """On a linear model it is the squared distance from the centre, of mean T H^-1 / N."""
    found = []
    for temperature in (1.0, 0.25):
        make = partial(SGLD, lr="auto", prior=GaussianPrior(4.0), temperature=temperature)
        options = plans_of(chain_of(make, "reshuffled", gradients="auto"))
        found += [p.heating.variance for p in options if p.kind is ControlVariate]
    assert found[1] == pytest.approx(0.25 * found[0])


class Scaled(Identity):
    """C = a diagonal matrix."""

    def __init__(self, diagonal: Any) -> None:
        super().__init__()
        self.diagonal = torch.tensor(diagonal)

    def apply_(self, vectors: list[Tensor]) -> list[Tensor]:
        return [v.mul_(self.diagonal) for v in vectors]

    def noise(self, stream: NoiseStream) -> list[Tensor]:
        return [z.mul_(self.diagonal.sqrt()) for z in stream.normal()]


@pytest.mark.parametrize("size", [4, 12])
def test_the_noise_of_a_control_variate_is_that_of_a_draw_away_from_its_centre(size: int) -> None:
    """Of x_i x_i' Delta, Delta = (2 T/N)^(1/2) H^(-1/2) z, as flat as the eighth beyond that."""
    task = Linear(scales=np.geomspace(3.0, 0.2, size))
    c = np.resize([1.0, 4.0, 0.25, 2.0], size)
    make = partial(SGLD, lr="auto", prior=GaussianPrior(4.0), preconditioner=Scaled(c))
    chain = chain_of(make, "reshuffled", task, gradients="auto")
    with torch.no_grad():
        task.net.weight.add_(1.0)
    options = {plan.kind: plan.heating for plan in plans_of(chain)}
    assert options[ControlVariate].energy == options[Minibatch].energy > 1
    values, vectors = eigh(task.A / N, np.diag(1 / c))
    values, vectors = values[::-1][:8], vectors[:, ::-1][:, :8]
    z = NoiseStream(chain.sampler.params, seed=1).normal()[0][0].numpy() * np.sqrt(c)
    last = values[-1] ** -0.5
    along = (values**-0.5 - last) * (vectors.T @ (z / c))
    move = np.sqrt(2 / N) * (last * z + vectors @ along)
    variance = ((task.X @ vectors) * (task.X @ move)[:, None]).var(0)
    assert options[ControlVariate].variance[: len(values)] == pytest.approx(variance, rel=1e-6)
    if size == len(values):
        assert options[ControlVariate].typical_variance == pytest.approx(variance.mean(), rel=1e-6)


def test_masked_weights_take_no_part_in_the_noise_of_any_gradients() -> None:
    """Whatever the feature of a weight that is held at zero."""
    mask = torch.tensor([[1.0, 0.0, 1.0, 1.0]]).double()
    found = []
    for times in (1.0, 7.0):
        task = Linear()
        start = task.net.weight.detach().clone()
        task.X = task.X * np.array([1.0, times, 1.0, 1.0])
        make = partial(SGLD, lr="auto", prior=GaussianPrior(4.0))
        chain = chain_of(make, "reshuffled", task, gradients="auto")
        with torch.no_grad():
            task.net.weight.copy_(start)
        chain.sampler.set_masks([mask])
        options = plans_of(chain, [mask])
        assert len(options) == 3
        found.append([asdict(p.heating) for p in options])
    for one, other in zip(*found, strict=True):
        for name, value in one.items():
            if name != "law":
                assert other[name] == pytest.approx(value, rel=1e-6), name


def test_a_centre_from_which_the_chain_went_down_follows_it() -> None:
    """An optimizer that had not arrived is no reason against control variates."""
    make = partial(SGHMC, lr="auto", momentum=0.9, prior=Settled.prior)
    right, early = Settled(make), Settled(make)
    lr = right.at(4, 0.0)
    early.at(4, 1.0)
    assert early.at(8, 0.0) == pytest.approx(lr, rel=1e-6)
    assert type(early.chain.gradients) is ControlVariate
    (centre,) = early.chain.gradients.centre or []
    assert centre[0].numpy() == pytest.approx(Settled.mode)


def test_kinds_of_gradients_are_compared_at_the_steps_that_noise_allows() -> None:
    """An lr that rises twofold at most from that of another kind is no price of a kind."""
    chain = Settled()
    chain.at(4, 0.0)
    chain.chain.set_lr(1e-9)
    assert chain.at(40, 10.0, largest=2e-9) == 2e-9
    assert type(chain.chain.gradients) is FullGradient


def test_what_predictions_wait_for_is_that_of_a_dense_hessian() -> None:
    """A hundredth of each prediction's variance lies below it, by all eigenvectors."""
    chain = chain_of(partial(SGLD, lr="auto", prior=GaussianPrior(4.0)))
    task, found = chain.task, set()
    assert isinstance(task, Linear)
    values, vectors = np.linalg.eigh(task.A / N)
    for row in jacobian(chain, task.data()):
        variances = (vectors.T @ row.numpy()) ** 2 / values
        expected = values[(variances.cumsum() < 0.01 * variances.sum()).sum()]
        assert slowest_curvature(chain, row[None], [task.data()]) == pytest.approx(expected)
        found.add(expected)
    assert len(found) > 1


def test_what_is_not_resolved_of_the_slow_end_counts_as_flat() -> None:
    """60 curvatures over four orders, whose lower end 12 products do not resolve."""
    task = Linear(scales=np.geomspace(1, 0.01, 60))
    chain = chain_of(partial(SGLD, lr="auto", prior=GaussianPrior(4.0)), task=task)
    values, vectors = np.linalg.eigh(task.A / N)
    row = torch.tensor(vectors @ np.ones(60))[None]
    true = values[((1 / values).cumsum() < 0.01 * (1 / values).sum()).sum()]
    data, flat = [task.data()], 1e-4 * values[-1]
    assert chain.target is not None
    seen, _ = spectrum(chain.target, chain.sampler.preconditioner, data, row[0])
    assert float(seen.min()) > 1.5 * true > 1.5 * flat
    assert slowest_curvature(chain, row, data) == pytest.approx(flat, rel=1e-3)


def test_gradients_are_chosen_where_burn_in_ends_without_an_optimizer() -> None:
    chain = chain_of(Settled.make, "reshuffled", Linear(True), gradients="auto")
    assert chain.stream is not None
    with torch.no_grad():
        chain.sampler.params[0].copy_(torch.tensor(Settled.mode)[None])
    for steps, kind in ((0, Minibatch), (4, Minibatch), (10, ControlVariate)):
        chain.steps = steps
        StepSize().settle(chain, [chain.stream.at(i) for i in range(10)])
        assert type(chain.gradients) is kind
    state = chain.gradients_state()
    del state["control"]  # an earlier version's: what it had chosen was chosen for good
    other = Chain(Linear(True), Settled.make, DrawSchedule(burn_in=10), gradients="auto")
    other.load_gradients(state)
    assert type(other.gradients) is ControlVariate
    assert other.control is None


@pytest.mark.parametrize(
    "kinds",
    [
        (),
        (Minibatch,),
        (ControlVariate,),
        (FullGradient,),
        (ControlVariate, Minibatch),
        (FullGradient, Minibatch, ControlVariate),
    ],
)
def test_a_pass_for_an_offer_counts_once(kinds: Sequence[type[GradientEstimator]]) -> None:
    """Ten minibatches at the centre, whatever is chosen, and when no more is chosen."""
    chain = chain_of(partial(SGLD, lr=1e-4), "reshuffled", gradients="auto")
    chain.steps = 10
    chain.centred_control()
    assert chain.num_gradients == 10
    for kind in kinds:
        chain.use_gradients(kind)
        assert chain.num_gradients == 10
    chain.keep_gradients()
    assert chain.num_gradients == 10


@pytest.mark.parametrize(
    "make",
    [partial(SGHMC, momentum=0.9, temperature=0.5), partial(SMILE, length=0.05)],
    ids=["sghmc", "smile"],
)
def test_a_chain_s_noise_is_that_of_its_next_minibatches(make: Any) -> None:
    """h N tr V / (2 (1 - mu) d) over T, V of eight gradients over the weights that move."""
    chain = chain_of(partial(make, lr=0.02, prior=GaussianPrior(4.0)))
    task, stream = chain.task, chain.stream
    assert isinstance(task, Linear)
    assert stream is not None
    mask = np.array([1.0, 0.0, 1.0, 1.0])
    chain.sampler.set_masks([torch.tensor(mask[None])])
    chain.steps = 7
    theta = task.net.weight.detach().numpy()[0]
    batches = [[t.numpy() for t in stream.at(step)] for step in range(7, 15)]
    gradients = np.stack([x.T @ (x @ theta - y) / BATCH for x, y in batches])
    mu = chain.sampler.recursion(0.02)[0]
    h = 0.02 if isinstance(chain.sampler, SGHMC) else (1 + mu) / 2 * 0.02
    expected = h * N * (gradients.var(0, ddof=1) @ mask) / (2 * (1 - mu) * 3)
    found = minibatch_noise(chain, 0.02)
    assert found is not None
    assert found.total.from_gradients == pytest.approx(expected, rel=1e-9)
    assert found.total.ratio == pytest.approx(expected / chain.sampler.temperature, rel=1e-9)
    assert found.tensors == {"net.weight": found.total}


def test_whole_gradients_are_exact_and_counted() -> None:
    """FullGradient on a minibatch is the gradient of all the data, from burn-in's end on."""
    chain = chain_of(partial(SGLD, lr=1e-4), "reshuffled", gradients=FullGradient())
    assert chain.target is not None
    assert chain.gradients.correction(chain.minibatch(0)) is None
    for _ in range(11):
        chain.advance(chain.minibatch())
    task = chain.task
    assert isinstance(task, Linear)
    exact = chain.target.gradient(task.data())
    torch.testing.assert_close(chain.target.estimate(chain.minibatch(3)), exact)
    assert math.isclose(chain.num_gradients, 11 + (10 + 1) + 10)
    assert minibatch_noise(chain, 1e-4) is None
    plain = minibatch_noise(chain_of(partial(SGLD, lr=1e-4), "reshuffled"), 1e-4)
    assert plain is not None
    assert plain.total.ratio > 0
