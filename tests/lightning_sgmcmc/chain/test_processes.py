"""``--trainer.strategy chains``: chains of their own in every process, and on other ones later."""

from __future__ import annotations

import csv
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from lightning_sgmcmc import PSGLD, SGHMC, BatchStream, GaussianPrior
from lightning_sgmcmc.callbacks import ChainCheckpoint
from lightning_sgmcmc.callbacks.checkpoint_files import newest, read_checkpoint, verify_set
from lightning_sgmcmc.chain import OptimizerBurnIn
from lightning_sgmcmc.chain.processes import ChainsStrategy
from lightning_sgmcmc.common.files import DamagedFileError
from lightning_sgmcmc.posterior.traces import Traces
from lightning_sgmcmc.run.check import damage
from tests.toy import NUM_FEATURES, Toy, ToyData, toy_data, trainer

BURN_IN, THINNING = 10, 5
KINDS = ("weights", "forces", "predictions", "followed/forces", "weights in averages")


def toy(num_chains: int, **settings: Any) -> Toy:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(NUM_FEATURES, 8), nn.Tanh(), nn.Linear(8, 1))
    make = partial(SGHMC, lr=1e-2, prior=GaussianPrior(variance=4.0))
    given = {"burn_in": BURN_IN, "thinning": THINNING, "num_chains": num_chains} | settings
    return Toy(given.pop("make", make), net, **given)


def fit(
    folder: Path, split: tuple[int, int], steps: int, resume: bool = False, **settings: Any
) -> L.Trainer:
    """Run chains to a step on some processes, which are forked, with some chains each."""
    processes, num_chains = split
    extra: dict[str, Any] = {}
    if processes > 1:
        extra = {"strategy": ChainsStrategy(start_method="fork"), "devices": processes}
    run = trainer(folder, steps, [ChainCheckpoint(10)], **extra)
    path = str(folder / "checkpoints" / "last.ckpt") if resume else None
    run.fit(toy(num_chains, **settings), datamodule=ToyData(), ckpt_path=path, weights_only=True)
    return run


def draws(folder: Path, chain: int) -> dict[str, dict[str, Tensor]]:
    files = sorted((folder / f"samples/chain{chain}").glob("step_*.safetensors"))
    return {file.name: load_file(file) for file in files}


def rows(folder: Path) -> list[dict[str, float]]:
    with (folder / "metrics.csv").open() as file:
        return [{k: float(v or "nan") for k, v in row.items()} for row in csv.DictReader(file)]


def traces(folder: Path) -> Traces:
    """Return the traces of four chains at the last checkpoint, which no process reads so."""
    found = Traces([folder / f"samples/chain{c}/traces" for c in range(4)], writes=False)
    states = []
    for file in sorted((folder / "checkpoints").glob("last.ckpt*")):
        states += read_checkpoint(file)["callbacks"]["KeepDraws"]["pieces"]
    found.load(states)
    return found


@pytest.fixture(scope="module")
def root(tmp_path_factory: Any) -> Path:
    """Four chains: without a break, and with breaks between other processes."""
    folder: Path = tmp_path_factory.mktemp("processes")
    fit(folder / "whole", (2, 2), 40)
    fit(folder / "moved", (2, 2), 18)
    shutil.copytree(folder / "moved", folder / "start")
    fit(folder / "moved", (1, 4), 27, resume=True)
    shutil.copytree(folder / "moved", folder / "one")
    fit(folder / "moved", (2, 2), 40, resume=True)
    fit(folder / "one", (4, 1), 40, resume=True)
    return folder


def test_chains_move_between_processes_to_the_bit(root: Path) -> None:
    """Two processes of two, then one of four, then two again: all that chains leave is equal.

    Sums over chains in float64 (ensembles, mean weights) are added in another order.
    """
    whole, moved = root / "whole", root / "moved"
    for chain in range(4):
        expected, found = draws(whole, chain), draws(moved, chain)
        assert list(found) == list(expected) == [f"step_{s}.safetensors" for s in range(15, 41, 5)]
        for name, tensors in expected.items():
            assert all(torch.equal(found[name][k], t) for k, t in tensors.items()), (chain, name)
    for file in ("last.ckpt", "last.ckpt.chains2-3"):
        first, second = (read_checkpoint(f / "checkpoints" / file) for f in (whole, moved))
        for part in ("state_dict", "optimizer_states", "lr_schedulers", "sgmcmc_gradients"):
            torch.testing.assert_close(second[part], first[part], rtol=0, atol=0)
        assert second["loops"] == first["loops"]
    for kind in KINDS:
        assert torch.equal(traces(moved).of(kind), traces(whole).of(kind)), kind
    for a, b in zip(rows(whole), rows(moved), strict=True):
        assert a == pytest.approx(b, rel=1e-12, nan_ok=True)
        assert a["train/nll"] == b["train/nll"]
    assert damage(moved) == []
    names = sorted(path.name for path in (moved / "checkpoints").iterdir())
    assert names == sorted(f"{n}.ckpt{c}" for n in ("last", "previous") for c in ("", ".chains2-3"))


def test_chains_go_on_one_a_process_as_each_would_alone(root: Path) -> None:
    """From the state in one process of four, each chain ends where it ends by itself, to the bit.

    In four processes arithmetic is that of single chains, which rounds otherwise than stacked ones.
    """
    last = root / "start/checkpoints/last.ckpt"
    assert damage(root / "one") == []
    moved = read_checkpoint(root / "moved/checkpoints/previous.ckpt")  # of step 30, two by two
    assert moved["sgmcmc_chains"] == [[0, 1], [2, 3]]
    at = root / "one/checkpoints"
    assert read_checkpoint(at / "last.ckpt")["sgmcmc_chains"] == [[0], [1], [2], [3]]
    state = read_checkpoint(last)
    assert state["global_step"] == 18
    for chain in range(4):
        expected, found = draws(root / "whole", chain), draws(root / "one", chain)
        assert list(found) == list(expected)
        for name, tensors in expected.items():
            exact = int(name[5:7]) < 27
            for key, value in tensors.items():
                tolerance = {"rtol": 0, "atol": 0} if exact else {"rtol": 1e-4, "atol": 1e-5}
                torch.testing.assert_close(found[name][key], value, **tolerance)
