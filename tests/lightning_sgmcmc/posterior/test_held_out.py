"""Which predictions of a held-out set every draw leaves for the diagnostics."""

from __future__ import annotations

import pytest
import torch

from lightning_sgmcmc.posterior.held_out import PROBES, probed


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
