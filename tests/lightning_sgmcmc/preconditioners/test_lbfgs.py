"""L-BFGS against dense recursions, and its average against the stochastic approximation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lightning_sgmcmc import HASGLD, HMC, SGHMC, SGLD, AveragedLBFGS, GaussianPrior, Sampler
from lightning_sgmcmc.noise import NoiseStream
from lightning_sgmcmc.preconditioners.lbfgs_operator import LBFGSOperator
from lightning_sgmcmc.samplers import Stacked
from tests.harness import assert_normal

Pairs = list[tuple[np.ndarray, np.ndarray]]


def dense_inverse(pairs: Pairs, gamma: float, r: float) -> tuple[np.ndarray, int]:
    """Return G by the BFGS update of the inverse, and how many pairs were damped."""
    d = len(pairs[0][0]) if pairs else 1
    G = np.eye(d) / gamma
    damped = 0
    for s, y in pairs:
        if s @ y < r * gamma * (s @ s):
            theta = (1 - r) * gamma * (s @ s) / (gamma * (s @ s) - s @ y)
            y = theta * y + (1 - theta) * gamma * s
            damped += 1
        V = np.eye(d) - np.outer(s, y) / (s @ y)
        G = V @ G @ V.T + np.outer(s, s) / (s @ y)
    return G, damped


def random_pairs(rng: np.random.Generator, count: int, d: int) -> Pairs:
    """Return pairs of which some have negative curvature."""
    Q = rng.standard_normal((d, d))
    H = Q @ Q.T / d + 0.1 * np.eye(d)
    pairs = []
    for _ in range(count):
        s = rng.standard_normal(d)
        y = H @ s + 0.3 * rng.standard_normal(d)
        pairs.append((s, -y if rng.random() < 0.3 else y))
    return pairs


def tensors(pairs: Pairs) -> tuple[list[Tensor], list[Tensor]]:
    return [torch.tensor(s) for s, _ in pairs], [torch.tensor(y) for _, y in pairs]


def matrix(f: object, d: int) -> np.ndarray:
    """Return the matrix whose columns are f(e_i)."""
    return torch.stack([f(e) for e in torch.eye(d, dtype=torch.float64)]).numpy().T


def close(found: np.ndarray, expected: np.ndarray, tolerance: float = 1e-10) -> None:
    assert np.abs(found - expected).max() < tolerance * np.abs(expected).max()


def test_operator_and_root_equal_the_dense_recursion() -> None:
    rng = np.random.default_rng(0)
    damped_trials = 0
    for _ in range(300):
        d, count = int(rng.integers(2, 9)), int(rng.integers(0, 6))
        pairs = random_pairs(rng, count, d)
        gamma, r = float(np.exp(rng.normal())), float(rng.uniform(0.05, 0.6))
        steps, changes = tensors(pairs)
        operator = LBFGSOperator(steps, changes, torch.tensor([gamma], dtype=torch.float64), r)
        G = matrix(operator.apply, d)
        S = matrix(operator.root, d)
        expected, damped = dense_inverse(pairs, gamma, r) if pairs else (np.eye(d) / gamma, 0)
        damped_trials += damped > 0
        close(G, expected)
        close(S @ S.T, expected)
        close(G, G.T)
    assert 50 < damped_trials < 290


def test_operator_serves_many_chains_at_once() -> None:
    rng = np.random.default_rng(1)
    chains = [random_pairs(rng, 3, 5) for _ in range(4)]
    gamma = torch.tensor([[0.5], [1.0], [2.0], [3.0]], dtype=torch.float64)
    steps = [torch.tensor(np.stack([c[i][0] for c in chains])) for i in range(3)]
    changes = [torch.tensor(np.stack([c[i][1] for c in chains])) for i in range(3)]
    v = torch.tensor(rng.standard_normal((4, 5)))
    together = LBFGSOperator(steps, changes, gamma, 0.25)
    for k, pairs in enumerate(chains):
        alone = LBFGSOperator(*tensors(pairs), gamma[k], 0.25)
        assert torch.allclose(together.apply(v)[k], alone.apply(v[k]), rtol=1e-12)
        assert torch.allclose(together.root(v)[k], alone.root(v[k]), rtol=1e-12)


class Dense:
    """The recursion G_k = (1 - omega_k) G_(k-1) + omega_k G~_k, in dense matrices."""

    def __init__(self, d: int, gamma: float, memory: int, r: float, floor: float) -> None:
        self.G, self.gamma, self.k = np.eye(d) / gamma, gamma, 0
        self.memory, self.r, self.floor = memory, r, floor
        self.pairs: Pairs = []

    def observe(self, s: np.ndarray, y: np.ndarray, omega: tuple[float, float, float]) -> None:
        self.pairs = [*self.pairs, (s, y)][-self.memory :]
        if s @ y > 0:
            self.gamma = max(y @ y / (s @ y), self.floor)
        rate = min(1.0, omega[0] * (self.k + omega[1]) ** -omega[2])
        self.k += 1
        newest, _ = dense_inverse(self.pairs, self.gamma, self.r)
        self.G = (1 - rate) * self.G + rate * newest


def attached(d: int, **arguments: object) -> AveragedLBFGS:
    preconditioner = AveragedLBFGS(**arguments)
    preconditioner.attach([torch.zeros(d, dtype=torch.float64)])
    return preconditioner


def as_matrix(preconditioner: AveragedLBFGS, d: int) -> np.ndarray:
    return matrix(lambda e: preconditioner.apply_([e.clone()])[0], d)


def observe(preconditioner: AveragedLBFGS, s: np.ndarray, y: np.ndarray, stream: object) -> None:
    preconditioner.observe([torch.tensor(s)], [torch.tensor(y)], stream)


@pytest.mark.parametrize("memory", [1, 3])
def test_all_operators_equal_the_averaged_recursion(memory: int) -> None:
    rng = np.random.default_rng(2)
    d, omega = 4, (1.0, 2.0, 0.7)
    stream = NoiseStream([torch.zeros(d, dtype=torch.float64)], 0)
    averaged = attached(d, memory=memory, r=0.3, delta=30.0, slots=None, omega=omega)
    averaged.num_data = 20
    g = rng.standard_normal(d)
    averaged.update([torch.tensor(g)])
    dense = Dense(d, np.abs(g).sum(), memory, 0.3, 30.0 / 20)
    floors = 0
    for s, y in random_pairs(rng, 25, d):
        observe(averaged, s, y, stream)
        dense.observe(s, y, omega)
        floors += dense.gamma == dense.floor
        close(as_matrix(averaged, d), dense.G)
    assert 0 < floors < 25


def test_stacked_matrices_are_those_of_chains_alone() -> None:
    """Of three chains, also where C was a matrix over the weights of all of them before."""
    rng = np.random.default_rng(5)
    pairs = [random_pairs(rng, 5, 4) for _ in range(3)]
    weights = [torch.zeros(3, 4, dtype=torch.float64)]
    stacked = AveragedLBFGS()
    stacked.attach(weights)
    stacked.attach(weights, 1)
    assert stacked.unstackable is None
    for step in range(5):
        s, y = (torch.tensor(np.stack([p[step][i] for p in pairs])) for i in (0, 1))
        stacked.observe([s], [y], NoiseStream(weights, 0))
    for k, own in enumerate(pairs):
        alone = attached(4)
        for s, y in own:
            observe(alone, s, y, None)
        close(stacked.matrix[k].numpy(), as_matrix(alone, 4))


def test_auto_averages_all_that_is_affordable() -> None:
    """All operators up to 256 weights of a chain; four above, where chains run in turn."""
    few, more = [torch.zeros(3, 256)], [torch.zeros(3, 257)]
    metric = AveragedLBFGS()
    for weights, dims, held in ((few, 1, None), (few, 0, 4), (more, 1, 4)):
        metric.attach(weights, dims)
        assert metric.held == held
        assert (metric.unstackable is None) == (held is None)
        assert len(metric.weighted_operators()) == (held or 0)
        assert (metric.matrix is None) == (held is not None)
    assert HASGLD([torch.zeros(256)], 0.1).preconditioner.held is None
    with pytest.raises(ValueError, match="cannot run stacked chains: each chain replaces"):
        HASGLD(Stacked([torch.zeros(3, 257)]), 0.1)


def test_the_matrix_of_single_precision_weights_is_held_in_double() -> None:
    """Of pairs whose C has a condition number of 1e8, its root squares to it to 1e-6."""
    metric = AveragedLBFGS(memory=2, delta=1e-9, slots=None, omega=(np.inf, 1.0, 1.0))
    metric.attach([torch.zeros(2)])
    for s, y in (([1.0, 0.0], [1e4, 0.0]), ([0.0, 1.0], [0.0, 1e-4])):
        metric.observe([torch.tensor(s)], [torch.tensor(y)], NoiseStream([torch.zeros(2)], 0))
    stream = NoiseStream([torch.zeros(2)], 1)
    draws = torch.stack([metric.noise(stream)[0].clone() for _ in range(4000)]).double()
    scales = torch.tensor([1e-4, 1e4], dtype=torch.float64)
    found = metric.apply_([torch.ones(2)])[0].double()
    torch.testing.assert_close(found, scales, rtol=1e-5, atol=0)
    # The variance of 4,000 draws has the standard error 2.2 %.
    torch.testing.assert_close(draws.var(0), scales, rtol=0.12, atol=0)


def test_slots_hold_the_recursion_on_average() -> None:
    """Mean over 1,500 seeds of C with two slots, to five standard errors (6e-7) an entry."""
    rng = np.random.default_rng(3)
    d, omega, pairs = 2, (1.0, 1.5, 0.8), random_pairs(rng, 4, 2)
    dense = Dense(d, 1.0, 2, 0.25, 1e-3)
    for s, y in pairs:
        dense.observe(s, y, omega)
    found = []
    for seed in range(1500):
        stream = NoiseStream([torch.zeros(d, dtype=torch.float64)], seed)
        slots = attached(d, memory=2, slots=2, omega=omega)
        for s, y in pairs:
            observe(slots, s, y, stream)
        found.append(as_matrix(slots, d))
    error = np.std(found, axis=0) / np.sqrt(len(found))
    assert (error > 0).all()
    assert (np.abs(np.mean(found, axis=0) - dense.G) < 5 * error).all()


@pytest.mark.parametrize("slots", [1, 3, None])
def test_noise_has_covariance_c(slots: int | None) -> None:
    """5,000 draws against C by chi-square, cross products and KS, 1e-6 a statistic."""
    rng = np.random.default_rng(4)
    d = 3
    stream = NoiseStream([torch.zeros(d, dtype=torch.float64)], 1)
    preconditioner = attached(d, memory=2, slots=slots, omega=(1.0, 1.5, 0.8))
    for s, y in random_pairs(rng, 4, d):
        observe(preconditioner, s, y, stream)
    C = as_matrix(preconditioner, d)
    draws = [preconditioner.noise(stream)[0].numpy().copy() for _ in range(5000)]
    assert_normal(np.stack(draws), C)


def quadratic(H: np.ndarray, num_data: int, prior: float | None = None, **kw: object) -> HASGLD:
    """Run HASGLD on the mean loss theta' H theta / 2 and return it."""
    d = len(H)
    theta = torch.ones(d, dtype=torch.float64, requires_grad=True)
    hessian = torch.tensor(H)
    options = {"lr": 0.2, "slots": 1, "omega": (1e9, 10.0, 0.9)} | kw
    sampler = HASGLD(
        [theta],
        num_data=num_data,
        prior=None if prior is None else GaussianPrior(prior),
        **options,
    )

    def closure() -> float:
        theta.grad = hessian @ theta.detach()
        return 0.0

    for _ in range(30):
        sampler.step(closure)
    return sampler


@pytest.mark.parametrize("num_data", [1, 1000])
def test_c_is_the_inverse_hessian_of_the_mean_loss(num_data: int) -> None:
    """C y = s for the newest pair, and lambda_max(C H) is of order 1, whatever N and the prior.

    y = H s holds although the prior is strong: the metric never sees it.
    """
    H = np.diag([3.0, 2.0, 1.2])  # no pair is damped
    sampler = quadratic(H, num_data, prior=1e-4 / num_data, lr=1e-5, memory=3)
    C = as_matrix(sampler.preconditioner, 3)
    s, y = (t.numpy() for t in sampler.state_dict()["chain"]["preconditioner"]["recent"][-1])
    np.testing.assert_allclose(y, H @ s, rtol=1e-5)
    np.testing.assert_allclose(C @ y, s, rtol=1e-6)
    largest = np.linalg.eigvals(C @ H).real.max()
    assert 0.9 < largest < 2.6


def test_negative_curvature_keeps_gamma() -> None:
    preconditioner = attached(2)
    stream = NoiseStream([torch.zeros(2, dtype=torch.float64)], 0)
    s, y = np.array([1.0, 0.0]), np.array([3.0, 1.0])
    observe(preconditioner, s, y, stream)
    gamma = float(preconditioner.newest().gamma)
    assert gamma == pytest.approx(10 / 3)
    observe(preconditioner, s, -y, stream)
    assert float(preconditioner.newest().gamma) == gamma
    eigenvalues = np.linalg.eigvalsh(as_matrix(preconditioner, 2))
    assert (eigenvalues > 0).all()


def test_a_move_of_length_zero_is_passed_over() -> None:
    preconditioner = attached(2)
    stream = NoiseStream([torch.zeros(2, dtype=torch.float64)], 0)
    before = as_matrix(preconditioner, 2)
    observe(preconditioner, np.zeros(2), np.ones(2), stream)
    np.testing.assert_array_equal(as_matrix(preconditioner, 2), before)


class Noted(AveragedLBFGS):
    """Keeps the pairs that it is shown; a sampler's copy shares them."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs: list[tuple[Tensor, Tensor]] = []

    def take_pair(self, s: Tensor, y: Tensor, *more: Any) -> None:
        self.pairs.append((s.clone(), y.clone()))
        super().take_pair(s, y, *more)


@pytest.mark.parametrize("kind", [SGLD, SGHMC, HMC])
def test_masked_weights_take_no_part_in_secants(kind: type[Sampler]) -> None:
    """y = H s of the weights that are free, and zero of the one that is held there."""
    H = torch.tensor([[3.0, 1.0, 2.0], [1.0, 2.0, 0.5], [2.0, 0.5, 4.0]], dtype=torch.float64)
    mask = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    theta = torch.tensor([1.0, -1.0, 2.0], dtype=torch.float64, requires_grad=True)
    metric = Noted()
    pairs = metric.pairs
    sampler = kind([theta], 0.05, num_data=20, preconditioner=metric)
    sampler.set_masks([mask])

    def closure() -> Tensor:
        sampler.zero_grad()
        loss = 0.5 * theta @ H @ theta + theta.sum()
        loss.backward()
        return loss

    for _ in range(5):
        sampler.step(closure)
    assert len(pairs) == 5
    assert any(bool(s.any()) for s, _ in pairs)
    for s, y in pairs:
        assert float(s[1]) == 0
        torch.testing.assert_close(y, mask * (H @ s))


def test_before_the_first_pair_c_is_scaled_by_the_gradient() -> None:
    preconditioner = attached(2)
    np.testing.assert_array_equal(as_matrix(preconditioner, 2), np.eye(2))
    preconditioner.update([torch.tensor([3.0, -5.0], dtype=torch.float64)])
    np.testing.assert_allclose(as_matrix(preconditioner, 2), np.eye(2) / 8)


def test_freeze_keeps_c() -> None:
    sampler = quadratic(np.diag([5.0, 0.4]), 100)
    sampler.freeze()
    assert "second_gradient" not in sampler.needs
    before = as_matrix(sampler.preconditioner, 2)
    theta = sampler.params[0]
    for _ in range(5):
        theta.grad = torch.randn_like(theta)
        sampler.step()
    np.testing.assert_array_equal(as_matrix(sampler.preconditioner, 2), before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"memory": 0}, "memory must be a whole number of at least 1, got 0"),
        ({"memory": 1.5}, "memory must be a whole number of at least 1, got 1.5"),
        ({"r": 0.0}, r"r must lie in \(0, 1\), got 0"),
        ({"r": 1.0}, r"r must lie in \(0, 1\), got 1"),
        ({"delta": 0.0}, "delta must be positive"),
        ({"delta": float("inf")}, "delta must be positive and finite"),
        ({"omega": (1.0, 2.0)}, "omega must be"),
        ({"slots": 0}, "slots must be auto, None or at least 1, got 0"),
        ({"slots": "all"}, "slots must be auto, None or at least 1, got 'all'"),
        ({"omega": (5.0, 10.0, 0.5)}, "omega must be"),
        ({"omega": (0.0, 10.0, 0.9)}, "omega must be"),
        ({"omega": (5.0, 10.0, 1.1)}, "omega must be"),
    ],
)
def test_arguments_out_of_range(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AveragedLBFGS(**arguments)
