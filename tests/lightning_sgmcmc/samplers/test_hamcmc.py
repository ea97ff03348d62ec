"""HAMCMC's chains: which weights move, with which metric, and the law that results.

False-alarm rate: 1e-6 a statistic (tests/harness.py), 31 statistics.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lightning_sgmcmc import HAMCMC, GaussianPrior
from lightning_sgmcmc.preconditioners.lbfgs_operator import LBFGSOperator
from lightning_sgmcmc.target import FullGradient
from tests.harness import assert_normal
from tests.lightning_sgmcmc.problem import N, Problem
from tests.toy import NUM_DATA, Toy, ToyData, trainer

A = torch.tensor([[4.0, 0.8], [0.8, 0.5]], dtype=torch.float64)


def gaussian(sampler: HAMCMC) -> Callable[[], Tensor]:
    """Return the closure of the mean NLL theta' A theta / 2 of every row."""
    theta = sampler.params[0]

    def closure() -> Tensor:
        theta.grad = theta.detach() @ A
        return torch.zeros(theta.shape[:-1])

    return closure


@pytest.mark.parametrize("memory", [2, 4])
def test_a_chain_moves_by_the_pairs_of_the_others(memory: int) -> None:
    """At T = 0 theta_t = theta_(t-M) - lr G grad, G rebuilt here from the path alone."""
    lr, r = 0.1, 0.25
    theta = torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True)
    sampler = HAMCMC([theta], lr, memory=memory, num_data=1, temperature=0.0)
    path = [theta.detach().clone()] * memory

    def gradient(x: Tensor) -> Tensor:
        return A @ x + 0.4 * x**3

    def closure() -> float:
        theta.grad = gradient(theta.detach())
        return 0.0

    for _ in range(memory + 8):
        sampler.step(closure)
        path.append(theta.detach().clone())
    assert sampler.gradients == 2 * (memory + 8)
    for t in range(2 * memory + 2, len(path)):
        ends = range(t - memory + 1, t)
        steps = [path[k] - path[k - memory] for k in ends]
        changes = [gradient(path[k]) - gradient(path[k - memory]) for k in ends]
        s, y = steps[-1], changes[-1]
        operator = LBFGSOperator(steps, changes, (y @ y / (s @ y)).view(1), r)
        start = path[t - memory]
        expected = start - lr * operator.apply(gradient(start))
        torch.testing.assert_close(path[t], expected, rtol=1e-9, atol=1e-12)


def test_a_frozen_chain_has_the_exact_law() -> None:
    """theta_t - (I - lr C A) theta_(t-M) ~ N(0, 2 lr C), independent of theta_(t-M)."""
    lr, memory, n = 0.3, 3, 10
    theta = torch.tensor([1.0, -1.0], dtype=torch.float64, requires_grad=True)
    sampler = HAMCMC([theta], lr, memory=memory, num_data=n, seed=1)

    def closure() -> float:
        theta.grad = A @ theta.detach() / n
        return 0.0

    for _ in range(20):
        sampler.step(closure)
    sampler.freeze()
    used = sampler.gradients
    C = torch.cat([sampler.preconditioner.apply_([e.view(2)])[0] for e in torch.eye(2).double()])
    C = C.view(2, 2).numpy()
    path = []
    for _ in range(4000):
        sampler.step(closure)
        path.append(theta.detach().numpy().copy())
    assert sampler.gradients == used + 4000
    states = np.stack(path)
    drift = np.eye(2) - lr / n * C @ A.numpy()
    before, noise = states[:-memory], states[memory:] - states[:-memory] @ drift.T
    Q = 2 * lr / n * C
    assert_normal(noise, Q)
    white = np.linalg.solve(np.linalg.cholesky(Q), noise.T)
    scores = white @ before / np.linalg.norm(before, axis=0)
    assert np.abs(scores).max() < 4.9
    lags = [abs(np.corrcoef(states[:-k, 0], states[k:, 0])[0, 1]) for k in (1, 2, 3)]
    assert max(lags[:2]) < 0.15 < lags[2]


def stacked(lr: float, memory: int, steps: int, temperature: float = 1.0) -> np.ndarray:
    """Run 2,000 adapting HAMCMCs from the target, return the ends of their last M steps."""
    covariance = temperature * torch.linalg.inv(A)
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(2000, 2, generator=generator).double()
    theta = (start @ torch.linalg.cholesky(covariance).T).requires_grad_()
    sampler = HAMCMC([theta], lr, memory=memory, num_data=1, temperature=temperature)
    sampler.stack(one_generator=True)
    closure = gaussian(sampler)
    ends = []
    for _ in range(steps):
        sampler.step(closure)
        ends.append(theta.detach().numpy().copy())
    return np.stack(ends[-memory:])


def test_adapting_chains_keep_the_product_target_at_small_steps() -> None:
    """Three chains together, after each has decorrelated from their common start.

    The bias of order lr hides behind 2,000 replicas here.
    """
    ends = stacked(0.03, 3, 450)
    assert_normal(np.hstack(list(ends)), np.kron(np.eye(3), torch.linalg.inv(A).numpy()))


def test_stacked_chains_move_as_they_would_alone() -> None:
    start = np.random.default_rng(6).standard_normal((4, 2))
    together = HAMCMC([torch.tensor(start).requires_grad_()], 0.2, num_data=1, seed=7)
    together.stack()
    for _ in range(20):
        together.step(gaussian(together))
    for k in range(4):
        theta = torch.tensor(start[k]).requires_grad_()
        alone = HAMCMC([theta], 0.2, num_data=1, seed=7, chain=k)
        for _ in range(20):
            alone.step(gaussian(alone))
        torch.testing.assert_close(theta, together.params[0][k], rtol=1e-8, atol=1e-10)


def test_corrected_gradients_are_those_of_the_earlier_weights_it_moves_from(tmp_path: Path) -> None:
    """From burn-in's end FullGradient is the gradient of all the data there, to rounding."""
    ends = []
    for batches, estimator in ((4, FullGradient()), (NUM_DATA, None)):
        torch.manual_seed(0)
        sampler = partial(HAMCMC, lr=0.3, memory=2, seed=3, prior=GaussianPrior(4.0))
        task = Toy(sampler, burn_in=0, gradients=estimator, freeze_preconditioner=False)
        trainer(tmp_path / str(batches), 30).fit(task, datamodule=ToyData(batches))
        ends.append(task.net.weight.detach())
    torch.testing.assert_close(*ends, rtol=1e-3, atol=1e-4)


def test_an_error_leaves_the_weights_where_they_were() -> None:
    problem = Problem()
    sampler = HAMCMC(problem.params, 1e-2, num_data=N)
    problem.run(sampler, 6)
    before = problem.weights()

    def closure() -> float:
        for p in problem.params:
            p.grad = torch.full_like(p, torch.nan)
        return 0.0

    with pytest.raises(RuntimeError, match="is not finite"):
        sampler.step(closure)
    assert torch.equal(problem.weights(), before)
    with pytest.raises(RuntimeError, match="takes its gradient at weights of its own"):
        sampler.step()
    with pytest.raises(RuntimeError, match=r"moves by step\(closure\) alone"):
        sampler._advance([torch.zeros_like(p) for p in problem.params])
    assert torch.equal(problem.weights(), before)


@pytest.mark.parametrize("arguments", [{"memory": 1}, {"memory": 2.5}, {"r": 1.0}, {"delta": 0.0}])
def test_arguments_out_of_range(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(arguments))):
        HAMCMC([torch.zeros(1, requires_grad=True)], 0.1, **arguments)
