"""Optimizers behind a sampler's interface: they are the optimizers, resumable and stackable."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from lightning_sgmcmc import BatchStream, GaussianPrior, LaplacePrior
from lightning_sgmcmc.baselines import Optimized
from lightning_sgmcmc.chain import starts
from lightning_sgmcmc.common.vectors import flatten
from lightning_sgmcmc.samplers import ChainsInTurn
from tests.lightning_sgmcmc.baselines.common import (
    assert_same,
    assert_stacked_is_alone,
    draw,
    draws,
    fit,
    keeper,
    net,
    through_a_file,
)
from tests.lightning_sgmcmc.problem import N, Problem
from tests.toy import NOISE, NUM_DATA, Toy, toy_data


class Custom(torch.optim.SGD):
    """An optimizer that nobody knows to be elementwise."""


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": torch.optim.SGD,
    "momentum": partial(torch.optim.SGD, momentum=0.9),
    "RMSprop": partial(torch.optim.RMSprop, alpha=0.9),
    "Adam": partial(torch.optim.Adam, betas=(0.8, 0.95)),
    "AdamW": torch.optim.AdamW,
    "Adagrad": torch.optim.Adagrad,
    "Adadelta": torch.optim.Adadelta,
    "Adamax": torch.optim.Adamax,
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "Rprop": torch.optim.Rprop,
    "ASGD": torch.optim.ASGD,
    "custom": partial(Custom, momentum=0.5),
}
each_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)
PRIOR = GaussianPrior(4.0)


def chain(name: str, problem: Problem, **kw: Any) -> Optimized:
    settings: dict[str, Any] = {"num_data": N, "prior": LaplacePrior(0.5)} | kw
    return Optimized(problem.params, 0.02, optimizer=OPTIMIZERS[name], **settings)


def alone(name: str, params: Any, chain: int = 0) -> Optimized:
    settings: dict[str, Any] = {"num_data": N, "prior": LaplacePrior(0.5), "chain": chain}
    return Optimized(params, 0.02, optimizer=OPTIMIZERS[name], **settings)


def decay_to_zero(steps: int) -> Callable[[torch.optim.Optimizer], LambdaLR]:
    return lambda optimizer: LambdaLR(optimizer, lambda step: max(0.0, 1 - step / steps))


@each_optimizer
def test_is_the_optimizer_on_the_potential(name: str) -> None:
    """Thirty steps go where torch's optimizer goes on autograd's gradient of U / N."""
    ours, theirs = Problem(), Problem()
    found = ours.run(chain(name, ours), 30)
    optimizer = OPTIMIZERS[name](theirs.params, lr=0.02)
    target = theirs.target(LaplacePrior(0.5))
    for step in range(30):
        optimizer.zero_grad()
        (target.potential(theirs.batch(step)) / N).backward()
        optimizer.step()
    assert torch.allclose(found, theirs.weights(), rtol=1e-9, atol=1e-12)
    assert (found - Problem().weights()).abs().max() > 1e-3


@each_optimizer
@pytest.mark.parametrize("when", ["start", "later", "masked"])
def test_resumes_to_the_bit(name: str, when: str) -> None:
    problem = Problem()
    sampler = chain(name, problem)
    if when != "start":
        problem.run(sampler, 5)
    if when == "masked":
        sampler.set_masks([(torch.arange(p.numel()).view(p.shape) % 3 > 0) for p in sampler.params])
        problem.run(sampler, 1)
    state = through_a_file(sampler.state_dict())
    other = problem.twin()
    strange = other.twin()
    expected = problem.run(sampler, 5)
    resumed = chain(name, other, seed=99, num_data=7)
    used = chain(name, strange, seed=12)
    strange.run(used, 4)
    with torch.no_grad():
        for p, q in zip(strange.params, other.params, strict=True):
            p.copy_(q)
    strange.step_number = other.step_number
    for run, taker in ((other, resumed), (strange, used)):
        taker.load_state_dict(state)
        assert torch.equal(run.run(taker, 5), expected)
        assert taker.gradients == sampler.gradients
        assert taker.num_data == N


def test_masked_weights_stay_zero_in_spite_of_momentum() -> None:
    problem = Problem()
    sampler = chain("momentum", problem)
    problem.run(sampler, 5)
    masks = [(torch.arange(p.numel()).view(p.shape) % 2).double() for p in sampler.params]
    sampler.set_masks(masks)
    free, before = flatten(masks).bool(), problem.weights()
    after = problem.run(sampler, 3)
    assert not after[~free].any()
    assert (after[free] != before[free]).all()


def bare_loop(make: Any, lr: float, steps: int) -> dict[str, Tensor]:
    """Train the toy's net by torch alone, over the minibatches of its stream."""
    network = net()
    optimizer = make(network.parameters(), lr=lr)
    scheduler = decay_to_zero(steps)(optimizer)
    stream = BatchStream(toy_data(), 16)
    stream.bind(next(network.parameters()).device, seed=5)
    for step in range(steps):
        x, y = stream.at(step)
        optimizer.zero_grad()
        loss = 0.5 * ((y - network(x).squeeze(-1)) / NOISE).square().mean()
        for p in network.parameters():
            loss = loss + p.square().sum() / (2 * 4.0 * NUM_DATA)
        loss.backward()
        optimizer.step()
        scheduler.step()
    return {f"net.{name}": p.detach() for name, p in network.named_parameters()}


@pytest.mark.parametrize("name", ["momentum", "Adam", "RMSprop"])
def test_a_run_is_a_training_loop(tmp_path: Path, name: str) -> None:
    """Same minibatches, schedule and prior: the last iterate is that of a loop in plain torch."""
    make = partial(Optimized, lr=0.02, optimizer=OPTIMIZERS[name], prior=PRIOR, seed=5)
    module = Toy(make, net(), burn_in=39, schedule=decay_to_zero(40))
    fit(module, tmp_path, 40)
    (found,) = draws(tmp_path).values()
    for key, exact in bare_loop(OPTIMIZERS[name], 0.02, 40).items():
        torch.testing.assert_close(found[key], exact, rtol=2e-5, atol=2e-6)
    assert module.chain.sampler.lr == 0  # and the draw counts all the same
    assert keeper(module).draw_weights.tolist() == [1.0]


@pytest.mark.parametrize("name", sorted(OPTIMIZERS.keys() - {"custom"}))
def test_stacked_chains_are_chains_alone(name: str) -> None:
    assert_stacked_is_alone(partial(alone, name))


@pytest.mark.parametrize("name", ["Adam", "custom"])
def test_a_deep_ensemble_is_separate_runs(tmp_path: Path, name: str) -> None:
    """Three networks end where each ends when it is trained from its start, on its batches."""
    make = partial(Optimized, lr=0.02, optimizer=OPTIMIZERS[name], prior=PRIOR, seed=5)
    module = Toy(make, net(), burn_in=19, num_chains=3)
    begins = starts(module, module.chain.sampled, "reinitialise", 5, range(3), PRIOR)
    fit(module, tmp_path / "all", 20)
    assert isinstance(module.chain.sampler, ChainsInTurn) == (name == "custom")
    ends = []
    for k, begin in enumerate(begins):
        single = Toy(partial(make, chain=k), net(), burn_in=19)
        single.load_state_dict(begin)
        fit(single, tmp_path / str(k), 20)
        ends.append(draw(tmp_path / str(k), k, 20))
        for key, value in draw(tmp_path / "all", k, 20).items():
            torch.testing.assert_close(value, ends[k][key], rtol=2e-4, atol=2e-5)
    assert not torch.allclose(ends[0]["net.0.weight"], ends[1]["net.0.weight"], atol=1e-2)
    x = toy_data(2, 30)[0]
    outputs = []
    for end in ends:
        network = net()
        network.load_state_dict({k.removeprefix("net."): v for k, v in end.items()})
        outputs.append(network(x).squeeze(-1).detach())
    mean = torch.stack(outputs).mean(0).double()
    torch.testing.assert_close(keeper(module).ensemble("test").mean, mean, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["Adam", "custom"])
@pytest.mark.parametrize("num_chains", [1, 2])
def test_a_run_resumes_to_the_bit(tmp_path: Path, name: str, num_chains: int) -> None:
    def module() -> Toy:
        make = partial(Optimized, lr=0.02, optimizer=OPTIMIZERS[name], prior=PRIOR)
        return Toy(
            make, net(), burn_in=3, thinning=9, num_chains=num_chains, schedule=decay_to_zero(30)
        )

    fit(module(), tmp_path / "whole", 30)
    fit(module(), tmp_path / "parts", 14, every=7)
    fit(module(), tmp_path / "parts", 30, resume=True)
    assert len(draws(tmp_path / "whole")) == 3 * num_chains
    assert_same(draws(tmp_path / "whole"), draws(tmp_path / "parts"))


@pytest.mark.parametrize("name", ["Adam", "custom"])
def test_a_run_says_that_it_is_no_sample(tmp_path: Path, name: str) -> None:
    from lightning_sgmcmc.callbacks.report import results

    make = partial(Optimized, lr=0.02, optimizer=OPTIMIZERS[name], prior=PRIOR)
    module = Toy(make, net(), burn_in=5, num_chains=2)
    fit(module, tmp_path, 6)
    content = results.build(module, {}, "toy", 1.0)
    note = "this is not a sample of a posterior: the draws are an optimizer's iterates"
    assert content["diagnostics"]["notes"] == [note]
    assert content["diagnostics"]["alarms"] == []
    assert content["temperature"] == 0
    kind = "Adam(betas=(0.8, 0.95))" if name == "Adam" else "Custom(momentum=0.5)"
    assert content["sampler"]["name"] == f"Optimized({kind})"
    assert content["sampler"]["options"] == {"optimizer": kind}


def test_wrong_arguments() -> None:
    params = [nn.Parameter(torch.zeros(2))]
    with pytest.raises(ValueError, match="lr must be a positive number"):
        Optimized(params, 0.0)
    with pytest.raises(ValueError, match='lr="auto" has no meaning for an optimizer'):
        Optimized(params, "auto")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="LBFGS evaluates the loss several times a step"):
        Optimized(params, 0.1, optimizer=torch.optim.LBFGS)
    state = Optimized(params, 0.1, optimizer=torch.optim.Adam).state_dict()
    with pytest.raises(ValueError, match="the state is that of Adam, not of SGD"):
        Optimized(params, 0.1).load_state_dict(state)
