"""A run on any loader continues with the batches to come."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset

from lightning_sgmcmc import SGLD, GaussianPrior
from lightning_sgmcmc.callbacks import ChainCheckpoint
from tests.toy import Toy, ToyData, toy_data, trainer


class Shaken(Dataset[Any]):
    """Moves every example by random numbers of three kinds as it is read."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        x, y = toy_data()
        numpy = np.random.standard_normal()  # noqa: NPY002, the global generator
        shift = 0.1 * (torch.randn(()) + numpy + random.gauss(0, 1))
        return x[i] + shift.float(), y[i]


class Stream(IterableDataset[Any]):
    """Examples in an order of its own in every pass, of a length that is not told."""

    def __iter__(self) -> Iterator[Any]:
        x, y = toy_data()
        for i in torch.randperm(64).tolist():
            yield x[i], y[i]


class Own:
    """A loader that is none of torch's."""

    def __iter__(self) -> Iterator[Any]:
        x, y = toy_data()
        order = np.random.permutation(64)  # noqa: NPY002
        for rows in torch.from_numpy(order).split(8):
            yield x[rows], y[rows]


def with_generator(replacement: bool) -> Any:
    order = torch.Generator().manual_seed(5)
    chosen = RandomSampler(range(64), replacement, generator=order)
    return DataLoader(TensorDataset(*toy_data()), 8, sampler=chosen)


def two() -> Any:
    data = TensorDataset(*toy_data())
    orders = [torch.Generator().manual_seed(i) for i in (5, 6)]
    return {str(i): DataLoader(data, 8, shuffle=True, generator=g) for i, g in enumerate(orders)}


LOADERS: dict[str, Any] = {
    "shuffled": lambda: DataLoader(TensorDataset(*toy_data()), 8, shuffle=True),
    "workers": lambda: DataLoader(Shaken(), 8, shuffle=True, num_workers=1),
    "augmented": lambda: DataLoader(Shaken(), 8, shuffle=True),
    "a generator of its own": lambda: with_generator(False),
    "with replacement": lambda: with_generator(True),
    "no length": lambda: DataLoader(Stream(), 8),
    "not torch's": Own,
    "two loaders": two,
}


class Given(ToyData):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def train_dataloader(self) -> Any:
        return LOADERS[self.kind]()


class Watched(Toy):
    """Notes the labels of its minibatches."""

    def __init__(self, **given: Any) -> None:
        prior = GaussianPrior(variance=4.0)
        super().__init__(partial(SGLD, lr=0.1, prior=prior), num_data=64, **given)
        self.seen: list[Tensor] = []

    def training_step(self, batch: Any, batch_idx: int) -> None:
        if isinstance(batch, dict):
            self.seen.append(batch["0"][0].sum())
            batch = batch["1"]
        self.seen.append(batch[0].sum())
        super().training_step(batch, batch_idx)


def run(kind: str, folder: Path, seed: int, ends: list[int], **given: Any) -> list[Watched]:
    """Return the tasks of a run that stops, and goes on in a process of another seed."""
    tasks = []
    for i, end in enumerate(ends):
        for set_seed in (torch.manual_seed, np.random.seed, random.seed):
            set_seed(seed + i)
        tasks.append(Watched(thinning=3, burn_in=2))
        path = folder / "checkpoints/last.ckpt" if i else None
        with torch.random.fork_rng():
            torch.manual_seed(0)
            torch.nn.init.normal_(tasks[-1].net.weight)
        fit = trainer(folder, end, [ChainCheckpoint(100)], **given)
        fit.fit(tasks[-1], datamodule=Given(kind), ckpt_path=path)
    return tasks


def seen(tasks: list[Watched]) -> Tensor:
    return torch.stack([one for task in tasks for one in task.seen])


@pytest.mark.parametrize("stop", [5, 8, 13, 16])
@pytest.mark.parametrize("kind", LOADERS)
def test_it_continues_with_the_batches_to_come(kind: str, stop: int, tmp_path: Path) -> None:
    """8 minibatches are an epoch: in the first one, at its end, in the second one, at its end."""
    (whole,) = run(kind, tmp_path / "whole", 3, [20])
    first, second = run(kind, tmp_path / "parts", 3, [stop, 20])
    each = len(whole.seen) // 20
    assert [len(task.seen) for task in (first, second)] == [each * stop, each * (20 - stop)]
    assert torch.equal(seen([first, second]), seen([whole]))
    assert torch.equal(second.net.weight, whole.net.weight)
    assert len(seen([whole])[: 16 * each].unique()) == 16 * each  # the epochs differ


def test_a_run_goes_on_more_than_once_within_an_epoch(tmp_path: Path) -> None:
    (whole,) = run("augmented", tmp_path / "whole", 3, [20])
    parts = run("augmented", tmp_path / "parts", 3, [5, 6, 7, 11, 20])
    assert torch.equal(seen(parts), seen([whole]))


def test_a_limit_ends_an_epoch(tmp_path: Path) -> None:
    (whole,) = run("shuffled", tmp_path / "whole", 3, [20], limit_train_batches=5)
    for stop in (5, 7, 10):
        parts = run("shuffled", tmp_path / str(stop), 3, [stop, 20], limit_train_batches=5)
        assert torch.equal(seen(parts), seen([whole]))


@pytest.mark.parametrize("kind", ["shuffled", "no length"])
def test_a_run_with_no_step_left_stays_as_it_is(kind: str, tmp_path: Path) -> None:
    first, second, third = run(kind, tmp_path / "parts", 3, [13, 13, 20])
    assert not second.seen
    assert torch.equal(second.net.weight, first.net.weight)
    (whole,) = run(kind, tmp_path / "whole", 3, [20])
    assert torch.equal(third.net.weight, whole.net.weight)


def test_workers_that_persist_are_announced(tmp_path: Path, caplog: Any) -> None:
    """Their order is as it was; random numbers that they draw are not."""
    LOADERS["persistent"] = lambda: DataLoader(
        TensorDataset(*toy_data()), 8, shuffle=True, num_workers=1, persistent_workers=True
    )
    try:
        (whole,) = run("persistent", tmp_path / "whole", 3, [20])
        assert "the loader's workers persisted" not in caplog.text
        parts = run("persistent", tmp_path / "parts", 3, [13, 20])
    finally:
        del LOADERS["persistent"]
    assert torch.equal(seen(parts), seen([whole]))
    assert "the loader's workers persisted" in caplog.text
