"""The log holds what a dictionary holds, whatever is written when, and returns to a checkpoint."""

from __future__ import annotations

import csv
import json
import shutil
from itertools import chain
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from lightning_sgmcmc.callbacks import ChainCheckpoint
from lightning_sgmcmc.callbacks.log import CSVLog, verify_log
from lightning_sgmcmc.common.files import DamagedFileError
from tests.toy import Toy, ToyData, toy_data, trainer

#: By how many steps an entry comes after the newest before it, its name and its value.
ENTRIES = st.tuples(st.integers(-1, 3), st.sampled_from(["a", "b", "c, d"]), st.floats(-9, 9))


def read(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def table(entries: list[tuple[int, str, float]]) -> list[dict[str, str]]:
    """Return the rows of a log that holds these values."""
    names = sorted({name for _, name, _ in entries})
    rows = {
        s: {"step": str(s), **dict.fromkeys(names, "")} for s in sorted({e[0] for e in entries})
    }
    for step, name, value in entries:
        rows[step][name] = repr(value)
    return list(rows.values())


@given(st.lists(st.lists(ENTRIES, max_size=6), min_size=1, max_size=5), st.data())
def test_a_log_is_a_dictionary(
    tmp_path_factory: Any, drawn: list[list[tuple[int, str, float]]], data: st.DataObject
) -> None:
    """Also where a second log returns to any save of a first one, which has written all."""
    folder = tmp_path_factory.mktemp("log")
    parts, newest = [], 1
    for part in drawn:
        parts.append([])
        for later, name, value in part:
            parts[-1].append((newest + later, name, value))
            newest = max(newest, newest + later)
    log, states = CSVLog(folder, every=1e9), []
    for part in parts:
        for step, name, value in part:
            log.log_metrics({name: value, "epoch": 1.0}, step=step)
        log.save()
        states.append(json.loads(json.dumps(log.state_dict())))
    log.finalize("success")
    whole = list(chain(*parts))
    if not whole:
        assert not log.path.exists()
        return
    assert read(folder) == table(whole)
    kept = data.draw(st.integers(0, len(parts) - 1))
    if len({entry[:2] for entry in whole}) == len(whole):  # no value was replaced afterwards
        verify_log(folder / "metrics.csv", states[kept])
    again = CSVLog(folder, every=1e9)
    again.load_state_dict(states[kept])
    for step, name, value in chain(*parts[kept + 1 :]):
        again.log_metrics({name: value}, step=step)
        again.save()
    again.finalize("success")
    assert read(folder) == table(whole)


def test_a_step_long_past_is_found_again(tmp_path: Path) -> None:
    log = CSVLog(tmp_path)
    entries = [(step, "a", float(step)) for step in (3, 10, 20, 30)]
    for step, name, value in [*entries, (10, "a", -1.0), (5, "b", 2.0), (40, "a", 4.0)]:
        log.log_metrics({name: value}, step=step)
        log.save()
    log.finalize("success")
    assert read(tmp_path) == table([*entries, (10, "a", -1.0), (5, "b", 2.0), (40, "a", 4.0)])


def test_a_save_appends(tmp_path: Path) -> None:
    log = CSVLog(tmp_path)
    for step in range(0, 1000, 10):
        log.log_metrics({"a": float(step)}, step=step)
        log.save()
        if step == 20:
            node = log.path.stat().st_ino
    assert log.path.stat().st_ino == node
    log.log_metrics({"b": 1.0}, step=1010)
    log.finalize("success")
    assert log.path.stat().st_ino != node
    assert len(read(tmp_path)) == 101


def test_opening_does_not_change_the_file(tmp_path: Path) -> None:
    log = CSVLog(tmp_path)
    log.log_metrics({"a": 1.0}, step=1)
    log.finalize("success")
    before = (tmp_path / "metrics.csv").read_bytes()
    CSVLog(tmp_path).finalize("success")
    assert (tmp_path / "metrics.csv").read_bytes() == before


@pytest.mark.parametrize("name", ["a", "b"], ids=["appended", "written anew"])
def test_a_write_that_fails_loses_nothing(tmp_path: Path, monkeypatch: Any, name: str) -> None:
    log = CSVLog(tmp_path)
    log.log_metrics({"a": 1.0}, step=1)
    log.finalize("success")
    log.log_metrics({name: 2.0}, step=2)
    state = log.state_dict()

    def full(file: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        log.finalize("success")
    monkeypatch.undo()
    other = CSVLog(shutil.copytree(tmp_path, tmp_path / "other"))
    other.load_state_dict(state)
    for each in (log, other):
        each.finalize("success")
        assert [row["step"] for row in read(each.folder)] == ["1", "2"]
        assert [path.name for path in each.folder.glob("*.*")] == ["metrics.csv"]


def test_rows_that_are_missing_or_changed_are_named(tmp_path: Path) -> None:
    log = CSVLog(tmp_path)
    for step in range(6):
        log.log_metrics({"a": step / 7, "b, c": 1.0}, step=step)
    log.save()
    state = log.state_dict()
    log.finalize("success")
    whole = log.path.read_bytes()
    for i in range(len(whole)):
        for content in (whole[:i], whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :]):
            log.path.write_bytes(content)
            if content.count(b"\n") < 5 or len(content) == len(whole):
                with pytest.raises((DamagedFileError, ValueError, csv.Error)):
                    verify_log(log.path, state)
    log.path.write_bytes(whole.replace(b"1.0", b"2.0", 1))
    with pytest.raises(DamagedFileError, match=r"metrics\.csv is damaged.*or move it away"):
        CSVLog(tmp_path).load_state_dict(state)


def test_values_are_written_at_intervals(tmp_path: Path) -> None:
    patient, eager = CSVLog(tmp_path / "patient", every=1e6), CSVLog(tmp_path / "eager", every=-1)
    values = [0.5, -2.0, 7.0]
    for log in (patient, eager):
        for step, value in enumerate(values):
            log.log_metrics({"a": value}, step=step)
    whole = table([(step, "a", value) for step, value in enumerate(values)])
    assert not patient.path.exists()
    assert read(eager.folder) == whole[:1]  # the last two steps may still get values
    for log in (patient, eager):
        log.finalize("success")
        assert read(log.folder) == whole


class Logging(Toy):
    """Logs as a user's task does."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        super().training_step(batch, batch_idx)
        self.log("own", float(self.chain.steps) ** 0.5)


class Shuffled(ToyData):
    """A loader of epochs."""

    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(*toy_data()), batch_size=16)


class KilledError(Exception):
    """Stands for SIGKILL."""


class Kill(L.Callback):
    """Ends a run before a step, or before the validation after a step."""

    def __init__(self, step: int, validating: bool) -> None:
        self.step, self.validating = step, validating

    def on_train_batch_start(self, trainer: L.Trainer, *args: Any) -> None:
        if trainer.global_step == self.step and not self.validating:
            raise KilledError

    def on_validation_start(self, trainer: L.Trainer, *args: Any) -> None:
        if trainer.global_step == self.step and self.validating:
            raise KilledError


@pytest.mark.filterwarnings("ignore:.*is not resumable.*")
@pytest.mark.parametrize(
    ("data", "validation"),
    [
        (ToyData, {"val_check_interval": 4, "check_val_every_n_epoch": None}),
        (ToyData, {"val_check_interval": 3, "check_val_every_n_epoch": None}),
        (Shuffled, {"val_check_interval": 1.0}),
        (Shuffled, {"val_check_interval": 2}),
    ],
    ids=["at checkpoints", "between", "epochs", "twice an epoch"],
)
def test_a_broken_run_logs_what_a_whole_one_does(
    tmp_path: Path, data: type[ToyData], validation: dict[str, Any]
) -> None:
    """Lightning logs validations and ``self.log`` after the callbacks of the step."""

    def run(folder: Path, *extra: L.Callback, path: Path | None = None) -> bytes:
        torch.manual_seed(0)
        callbacks = [ChainCheckpoint(4), *extra]
        of_run = trainer(folder, 18, callbacks, log_every_n_steps=2, **validation)
        given = str(path) if path else None
        of_run.fit(Logging(burn_in=10), datamodule=data(), ckpt_path=given, weights_only=True)
        return (folder / "metrics.csv").read_bytes()

    whole = run(tmp_path / "whole")
    assert b"val/nll" in whole
    assert b"own" in whole
    for step in (5, 8, 9, 12, 16):
        for validating in (False, True):
            folder = tmp_path / f"{step}-{validating}"
            try:
                run(folder, Kill(step, validating))
            except KilledError:
                assert run(folder, path=folder / "checkpoints" / "last.ckpt") == whole
