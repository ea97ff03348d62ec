"""SWAG: its Gaussian is that of the optimizer's iterates, and its draws are of that Gaussian."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lightning_sgmcmc import GaussianPrior
from lightning_sgmcmc.baselines import SWAG, Optimized
from tests.lightning_sgmcmc.baselines.common import assert_stacked_is_alone, through_a_file
from tests.lightning_sgmcmc.problem import N, Problem
from tests.toy import Toy, ToyData, trainer

ADAM = partial(torch.optim.Adam, betas=(0.8, 0.9))
PRIOR = GaussianPrior(4.0)


def chain(params: Any, **kw: Any) -> SWAG:
    settings: dict[str, Any] = {"num_data": N, "prior": PRIOR, "optimizer": ADAM, "seed": 3}
    return SWAG(params, 0.02, **{"start": 3, "every": 2, "rank": 3} | settings | kw)


def test_the_gaussian_is_that_of_the_iterates() -> None:
    """Mean, variances and deviations from the running mean, of a list of Adam's own iterates."""
    ours, theirs = Problem(), Problem()
    adam = Optimized(theirs.params, 0.02, num_data=N, prior=PRIOR, optimizer=ADAM)
    iterates = torch.stack([theirs.run(adam, 1) for _ in range(14)])[4::2]
    sampler = chain(ours.params)
    assert torch.equal(ours.run(sampler, 14), theirs.weights())
    assert len(iterates) == 5
    torch.testing.assert_close(sampler.mean, iterates.mean(0))
    torch.testing.assert_close(sampler.variance, iterates.var(0, correction=0))
    running = [iterates[i] - iterates[: i + 1].mean(0) for i in (2, 3, 4)]
    kept = sampler.state_dict()["chain"]["swag"]["deviations"]
    torch.testing.assert_close(kept[[0, 1, 2]], torch.stack([running[i] for i in (0, 1, 2)]))


def test_draws_have_the_mean_and_covariance_of_the_gaussian() -> None:
    """2,000 draws of 3 weights: each moment within five standard errors, alarm rate < 1e-5."""
    generator = torch.Generator().manual_seed(1)
    theta = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    sampler = SWAG([theta], 0.5, start=0, every=1, rank=4, num_data=5)
    for _ in range(9):
        theta.grad = torch.randn(3, generator=generator, dtype=torch.float64)
        sampler.step()
    sampler.freeze()
    d = sampler.state_dict()["chain"]["swag"]["deviations"]
    covariance = (torch.diag(sampler.variance) + d.T @ d / 3) / 2
    mean, rows = sampler.mean.clone(), []
    for _ in range(2000):
        theta.grad = torch.zeros_like(theta)
        sampler.step()
        rows.append(theta.detach().clone())
    x = torch.stack(rows) - mean
    assert torch.equal(sampler.mean, mean)
    variance = covariance.diagonal()
    assert bool((x.mean(0).abs() < 5 * (variance / len(x)).sqrt()).all())
    error = ((torch.outer(variance, variance) + covariance.square()) / len(x)).sqrt()
    assert bool(((x.T @ x / len(x) - covariance).abs() < 5 * error).all())
    assert float(covariance[0, 1].abs()) > 5 * float(error[0, 1])  # a diagonal would be seen
    assert float((x[1:, 0] * x[:-1, 0]).mean().abs()) < 5 * float(variance[0]) / len(x) ** 0.5


@pytest.mark.parametrize("when", ["start", "fitting", "frozen"])
def test_resumes_to_the_bit(when: str) -> None:
    problem = Problem()
    sampler = chain(problem.params)
    if when != "start":
        problem.run(sampler, 12)
    if when == "frozen":
        sampler.freeze()
    state = through_a_file(sampler.state_dict())
    other = problem.twin()
    expected = problem.run(sampler, 8)
    resumed = chain(other.params, seed=99)
    resumed.load_state_dict(state)
    assert torch.equal(other.run(resumed, 8), expected)
    assert torch.equal(resumed.mean, sampler.mean)


@pytest.mark.parametrize("frozen", [False, True])
def test_stacked_chains_are_chains_alone(frozen: bool) -> None:
    def make(params: Any, **kw: Any) -> SWAG:
        sampler = chain(params, start=0, every=1, rank=2, **kw)
        if frozen:
            sampler._entered = 2
            sampler._square += 0.01
            sampler._deviations += torch.tensor([[0.1], [0.2]])
            sampler.freeze()
        return sampler

    assert_stacked_is_alone(make)


def test_masked_weights_are_zero_in_every_draw() -> None:
    problem = Problem()
    sampler = chain(problem.params)
    problem.run(sampler, 12)
    masks = [(torch.arange(p.numel()).view(p.shape) % 2).double() for p in sampler.params]
    sampler.set_masks(masks)
    free = torch.cat([mask.reshape(-1) for mask in masks]).bool()
    assert bool((sampler.variance[~free] > 0).any())
    sampler.freeze()
    drawn = problem.run(sampler, 1)
    assert not drawn[~free].any()
    assert bool((drawn[free] != 0).all())


def test_a_swag_that_is_never_frozen_is_called_no_gaussian() -> None:
    sampler = chain(Problem().params)
    assert sampler.caveats(frozen=True) == [
        "draws are of a Gaussian through an optimizer's iterates"
    ]
    assert "of no Gaussian" in sampler.caveats(frozen=False)[0]


def test_wrong_arguments() -> None:
    problem = Problem()
    with pytest.raises(ValueError, match="rank of at least 2, got 0, 1 and 1"):
        chain(problem.params, start=0, every=1, rank=1)
    sampler = chain(problem.params)
    problem.run(sampler, 8)
    with pytest.raises(ValueError, match="has taken 2 iterates where burn-in ends, and needs 3"):
        sampler.freeze()


def test_a_burn_in_without_iterates_enough_is_refused_at_the_start(tmp_path: Path) -> None:
    module = Toy(partial(SWAG, lr=1e-2, start=100, every=5, rank=20), burn_in=195)
    with pytest.raises(ValueError, match="has taken 19 iterates where burn-in ends, and needs 20"):
        trainer(tmp_path, 300).fit(module, datamodule=ToyData())
    assert module.chain.steps == 0
