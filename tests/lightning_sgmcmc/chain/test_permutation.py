"""A permutation without a table is one, and is as random as a table's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lightning_sgmcmc import BatchStream
from lightning_sgmcmc.chain.permutation import Permutation

CPU = torch.device("cpu")


@given(st.integers(1, 3000), st.integers(0, 2**32))
def test_every_number_comes_once(size: int, seed: int) -> None:
    found = Permutation(size, np.random.default_rng(seed)).at(np.arange(size))
    assert sorted(found.tolist()) == list(range(size))


def test_an_entry_does_not_depend_on_the_others() -> None:
    permutation = Permutation(10**9, np.random.default_rng(0))
    places = np.random.default_rng(1).integers(0, 10**9, 500)
    together = permutation.at(places)
    assert together.tolist() == [int(permutation.at(places[i : i + 1])[0]) for i in range(500)]


@pytest.mark.parametrize("pair", [(0, 1), (5, 11)])
def test_pairs_of_entries_are_uniform(pair: tuple[int, int]) -> None:
    """(pi(i), pi(j)) over 4,000 keys: chi-square over the 132 pairs of 12 numbers, 1e-6."""
    generator = np.random.default_rng(sum(pair))
    counts = np.zeros((12, 12))
    for _ in range(4000):
        i, j = Permutation(12, generator).at(np.array(pair))
        counts[i, j] += 1
    assert not counts.diagonal().any()
    assert stats.chisquare(counts[~np.eye(12, dtype=bool)]).pvalue > 1e-6


@pytest.fixture
def no_tables(monkeypatch: Any) -> None:
    monkeypatch.setattr("lightning_sgmcmc.chain.batches.LARGEST_TABLE", 0)


def stream(N: int, n: int, **where: int) -> BatchStream:
    batches = BatchStream([torch.arange(N)], n, "reshuffled")
    batches.bind(CPU, 3, **where)
    return batches


def test_a_pass_holds_each_example_once(no_tables: None) -> None:
    """Over more batches than are drawn at once, in any order, for one rank and for three."""
    batches = stream(1000, 6)
    assert len(batches) == 166
    orders = []
    for epoch in range(3):
        steps = range(epoch * 166, epoch * 166 + 166)
        order = torch.cat([batches.indices(step) for step in steps])
        assert len(set(order.tolist())) == 996
        orders.append(tuple(order.tolist()))
        shares = [stream(1000, 6, rank=rank, world_size=3) for rank in range(3)]
        for step in reversed(steps):
            joined = torch.cat([share.indices(step) for share in shares])
            assert torch.equal(joined, batches.indices(step))
    assert len(set(orders)) == 3


def test_stacked_chains_have_what_each_has_alone(no_tables: None) -> None:
    together = stream(500, 4, num_chains=3)
    for step in (0, 63, 64, 124, 125):
        for k in range(3):
            alone = stream(500, 4, chain=k).indices(step)
            assert torch.equal(together.indices(step)[k], alone)
            assert k == 0 or not torch.equal(alone, together.indices(step)[0])


def test_a_batch_is_drawn_without_replacement(no_tables: None) -> None:
    """Of sorted classes, those in a batch of a pass: hypergeometric, chi-square, 1e-6."""
    N, n, inside = 300, 30, 90
    batches = stream(N, n)
    counts = np.zeros(n + 1)
    for epoch in range(1000):
        counts[int((batches.indices(epoch * len(batches) + 4) < inside).sum())] += 1
    expected = stats.hypergeom.pmf(np.arange(n + 1), N, inside, n) * counts.sum()
    ends = expected > 5
    folded = [np.append(c[ends], c[~ends].sum()) for c in (counts, expected)]
    assert stats.chisquare(*folded).pvalue > 1e-6


def test_a_billion_examples_need_no_table() -> None:
    """Of an expanded tensor, which takes no memory; a table would take 8 GB."""
    batches = BatchStream(torch.zeros(()).expand(10**9), 1000, "reshuffled")
    batches.bind(CPU, 0)
    chosen = torch.cat([batches.indices(step) for step in (0, 1, 10**6 - 1, 10**6)])
    assert chosen[:3000].unique().numel() == 3000
    assert 0.9e9 < int(chosen.max()) < 10**9
    assert batches._cached is not None
    assert batches._cached[1].numel() == 64_000
