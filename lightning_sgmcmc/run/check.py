"""Read everything that a run wrote, and name what is damaged."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from lightning_sgmcmc.callbacks import KeepDraws
from lightning_sgmcmc.callbacks.checkpoint_files import (
    LAST,
    PREVIOUS,
    read_checkpoint,
    verify_set,
)
from lightning_sgmcmc.callbacks.log import read_rows, verify_log
from lightning_sgmcmc.callbacks.report import results
from lightning_sgmcmc.common.files import DamagedFileError, verify
from lightning_sgmcmc.posterior import DrawStore, chains_in
from lightning_sgmcmc.posterior.traces import Traces
from lightning_sgmcmc.run.config_file import read_config
from lightning_sgmcmc.run.load import check_chains


def damage(folder: Path) -> list[str]:
    """Return what is damaged or missing of a run, a line each.

    Draws, their traces, checkpoints, ``results.json`` and the student are compared with their
    checksums, and checkpoints with the draws and the rows of ``metrics.csv`` that they count on.

    Args:
        folder: Of the run.

    Raises:
        FileNotFoundError: If it is not there, or holds no run.
    """
    if not (folder / "config.yaml").is_file() and not (folder / "samples").is_dir():
        raise FileNotFoundError(f"{folder} holds no run: neither config.yaml nor samples/")
    found: list[str] = []
    for look in _looks(folder):
        try:
            look()
        except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError, csv.Error) as error:
            line = " ".join(str(error).split())
            if line not in found:
                found.append(line)
    return found


def _looks(folder: Path) -> Iterator[Callable[[], Any]]:
    """Yield functions, each of which reads a part of a run and raises where it is damaged."""
    for name, read in _RECORDS.items():
        if (folder / name).is_file():
            yield partial(_named, folder / name, read)
    yield partial(_has_results, folder)
    yield partial(check_chains, folder)
    for chain in chains_in(folder / "samples"):
        yield from _draws(folder / "samples", chain)
    held = [n for n in (LAST, PREVIOUS) if (folder / "checkpoints" / n).is_file()]
    for name in dict.fromkeys([LAST, *held] if held else []):
        path = folder / "checkpoints" / name
        yield partial(verify_set, path)
        for own in [path, *sorted(path.parent.glob(f"{name}.*"))]:
            yield partial(_counted_on, own, folder / "samples")


def _has_results(folder: Path) -> None:
    """Raise FileNotFoundError if a run that has taken all its steps has no results."""
    path, last = folder / "results.json", folder / "checkpoints" / LAST
    if path.is_file() or not last.is_file() or not (folder / "config.yaml").is_file():
        return
    most = int(read_config(folder / "config.yaml")["trainer"]["max_steps"])
    if 0 < most <= read_checkpoint(last)["global_step"]:
        raise FileNotFoundError(
            f"{path} is missing: 'sgmcmc train --finish {folder}' writes it again"
        )


def _draws(samples: Path, chain: int) -> Iterator[Callable[[], Any]]:
    if not DrawStore(samples, chain).index.is_file():  # none was kept yet
        return
    try:
        store = DrawStore.open(samples, chain)
    except (OSError, ValueError):
        yield partial(DrawStore.open, samples, chain)
        return
    if store.draws:
        yield store.load_constants
    for draw in store.draws:
        yield partial(store.load, draw)


def _counted_on(checkpoint: Path, samples: Path) -> None:
    """Verify the configuration, log, draws and traces that a checkpoint counts on."""
    content = read_checkpoint(checkpoint)
    for log in content["sgmcmc_logs"]:
        verify_log(samples.with_name("metrics.csv"), log)
    config = samples.with_name("config.yaml")
    if content["sgmcmc_settings"] != "null" and not config.is_file():
        raise FileNotFoundError(f"{config} is missing: restore it from a copy")
    kept = content["callbacks"].get(KeepDraws.__qualname__)
    if not kept:
        return
    numbers = kept["chains"]
    folders = [samples / f"chain{number}" / "traces" for number in numbers]
    Traces(folders, writes=False).load(kept["pieces"])
    for number, rows in zip(numbers, kept["draws"], strict=True):
        index = DrawStore(samples, number).index
        if rows and not index.is_file():
            raise FileNotFoundError(
                f"{index} is missing: continue the run from its last checkpoint, which writes it "
                "again"
            )
        for _, file, _, sha256 in rows:
            path = samples / f"chain{number}" / file
            if not path.is_file():
                raise FileNotFoundError(f"{path} is missing, and {checkpoint} counts on it")
            verify(path, sha256)


def _named(path: Path, read: Callable[[Path], Any]) -> None:
    """Read a record, naming it where it cannot be read."""
    try:
        read(path)
    except DamagedFileError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError, csv.Error) as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def _read_metrics(path: Path) -> None:
    last = -1
    for row in read_rows(path):
        step = int(row["step"])
        if step <= last:
            raise ValueError(f"step {step} stands after step {last}")
        last = step
        [float(value) for value in row.values()]


def _read_student(path: Path) -> None:
    verify(path.with_suffix(".safetensors"), json.loads(path.read_text())["sha256"])


_RECORDS: dict[str, Callable[[Path], Any]] = {
    "config.yaml": read_config,
    "metrics.csv": _read_metrics,
    "results.json": results.read,
    "student.json": _read_student,
}
