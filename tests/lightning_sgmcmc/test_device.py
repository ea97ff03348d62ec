"""Runs, their continuation and predictions on a GPU: that of ``--device cuda``, or a fake.

The fake one refuses what a real one refuses, so that a tensor that is made on the wrong device is
an error here on every machine. Where the numbers are the same on both devices they are compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor

from lightning_sgmcmc import PSGLD, SGHMC, GaussianPrior
from lightning_sgmcmc.callbacks import ChainCheckpoint
from lightning_sgmcmc.metrics import PosteriorEnsemble
from lightning_sgmcmc.posterior.predict import ensemble
from tests import device
from tests.fake_gpu import fake_gpu
from tests.made_there import made_there
from tests.toy import NUM_FEATURES, Toy, ToyData, toy_data, trainer

CUDA = torch.device("cuda", 0)


@contextmanager
def on_a_gpu() -> Iterator[None]:
    """Run the tests' Trainer on a GPU for a while."""
    if device.CHOSEN != "cpu":
        yield
        return
    with mock.patch.object(device, "CHOSEN", "fake"), fake_gpu():
        yield


@pytest.fixture
def gpu() -> Iterator[None]:
    """A GPU, on which the tests' Trainer runs."""
    with on_a_gpu():
        yield


class Where(Toy):
    """Notes on which devices its batches are."""

    seen: set[torch.device]

    def nll(self, batch: Any) -> Tensor:
        self.seen.add(batch[0].device)
        return super().nll(batch)


def weights(folder: Path, steps: int, sampler: Any, ckpt: Path | None = None, **chain: Any) -> Any:
    """Return the weights of all chains after a run, and where its batches were."""
    torch.manual_seed(0)
    module = Where(partial(sampler, lr=1e-3, prior=GaussianPrior(variance=4.0)), **chain)
    module.seen = set()
    fit = trainer(folder, steps, [ChainCheckpoint(every=6)])
    fit.fit(module, datamodule=ToyData(), ckpt_path=ckpt)
    states = [module.chain.state(k) for k in range(module.chain.num_chains)]
    return [{n: w.cpu() for n, w in state.items()} for state in states], module.seen


@pytest.mark.parametrize("chains", [1, 3])
@pytest.mark.parametrize("sampler", [PSGLD, SGHMC])
def test_a_run_without_noise_ends_where_that_on_the_cpu_ends(
    tmp_path: Path, sampler: Any, chains: int
) -> None:
    settings: dict[str, Any] = {"burn_in": 5, "num_chains": chains}
    cold = partial(sampler, temperature=0.0)
    with on_a_gpu():
        found, where = weights(tmp_path / "gpu", 12, cold, **settings)
    assert where == {CUDA}
    with mock.patch.object(device, "CHOSEN", "cpu"):
        expected, where = weights(tmp_path / "cpu", 12, cold, **settings)
    assert where == {torch.device("cpu")}
    for ours, its in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, its, rtol=1e-5, atol=1e-6)


def test_a_chain_continues_to_the_bit(gpu: None, tmp_path: Path) -> None:
    whole, _ = weights(tmp_path / "whole", 12, SGHMC, burn_in=3)
    half, _ = weights(tmp_path / "parts", 6, SGHMC, burn_in=3)
    last = tmp_path / "parts" / "checkpoints" / "last.ckpt"
    both, where = weights(tmp_path / "parts", 12, SGHMC, last, burn_in=3)
    assert where == {CUDA}
    for ours, its, before in zip(both, whole, half, strict=True):
        assert all(torch.equal(ours[name], its[name]) for name in its)
        assert not any(torch.equal(before[name], its[name]) for name in its)


def test_draws_predict_on_a_gpu_as_on_the_cpu(gpu: None) -> None:
    generator = torch.Generator().manual_seed(0)
    draws = [{"net.weight": torch.randn(1, NUM_FEATURES, generator=generator)} for _ in range(7)]
    x = torch.randn(11, NUM_FEATURES, generator=generator)
    shares = torch.full((7,), 1 / 7, dtype=torch.float64)
    loads = [partial(dict, draw) for draw in draws]
    here = ensemble(Toy(), loads, shares, "predictive", (x,))
    there = ensemble(Toy().to(CUDA), loads, shares, "predictive", (x.to(CUDA),))
    assert there.mean.device == CUDA
    for ours, its in ((there.mean, here.mean), (there.std, here.std)):
        torch.testing.assert_close(ours.cpu(), its, rtol=1e-5, atol=1e-6)


def test_an_ensemble_counts_on_a_gpu_as_on_the_cpu(gpu: None) -> None:
    generator = torch.Generator().manual_seed(0)
    here, there = PosteriorEnsemble(5, (2,)), PosteriorEnsemble(5, (2,)).to(CUDA)
    for _ in range(3):
        f, nll = torch.randn(5, 2, generator=generator), torch.rand(5, generator=generator)
        here.update(f, nll, torch.arange(5))
        there.update(f.to(CUDA), nll.to(CUDA), torch.arange(5, device=CUDA))
    found, expected = there.compute(), here.compute()
    assert found.mean.device == CUDA
    for ours, its in ((found.mean, expected.mean), (found.nll, expected.nll)):
        torch.testing.assert_close(ours.cpu(), its, rtol=1e-5, atol=1e-6)


def test_the_fake_gpu_refuses_what_a_gpu_refuses() -> None:
    with fake_gpu():
        there = torch.zeros(3, device="cuda")
        assert {t.device for t in (there, there + 1, there[1:], torch.ones_like(there))} == {CUDA}
        # What an operation makes of its own on the way is where its tensors are.
        assert torch.nn.functional.one_hot(torch.arange(3, device="cuda")).device == CUDA
        assert float(there.quantile(0.5)) == 0
        assert torch.zeros(3).device == torch.device("cpu")
        with pytest.raises(RuntimeError, match=r"aten::add\.Tensor: expected all tensors to be on"):
            there + torch.ones(3)
        with pytest.raises(TypeError, match="to numpy"):
            there.numpy()
        assert (there + torch.tensor(2.0)).cpu().numpy().tolist() == [2, 2, 2]
    if device.CHOSEN != "fake":  # no mode of another fake is left to say otherwise
        assert there.device.type == "cpu"


def test_what_a_test_makes_is_on_the_device_and_what_the_product_makes_is_not() -> None:
    generator = torch.Generator().manual_seed(0)
    expected = torch.randn(3, generator=generator.manual_seed(0))
    with fake_gpu(), made_there(CUDA):
        made = torch.randn(3, generator=generator.manual_seed(0), requires_grad=True)
        net = torch.nn.Linear(2, 1)
        assert {made.device, net.weight.device, torch.from_numpy(np.ones(2)).device} == {CUDA}
        assert made.is_leaf
        assert made.requires_grad
        assert torch.equal(made.detach(), expected)
        assert made.detach().numpy().tolist() == np.asarray(expected).tolist()
        assert toy_data()[1].device == CUDA  # as if made here
        forgotten = ToyData().train_dataloader().tensors[1][:3]  # made by no test module's code
        assert forgotten.device.type == "cpu"
        with pytest.raises(RuntimeError, match=r"aten::mul\.Tensor: expected all tensors"):
            made * forgotten


def test_the_harness_is_on_the_device_or_there_is_a_reason() -> None:
    """A module that runs the harness's chains takes the device, or is named with what keeps it."""
    root = Path(device.__file__).parent
    missing = [name for name in device.TAKE_IT if not (root / name).exists()]
    assert missing == []
    for path in root.rglob("test_*.py"):
        name = path.relative_to(root).as_posix()
        if "from tests.harness import" in path.read_text() and name not in device.TAKE_IT:
            assert name in device.ON_THE_CPU, f"{name} builds chains and ignores --device"
