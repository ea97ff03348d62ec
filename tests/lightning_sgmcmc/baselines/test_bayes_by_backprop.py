"""Bayes by Backprop: its gradients are the paper's, its optimum is known on a Gaussian."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Normal
from torch.nn import functional

from lightning_sgmcmc import GaussianPrior, ScaleMixturePrior
from lightning_sgmcmc.baselines import BayesByBackprop
from lightning_sgmcmc.chain.burn_in import OptimizerBurnIn
from lightning_sgmcmc.common.vectors import flatten
from lightning_sgmcmc.samplers import ChainsInTurn
from tests.device import DEVICE
from tests.lightning_sgmcmc.baselines.common import (
    assert_same,
    assert_stacked_is_alone,
    draws,
    fit,
    keeper,
    net,
    through_a_file,
)
from tests.lightning_sgmcmc.problem import N, Problem
from tests.posteriors import LinearRegression
from tests.toy import Toy, ToyData, trainer

MIXTURE = ScaleMixturePrior(0.4, 1.0, 0.1)
PRIOR = GaussianPrior(4.0)


class Custom(torch.optim.SGD):
    """An optimizer that nobody knows to be elementwise."""


def chain(params: Any, **kw: Any) -> BayesByBackprop:
    settings: dict[str, Any] = {"num_data": N, "prior": MIXTURE, "initial_std": 0.1, "seed": 3} | kw
    return BayesByBackprop(params, 0.01, **settings)


def test_gradients_are_those_of_the_papers_cost() -> None:
    """By autograd through w = mu + softplus(rho) eps of f = log q - log p + N mean NLL."""
    problem = Problem()
    sampler = chain(problem.params, optimizer=torch.optim.SGD)
    problem.run(sampler, 3)
    mu = [m.clone().requires_grad_() for m in sampler.mu]
    rho = [r.clone().requires_grad_() for r in sampler.rho]
    before = flatten([*sampler.mu, *sampler.rho]).clone()
    eps = [
        (w.detach() - m) / s
        for w, m, s in zip(problem.params, sampler.mu, sampler.std, strict=True)
    ]
    assert min(float(e.abs().max()) for e in eps) > 0.1
    w = [m + functional.softplus(r) * e for m, r, e in zip(mu, rho, eps, strict=True)]
    names = [name for name, _ in problem.net.named_parameters()]
    x, y = problem.batch(3)
    output = torch.func.functional_call(problem.net, dict(zip(names, w, strict=True)), (x,))
    log_q = sum(
        Normal(m, functional.softplus(r)).log_prob(v).sum()
        for m, r, v in zip(mu, rho, w, strict=True)
    )
    cost = functional.cross_entropy(output, y) + (log_q - MIXTURE.log_density(w)) / N
    exact = flatten(torch.autograd.grad(cost, [*mu, *rho]))
    problem.run(sampler, 1)
    moved = (before - flatten([*sampler.mu, *sampler.rho])) / sampler.lr
    assert torch.allclose(moved, exact, rtol=1e-8, atol=1e-10)


def test_mean_field_optimum_of_a_gaussian_posterior() -> None:
    """mu is the posterior mean, sigma_j = A_jj^(-1/2), not the wider marginal deviation.

    64 fits of 3 weights, averaged: mean and deviations within 1 % of sigma. The steps fall to
    .001, where the bias of sigma, which is of their order, is below that.
    """
    covariance = np.array([[1.0, 0.8, 0.2], [0.8, 1.5, 0.1], [0.2, 0.1, 0.7]]) * 0.2
    problem = LinearRegression.with_posterior(covariance, num_data=10)
    shift = np.array([0.7, -1.1, 0.4])
    x, y = problem.data(torch.float64, DEVICE)
    y = y + x @ torch.as_tensor(shift)
    problem = LinearRegression(problem.x, y.numpy(), variance=problem.variance)
    theta = nn.Parameter(torch.zeros(64, 3, dtype=torch.float64))
    sampler = BayesByBackprop(
        [theta], 0.3, optimizer=torch.optim.SGD, num_data=10, prior=problem.prior
    )
    sampler.stack(one_generator=True)
    steps, mu, std = 3000, torch.zeros(3), torch.zeros(3)
    for step in range(steps):
        sampler.set_lr(max(0.001, 0.3 * 0.996**step))
        theta.grad = problem.gradient(theta.detach(), (x, y))
        sampler.step()
        if step >= steps // 2:
            mu = mu + sampler.mu[0].mean(0) / (steps // 2)
            std = std + sampler.std[0].mean(0) / (steps // 2)
    exact = problem.precision.diagonal() ** -0.5
    assert (exact < 0.9 * np.sqrt(np.diag(covariance))).sum() >= 2
    assert np.abs(mu.numpy() - problem.mean).max() < 0.01 * exact.min()
    assert np.abs(std.numpy() / exact - 1).max() < 0.01


def test_draws_are_independent_draws_of_q() -> None:
    """20,000 weights, 40 draws after the fit: moments and correlation within five errors."""
    torch.manual_seed(0)
    theta = nn.Parameter(torch.randn(20_000, dtype=torch.float64))
    sampler = BayesByBackprop([theta], 0.01, num_data=5)
    rows = []
    for step in range(60):
        theta.grad = theta.detach() / 5
        sampler.step()
        if step == 19:
            sampler.freeze()
            mu, std = sampler.mu[0].clone(), sampler.std[0].clone()
        if step >= 20:
            rows.append((theta.detach() - mu) / std)
    assert torch.equal(sampler.mu[0], mu)
    assert torch.equal(sampler.std[0], std)
    z = torch.stack(rows)
    error = 5 / math.sqrt(z.numel())
    assert abs(float(z.mean())) < error
    assert abs(float((z**2).mean()) - 1) < error * math.sqrt(2)
    assert abs(float((z[1:] * z[:-1]).mean())) < 1.02 * error


@pytest.mark.parametrize("when", ["start", "fitting", "frozen", "masked"])
def test_resumes_to_the_bit(when: str) -> None:
    problem = Problem()
    sampler = chain(problem.params)
    if when != "start":
        problem.run(sampler, 5)
    if when == "masked":
        sampler.set_masks([(torch.arange(p.numel()).view(p.shape) % 3 > 0) for p in sampler.params])
        problem.run(sampler, 1)
    if when == "frozen":
        sampler.freeze()
    state = through_a_file(sampler.state_dict())
    other = problem.twin()
    strange = other.twin()
    expected = problem.run(sampler, 5)
    resumed = chain(other.params, seed=99, num_data=7, initial_std=0.3)
    used = chain(strange.params, seed=12)
    strange.run(used, 4)
    used.freeze()
    with torch.no_grad():
        for p, q in zip(strange.params, other.params, strict=True):
            p.copy_(q)
    strange.step_number = other.step_number
    for run, taker in ((other, resumed), (strange, used)):
        taker.load_state_dict(state)
        assert torch.equal(run.run(taker, 5), expected)
        assert torch.equal(flatten(taker.rho), flatten(sampler.rho))


def test_the_seed_alone_decides() -> None:
    ends = []
    for global_seed, kw in enumerate(({}, {}, {"seed": 4}, {"chain": 1})):
        torch.manual_seed(global_seed)
        problem = Problem()
        state = torch.get_rng_state()
        ends.append(problem.run(chain(problem.params, **kw), 4))
        assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(ends[0], ends[1])
    for i, j in ((0, 2), (0, 3), (2, 3)):
        assert (ends[i] != ends[j]).all()


def test_masked_weights_stay_zero_and_come_back() -> None:
    problem = Problem()
    sampler = chain(problem.params)
    problem.run(sampler, 5)
    masks = [(torch.arange(p.numel()).view(p.shape) % 2).double() for p in sampler.params]
    free = flatten(masks).bool()
    sampler.set_masks(masks)
    rho = flatten(sampler.rho).clone()
    for _ in range(3):
        before = problem.weights()
        after = problem.run(sampler, 1)
        assert not after[~free].any()
        assert (after[free] != before[free]).all()
    assert not flatten(sampler.mu)[~free].any()
    assert (flatten(sampler.rho)[free] != rho[free]).all()
    sampler.set_masks(None)
    assert problem.run(sampler, 1)[~free].all()


def test_stacked_chains_are_chains_alone() -> None:
    assert_stacked_is_alone(chain)


def test_q_starts_where_a_burn_in_optimizer_stopped(tmp_path: Path) -> None:
    module = Toy(
        partial(BayesByBackprop, lr=1e-9, initial_std=1e-6, prior=PRIOR),
        net(),
        burn_in=21,
        burn_in_optimizer=OptimizerBurnIn(partial(torch.optim.Adam, lr=0.05), 20),
    )
    fit(module, tmp_path, 23)
    mu = dict(zip(module.chain.sampled, module.chain.sampler.mu, strict=True))  # type: ignore[attr-defined]
    assert (mu["net.0.weight"] - net()[0].weight).abs().max() > 0.05
    for key, value in draws(tmp_path)["samples/chain0/step_23.safetensors"].items():
        torch.testing.assert_close(value, mu[key], rtol=0, atol=1e-5)


@pytest.mark.parametrize(("make", "num_chains"), [(None, 1), (None, 2), (Custom, 2)])
@pytest.mark.parametrize("freeze", [True, False])
def test_a_run_resumes_to_the_bit(tmp_path: Path, make: Any, num_chains: int, freeze: bool) -> None:
    def module() -> Toy:
        return Toy(
            partial(BayesByBackprop, lr=0.01, optimizer=make, prior=PRIOR),
            net(),
            burn_in=4,
            thinning=5,
            num_chains=num_chains,
            freeze_preconditioner=freeze,
        )

    whole = fit(module(), tmp_path / "whole", 24)
    fit(module(), tmp_path / "parts", 10, every=5)
    fit(module(), tmp_path / "parts", 24, resume=True)
    assert isinstance(whole.chain.sampler, ChainsInTurn) == (make is Custom)
    assert len(draws(tmp_path / "whole")) == 4 * num_chains
    assert_same(draws(tmp_path / "whole"), draws(tmp_path / "parts"))
    assert keeper(whole).draw_weights.tolist() == [1.0] * 4


@pytest.mark.parametrize(("freeze", "end"), [(True, "fitted during burn-in"), (False, "are kept")])
def test_a_run_says_what_its_draws_are(tmp_path: Path, freeze: bool, end: str) -> None:
    sampler = partial(BayesByBackprop, lr=0.01, prior=PRIOR)
    module = Toy(sampler, net(), burn_in=2, freeze_preconditioner=freeze)
    fit(module, tmp_path, 4)
    (note,) = module.chain.notes()
    assert note.startswith("draws are of a variational approximation")
    assert note.endswith(end)
    assert module.adaptation.stability == {}


def test_wrong_arguments(tmp_path: Path) -> None:
    params = [nn.Parameter(torch.zeros(2))]
    with pytest.raises(ValueError, match="lr must be a positive number"):
        BayesByBackprop(params, -1.0)
    with pytest.raises(ValueError, match='lr="auto" has no meaning'):
        BayesByBackprop(params, "auto")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="initial_std must be positive, got 0"):
        BayesByBackprop(params, 0.1, initial_std=0.0)
    module = Toy(partial(BayesByBackprop, lr=0.01, prior=PRIOR), net())
    with pytest.raises(ValueError, match="burn_in ends before its first step: raise burn_in"):
        fit(module, tmp_path, 3)


def test_a_burn_in_that_an_optimizer_fills_is_refused_at_the_start(tmp_path: Path) -> None:
    adam = OptimizerBurnIn(partial(torch.optim.Adam, lr=1e-2), 195)
    module = Toy(partial(BayesByBackprop, lr=1e-2), burn_in=195, burn_in_optimizer=adam)
    with pytest.raises(ValueError, match="burn_in ends before its first step"):
        trainer(tmp_path, 300).fit(module, datamodule=ToyData())
    assert module.chain.steps == 0
