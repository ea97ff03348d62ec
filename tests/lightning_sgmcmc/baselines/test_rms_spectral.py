"""RMSspectral: its steps against NumPy's, and the norm in which they are steepest."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lightning_sgmcmc import GaussianPrior
from lightning_sgmcmc.baselines import Optimized, RMSspectral
from lightning_sgmcmc.baselines.rms_spectral import sharp
from lightning_sgmcmc.samplers import ChainsInTurn
from tests.lightning_sgmcmc.baselines.common import assert_same, draws, fit, net, through_a_file
from tests.lightning_sgmcmc.problem import Problem
from tests.toy import Toy

SHAPES = {"dense": (5, 7), "conv": (4, 3, 2, 2), "bias": (6,), "column": (5, 1), "scale": ()}


def gradients(shape: tuple[int, ...], steps: int, seed: int = 0) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [np.asarray(generator.standard_normal(shape)) for _ in range(steps)]


def matrix(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(gradients((rows, columns), 1, seed)[0])


@pytest.mark.parametrize("name", SHAPES)
def test_steps_are_the_papers(name: str) -> None:
    """Four steps against the table's formula in dense NumPy."""
    shape, lr, alpha, eps = SHAPES[name], 0.03, 0.9, 1e-3
    weight = gradients(shape, 1, seed=1)[0].copy()
    p = nn.Parameter(torch.from_numpy(weight.copy()))
    optimizer = RMSspectral([p], lr, alpha=alpha, eps=eps)
    V = np.zeros(shape)
    for g in gradients(shape, 4):
        V = alpha * V + (1 - alpha) * g**2
        root = (eps + np.sqrt(V)) ** -0.5
        flat = (root * g).reshape(shape[0] if shape else 1, -1)
        if len(shape) < 2:
            flat = flat.reshape(-1, 1)  # a matrix of one column
        U, s, Vh = np.linalg.svd(flat, full_matrices=False)
        weight = weight - lr * root * (s.sum() * U @ Vh).reshape(shape)
        p.grad = torch.from_numpy(g.copy())
        optimizer.step()
    np.testing.assert_allclose(p.detach().numpy(), weight, rtol=1e-10, atol=1e-12)


def test_biases_take_the_step_of_rmsprop() -> None:
    ours, theirs = nn.Parameter(torch.ones(6)), nn.Parameter(torch.ones(6))
    one = RMSspectral([ours], 0.01, alpha=0.9, eps=1e-3)
    other = torch.optim.RMSprop([theirs], 0.01, alpha=0.9, eps=1e-3)
    for g in gradients((6,), 5):
        for p, optimizer in ((ours, one), (theirs, other)):
            p.grad = torch.from_numpy(g).float()
            optimizer.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(4, 9), (9, 4), (6, 6)])
def test_sharp_is_dual_to_the_schatten_norm(shape: tuple[int, int]) -> None:
    """<G, G#> = ||G#||^2 = ||s||_1^2, and nothing else reaches half of that in the objective."""
    G = matrix(*shape)
    best = sharp(G)
    nuclear = torch.linalg.matrix_norm(G, "nuc")
    assert torch.allclose((G * best).sum(), nuclear**2)
    assert torch.allclose(torch.linalg.matrix_norm(best, 2), nuclear)

    def objective(X: torch.Tensor) -> float:
        return float((G * X).sum() - 0.5 * torch.linalg.matrix_norm(X, 2) ** 2)

    assert objective(best) == pytest.approx(0.5 * float(nuclear) ** 2, rel=1e-12)
    for seed in range(200):
        for size in (1e-3, 0.1, 1.0, 10.0):
            assert objective(best + size * matrix(*shape, seed=seed + 1)) < objective(best)


def test_directions_without_gradient_do_not_move() -> None:
    G = matrix(6, 5)
    G[2] = 0  # a dead unit
    G[:, 3] = 0
    moved = sharp(G)
    assert moved[2].abs().max() < 1e-12
    assert moved[:, 3].abs().max() < 1e-12
    kept = [0, 1, 3, 4, 5]
    torch.testing.assert_close(moved[kept][:, [0, 1, 2, 4]], sharp(G[kept][:, [0, 1, 2, 4]]))
    assert torch.equal(sharp(torch.zeros(3, 4)), torch.zeros(3, 4))


def test_range_finder() -> None:
    """Exact at low rank; close to the leading part of a decaying spectrum; its own randomness."""
    low = matrix(90, 4) @ matrix(4, 80, seed=1)
    state = torch.get_rng_state()
    torch.testing.assert_close(sharp(low, 6, (0, 1)), sharp(low), rtol=1e-8, atol=1e-8)
    assert torch.equal(torch.get_rng_state(), state)
    U, _ = torch.linalg.qr(matrix(90, 80))
    V, _ = torch.linalg.qr(matrix(80, 80, seed=1))
    s = 0.7 ** torch.arange(80, dtype=torch.float64)
    G = U * s @ V.mT
    leading = s[:12].sum() * U[:, :12] @ V[:, :12].mT
    found = sharp(G, 12, (0, 1))
    assert float((found - leading).norm() / leading.norm()) < 0.15
    assert float((sharp(G, 12, (0, 2)) - found).abs().max()) > 1e-9
    assert torch.equal(sharp(G, 12, (0, 1)), found)


def test_large_matrices_take_the_leading_vectors() -> None:
    """Beyond ``exact`` a step has the given rank; below it is exact."""
    G = matrix(40, 30)
    steps = []
    for exact in (0, 30):
        p = nn.Parameter(torch.zeros(40, 30, dtype=torch.float64))
        p.grad = G.clone()
        RMSspectral([p], 1.0, alpha=0.0, eps=1e6, rank=5, exact=exact).step()
        steps.append(torch.linalg.matrix_rank(p.detach() * 1e6, rtol=1e-3))
    assert [int(rank) for rank in steps] == [5, 30]


def test_resumes_to_the_bit_through_the_range_finder() -> None:
    make = partial(RMSspectral, rank=2, exact=0)
    problem = Problem()
    sampler = Optimized(problem.params, 0.01, optimizer=make, num_data=40)
    problem.run(sampler, 5)
    state, other = through_a_file(sampler.state_dict()), problem.twin()
    expected = problem.run(sampler, 5)
    resumed = Optimized(other.params, 0.01, optimizer=make, num_data=40)
    resumed.load_state_dict(state)
    assert torch.equal(other.run(resumed, 5), expected)


def test_an_ensemble_runs_in_turn(tmp_path: Path) -> None:
    def module(**kw: Any) -> Toy:
        make = partial(Optimized, lr=0.01, optimizer=RMSspectral, prior=GaussianPrior(4.0))
        return Toy(make, net(), burn_in=11, num_chains=2, **kw)

    run = fit(module(), tmp_path / "whole", 12)
    assert isinstance(run.chain.sampler, ChainsInTurn)
    assert run.chain.sampler.name == "Optimized(RMSspectral)"
    fit(module(), tmp_path / "again", 12)
    assert_same(draws(tmp_path / "whole"), draws(tmp_path / "again"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lr": -1.0}, "lr must not be negative, got -1.0"),
        ({"alpha": 1.0}, r"alpha must lie in \[0, 1\), got 1.0"),
        ({"eps": 0.0}, "eps must be positive, got 0.0"),
        ({"rank": 0}, "need rank >= 1"),
        ({"seed": -1}, "seed >= 0, got 30, 64 and -1"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RMSspectral([nn.Parameter(torch.zeros(2))], **arguments)
