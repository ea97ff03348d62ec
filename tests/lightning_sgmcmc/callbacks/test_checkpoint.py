"""Two checkpoints, verified; runs go on from them with the same target and data, or not at all."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from lightning_sgmcmc import PSGLD, SGLD, BatchStream, GaussianPrior
from lightning_sgmcmc.callbacks import ChainCheckpoint, Finish, fingerprint
from lightning_sgmcmc.callbacks.checkpoint_files import (
    WholeCheckpoints,
    newest,
    read_checkpoint,
    verify_checkpoint,
)
from lightning_sgmcmc.callbacks.finish import NoStep
from lightning_sgmcmc.callbacks.stop import RunStoppedError, StopSignal
from lightning_sgmcmc.chain import Chain
from lightning_sgmcmc.common.files import DamagedFileError
from tests.toy import NUM_FEATURES, Toy, ToyData, toy_data, trainer

PRIOR = GaussianPrior(variance=4.0)


def module(**chain: Any) -> Toy:
    torch.manual_seed(3)
    settings = {"sampler": partial(PSGLD, lr=1e-3, prior=PRIOR), "burn_in": 5, "thinning": 2}
    return Toy(**(settings | chain))


def fit(
    folder: Path, steps: int, path: Path | None = None, task: Toy | None = None, data: Any = None
) -> None:
    run = trainer(folder, steps, [ChainCheckpoint(4)])
    given = str(path) if path else None
    task, data = task or module(), data or ToyData()
    run.fit(task, datamodule=data, ckpt_path=given, weights_only=True)


def draws(folder: Path) -> dict[str, dict[str, Tensor]]:
    files = sorted((folder / "samples" / "chain0").glob("step_*.safetensors"))
    return {file.name: load_file(file) for file in files}


def equal(a: Path, b: Path) -> bool:
    first, second = draws(a), draws(b)
    assert list(first) == list(second)
    same = all(torch.equal(t, second[f][k]) for f, ts in first.items() for k, t in ts.items())
    tables = [(folder / "metrics.csv").read_bytes() for folder in (a, b)]
    return same and tables[0] == tables[1]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: Any) -> Path:
    folder: Path = tmp_path_factory.mktemp("whole")
    fit(folder, 22)
    return folder


def test_every_flipped_bit_and_every_missing_byte_is_named(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    content = {"a": torch.randn(20), "b": [1, "x"]}
    WholeCheckpoints().save_checkpoint(content, path)
    bytes_ = path.read_bytes()
    flipped = [bytes_[:i] + bytes([b ^ 1 << i % 8]) + bytes_[i + 1 :] for i, b in enumerate(bytes_)]
    for damaged in [*flipped, *(bytes_[:i] for i in range(0, len(bytes_), 41))]:
        path.write_bytes(damaged)
        with pytest.raises(DamagedFileError, match=r"last\.ckpt is damaged.*previous\.ckpt"):
            WholeCheckpoints().load_checkpoint(path, weights_only=True)
    path.write_bytes(bytes_)
    found = WholeCheckpoints().load_checkpoint(path, weights_only=True)
    assert torch.equal(found["a"], content["a"])


def test_checkpoints_stay_readable_by_torch(whole: Path) -> None:
    assert torch.load(whole / "checkpoints" / "last.ckpt", weights_only=True)["global_step"] == 22


def test_the_last_two_are_kept(whole: Path) -> None:
    folder = whole / "checkpoints"
    steps = {path.name: read_checkpoint(path)["global_step"] for path in folder.iterdir()}
    assert steps == {"last.ckpt": 22, "previous.ckpt": 20}
    assert newest(folder) == folder / "last.ckpt"


@pytest.mark.parametrize("how", ["flip", "truncate", "empty", "remove"])
def test_the_older_one_is_taken_and_gives_the_same_draws(
    tmp_path: Path, whole: Path, how: str, capsys: Any
) -> None:
    """What was drawn after it is drawn again; and the damaged one is not kept in its place."""
    folder = tmp_path / "run"
    fit(folder, 18)
    last = folder / "checkpoints" / "last.ckpt"
    _damage(last, how)
    taken = newest(last.parent)
    assert taken.name == "previous.ckpt"
    word = "missing" if how == "remove" else "damaged"
    said = capsys.readouterr().err
    assert f"last.ckpt is {word}" in said
    assert said.count("\n") == 1
    fit(folder, 18, taken)
    for path in last.parent.iterdir():
        verify_checkpoint(path)
    fit(folder, 22, newest(last.parent))
    assert equal(folder, whole)


def _damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "remove":
        path.unlink()
    elif how == "flip":
        path.write_bytes(content[:500] + bytes([content[500] ^ 1]) + content[501:])
    else:
        path.write_bytes(content[: len(content) // 2] if how == "truncate" else b"")


def test_a_fit_refuses_a_damaged_checkpoint(tmp_path: Path, whole: Path) -> None:
    path = tmp_path / "last.ckpt"
    shutil.copy(whole / "checkpoints" / "last.ckpt", path)
    _damage(path, "flip")
    with pytest.raises(DamagedFileError, match=r"last\.ckpt is damaged"):
        fit(tmp_path, 30, path)
    torch.save({"state_dict": {}}, path)  # as another program writes them
    with pytest.raises(DamagedFileError, match="not a checkpoint of this version"):
        fit(tmp_path, 30, path)


def test_none_that_is_whole_is_named(tmp_path: Path, whole: Path) -> None:
    folder = tmp_path / "checkpoints"
    shutil.copytree(whole / "checkpoints", folder)
    for path in folder.iterdir():
        _damage(path, "truncate")
    with pytest.raises(DamagedFileError, match=r"last\.ckpt is damaged"):
        newest(folder)
    with pytest.raises(FileNotFoundError, match=r"last\.ckpt is missing"):
        newest(tmp_path)


class Other(ToyData):
    """The toy data with one set replaced."""

    def __init__(self, name: str, loader: Any) -> None:
        super().__init__()
        self.loaders = {name: loader}

    def train_dataloader(self) -> Any:
        return self.loaders.get("train") or super().train_dataloader()

    def val_dataloader(self) -> Any:
        return self.loaders.get("val") or super().val_dataloader()


def one_changed() -> BatchStream:
    x, y = toy_data()
    x[-1, -1] += 1e-3
    return BatchStream((x, y), 16)


def swapped() -> BatchStream:
    x, y = toy_data()
    return BatchStream((x.flip(0), y.flip(0)), 16)


def sgld(**arguments: Any) -> Any:
    return partial(SGLD, **({"lr": 1e-3, "prior": PRIOR} | arguments))


def psgld(**arguments: Any) -> Any:
    return partial(PSGLD, **({"lr": 1e-3, "prior": PRIOR} | arguments))


@pytest.mark.parametrize(
    ("task", "data", "message"),
    [
        (module(sampler=psgld(temperature=0.5)), None, "temperature: 1.0 so far, 0.5 now"),
        (module(sampler=psgld(prior=GaussianPrior(2.0))), None, "prior: GaussianPrior(variance=4"),
        (module(sampler=psgld(lr=2e-3)), None, "lr: 0.001 so far, 0.002 now"),
        (module(sampler=psgld(seed=1)), None, "seed: 0 so far, 1 now"),
        (module(sampler=psgld(alpha=0.9)), None, "preconditioner: RMSProp("),
        (module(sampler=sgld()), None, "sampler: lightning_sgmcmc.samplers.psgld.PSGLD so far"),
        (module(num_data=65), None, "num_data: 64 so far, 65 now"),
        (module(thinning=3), None, "thinning: 2 so far, 3 now"),
        (None, ToyData(batch_size=8), "batch_size: 16 so far, 8 now"),
        (None, ToyData(sampling="independent"), "sampling: reshuffled so far, independent now"),
        (None, Other("train", one_changed()), "training data: 64x3 and 64 ("),
        (None, Other("train", swapped()), "training data: 64x3 and 64 ("),
        (None, Other("val", DataLoader(TensorDataset(*toy_data(5, 20)))), "val data: 20x3 and 20"),
    ],
)  # fmt: skip
def test_another_target_or_other_data_are_refused(
    tmp_path: Path, whole: Path, task: Toy | None, data: Any, message: str
) -> None:
    """Before a file of the run is touched."""
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match="cannot be continued with another") as error:
        fit(folder, 30, folder / "checkpoints" / "previous.ckpt", task, data)
    assert message in str(error.value)
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert after == before


@pytest.mark.parametrize("chains", [1, 2])
def test_a_network_of_another_width_is_refused_in_one_line(tmp_path: Path, chains: int) -> None:
    """As a table with a column more makes it."""

    def task(width: int) -> Toy:
        net = nn.Sequential(nn.Linear(NUM_FEATURES, width), nn.Linear(width, 1))
        return module(net=net, num_chains=chains)

    fit(tmp_path, 8, None, task(2))
    last = tmp_path / "checkpoints" / "last.ckpt"
    message = r"other data: net\.0\.weight is \[2, 3\] so far, \[4, 3\] now; give what it had"
    with pytest.raises(ValueError, match=message):
        fit(tmp_path, 12, last, task(4))
    fit(tmp_path, 12, last, task(2))


def test_a_run_from_the_checkpoint_before_and_killed_goes_on(tmp_path: Path, whole: Path) -> None:
    """The last one counts on draws that the run from the one before has removed."""
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)

    class Killed(L.Callback):
        def on_train_batch_start(self, *args: Any) -> None:
            raise KeyError

    checkpoints = folder / "checkpoints"
    run = trainer(folder, 22, [ChainCheckpoint(4), Killed()])
    before = str(checkpoints / "previous.ckpt")
    with pytest.raises(KeyError):
        run.fit(module(), datamodule=ToyData(), ckpt_path=before, weights_only=True)
    assert newest(checkpoints).name == "previous.ckpt"
    fit(folder, 22, newest(checkpoints))
    assert equal(folder, whole)


def test_a_run_that_goes_on_has_the_seconds_of_its_parts(tmp_path: Path) -> None:
    """An hour before the first part counts in the second one."""
    parts = [ChainCheckpoint(4), ChainCheckpoint(4)]
    parts[0]._before = 3600.0
    path = tmp_path / "checkpoints" / "last.ckpt"
    for part, steps in zip(parts, (8, 12), strict=True):
        given = str(path) if path.exists() else None
        run = trainer(tmp_path, steps, [part, Finish()])
        run.fit(module(), datamodule=ToyData(), ckpt_path=given, weights_only=True)
    first = read_checkpoint(path.with_name("previous.ckpt"))["sgmcmc_seconds"]
    last = read_checkpoint(path)["sgmcmc_seconds"]
    assert 3600 < first < last < parts[1].seconds < 3600 + 120
    assert json.loads((tmp_path / "results.json").read_text())["wall_seconds"] > last


def test_a_signal_in_the_last_step_stops_nothing(tmp_path: Path) -> None:
    """The run has ended as it would have; a step earlier it is stopped, and saved."""

    class Ask(L.Callback):
        def on_train_batch_start(self, run: L.Trainer, *args: Any) -> None:
            if run.global_step == 7:
                stop.asked = signal.SIGTERM

    for steps in (8, 9):
        stop, folder = StopSignal(), tmp_path / str(steps)
        run = trainer(folder, steps, [Ask(), ChainCheckpoint(100, stop)])
        if steps == 8:
            run.fit(module(), datamodule=ToyData())
        else:
            with pytest.raises(RunStoppedError, match="stopped by SIGTERM after step 8, which is"):
                run.fit(module(), datamodule=ToyData())
        assert read_checkpoint(folder / "checkpoints" / "last.ckpt")["global_step"] == 8


def test_results_of_more_draws_keep_their_draws(tmp_path: Path) -> None:
    """A checkpoint of fewer is refused before a draw is removed."""
    run = trainer(tmp_path, 22, [ChainCheckpoint(4)])
    run.fit(module(), datamodule=ToyData())
    last, before = tmp_path / "checkpoints" / "previous.ckpt", draws(tmp_path)
    (tmp_path / "results.json").write_text(json.dumps({"num_draws": len(before)}))
    again = trainer(tmp_path, 22, [ChainCheckpoint(4), NoStep()])
    with pytest.raises(ValueError, match="the results stay as they are"):
        again.fit(module(), datamodule=ToyData(), ckpt_path=str(last), weights_only=True)
    assert draws(tmp_path).keys() == before.keys()


def test_an_option_that_an_earlier_version_lacked_counts_as_its_default(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = fingerprint.of_target

    def earlier(chain: Chain) -> dict[str, str]:
        found = later(chain)
        del found["sampler.increments"], found["task.draw_dtype"]
        return found

    with monkeypatch.context() as context:
        context.setattr(fingerprint, "of_target", earlier)
        fit(tmp_path, 13)
    last = tmp_path / "checkpoints" / "last.ckpt"
    with pytest.raises(ValueError, match="increments: gaussian so far, moment-"):
        fit(tmp_path, 22, last, module(sampler=psgld(increments="moment-matched")))
    fit(tmp_path, 22, last)
    assert equal(tmp_path, whole)


@pytest.mark.parametrize("changed", ["sampled", "split"])
def test_other_weights_and_another_split_are_refused(tmp_path: Path, changed: str) -> None:
    """Of a network of two layers, and of a loader of a subset of one data set."""

    def task(sample: list[str]) -> Toy:
        net = nn.Sequential(nn.Linear(NUM_FEATURES, 2), nn.Linear(2, 1))
        return module(net=net, sample=sample)

    def split(seed: int) -> Other:
        parts = random_split(
            TensorDataset(*toy_data()), [48, 16], torch.Generator().manual_seed(seed)
        )
        return Other("train", DataLoader(parts[0], batch_size=12))

    fit(tmp_path, 8, None, task(["net.1.*"]), split(0))
    last = tmp_path / "checkpoints" / "last.ckpt"
    name = "sampled weights" if changed == "sampled" else "training data"
    sample, seed = (["net.*"], 0) if changed == "sampled" else (["net.1.*"], 1)
    with pytest.raises(ValueError, match=f"cannot be continued with another {name}"):
        fit(tmp_path, 12, last, task(sample), split(seed))
    fit(tmp_path, 12, last, task(["net.1.*"]), split(0))


@pytest.mark.parametrize("number", range(1, 76, 8))
def test_a_full_disk_loses_nothing(
    tmp_path: Path, whole: Path, monkeypatch: Any, number: int
) -> None:
    """At any write there are whole files only, and the run goes on to the bit after it."""
    folder = tmp_path / "run"
    calls, fsync = 0, os.fsync

    def full(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls >= number:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    with monkeypatch.context() as context:
        context.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            fit(folder, 22)
    assert not list(folder.rglob("*.tmp"))
    if (folder / "checkpoints" / "last.ckpt").is_file():
        fit(folder, 22, newest(folder / "checkpoints"))
    else:  # nothing was saved, and the run starts anew
        shutil.rmtree(folder)
        fit(folder, 22)
    assert equal(folder, whole)


@pytest.mark.skipif(os.name != "posix", reason="the limit of a file's size is POSIX's")
def test_a_write_that_fails_within_a_checkpoint_names_the_file(tmp_path: Path) -> None:
    """Not an end of torch's archive that is not where it should be; the old file stays."""
    import resource

    path, files = tmp_path / "last.ckpt", WholeCheckpoints()
    files.save_checkpoint({"step": 1}, path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            files.save_checkpoint({"step": 2, "weights": torch.zeros(10_000)}, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.filename == str(path)
    assert [p.name for p in tmp_path.iterdir()] == ["last.ckpt"]
    assert files.load_checkpoint(path)["step"] == 1


class At(ChainCheckpoint):
    """Does something right after a step, and nothing else."""

    def __init__(self, step: int, act: Any) -> None:
        super().__init__(10**9)
        self.step, self.act = step, act

    def on_train_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
        if trainer.global_step == self.step:
            self.act()


@pytest.mark.parametrize("step", [7, 9, 10, 15])
def test_a_folder_that_vanishes_stops_the_run(tmp_path: Path, whole: Path, step: int) -> None:
    """It is not made again, and the run goes on once it is back."""
    folder, away = tmp_path / "run", tmp_path / "away"
    vanish = At(step, lambda: folder.rename(away))
    run = trainer(folder, 22, [ChainCheckpoint(4), vanish])
    with pytest.raises(FileNotFoundError, match=f"{folder}.* is gone"):
        run.fit(module(), datamodule=ToyData(), weights_only=True)
    shutil.rmtree(folder, ignore_errors=True)
    away.rename(folder)
    fit(folder, 22, newest(folder / "checkpoints"))
    assert equal(folder, whole)
