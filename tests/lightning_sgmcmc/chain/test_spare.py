"""Minibatches of a DataLoader that no step takes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

from lightning_sgmcmc import SGLD, BatchStream, GaussianPrior
from lightning_sgmcmc.chain.spare import SpareMinibatches
from lightning_sgmcmc.posterior.diagnosis import diagnose
from tests.toy import Toy, ToyData, toy_data, trainer


def as_it_is(batch: Any) -> Any:
    return batch


def spare(loader: Any, seed: int = 0, chain: int = 0, rank: int = 0, size: int = 1) -> Any:
    return SpareMinibatches.of(loader, as_it_is, seed, chain, rank, size)


class Numbers(Dataset[int]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, i: int) -> int:
        return i


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(64))

    def __len__(self) -> int:
        return 64


def test_a_pass_holds_every_example_once() -> None:
    found = spare(DataLoader(Numbers(40), 8, shuffle=True, collate_fn=torch.tensor))
    assert len(found) == 5
    for first in (0, 5, 10):
        every = torch.cat([found.at(first + i) for i in range(5)])
        assert torch.equal(every.sort().values, torch.arange(40))
    assert not torch.equal(found.at(0), found.at(5))
    assert torch.equal(found.spread(4), torch.tensor([0, 10, 20, 30]))


def test_processes_share_a_minibatch_and_chains_have_their_own() -> None:
    loader = DataLoader(Numbers(40), 4, shuffle=True, collate_fn=torch.tensor)
    parts = [spare(loader, rank=rank, size=2) for rank in (0, 1)]
    both = torch.cat([part.at(3) for part in parts])
    whole = spare(DataLoader(Numbers(40), 8, shuffle=True, collate_fn=torch.tensor))
    assert torch.equal(both, whole.at(3))
    others = [spare(loader, seed=1), spare(loader, chain=1)]
    assert all(not torch.equal(other.at(3), spare(loader).at(3)) for other in others)


def test_the_examples_are_those_that_the_loader_goes_through() -> None:
    chosen = [3, 8, 9, 30]
    order = SubsetRandomSampler(chosen)
    for given in (
        {"sampler": order, "batch_size": 2},
        {"batch_sampler": BatchSampler(order, 2, False)},
    ):
        found = spare(DataLoader(Numbers(40), collate_fn=torch.tensor, **given))
        assert sorted(torch.cat([found.at(0), found.at(1)]).tolist()) == chosen


def test_nothing_else_is_disturbed() -> None:
    """Neither the loader's order nor torch's global generator."""
    generator = torch.Generator().manual_seed(2)
    loader = DataLoader(Numbers(40), 8, shuffle=True, generator=generator)
    before = torch.get_rng_state(), generator.get_state()
    spare(loader).at(0), spare(loader).spread(3)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.equal(generator.get_state(), before[1])


class Augmented(Numbers):
    """Adds random numbers of three kinds."""

    def __getitem__(self, i: int) -> Any:
        numpy = np.random.standard_normal()  # noqa: NPY002, the global generator
        return i + torch.randn(()) + numpy + random.gauss(0, 1)


def test_random_examples_are_functions_of_the_seed_and_a_number_too() -> None:
    loader = DataLoader(Augmented(40), 8, shuffle=True)
    found = spare(loader)
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    values = [found.at(3), found.at(4)]
    assert torch.equal(torch.get_rng_state(), before[0])
    assert str(np.random.get_state()) == str(before[1])  # noqa: NPY002
    assert random.getstate() == before[2]
    torch.randn(7)
    assert torch.equal(found.at(3), values[0])
    assert not torch.equal(spare(loader, seed=1).at(3), values[0])
    noise = [v - v.round() for v in values]
    assert not torch.equal(*noise)


class Opened(Numbers):
    """Reads a file that each worker opens."""

    file: Any = None

    def __getitem__(self, i: int) -> Any:
        return self.file[0][i], self.file[1][i]


def opens(_: int) -> None:
    info: Any = get_worker_info()
    info.dataset.file = toy_data()


def test_a_data_set_that_workers_prepare_is_read_by_one() -> None:
    found = spare(DataLoader(Opened(64), 8, shuffle=True, num_workers=1, worker_init_fn=opens))
    x, y = found.spread(4)
    assert torch.equal(x, toy_data()[0][::16])
    assert torch.equal(y, toy_data()[1][::16])


def test_fewer_examples_than_processes_are_no_minibatches() -> None:
    assert spare(DataLoader(Numbers(3), 1), rank=0, size=4) is None


class Blocks(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(zip(*toy_data(), strict=True))


def test_measuring_leaves_workers_that_persist_alone(tmp_path: Path) -> None:
    """They serve one pass at a time, which the steps go through."""
    batches: list[float] = []

    class Watched(Toy):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            batches.append(float(batch[1].sum()))
            super().training_step(batch, batch_idx)

    class Persistent(ToyData):
        def train_dataloader(self) -> Any:
            return DataLoader(Blocks(), 8, num_workers=1, persistent_workers=True)

    task = Watched(partial(SGLD, lr="auto", prior=GaussianPrior(4.0)), burn_in=20, num_data=64)
    trainer(tmp_path, 24).fit(task, datamodule=Persistent())
    assert batches == [float(y.sum()) for y in toy_data()[1].split(8)] * 3


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(Numbers(64), 8, sampler=WeightedRandomSampler([1.0] * 64, 64)),
        DataLoader(Endless(), 8),
        DataLoader(Numbers(64), batch_size=None),
        [torch.arange(8)],
    ],
)
def test_of_unknown_examples_there_are_none(loader: Any) -> None:
    assert spare(loader) is None


class Loaded(ToyData):
    def __init__(self, order: str) -> None:
        super().__init__()
        self.order = order

    def train_dataloader(self) -> Any:
        data = TensorDataset(*toy_data())
        if self.order == "stream":
            return BatchStream(toy_data(), 16, "independent")
        if self.order == "by weight":
            return DataLoader(data, 16, sampler=WeightedRandomSampler([1.0] * 64, 64))
        return DataLoader(data, 16, sampler=RandomSampler(data, replacement=True))


def judged(folder: Path, order: str, lr: float, chains: int = 1) -> dict[str, Any]:
    torch.manual_seed(0)
    prior = GaussianPrior(variance=4.0)
    task = Toy(
        partial(SGLD, lr=lr, prior=prior, seed=1),
        burn_in=50,
        thinning=4,
        num_data=64,
        num_chains=chains,
    )
    trainer(folder, 2050, log_every_n_steps=3000).fit(task, datamodule=Loaded(order))
    return diagnose(task.kept, {})


@pytest.mark.parametrize("chains", [1, 2])
def test_a_hot_chain_on_any_loader_is_found_out(tmp_path: Path, chains: int) -> None:
    """Its temperatures are those that a chain on a BatchStream of the same law has."""
    loaded, stream = (
        judged(tmp_path / order, order, 0.15, chains) for order in ("loader", "stream")
    )
    for found in (loaded, stream):
        assert any("predictions are about" in text for text in found["alarms"])
        assert found["remedy"]["whole_data"]
    deviations = [found["predictive"]["deviation_over_true"] for found in (loaded, stream)]
    assert deviations[0] == pytest.approx(deviations[1], rel=0.1)
    noise = [found["gradient_noise"]["ratio"] for found in (loaded, stream)]
    assert noise[0] == pytest.approx(noise[1], rel=0.5)


def test_a_right_chain_on_a_loader_is_a_sample(tmp_path: Path) -> None:
    found = judged(tmp_path, "loader", 0.002)
    assert "predictive" in found
    assert not [text for text in found["alarms"] if "predictions are" in text]


def test_what_was_not_measured_is_no_sample(tmp_path: Path) -> None:
    found = judged(tmp_path, "by weight", 0.15)
    assert [text.split(",")[0] for text in found["alarms"]] == [
        "how hot the chain is was not measured"
    ]
    assert found["remedy"] == {"lr": 1.0, "steps": 1.0, "whole_data": False, "momentum": False}
