"""The guard stops what has diverged and nothing else."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch

from lightning_sgmcmc import PSGLD, SGHMC, SGLD, GaussianPrior
from lightning_sgmcmc.callbacks import ChainCheckpoint, ChainDivergedError, ChainGuard
from lightning_sgmcmc.samplers import watch
from lightning_sgmcmc.samplers.gradients import NonFiniteGradientError
from tests.lightning_sgmcmc.reads import Reads
from tests.toy import Toy, ToyData, trainer


def feed(losses: list[Any], bound: float = 1e3) -> ChainGuard:
    guard, module = ChainGuard(bound), Toy(partial(SGLD, lr=0.1), burn_in=1)
    module.select()
    module.chain.build()
    for step, loss in enumerate(losses, 1):
        module.chain.steps, module.chain.last_loss = step, torch.tensor(loss)
        guard.on_train_batch_end(L.Trainer(logger=False), module)
    return guard


def test_an_odd_minibatch_of_a_sharp_likelihood_is_no_divergence() -> None:
    """Seen on an SPE10 layer: noise shrank during burn-in, then one field cost 1.6e5."""
    feed([120.0, -2e4, -5.8e4, 1.63e5, -5.7e4])


def test_the_lowest_loss_is_that_of_any_chain() -> None:
    feed([[120.0, 110.0], [-5.8e4, 100.0], [1.63e5, 90.0]])


def test_the_bound_is_of_the_rise_above_the_first_loss() -> None:
    """Of twice the first loss, 100: up to 300."""
    feed([100.0, 299.0], bound=2.0)
    with pytest.raises(ChainDivergedError, match="step 2"):
        feed([100.0, 301.0], bound=2.0)


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), -float("inf"), 1e8])
def test_divergence_is_an_error_that_names_step_and_step_size(loss: float) -> None:
    with pytest.raises(ChainDivergedError, match=r"step 4 .* step size 0\.1: lower lr"):
        feed([120.0, -2e4, -5.8e4, loss])


def test_the_chain_that_diverged_is_named_by_its_number() -> None:
    """Of chains 4 to 6, as a process that is not the first has them."""
    module = Toy(partial(SGLD, lr=0.1, chain=4), burn_in=1, num_chains=3)
    module.select()
    module.chain.place()
    module.chain.build()
    module.chain.steps, module.chain.last_loss = 7, torch.tensor([1.0, float("nan"), 2.0])
    with pytest.raises(ChainDivergedError, match=r"^chain 5 diverged at step 7 "):
        ChainGuard().on_train_batch_end(L.Trainer(logger=False), module)


def test_state_continues() -> None:
    guard, other = feed([120.0, -5.8e4]), ChainGuard()
    other.load_state_dict(guard.state_dict())
    assert other.state_dict() == guard.state_dict() == {"first": 120.0, "lowest": -5.8e4}


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the host look at a chain's steps as late as on a GPU, or later."""
    monkeypatch.setitem(watch._STEPS, "cpu", 1000)


def test_a_late_look_finds_the_step_and_stands_by_it(late: None) -> None:
    guard = feed([120.0, -2e4, -5.8e4, 1e8, 3.0])
    for _ in range(2):
        with pytest.raises(ChainDivergedError, match=r"step 4 \(mean NLL 1e\+08\) .* size 0\.1: "):
            guard.state_dict()


def test_a_late_look_comes_at_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(watch._STEPS, "cpu", 3)
    feed([1.0, 1e8])
    with pytest.raises(ChainDivergedError, match="step 2"):
        feed([1.0, 1e8, 1.0])


def ending(
    folder: Path, chains: int, thinning: int, every: int
) -> tuple[str, dict[str, bytes], int]:
    """Return how a diverging run ends: its message, its draws' files, its checkpoint's step."""
    torch.manual_seed(0)  # the network's start
    sampler = partial(SGLD, lr=0.5, prior=GaussianPrior(variance=4.0))
    module = Toy(sampler, burn_in=1, thinning=thinning, num_chains=chains)
    fit = trainer(folder, 2000, [ChainCheckpoint(every)], log_every_n_steps=500)
    with pytest.warns(UserWarning, match="exceeds the largest stable step"):  # noqa: SIM117
        with pytest.raises((ChainDivergedError, NonFiniteGradientError)) as error:
            fit.fit(module, datamodule=ToyData())
    draws = {p.name: p.read_bytes() for p in folder.rglob("step_*.safetensors")}
    last = folder / "checkpoints" / "last.ckpt"
    step = torch.load(last, weights_only=True)["global_step"] if last.exists() else 0
    return str(error.value), draws, step


@pytest.mark.parametrize(("chains", "thinning", "every"), [(1, 2, 1000), (3, 1000, 2)])
def test_a_run_that_looks_late_ends_as_one_that_looks_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chains: int, thinning: int, every: int
) -> None:
    """The same message, and no draw or checkpoint of after the divergence."""
    at_once = ending(tmp_path / "at_once", chains, thinning, every)
    monkeypatch.setitem(watch._STEPS, "cpu", 1000)
    late = ending(tmp_path / "late", chains, thinning, every)
    assert late == at_once
    assert late[1] or late[2]


def test_weights_that_are_not_finite_are_no_draw(tmp_path: Path) -> None:
    """Those of a step that has overflown, whose loss was of the weights before it."""

    class Overflow(L.Callback):
        def on_train_batch_end(self, run: L.Trainer, module: Any, *args: Any) -> None:
            if run.global_step == 4:
                module.net.weight.data[0, 0] = float("inf")

    module = Toy(partial(SGLD, lr=1e-3), burn_in=1)
    with pytest.raises(ChainDivergedError, match=r"at step 4 .* a weight is not finite"):
        trainer(tmp_path, 8, [Overflow()]).fit(module, datamodule=ToyData())
    files = sorted(path.name for path in tmp_path.rglob("step_*.safetensors"))
    assert files == ["step_2.safetensors", "step_3.safetensors"]


def test_a_gradient_that_is_not_finite_keeps_no_checkpoint(late: None, tmp_path: Path) -> None:
    """Without a guard, the sampler's own look is the last one before a file is written."""
    module = Toy(partial(SGLD, lr=1e-3), burn_in=1)
    module.select()
    module.chain.build()
    module.chain.bind(ToyData().train_dataloader())
    for _ in range(3):
        module.chain.advance(module.chain.minibatch())
    module.chain.sampler.params[0].data.fill_(float("nan"))
    for _ in range(3):
        module.chain.advance(module.chain.minibatch())
    for _ in range(2):
        with pytest.raises(
            NonFiniteGradientError,
            match=r"of 1 of 1 .*first: net.weight\) at the sampler's step 3 with .*0\.001",
        ):
            module.chain.sampler.state_dict()


class CountReads(L.Callback):
    """Counts the host's reads in whole steps of a fit."""

    def __init__(self, begin: int, end: int) -> None:
        self.begin, self.end, self.reads = begin, end, Reads()

    def on_train_batch_start(self, trainer: L.Trainer, *args: Any, **kwargs: Any) -> None:
        if trainer.global_step == self.begin:
            self.reads.__enter__()

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any, **kwargs: Any) -> None:
        if trainer.global_step == self.end:
            self.reads.__exit__(None, None, None)


@pytest.mark.parametrize("chains", [1, 3])
@pytest.mark.parametrize("sampler", [PSGLD, SGHMC])
def test_the_steps_of_a_fit_read_no_number(
    late: None, tmp_path: Path, sampler: Any, chains: int
) -> None:
    """Lightning's loop, the minibatches, the guard and the log between its rows included."""
    counting = CountReads(10, 25)
    module = Toy(partial(sampler, lr=1e-3), burn_in=38, num_chains=chains)
    quiet = {"log_every_n_steps": 500, "limit_val_batches": 0}
    trainer(tmp_path, 40, [counting], **quiet).fit(module, datamodule=ToyData())
    assert counting.reads.found == []
