"""A chain takes the same steps with a Trainer and without one."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

from lightning_sgmcmc import PSGLD, SGHMC, GaussianPrior
from lightning_sgmcmc.chain import OptimizerBurnIn
from tests.toy import Toy, ToyData, trainer

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
