"""A batch may be a tuple or a dict of tensors: the run is the same to the bit."""

from __future__ import annotations

from collections import UserDict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    TensorDataset,
    default_collate,
)

from lightning_sgmcmc import (
    HMC,
    SGFS,
    SGHMC,
    BatchStream,
    ControlVariate,
    GaussianPrior,
    load_posterior,
)
from lightning_sgmcmc.chain import OptimizerBurnIn
from lightning_sgmcmc.chain.processes import ChainsStrategy
from lightning_sgmcmc.posterior.predict import joined
from tests.toy import NUM_DATA, NUM_FEATURES, Toy, ToyData, toy_data, trainer

PRIOR = GaussianPrior(4.0)


class DictToy(Toy):
    """The same law with batches {"inputs": x, "more": {"targets": y}}."""

    def nll(self, batch: Any) -> Tensor:
        return super().nll((batch["inputs"], batch["more"]["targets"]))

    def predictive(self, batch: Any) -> Tensor:
        return super().predictive((batch["inputs"],))

    def perturb_labels(self, batch: Any, normal: Any) -> Any:
        y = batch["more"]["targets"]
        return {"inputs": batch["inputs"], "more": {"targets": y + normal(y)}}


class TupleToy(Toy):
    def perturb_labels(self, batch: Any, normal: Any) -> Any:
        return batch[0], batch[1] + normal(batch[1])


class Rows(Dataset):  # type: ignore[type-arg]
    """Examples one by one, as tuples or as dicts."""

    def __init__(self, seed: int, size: int, as_dict: bool) -> None:
        self.x, self.y = toy_data(seed, size)
        self.as_dict = as_dict

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> Any:
        if not self.as_dict:
            return self.x[i], self.y[i]
        return {"inputs": self.x[i], "more": {"targets": self.y[i]}}


class Data(ToyData):
    """The toy's data, in tuples or in dicts; the last held-out batch is shorter."""

    def __init__(self, as_dict: bool, sampling: str) -> None:
        super().__init__(16, sampling)
        self.as_dict = as_dict

    def train_dataloader(self) -> Any:
        if self.sampling == "loader":
            return DataLoader(Rows(0, 64, self.as_dict), batch_size=16, shuffle=True)
        x, y = toy_data()
        tensors: Any = {"inputs": x, "more": {"targets": y}} if self.as_dict else (x, y)
        return BatchStream(tensors, self.batch_size, self.sampling)

    def val_dataloader(self) -> Any:
        return DataLoader(Rows(1, 20, self.as_dict), batch_size=8)

    def test_dataloader(self) -> Any:
        return DataLoader(Rows(2, 30, self.as_dict), batch_size=8)


RUNS: dict[str, tuple[dict[str, Any], str]] = {
    "reshuffled": ({"sampler": partial(SGHMC, lr=1e-3, momentum=0.9, prior=PRIOR)}, "auto"),
    "step from the data": (
        {"sampler": partial(SGHMC, lr="auto", momentum=0.9, prior=PRIOR), "burn_in": 10},
        "independent",
    ),
    "whole data": ({"sampler": partial(SGHMC, lr=1e-3, momentum=0.9, prior=PRIOR)}, "full"),
    "control variate": (
        {
            "sampler": partial(SGHMC, lr=1e-3, momentum=0.9, prior=PRIOR),
            "gradients": ControlVariate(),
            "burn_in": 5,
        },
        "auto",
    ),
    "gradients of examples": (
        {"sampler": partial(SGFS, lr=0.1, prior=PRIOR), "burn_in": 5},
        "independent",
    ),
    "perturbed starts": (
        {
            "sampler": partial(SGHMC, lr=1e-3, momentum=0.9, prior=PRIOR),
            "burn_in": 8,
            "burn_in_optimizer": OptimizerBurnIn(partial(torch.optim.Adam, lr=0.01), 6),
            "starts": "randomised_map",
        },
        "auto",
    ),
    "a loader": ({"sampler": partial(SGHMC, lr=1e-3, momentum=0.9, prior=PRIOR)}, "loader"),
}


@pytest.mark.parametrize("chains", [1, 4])
@pytest.mark.parametrize("name", RUNS)
def test_dicts_are_as_tuples(tmp_path: Path, name: str, chains: int) -> None:
    settings, sampling = RUNS[name]

    def run(as_dict: bool) -> tuple[Toy, list[Tensor]]:
        torch.manual_seed(0)
        kind = DictToy if as_dict else TupleToy
        module = kind(num_chains=chains, **settings)
        folder = tmp_path / kind.__name__
        trainer(folder, 20).fit(module, datamodule=Data(as_dict, sampling))
        batch = joined(list(Data(as_dict, sampling).test_dataloader()))
        stored = load_posterior(folder, kind()).predictive(batch)
        ran = module.kept.ensemble("test")
        own = [ran.mean, ran.epistemic_std, ran.nll, stored.mean, stored.nll]
        return module, own + [t for k in range(chains) for t in module.chain.state(k).values()]

    (plain, expected), (module, found) = run(False), run(True)
    assert module.kept.num_draws == plain.kept.num_draws > 0
    assert len(found[0]) == 30
    # A run's sums are about the mean target of pairs (x, y), and about 0 for dicts.
    for a, b in zip(found[:2], expected[:2], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    assert all(torch.equal(a, b) for a, b in zip(found[2:], expected[2:], strict=True))
    x, y = toy_data(2, 30)
    examples = module.kept.held_out["test"].examples
    assert torch.equal(examples["inputs"], x)
    assert torch.equal(examples["more"]["targets"], y)


def test_a_law_needs_pairs(tmp_path: Path) -> None:
    class Lawful(Toy):
        nll, predictive = Toy.__mro__[1].nll, Toy.__mro__[1].predictive

        def law(self, x: Any) -> Any:
            raise AssertionError("never asked")

    with pytest.raises(
        TypeError, match=r"law\(x\) is for batches \(x, y\), got a dict: define nll"
    ):
        trainer(tmp_path, 3).fit(
            Lawful(net=nn.Linear(NUM_FEATURES, 1), burn_in=1), datamodule=Data(True, "auto")
        )


def test_a_loader_gives_tensors_in_tuples_lists_and_dicts(tmp_path: Path) -> None:
    class Encoding(Data):
        def train_dataloader(self) -> Any:
            rows = Rows(0, 64, True)
            collate = lambda examples: UserDict(default_collate(examples))  # noqa: E731
            return DataLoader(rows, batch_size=16, collate_fn=collate)

    with pytest.raises(ValueError, match=r"a batch must be a tensor, .* got a UserDict: convert"):
        trainer(tmp_path, 3).fit(DictToy(burn_in=1), datamodule=Encoding(True, "auto"))


class Loaded(ToyData):
    """Training examples by a loader of torch's."""

    def __init__(self, size: int, **given: Any) -> None:
        super().__init__()
        self.size, self.given = size, given

    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(*toy_data(0, self.size)), **self.given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"shuffle": True}, "minibatches are reshuffled, but SGFS counts on independent ones"),
        ({}, "minibatches are the same in every pass, but SGFS counts on independent ones"),
        ({"sampler": RandomSampler(range(NUM_DATA), replacement=True)}, None),
    ],
)
def test_the_order_of_a_loader_is_said(tmp_path: Path, given: dict[str, Any], said: str) -> None:
    task = Toy(partial(SGFS, lr=0.02, prior=GaussianPrior(4.0)), burn_in=12)
    trainer(tmp_path, 16).fit(task, datamodule=Loaded(NUM_DATA, batch_size=8, **given))
    notes = [note for note in task.chain.notes() if note.startswith("minibatches")]
    assert [note.split(" for its")[0] for note in notes] == ([said] if said else [])


@pytest.mark.parametrize(
    ("num", "given", "left"),
    [
        (65, {}, 1),
        (65, {"drop_last": True}, 1),
        (65, {"shuffle": True}, 0),
        (64, {}, 0),
        (5, {}, 0),  # one minibatch of all data
    ],
)
def test_examples_that_would_count_more_in_every_pass_are_refused(
    tmp_path: Path, num: int, given: dict[str, Any], left: int
) -> None:
    task = Toy(partial(SGHMC, lr=0.01, prior=PRIOR), burn_in=1)
    run = partial(trainer(tmp_path, 2).fit, task, datamodule=Loaded(num, batch_size=8, **given))
    if not left:
        run()
        return
    with pytest.raises(ValueError, match=r"minibatches of 8 of 65 examples .* and leave 1 over"):
        run()


@pytest.mark.parametrize("steps", [11, 12])
def test_a_smaller_last_minibatch_is_not_the_law_of_sgfs(tmp_path: Path, steps: int) -> None:
    """Burn-in of 12 steps ends on one of two: 62 = 5 x 12 + 2."""
    data = Loaded(62, batch_size=12, sampler=RandomSampler(range(62), replacement=True))
    task = Toy(partial(SGFS, lr=0.05, prior=GaussianPrior(4.0)), burn_in=steps)
    trainer(tmp_path, 13).fit(task, datamodule=data)
    assert task.chain.sampler.gamma == 1 + 62 / 12


def test_chains_of_several_processes_shuffle_apart(monkeypatch: Any) -> None:
    orders = []
    for rank in (0, 1):
        strategy = ChainsStrategy()
        monkeypatch.setattr(ChainsStrategy, "global_rank", rank)
        order = DistributedSampler(range(64), **strategy.distributed_sampler_kwargs)
        assert sorted(order) == list(range(64))
        orders.append(list(order))
    assert orders[0] != orders[1]


@pytest.mark.parametrize("kind", ["independent", "full"])
def test_an_auto_stream_serves_one_sampler_after_another(kind: Any) -> None:
    stream = BatchStream(toy_data(), 8)
    for asked in ("full", kind, "reshuffled"):
        stream.bind(torch.device("cpu"), 0, kind=asked)
        assert stream.sampling == asked
        assert stream.batch_size == (NUM_DATA if asked == "full" else 8)


def test_an_adapting_step_is_announced(tmp_path: Path) -> None:
    sampler = partial(HMC, lr=0.01, leapfrog_steps=3, prior=GaussianPrior(4.0))
    for freeze, said in ((True, []), (False, ["draws are kept while the step adapts"])):
        task = Toy(sampler, burn_in=4, freeze_preconditioner=freeze)
        trainer(tmp_path / str(freeze), 6).fit(task, datamodule=ToyData())
        assert [note.split(",")[0] for note in task.chain.notes()] == said


def test_only_tensors_are_taken() -> None:
    x = torch.zeros(3)
    with pytest.raises(TypeError, match="tensors in tuples, lists and dicts, got str among"):
        BatchStream({"x": x, "names": ["a", "b", "c"]}, 1)
    with pytest.raises(TypeError, match="got ndarray among them: convert it"):
        BatchStream((x, x.numpy()), 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"same first dimension, got \[0, 3\]"):
        BatchStream({"x": x, "scale": torch.tensor(1.0)}, 1)
    with pytest.raises(ValueError, match=r"same first dimension, got \[\]"):
        BatchStream({}, 1)
