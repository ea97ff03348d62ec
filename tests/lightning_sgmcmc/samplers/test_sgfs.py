"""SGFS against the exact laws of its linear recursion, and its estimate of the scores' covariance.

Gradients are those of N examples whose posterior is N(0, Lambda^-1 / N): Lambda theta, with the
noise Lambda / n of independent minibatches of n.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import cholesky, solve_discrete_lyapunov
from torch import Tensor, nn
from torch.func import functional_call, vmap

from lightning_sgmcmc import SGFS, BatchStream, GaussianPrior, LaplacePrior, Target
from lightning_sgmcmc.chain.schedules import PolynomialDecay
from lightning_sgmcmc.samplers import Stacked
from lightning_sgmcmc.target import PerExample
from tests.harness import assert_normal
from tests.lightning_sgmcmc.problem import Problem

NUM_DATA, SIZE = 90, 10
FISHER = np.array([[2.0, 0.9], [0.9, 1.0]])
D = len(FISHER)


def scoring(
    variant: str, alpha: float, b: Any = "fisher", chains: int = 20_000, **kw: Any
) -> tuple[SGFS, Tensor]:
    """Return stacked chains at 0 whose metric is the exact Fisher matrix, or its diagonal."""
    theta = torch.zeros(chains, D, dtype=torch.float64, requires_grad=True)
    temperature = kw.get("temperature", 1.0)
    lr = SGFS.step_size(alpha, NUM_DATA, SIZE, temperature)
    sampler = SGFS(Stacked([theta]), lr, variant=variant, b=b, num_data=NUM_DATA, floor=1e-14, **kw)
    sampler.stack(one_generator=True)
    state = sampler.preconditioner.state_dict()
    state |= {"updates": 1, "batch_size": SIZE}
    exact = torch.tensor(FISHER)
    if variant == "diagonal":
        state["squares"] = [exact.diagonal().expand(chains, D)]
    else:
        state["J"] = [exact.expand(chains, 1, D, D)]
    sampler.preconditioner.load_state_dict(state)
    sampler.freeze()
    return sampler, theta


def run(sampler: SGFS, theta: Tensor, steps: int, seed: int = 1) -> None:
    generator = torch.Generator().manual_seed(seed)
    root = torch.tensor(cholesky(FISHER / SIZE, lower=True))
    for _ in range(steps):
        noise = torch.randn(theta.shape, generator=generator, dtype=theta.dtype) @ root.T
        theta.grad = theta.detach() @ torch.tensor(FISHER) + noise
        sampler.step()


def law(sampler: SGFS, b: np.ndarray, prior: np.ndarray | None = None) -> tuple[Any, Any]:
    """Return M and Q of theta <- M theta + N(0, Q), from D = gamma N I + 4B/eps (+ the prior)."""
    T, alpha = sampler.temperature, sampler.alpha
    gamma = 1 + NUM_DATA / (SIZE * T)
    B4 = alpha**2 * gamma * NUM_DATA * b
    metric = np.diag(np.diag(FISHER)) if sampler.variant == "diagonal" else FISHER
    precision = np.zeros((D, D)) if prior is None else prior
    dense = gamma * NUM_DATA * metric + B4 + (precision if sampler.count_prior else 0)
    K = np.linalg.inv(dense)
    A, V = NUM_DATA * FISHER + precision, NUM_DATA**2 / SIZE * FISHER
    return np.eye(D) - 2 * K @ A, 4 * K @ (V + T * B4) @ K


def check(sampler: SGFS, theta: Tensor, M: np.ndarray, Q: np.ndarray, P: np.ndarray) -> None:
    """Start in N(0, P); assert the joint law of two states one step apart, 20 steps later."""
    assert np.allclose(M @ P @ M.T + Q, P, rtol=1e-9)
    rng = np.random.default_rng(0)
    with torch.no_grad():
        theta.copy_(torch.from_numpy(rng.standard_normal(theta.shape) @ cholesky(P)))
    run(sampler, theta, 20)
    first = theta.detach().numpy().copy()
    run(sampler, theta, 1, seed=2)
    joint = np.block([[P, P @ M.T], [M @ P, P]])
    assert_normal(np.hstack([first, theta.detach().numpy()]), joint)


MATRIX = np.array([[0.7, -0.2], [-0.2, 1.5]])
CHOICES = {
    "fisher": ("fisher", FISHER),
    "number": (0.6, 0.6 * np.eye(D)),
    "diagonal": ([torch.tensor([0.3, 2.0])], np.diag([0.3, 2.0])),
    "matrix": (torch.tensor(MATRIX), MATRIX),
}


@pytest.mark.parametrize("alpha", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("name", CHOICES)
def test_full_is_exact_at_any_step_with_any_b(name: str, alpha: float) -> None:
    """N(0, (N I)^-1) stays, although lr is as large as it can be; 14 statistics at 1e-6."""
    b, dense = CHOICES[name]
    sampler, theta = scoring("full", alpha, b)
    M, Q = law(sampler, dense)
    check(sampler, theta, M, Q, np.linalg.inv(NUM_DATA * FISHER))
    if name == "fisher":  # lag-1 autocorrelation 1 - 2 / (gamma (1 + alpha^2))
        rho = 1 - 2 / ((1 + NUM_DATA / SIZE) * (1 + alpha**2))
        np.testing.assert_allclose(M, rho * np.eye(D), atol=1e-12)
        if alpha == 0:
            assert rho == pytest.approx((NUM_DATA - SIZE) / (NUM_DATA + SIZE))


@pytest.mark.parametrize("temperature", [0.3, 4.0])
def test_full_is_exact_at_other_temperatures(temperature: float) -> None:
    for name in ("fisher", "number"):
        b, dense = CHOICES[name]
        sampler, theta = scoring("full", 0.7, b, temperature=temperature)
        M, Q = law(sampler, dense)
        check(sampler, theta, M, Q, temperature * np.linalg.inv(NUM_DATA * FISHER))


@pytest.mark.parametrize("name", CHOICES)
def test_a_counted_prior_keeps_the_chain_exact(name: str) -> None:
    """With D = A + V + 4B/eps the law is N(0, A^-1), A the prior's precision included."""
    b, dense = CHOICES[name]
    variance = 1 / (0.5 * NUM_DATA)
    prior = GaussianPrior(variance)
    precision = np.eye(D) / variance
    exact = np.linalg.inv(NUM_DATA * FISHER + precision)
    sampler, theta = scoring("full", 0.4, b, count_prior=True, prior=prior)
    check(sampler, theta, *law(sampler, dense, precision), exact)
    # Without it the law is another, and the recursion's own.
    sampler, theta = scoring("full", 0.4, b, prior=prior)
    M, Q = law(sampler, dense, precision)
    P = solve_discrete_lyapunov(M, Q)
    assert np.abs(P / exact - 1).max() > 0.1
    check(sampler, theta, M, Q, P)


@pytest.mark.parametrize(("alpha", "ratio"), [(0.0, 0.75), (6.0, 0.99)])
@pytest.mark.parametrize("name", ["fisher", "number", "diagonal"])
def test_diagonal_follows_its_lyapunov_equation(name: str, alpha: float, ratio: float) -> None:
    """P = M P M' + 4 D^-1 (V + 4B/eps) D^-1: too narrow at large steps, right at small ones."""
    b, dense = CHOICES[name]
    dense = np.diag(np.diag(dense))
    sampler, theta = scoring("diagonal", alpha, b)
    M, Q = law(sampler, dense)
    P = solve_discrete_lyapunov(M, Q)
    ratios = np.diag(P) / np.diag(np.linalg.inv(NUM_DATA * FISHER))
    assert (ratios < 1).all()
    assert (ratios < ratio).all() if alpha == 0 else (ratios > ratio - 0.05).all()
    check(sampler, theta, M, Q, P)


def test_a_decaying_step_ends_in_the_posterior() -> None:
    """ "Anytime" on U = 3 log cosh theta + theta^2 / 4: off at 2/gamma, right in the end.

    20,000 chains; E[theta^2] by quadrature, to five standard errors (6e-7) and the last step's
    bias of less than one percent.
    """
    theta = torch.zeros(20_000, 1, dtype=torch.float64, requires_grad=True)
    sampler = SGFS(Stacked([theta]), 2 / 3, variant="diagonal", num_data=2, floor=1e-14)
    sampler.stack(one_generator=True)
    state = sampler.preconditioner.state_dict()
    state |= {"updates": 1, "batch_size": 1, "squares": [torch.ones_like(theta)]}
    sampler.preconditioner.load_state_dict(state)
    sampler.freeze()
    grid = np.linspace(-12, 12, 20_001)
    density = np.cosh(grid) ** -3.0 * np.exp(-(grid**2) / 4)
    density /= density.sum()
    second, fourth = density @ grid**2, density @ grid**4
    generator = torch.Generator().manual_seed(3)
    scheduler = PolynomialDecay(sampler, b=20, gamma=1.0)
    found = []
    for _ in range(1000):
        noise = torch.randn(theta.shape, generator=generator, dtype=theta.dtype)
        now = theta.detach()
        theta.grad = (3 * now.tanh() + now / 2) / 2 + noise  # N = 2; n = 1 has variance I = 1
        sampler.step()
        scheduler.step()
        found.append(float(theta.detach().square().mean()))
    assert abs(np.mean(found[5:10]) / second - 1) > 0.15
    error = 5 * np.sqrt((fourth - second**2) / 20_000)
    assert abs(found[-1] - second) < error + 0.01 * second


def test_learns_the_fisher_matrix_and_samples_with_it() -> None:
    """Linear regression at the largest step: the covariance that the exact I would give.

    64 chains of 500 steps with autocorrelation time 8; each eigenvalue of the covariance relative
    to the law's is 1 within 10 percent (4.5 standard errors, 1e-5).
    """
    N, n, chains = 2000, 250, 64
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, 3)) @ np.array([[1.0, 0.5, 0.0], [0.0, 1.0, 0.7], [0.0, 0.0, 0.6]])
    y = X @ np.array([0.5, -1.0, 2.0]) + rng.standard_normal(N)
    net = nn.Linear(3, 1, bias=False).double()

    def nll(batch: Any) -> Tensor:
        return 0.5 * (net(batch[0]).squeeze(-1) - batch[1]).square()

    mean = np.linalg.lstsq(X, y)[0]
    weight = torch.tensor(mean).repeat(chains, 1, 1).requires_grad_()
    sampler = SGFS(Stacked([weight]), SGFS.step_size(0.0, N, n), num_data=N)
    stream = BatchStream([torch.tensor(X), torch.tensor(y)], n)
    stream.bind(weight.device, 0, kind=sampler.batches, num_chains=chains)

    def stacked(batch: Any) -> Tensor:
        one = lambda w, b: functional_call(net, {"weight": w}, (b[0],)).squeeze(-1) - b[1]  # noqa: E731
        return 0.5 * vmap(one)(weight, batch).square()

    target = Target(stacked, [weight], N, chain_dims=1)
    target.per_example = PerExample(net, ["weight"], [weight], nll, chain_dims=1)
    sampler.attach(target)
    states = []
    for step in range(600):
        batch = stream.at(step)
        target.use(batch)
        sampler.zero_grad()
        with target.recording() if step < 100 else nullcontext():
            target.mean_nll(batch).sum().backward()
        if step == 100:
            sampler.freeze()
        sampler.step()
        if step >= 100:
            states.append(weight.detach().numpy()[:, 0].copy())
    scores = X * (X @ mean - y)[:, None]
    fisher = scores.T @ scores / N
    K = 2 * np.linalg.inv((1 + N / n) * N * fisher)
    expected = solve_discrete_lyapunov(np.eye(3) - K @ X.T @ X, N**2 / n * K @ fisher @ K)
    white = (np.concatenate(states) - mean) @ cholesky(np.linalg.inv(expected)).T
    found = np.linalg.eigvalsh(white.T @ white / len(white))
    assert np.abs(found - 1).max() < 0.1
    assert stream.sampling == "independent"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": 0.0}, "SGFS has no T = 0"),
        ({"variant": "dense"}, "variant must be full, diagonal or block, got 'dense'"),
        ({"b": "hessian"}, "b must be"),
        ({"b": -1.0}, "b must be positive, got -1.0"),
        ({"b": [torch.tensor([1.0, -1.0])]}, "b must be positive"),
        ({"b": [torch.tensor([1.0, torch.nan])]}, "b must be positive"),
        ({"b": torch.eye(2), "variant": "diagonal"}, "a matrix b belongs to variant"),
        ({"lr": "auto", "b": 1.0}, 'lr="auto" needs b="fisher"'),
        ({"lr": "auto", "count_prior": True}, 'lr="auto" needs b="fisher"'),
        ({"prior": LaplacePrior(1.0), "count_prior": True}, "only a Gaussian prior"),
    ],
)
def test_arguments_out_of_range(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SGFS([torch.zeros(2, requires_grad=True)], **({"lr": 0.1, "num_data": 5} | arguments))


def test_a_step_larger_than_the_noise_allows_moves_nothing() -> None:
    """N = 40 and n = 8 give gamma = 6, and 2/gamma = 1/3; at T = 0.5 they give 2/11."""
    for temperature, largest in ((1.0, 1 / 3), (0.5, 2 / 11)):
        problem = Problem()
        sampler = SGFS(problem.params, 0.34, num_data=40, temperature=temperature)
        sampler.attach(problem.target())
        before = problem.weights()
        with pytest.raises(ValueError, match=f"lr = 0.34 is larger than 2/gamma = {largest:.6g}"):
            problem.run(sampler, 1)
        assert torch.equal(problem.weights(), before)
        assert sampler.preconditioner.state_dict()["updates"] == 0
        sampler.set_lr(largest)
        assert (problem.run(sampler, 1) != before).any()
        assert sampler.alpha < 1e-6
        assert sampler.max_stable_lr(1.0) == pytest.approx(largest)
        sampler.set_lr(SGFS.step_size(2.5, 40, 8, temperature))
        assert sampler.alpha == pytest.approx(2.5)


def test_frozen_before_any_minibatch_is_an_error() -> None:
    problem = Problem()
    sampler = SGFS(problem.params, 0.1, num_data=40)
    sampler.attach(problem.target())
    sampler.freeze()
    with pytest.raises(RuntimeError, match="needs steps before it is frozen"):
        problem.run(sampler, 1)


def test_a_schedule_may_end_at_zero() -> None:
    problem = Problem()
    sampler = SGFS(problem.params, 1e-2, num_data=40, floor=0.1)
    sampler.attach(problem.target())
    before = problem.run(sampler, 2)
    sampler.set_lr(0.0)
    assert torch.equal(problem.run(sampler, 1), before)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_the_counted_noise_is_what_is_not_injected(temperature: float) -> None:
    sampler = SGFS([torch.zeros(2, requires_grad=True)], 0.1, num_data=40, temperature=temperature)
    sampler.batch_size = 8
    sampler.set_lr(SGFS.step_size(2.0, 40, 8, temperature))
    assert sampler.counted_noise(sampler.lr) == pytest.approx(1 / (1 + 2.0**2))
