"""Sets of Darcy flows that are read as minibatches need them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lightning_sgmcmc import SGLD, OnDisk
from tasks.data import flows
from tasks.data.flows import FlowData
from tasks.data.pde_perm import PDEPermData
from tasks.data.pde_source import PDESourceData
from tasks.pde_perm import PDEPerm
from tasks.pde_source import PDESource

SETS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "pde_perm": (PDEPermData, PDEPerm, {"grid": 8, "num_samples": 60, "num_test": 9, "terms": 4}),
    "pde_source": (PDESourceData, PDESource, {"num_samples": 60, "num_test": 9}),
}


def opened(folder: Path, name: str, **options: Any) -> FlowData[Any]:
    make, _, small = SETS[name]
    data: FlowData[Any] = make(root=str(folder), num_val=3, batch_size=8, **(small | options))
    data.prepare_data()
    data.setup()
    return data


def scales(name: str, data: FlowData[Any]) -> dict[str, torch.Tensor]:
    """Return the buffers that a task takes from its data."""
    task = SETS[name][1](nn.Linear(1, 1), lambda params: SGLD(params, lr=1e-6))
    task._data = lambda: data
    task.take_scales()
    return {n: b for n, b in task.named_buffers() if "chain" not in n}


@pytest.mark.parametrize("name", SETS)
def test_minibatches_and_scales_are_those_of_memory(
    tmp_path: Path, monkeypatch: Any, name: str
) -> None:
    """Bits of minibatches; scales, which are sums over blocks, to round-off of float32."""
    monkeypatch.setattr(flows, "BLOCK", 7)
    held, read = opened(tmp_path, name), opened(tmp_path, name, in_memory=False)
    assert held.in_memory
    assert all(isinstance(part, OnDisk) for part in read.tensors("train"))
    streams = held.train_dataloader(), read.train_dataloader()
    for stream in streams:
        assert stream.num_data == 48
        stream.bind(torch.device("cpu"), 3)
    for step in range(13):
        for one, other in zip(*(stream.at(step) for stream in streams), strict=True):
            assert one.dtype == torch.float32
            assert torch.equal(one, other)
    found, expected = scales(name, read), scales(name, held)
    assert found.keys() == expected.keys()
    for buffer, value in expected.items():
        torch.testing.assert_close(found[buffer], value, rtol=3e-7, atol=0)
    field, velocity = held.arrays("train")
    numpy = {
        "net.log_mean": lambda: np.log(field).mean(),
        "net.log_std": lambda: np.log(field).std(),
        "input_scale": lambda: np.sqrt(np.mean(field[field != 0] ** 2)),
        "output_scale": lambda: np.sqrt(np.mean(velocity**2)),
    }
    named = [buffer for buffer in numpy if buffer in expected]
    assert len(named) == 2
    for buffer in named:
        assert float(expected[buffer]) == np.float32(numpy[buffer]())
    for split in ("val", "test"):
        assert all(map(torch.equal, held.tensors(split), read.tensors(split)))  # type: ignore[arg-type]


def test_size_decides_where_nothing_is_said(tmp_path: Path, monkeypatch: Any) -> None:
    """48 of 60 samples of 64 cells and 144 edges, 4 bytes each."""
    needed = 48 * (64 + 144) * 4
    for bound, in_memory in ((needed, True), (needed - 1, False)):
        monkeypatch.setattr(flows, "IN_MEMORY", bound)
        assert opened(tmp_path, "pde_perm").in_memory is in_memory
        assert opened(tmp_path, "pde_perm", sampling="full").in_memory
        assert opened(tmp_path, "pde_perm", in_memory=True).in_memory
    with pytest.raises(ValueError, match="in_memory = False reads minibatches"):
        opened(tmp_path, "pde_perm", sampling="full", in_memory=False)
