"""Starts by randomised maximum a posteriori against the closed form of a linear model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_sgmcmc import SGLD, BatchStream, FanInGaussianPrior, GaussianPrior, LaplacePrior
from lightning_sgmcmc.chain import Chain, OptimizerBurnIn
from lightning_sgmcmc.chain.randomised_map import RandomisedMAP
from lightning_sgmcmc.chain.schedules import DrawSchedule
from lightning_sgmcmc.chain.task import Task
from lightning_sgmcmc.priors import FlatPrior
from tests.toy import NOISE, NUM_FEATURES, Toy, toy_data

STEPS = 300
ADAM = partial(torch.optim.Adam, lr=0.1)


class Linear(Task):
    """y ~ N(w x, NOISE^2)."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(NUM_FEATURES, 1, bias=False)

    def nll(self, batch: Any) -> Tensor:
        return 0.5 * ((batch[1] - self(batch[0]).squeeze(-1)) / NOISE) ** 2

    def perturb_labels(self, batch: Any, normal: Callable[[Tensor], Tensor]) -> Any:
        x, y = batch
        return x, y + NOISE * normal(y)


def chain_of(
    count: int,
    *,
    prior: Any = None,
    temperature: float = 1.0,
    sampling: Any = "full",
    task: Task | None = None,
    loader: Any = None,
    optimizer: Any = ADAM,
    first: int = 0,
) -> Chain:
    torch.manual_seed(0)
    sampler = partial(
        SGLD, lr=1e-3, prior=prior or GaussianPrior(0.2, mean=0.3), temperature=temperature, seed=5
    )
    chain = Chain(
        task or Linear(),
        partial(sampler, chain=first),
        DrawSchedule(STEPS, 1, None, STEPS if optimizer else 0),
        burn_in_optimizer=OptimizerBurnIn(optimizer, STEPS) if optimizer else None,
        num_chains=count,
        starts="randomised_map",
    )
    chain.select()
    chain.place()
    chain.build()
    chain.bind(loader or BatchStream(toy_data(), 16, sampling))
    return chain


def optimised(chain: Chain) -> np.ndarray:
    for _ in range(STEPS):
        chain.advance(chain.minibatch())
    weights = chain.sampler.params[0].detach().double().numpy()
    return weights.reshape(-1, NUM_FEATURES)


@pytest.mark.parametrize(
    ("prior", "variance", "mean", "temperature"),
    [
        (GaussianPrior(0.2, mean=0.3), 0.2, 0.3, 1.0),
        (GaussianPrior(0.2, mean=0.3), 0.2, 0.3, 0.4),
        (FanInGaussianPrior(), 1 / NUM_FEATURES, 0.0, 1.0),
        (FlatPrior(), np.inf, 0.0, 1.0),
    ],
)
def test_starts_have_the_posteriors_law(
    prior: Any, variance: float, mean: float, temperature: float
) -> None:
    """Mean and covariance of 600 starts within five standard errors, the prior a third of it all.

    Few examples count, so that the prior's share of the precision is not small.
    """
    x, y = (t[:6] for t in toy_data())
    count = 600
    stream = BatchStream((x, y), 6, "full")
    found = optimised(chain_of(count, prior=prior, temperature=temperature, loader=stream))
    x, y = x.double(), y.double()
    precision = (x.T @ x / NOISE**2).numpy() + np.eye(NUM_FEATURES) / variance
    covariance = np.linalg.inv(precision)
    centre = covariance @ ((x.T @ y / NOISE**2).numpy() + mean / variance)
    covariance *= temperature
    scales = covariance.diagonal()
    assert (np.abs(found.mean(0) - centre) < 5 * np.sqrt(scales / count)).all()
    error = np.sqrt((covariance**2 + np.outer(scales, scales)) / count)
    assert (np.abs(np.cov(found.T) - covariance) < 5 * error).all()


def test_perturbations_go_by_seed_chain_and_example() -> None:
    """A chain alone and among others, now and after a resume, sees the same labels."""
    together, again = (chain_of(3, sampling="reshuffled") for _ in range(2))
    alone = chain_of(1, sampling="reshuffled", first=2)
    assert together._randomised is not None
    assert again._randomised is not None
    assert alone._randomised is not None
    x, y = toy_data()
    for step in (0, 3, 17):
        batch, same, single = (c._randomised.at(step) for c in (together, again, alone))
        assert all(torch.equal(a, b) for a, b in zip(batch, same, strict=True))
        assert all(torch.equal(a[2], b) for a, b in zip(batch, single, strict=True))
        indices = together.stream.indices(step)
        assert torch.equal(batch[0], x[indices])
        moved = (batch[1] - y[indices]) / NOISE
        assert moved.abs().mean() > 0.5
    (_, labels), (pull,) = together._randomised.tensors, together._randomised._pull
    assert torch.equal(labels[2], alone._randomised.tensors[1])
    assert torch.equal(pull[2], alone._randomised._pull[0])
    correlation = np.corrcoef((labels - y).numpy())
    assert np.abs(correlation[np.triu_indices(3, 1)]).max() < 5 / np.sqrt(len(y))


class TwoLabels(Toy):
    """Two measurements of the same, each with noise of its own."""

    def perturb_labels(self, batch: Any, normal: Any) -> Any:
        x, y, z = batch
        return x, y + normal(y), z + normal(z)


def test_every_call_perturbs_anew() -> None:
    x, y = toy_data()
    task = TwoLabels(partial(SGLD, lr=1e-3, prior=GaussianPrior(4.0)))
    sampler = SGLD(
        [torch.zeros(3, requires_grad=True)], 1e-3, num_data=64, prior=GaussianPrior(4.0)
    )
    moved = RandomisedMAP(task, sampler, BatchStream((x, y, y), 8)).tensors
    first, second = moved[1] - y, moved[2] - y
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(len(y))
    for noise in (first, second):
        assert noise.var() == pytest.approx(1, abs=0.6)


def test_the_chain_itself_sees_the_data() -> None:
    chain = chain_of(2)
    optimised(chain)
    x, y = toy_data()
    weights = chain.sampler.params[0].detach().clone().reshape(2, -1)
    loss = chain.advance(chain.minibatch())
    expected = 0.5 * ((y - weights @ x.T) / NOISE).square().mean(-1)
    assert torch.allclose(loss, expected)


def test_what_cannot_be_perturbed_is_refused() -> None:
    class Classes(Linear):
        perturb_labels = Task.perturb_labels

    with pytest.raises(TypeError, match="Classes cannot perturb its labels"):
        chain_of(2, task=Classes())
    with pytest.raises(ValueError, match="mean of a Gaussian prior, not of Laplace"):
        chain_of(2, prior=LaplacePrior())
    with pytest.raises(ValueError, match="give burn_in_optimizer"):
        chain_of(2, optimizer=None)
    with pytest.raises(ValueError, match="use a BatchStream"):
        chain_of(2, loader=DataLoader(TensorDataset(*toy_data()), batch_size=8))
