"""A chain takes the same steps with a Trainer and without one."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

from lightning_sgmcmc import PSGLD, SGHMC, SGLD, BatchStream, GaussianPrior, RMSProp
from lightning_sgmcmc.chain import OptimizerBurnIn
from tests.toy import NOISE, NUM_DATA, Toy, ToyData, toy_data, trainer

STEPS = 25
SETTINGS = {
    "PSGLD": {"sampler": partial(PSGLD, lr=1e-3, prior=GaussianPrior(variance=4.0))},
    "four chains": {"sampler": partial(SGHMC, lr=1e-3, momentum=0.9), "num_chains": 4},
    "after an optimizer": {
        "sampler": partial(SGHMC, lr=1e-3, momentum=0.9),
        "burn_in": 12,
        "burn_in_optimizer": OptimizerBurnIn(partial(torch.optim.Adam, lr=0.01), 10),
    },
}


@pytest.mark.parametrize("name", SETTINGS)
def test_by_itself_as_in_a_trainer(tmp_path: Path, name: str) -> None:
    def make() -> Toy:
        torch.manual_seed(0)
        return Toy(freeze_preconditioner=False, **SETTINGS[name])  # type: ignore[arg-type]

    module = make()
    trainer(tmp_path, STEPS).fit(module, datamodule=ToyData())

    chain = make().chain
    chain.select()
    chain.place()
    chain.build()
    chain.bind(ToyData().train_dataloader())
    for _ in range(STEPS):
        chain.advance(chain.minibatch())
    assert chain.steps == module.chain.steps == STEPS
    assert chain.num_gradients == module.chain.num_gradients
    for k in range(chain.num_chains):
        for ours, its in zip(chain.state(k).values(), module.chain.state(k).values(), strict=True):
            assert torch.equal(ours, its)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_step_takes_one_gradient_a_chain(name: str) -> None:
    """Of the optimizer and of the sampler, also where a run ends before the sampler's first."""
    chain = Toy(freeze_preconditioner=False, **SETTINGS[name]).chain  # type: ignore[arg-type]
    chain.select()
    chain.place()
    chain.build()
    chain.bind(ToyData().train_dataloader())
    counted = []
    for _ in range(STEPS):
        chain.advance(chain.minibatch())
        counted.append(chain.num_gradients)
    assert counted == list(range(1, STEPS + 1))


def test_c_learns_from_the_likelihood_in_the_optimizer_s_steps() -> None:
    """Which do not move here: the mean of five equal squares is 1 - .9^5 of the square."""
    metric = RMSProp(alpha=0.9)
    sampler = partial(SGLD, lr=1e-3, preconditioner=metric, prior=GaussianPrior(variance=0.1))
    optimizer = OptimizerBurnIn(partial(torch.optim.SGD, lr=0.0), 5)
    module = Toy(sampler, burn_in=5, burn_in_optimizer=optimizer)
    chain = module.chain
    chain.select()
    chain.place()
    chain.build()
    chain.bind(BatchStream(toy_data(), NUM_DATA, "full"))
    for _ in range(5):
        chain.advance(chain.minibatch())
    x, y = toy_data()
    weight = module.net.weight.detach()[0]
    gradient = x.T @ (x @ weight - y) / NOISE**2 / NUM_DATA
    (found,) = chain.sampler.preconditioner.square_avg  # type: ignore[attr-defined]
    torch.testing.assert_close(found[0], (1 - 0.9**5) * gradient**2, rtol=1e-4, atol=0)
