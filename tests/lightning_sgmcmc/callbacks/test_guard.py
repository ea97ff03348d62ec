"""The guard stops what has diverged and nothing else."""

from __future__ import annotations

from functools import partial

import lightning as L
import pytest
import torch

from lightning_sgmcmc import SGLD
from lightning_sgmcmc.callbacks import ChainDivergedError, ChainGuard
from tests.toy import Toy


def feed(losses: list[float]) -> ChainGuard:
    guard, module = ChainGuard(), Toy(partial(SGLD, lr=0.1), burn_in=1)
    module.chain.build()
    for step, loss in enumerate(losses, 1):
        module.chain.steps, module.chain.last_loss = step, torch.tensor(loss)
        guard.on_train_batch_end(L.Trainer(logger=False), module)
    return guard


def test_an_odd_minibatch_of_a_sharp_likelihood_is_no_divergence() -> None:
    """Seen on an SPE10 layer: noise shrank during burn-in, then one field cost 1.6e5."""
    feed([120.0, -2e4, -5.8e4, 1.63e5, -5.7e4])


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), -float("inf"), 1e8])
def test_divergence_is_an_error_that_names_step_and_step_size(loss: float) -> None:
    with pytest.raises(ChainDivergedError, match=r"step 4 .* step size 0\.1: lower lr"):
        feed([120.0, -2e4, -5.8e4, loss])


def test_state_continues() -> None:
    guard, other = feed([120.0, -5.8e4]), ChainGuard()
    other.load_state_dict(guard.state_dict())
    assert other.state_dict() == guard.state_dict() == {"first": 120.0, "lowest": -5.8e4}
