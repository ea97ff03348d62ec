"""The tables of many processes and of very many chains, and the bytes that they are made from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from lightning_sgmcmc.samplers import Stacked
from scripts.bench.at_scale import SAMPLERS
from tasks.experiments import scale

RECORDS = Path(__file__).resolve().parents[2] / "docs" / "records"
SIZE, CHAINS = 1000, 3


def state_bytes(name: str) -> float:
    """Return the bytes a weight of a sampler's state after a step, beside the noise's."""
    torch.manual_seed(0)
    weights = torch.nn.Parameter(torch.randn(CHAINS, SIZE))
    sampler = SAMPLERS[name](Stacked([("w", weights)]))
    sampler.num_data = 10

    def closure() -> Tensor:
        sampler.zero_grad()
        loss = weights.square().mean(-1)
        loss.sum().backward()
        return loss

    sampler.step(closure)
    leaves = [leaf for leaf in tree_leaves(sampler.state_dict()) if isinstance(leaf, Tensor)]
    sizes = [leaf.nbytes for leaf in leaves if leaf.numel() == CHAINS * SIZE]
    return sum(sizes) / (CHAINS * SIZE)


@pytest.mark.parametrize(
    ("name", "vectors"), [("SGLD", 0), ("PSGLD", 1), ("SGHMC", 1), ("SGHMC, RMSProp", 2)]
)
def test_a_checkpoint_holds_weights_a_samplers_state_and_the_directions(
    name: str, vectors: int
) -> None:
    """Of each kind of the five directions one is followed at least, in float32."""
    assert state_bytes(name) == 4 * vectors
    record = json.loads((RECORDS / "at_scale.json").read_text())[name]
    assert record["checkpoint"]["chain"] == pytest.approx(4 * (1 + vectors + 5), abs=0.01)
    assert record["checkpoint"]["process"] == pytest.approx(8 + 4, abs=0.01)  # mean, network
    assert record["draw"] == {"chain": 4.0, "process": 0.0}


def test_many_chains_by_hand() -> None:
    parts = {"chain": 20.0, "process": 8.0}
    own = {"memory": parts, "checkpoint": {"chain": 10.0, "process": 0.0}, "draw": parts}
    rows = dict(
        line.strip("| ").split(" | ") for line in scale.at_scale({"mine": own}).splitlines()[2:]
    )
    assert rows["memory of a GPU with 16 chains, GB"] == "32.8"  # 1e8 (16 * 20 + 8)
    assert rows["a checkpoint of all chains, TB"] == "1.02"  # 1024 * 1e8 * 10
    assert rows["read to continue, TB"] == "65.5"  # by each of 64 processes
    assert rows["memory: bytes a weight, a process"] == "8"
    assert "checkpoint: bytes a weight, a process" not in rows


def test_linear_scaling_is_one() -> None:
    one = [1.0, 2.0, 4.0]
    seconds = {
        "1": {"wall": one, "processor": one},
        "4": {"wall": [t / 4 for t in one], "processor": [2 * t for t in one]},
    }
    seconds["4 apart"] = {"wall": [t / 5 for t in one], "processor": one}
    rows = scale.scaling({"seconds": {"100": seconds}}).splitlines()[2:]
    assert rows == [
        "| 100 | 2000.0 | 4 | 0.50 (0.50, 0.50) | 1.00 (1.00, 1.00) | 0.80 (0.80, 0.80) |",
        "| 100 | 2000.0 | 4 apart | 1.00 (1.00, 1.00) | 1.25 (1.25, 1.25) |  |",
    ]
