"""Pruned weights on disk: nothing is lost, and the zeros take a bit each."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lightning_sgmcmc.posterior import DrawStore
from lightning_sgmcmc.posterior.draws import DTYPES
from lightning_sgmcmc.posterior.sparse import packed, unpacked


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("rate", [0.0, 0.3, 0.7, 1.0])
def test_what_is_packed_is_what_is_unpacked(rate: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight = (10 * torch.randn(7, 3, 5)).round().to(dtype)
    weight[torch.rand(weight.shape) < rate] = 0
    tensors = {"w": weight, "b": torch.zeros(4, dtype=dtype), "none": torch.zeros(0, 3)}
    found = unpacked({name: stored.cpu() for name, stored in packed(tensors).items()})
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
def test_zeros_take_a_bit_each(tmp_path: Path, dtype: str, size: int) -> None:
    weight = torch.arange(1.0, 10_001).view(100, 100)
    weight[:, ::2] = 0
    store = DrawStore(tmp_path, dtype=dtype)
    store.save(1, {"w": weight}, 1.0)
    file = store.folder / "step_1.safetensors"
    assert 5_000 * size + 1_250 < file.stat().st_size < 5_000 * size + 1_250 + 400
    loaded = DrawStore.open(tmp_path).load(store.draws[0])["w"]
    assert torch.equal(loaded, weight.to(DTYPES[dtype]).float())


def test_dense_weights_are_stored_as_they_are(tmp_path: Path) -> None:
    weight = torch.ones(8, 8)
    weight[0] = 0
    store = DrawStore(tmp_path)
    store.save(1, {"w": weight}, 1.0)
    assert torch.equal(load_file(store.folder / "step_1.safetensors")["w"], weight)
