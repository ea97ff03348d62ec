"""``--trainer.strategy chains``: chains of their own in every process, and on other ones later."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.func import functional_call

from lightning_sgmcmc import HASGLD, PSGLD, SGHMC, BatchStream, ControlVariate, GaussianPrior
from lightning_sgmcmc.callbacks import ChainCheckpoint
from lightning_sgmcmc.callbacks.checkpoint_files import groups_of, newest, read_checkpoint
from lightning_sgmcmc.chain import OptimizerBurnIn
from lightning_sgmcmc.chain.processes import ChainsStrategy, Processes
from lightning_sgmcmc.common.files import DamagedFileError
from lightning_sgmcmc.posterior import KeptDraws
from lightning_sgmcmc.posterior.pieces import Pieces
from lightning_sgmcmc.posterior.traces import Traces
from lightning_sgmcmc.run.check import damage
from tests.lightning_sgmcmc.states import assert_alike
from tests.toy import NUM_FEATURES, Toy, ToyData, toy_data, trainer

BURN_IN, THINNING = 10, 5
PRIOR = GaussianPrior(variance=4.0)
KINDS = ("weights", "forces", "predictions", "followed/forces", "weights in averages")


def toy(num_chains: int, **settings: Any) -> Toy:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(NUM_FEATURES, 8), nn.Tanh(), nn.Linear(8, 1))
    make = partial(SGHMC, lr=1e-2, prior=PRIOR)
    given = {"burn_in": BURN_IN, "thinning": THINNING, "num_chains": num_chains} | settings
    return Toy(given.pop("make", make), net, **given)


class StopAt(L.Callback):
    """End a run after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        trainer.should_stop = trainer.global_step == self.step


def fit(
    folder: Path,
    split: tuple[int, int],
    steps: int,
    resume: bool = False,
    name: str = "last.ckpt",
    callbacks: Sequence[L.Callback] = (),
    **settings: Any,
) -> L.Trainer:
    """Run chains to a step on some processes, which are forked, with some chains each."""
    processes, num_chains = split
    extra: dict[str, Any] = {}
    if processes > 1:
        extra = {"strategy": ChainsStrategy(start_method="fork"), "devices": processes}
    run = trainer(folder, 40, [StopAt(steps), ChainCheckpoint(10), *callbacks], **extra)
    path = str(folder / "checkpoints" / name) if resume else None
    run.fit(toy(num_chains, **settings), datamodule=ToyData(), ckpt_path=path, weights_only=True)
    return run


def draws(folder: Path, chain: int) -> dict[str, dict[str, Tensor]]:
    files = sorted((folder / f"samples/chain{chain}").glob("step_*.safetensors"))
    return {file.name: load_file(file) for file in files}


def rows(folder: Path) -> list[dict[str, float]]:
    with (folder / "metrics.csv").open() as file:
        return [{k: float(v or "nan") for k, v in row.items()} for row in csv.DictReader(file)]


def mean_weights(folder: Path) -> list[Tensor]:
    """Return the mean over all draws of the processes that wrote the last checkpoint."""
    files = sorted((folder / "checkpoints").glob("last.ckpt*"))
    kept = [read_checkpoint(file)["callbacks"]["KeepDraws"] for file in files]
    total = sum(state["mean_weight"] for state in kept)
    return [sum(parts) / total for parts in zip(*(s["mean"] for s in kept), strict=True)]


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
    shutil.copytree(folder / "moved", folder / "two")
    fit(folder / "moved", (1, 4), 27, resume=True)
    shutil.copytree(folder / "moved", folder / "four")
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
            assert_alike(second[part], first[part], exact=True)
        assert second["global_step"] == first["global_step"] == 40
    for kind in KINDS:
        assert torch.equal(traces(moved).of(kind), traces(whole).of(kind)), kind
    for a, b in zip(mean_weights(whole), mean_weights(moved), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-12, atol=1e-14)
    for a, b in zip(rows(whole), rows(moved), strict=True):
        a.pop("val/nll"), b.pop("val/nll")  # also measured where a run is stopped
        assert a == pytest.approx(b, rel=1e-12, nan_ok=True)
        assert a["train/nll"] == b["train/nll"]
    assert damage(moved) == []
    names = sorted(path.name for path in (moved / "checkpoints").iterdir())
    assert names == sorted(f"{n}.ckpt{c}" for n in ("last", "previous") for c in ("", ".chains2-3"))


def test_burn_in_is_measured_over_the_networks_of_all_chains(root: Path, tmp_path: Path) -> None:
    """As one process of four measures it; not over an ensemble of one network a process."""
    fit(tmp_path, (1, 4), 15)
    expected = read_checkpoint(tmp_path / "checkpoints/last.ckpt")["callbacks"]["KeepDraws"]
    for file in ("last.ckpt", "last.ckpt.chains2-3"):
        found = read_checkpoint(root / "whole/checkpoints" / file)["callbacks"]["KeepDraws"]
        for name in ("val", "test"):
            assert found["reference"][name] == pytest.approx(expected["reference"][name], rel=1e-9)


class SaveMeans(L.Callback):
    """Write the means that the first process reports of all chains."""

    def on_train_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        kept = pl_module.kept
        means = kept.mean_weights(), kept.chain_means("test")
        if trainer.is_global_zero:
            torch.save(means, Path(kept.folder) / "means.pt")


def test_means_are_over_the_chains_of_all_processes(tmp_path: Path) -> None:
    """Of weights and of predictions: against the draws on disk of two processes of two chains."""
    fit(tmp_path, (2, 2), 20, callbacks=[SaveMeans()])
    mean, chain_means = torch.load(tmp_path / "samples/means.pt")
    x, net = toy_data(2, 30)[0], toy(1).net
    states = [list(draws(tmp_path, chain).values()) for chain in range(4)]
    assert [len(own) for own in states] == [2] * 4
    for name, value in mean.items():
        expected = torch.stack([state[name] for own in states for state in own]).double().mean(0)
        torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-7)
    assert chain_means.shape == (4, 30)
    for own, found in zip(states, chain_means, strict=True):
        outputs = [
            functional_call(net, {k.removeprefix("net."): v for k, v in state.items()}, x)
            for state in own
        ]
        expected = torch.stack(outputs).mean(0)[:, 0].detach()
        torch.testing.assert_close(found.to(expected), expected, rtol=1e-4, atol=1e-5)


def test_chains_go_on_one_a_process_as_each_would_alone(root: Path) -> None:
    """From the state in one process of four, each chain ends where it ends by itself, to the bit.

    Single chains round otherwise than stacked ones, so that they leave those of the whole run.
    """
    folder = root / "one"
    assert damage(folder) == []
    assert read_checkpoint(folder / "checkpoints/last.ckpt")["sgmcmc_chains"] == [
        [0],
        [1],
        [2],
        [3],
    ]
    state = read_checkpoint(root / "four/checkpoints/last.ckpt")
    assert state["global_step"] == 27
    names = [name for name, _ in toy(1).named_parameters()]
    sampler = state["optimizer_states"][0]["chain"]
    for number in range(4):
        task = toy(1, make=partial(SGHMC, lr=1e-2, prior=PRIOR, chain=number))
        alone = task.chain
        alone.select()
        alone.place()
        alone.build()
        alone.bind(BatchStream(toy_data(), 16))
        with torch.no_grad():
            for i, (_, weight) in enumerate(task.named_parameters()):
                weight.copy_(state["state_dict"][f"chains.weights.{i}"][number])
        own = alone.sampler.state_dict()
        own["chain"]["velocity"] = [v[number] for v in sampler["velocity"]]
        own["chain"]["noise"]["sfc64"] = sampler["noise"]["sfc64"][number : number + 1]
        alone.sampler.load_state_dict(own)
        alone.steps = 27
        while alone.steps < 40:
            alone.advance(alone.minibatch())
        found, whole = draws(folder, number), draws(root / "whole", number)
        assert list(found) == list(whole)
        for i, name in enumerate(names):
            last = found["step_40.safetensors"][name]
            assert torch.equal(last, alone.state(0)[name]), (number, name, i)
            assert torch.equal(
                found["step_25.safetensors"][name], whole["step_25.safetensors"][name]
            )
            torch.testing.assert_close(
                last, whole["step_40.safetensors"][name], rtol=1e-4, atol=1e-5
            )


KINDS_OF_CHAINS: dict[str, dict[str, Any]] = {
    # An optimizer with a state of its own, a metric that adapts, and centres of their own.
    "optimizer": {
        "make": partial(PSGLD, lr=1e-3, prior=PRIOR),
        "burn_in": 25,
        "thinning": 3,
        "gradients": ControlVariate(),
        "burn_in_optimizer": OptimizerBurnIn(partial(torch.optim.Adam, lr=1e-2), 14),
    },
    "in turn": {"make": partial(HASGLD, lr=1e-2, slots=1, prior=PRIOR)},
    "in turn, after an optimizer": {
        "make": partial(HASGLD, lr=1e-2, slots=1, prior=PRIOR),
        "burn_in": 25,
        "thinning": 3,
        "burn_in_optimizer": OptimizerBurnIn(partial(torch.optim.Adam, lr=1e-2), 14),
    },
}


@pytest.mark.parametrize("kind", KINDS_OF_CHAINS)
def test_other_chains_move_between_processes_too(tmp_path: Path, kind: str) -> None:
    """From two processes of two to one of four, in burn-in and later: to the bit."""
    settings = KINDS_OF_CHAINS[kind]
    whole, moved = tmp_path / "whole", tmp_path / "moved"
    fit(whole, (2, 2), 40, **settings)
    fit(moved, (2, 2), 12, **settings)
    fit(moved, (1, 4), 21, resume=True, **settings)
    fit(moved, (2, 2), 31, resume=True, **settings)
    fit(moved, (1, 4), 40, resume=True, **settings)
    for chain in range(4):
        expected, found = draws(whole, chain), draws(moved, chain)
        assert list(found) == list(expected)
        for name, tensors in expected.items():
            assert all(torch.equal(found[name][k], t) for k, t in tensors.items()), (chain, name)


def test_another_number_of_chains_is_refused(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "four", tmp_path / "run")
    with pytest.raises(ValueError, match=r"^the run has 4 chains, not 1 x 3 \(processes x num_ch"):
        fit(tmp_path / "run", (1, 3), 40, resume=True)


@pytest.mark.parametrize("harm", ["missing", "damaged", "older"])
def test_a_harmed_file_of_chains_is_named(
    root: Path, tmp_path: Path, harm: str, capfd: Any
) -> None:
    """All chains go on from the checkpoint before it, and come out as they would have."""
    run = tmp_path / "run"
    shutil.copytree(root / "two", run)
    folder = run / "checkpoints"
    own = folder / "last.ckpt.chains2-3"
    if harm == "missing":
        own.unlink()
    elif harm == "damaged":
        own.write_bytes(own.read_bytes()[:-100])
    else:
        shutil.copy(folder / "previous.ckpt.chains2-3", own)
    found = damage(run)
    assert found
    assert all("last.ckpt.chains2-3 is " in line for line in found)
    assert found[0].endswith("no chain goes on from last.ckpt without the state of chains 2 and 3")
    with pytest.raises((FileNotFoundError, DamagedFileError), match=r"of chains 2 and 3$"):
        fit(run, (1, 4), 27, resume=True)
    assert newest(folder) == folder / "previous.ckpt"
    said = capfd.readouterr().err
    assert said.strip().endswith(
        "without the state of chains 2 and 3; taking previous.ckpt, the one before"
    )
    fit(run, (1, 4), 40, resume=True, name="previous.ckpt")
    for chain in range(4):
        expected, drawn = draws(root / "whole", chain), draws(run, chain)
        assert list(drawn) == list(expected)
        for name, tensors in expected.items():
            assert all(torch.equal(drawn[name][k], t) for k, t in tensors.items()), (chain, name)
    assert damage(run) == []
    own = folder / "previous.ckpt"
    own.unlink()
    (folder / "last.ckpt").write_bytes(b"")
    with pytest.raises(DamagedFileError, match=r"last\.ckpt is damaged"):
        newest(folder)


def test_checkpoints_of_an_earlier_version(root: Path, tmp_path: Path) -> None:
    """One file with all chains goes on; files by process are refused in one sentence."""
    four = read_checkpoint(root / "four/checkpoints/last.ckpt")
    old = {k: v for k, v in four.items() if k != "sgmcmc_chains"} | {"sgmcmc_files": 1}
    assert groups_of(tmp_path / "last.ckpt", old) == [[0, 1, 2, 3]]
    with pytest.raises(DamagedFileError, match="of an earlier version, which kept chains by the"):
        groups_of(tmp_path / "last.ckpt", old | {"sgmcmc_files": 2})


def test_traces_of_an_earlier_version_stay_together(tmp_path: Path) -> None:
    """Its pieces hold all chains; rows that come later go there as well."""
    folders = [tmp_path / f"chain{c}" for c in range(3)]
    before = Pieces(folders[0])
    before.add({"a": torch.arange(6.0).view(3, 2), "b": torch.tensor(1.0)}, {"step": 1.0})
    state = before.save()
    found = Traces(folders)
    found.load(state)
    found.add({"a": torch.arange(6.0, 12.0).view(3, 2), "b": torch.tensor(2.0)}, {"step": 2.0})
    again = Traces(folders)
    again.load(found.save())
    assert torch.equal(again.of("a"), torch.arange(12.0).view(2, 3, 2))
    assert again.of("b").tolist() == [1.0, 2.0]
    assert again.numbers() == [{"step": 1.0}, {"step": 2.0}]
    with pytest.raises(ValueError, match="kept the traces of several chains together"):
        KeptDraws.regrouped([{"pieces": found.save(), "chains": [0, 1, 2]}], [0])


def test_chains_of_other_frozen_weights_are_refused(tmp_path: Path) -> None:
    """What every process says of its own is a checksum, which the others compare."""
    said: list[Tensor] = []

    class Two(Processes):
        def gather(self, value: Tensor) -> Tensor:
            said.append(value)
            return torch.stack([said[0], value])

    task = toy(1, sample=["net.2.*"])
    trainer(tmp_path, 16).fit(task, datamodule=ToyData())
    chain = task.chain
    chain.processes, chain.steps, chain._task_checked = Two(data_parallel=False, count=2), 0, False
    chain.check_task()
    assert len(said) == 1
    with torch.no_grad():
        task.net[0].bias[0] += 1e-7
    chain._task_checked = False
    with pytest.raises(ValueError, match="weights or buffers that are not sampled"):
        chain.check_task()
