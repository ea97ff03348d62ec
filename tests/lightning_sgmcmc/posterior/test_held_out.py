"""Which weights, minibatches and held-out predictions serve the diagnostics of every draw."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lightning_sgmcmc.posterior.held_out import PROBES, probed
from lightning_sgmcmc.posterior.probes import Probes, place_names, spread_evenly


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((200, 1), [(i, 0) for i in range(128)]),
        ((200, 10), [(i // 10, i % 10) for i in range(128)]),
        ((5, 3), [(i, j) for i in range(5) for j in range(3)]),
        ((40, 7320), [(i, 457 * j) for i in range(8) for j in range(16)]),
        ((3, 128), [(0, j) for j in range(128)]),
        ((2, 129), [(i, 8 * j) for i in range(2) for j in range(16)]),
    ],
)
def test_probes_spread_over_examples_and_outputs(
    shape: tuple[int, int], expected: list[tuple[int, int]]
) -> None:
    values = torch.arange(2 * shape[0] * shape[1]).reshape(2, *shape)
    assert probed(values).tolist() == [[int(chain[i, j]) for i, j in expected] for chain in values]
    fields = values.reshape(2, shape[0], *((60, 122) if shape[1] == 7320 else (shape[1],)))
    assert torch.equal(probed(fields), probed(values))
    assert probed(values).shape[1] <= PROBES


def test_weights_are_spread_evenly_over_the_tensors() -> None:
    weights = {"a": torch.zeros(3), "b": torch.zeros(2, 2), "c": torch.zeros(1)}
    every = ["a[0]", "a[1]", "a[2]", "b[0]", "b[1]", "b[2]", "b[3]", "c[0]"]
    assert place_names(spread_evenly(weights, 8)) == every
    assert place_names(spread_evenly({"a": torch.zeros(50), "b": torch.zeros(51)}, 5)) == [
        "a[0]", "a[25]", "b[0]", "b[25]", "b[50]",
    ]  # fmt: skip


class Numbers:
    """A chain and its stream, whose minibatches are the numbers of their steps."""

    def __init__(self, sampling: str, epoch: int, thinning: int, steps: int) -> None:
        self.sampling, self.epoch, self.steps = sampling, epoch, steps
        self.spare, self.draws = self, SimpleNamespace(thinning=thinning)

    def __len__(self) -> int:
        return self.epoch

    def at(self, step: int) -> int:
        return step


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        (Numbers("independent", 50, 12, 30), [30, 31, 32]),  # a quarter of the steps between draws
        (Numbers("independent", 50, 1, 30), [30]),
        (Numbers("independent", 5, 100, 30), [*range(30, 38)]),
        (Numbers("reshuffled", 50, 12, 60), [110, 111, 112]),  # of the next epoch
        (Numbers("reshuffled", 5, 100, 12), [*range(15, 20)]),  # all the data
        (Numbers("reshuffled", 5, 100, 15), [*range(15, 20)]),
        (Numbers("full", 100, 100, 12), [12]),
    ],
)
def test_forces_are_of_minibatches_that_have_not_moved_the_chain(
    chain: Any, expected: list[int]
) -> None:
    probes = Probes.__new__(Probes)
    assert probes._unseen(chain) == expected
