"""Minibatches are a function of (seed, step), and of the law that their name says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from lightning_sgmcmc import BatchStream

CPU = torch.device("cpu")


def stream(sampling: str, n: int = 6, N: int = 25, seed: int = 0, **where: int) -> BatchStream:
    batches = BatchStream([torch.arange(N), torch.arange(N) * 10.0], n, sampling)
    batches.bind(CPU, seed, **where)
    return batches


@pytest.mark.parametrize("sampling", ["independent", "reshuffled", "full"])
def test_is_a_function_of_seed_and_step(sampling: str) -> None:
    forwards, backwards = stream(sampling), stream(sampling)
    steps = list(range(20))
    seen = {step: forwards.indices(step).clone() for step in steps}
    for step in reversed(steps):
        assert torch.equal(backwards.indices(step), seen[step])
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    assert torch.equal(stream(sampling).indices(7), seen[7])


@pytest.mark.parametrize("sampling", ["independent", "reshuffled"])
def test_seeds_chains_and_steps_differ(sampling: str) -> None:
    picks = [
        tuple(stream(sampling, 20, 1000, seed, chain=chain).indices(step).tolist())
        for seed, chain, step in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 50))
    ]
    assert len(set(picks)) == len(picks)


@pytest.mark.parametrize("sampling", ["independent", "reshuffled"])
@pytest.mark.parametrize("world", [2, 3])
def test_shares_of_ranks_join_to_the_global_batch(sampling: str, world: int) -> None:
    whole = stream(sampling)
    shares = [stream(sampling, rank=rank, world_size=world) for rank in range(world)]
    for step in (0, 3, 4, 11):
        joined = torch.cat([share.indices(step) for share in shares])
        assert torch.equal(joined, whole.indices(step))
        assert torch.equal(torch.cat([s.at(step)[1] for s in shares]), whole.at(step)[1])


def test_reshuffled_covers_each_example_once_an_epoch() -> None:
    batches = stream("reshuffled", 6, 24)
    orders = []
    for epoch in range(3):
        order = torch.cat([batches.indices(epoch * len(batches) + i) for i in batches])
        assert sorted(order.tolist()) == list(range(24))
        orders.append(tuple(order.tolist()))
    assert len(set(orders)) == 3


def test_reshuffled_leaves_out_the_rest_of_a_pass() -> None:
    batches = stream("reshuffled", 6, 25)
    assert len(batches) == 4
    order = torch.cat([batches.indices(i) for i in batches])
    assert len(set(order.tolist())) == 24


def test_independent_draws_with_replacement() -> None:
    """How often an example occurs in a batch is Binomial(n, 1/N): chi-square, 1e-6."""
    n, N, steps = 8, 5, 4000
    batches = stream("independent", 8, 9)
    batches.num_data = N
    counts = np.zeros(n + 1)
    for step in range(steps):
        counts[(batches.indices(step) == 2).sum()] += 1
    expected = stats.binom.pmf(np.arange(n + 1), n, 1 / N) * steps
    folded = slice(0, 5)
    found = np.append(counts[folded], counts[5:].sum())
    assert stats.chisquare(found, np.append(expected[folded], expected[5:].sum())).pvalue > 1e-6


def test_full_is_the_data() -> None:
    batches = stream("full", 3)
    assert batches.batch_size == 25
    assert len(batches) == 100  # steps that count as an epoch
    assert torch.equal(batches.at(17)[1], torch.arange(25) * 10.0)


def test_rows_belong_together() -> None:
    x, y = stream("independent").at(3)
    assert torch.equal(x * 10.0, y)


@pytest.mark.parametrize("kind", ["independent", "reshuffled", "full"])
def test_auto_is_what_the_sampler_asks_for(kind: str) -> None:
    batches = BatchStream([torch.arange(9)], 3)
    batches.bind(CPU, 0, kind=kind)
    assert batches.sampling == kind


def test_errors() -> None:
    with pytest.raises(ValueError, match=r"same first dimension, got \[2, 3\]"):
        BatchStream([torch.zeros(2), torch.zeros(3)], 1)
    with pytest.raises(ValueError, match="sampling must be"):
        BatchStream([torch.zeros(2)], 1, "shuffled")
    for size in (0, 3):
        with pytest.raises(ValueError, match=f"the 2 examples, got {size}"):
            BatchStream([torch.zeros(2)], size)
    with pytest.raises(ValueError, match="6 does not divide among 4 processes"):
        stream("independent", world_size=4)
    for sampling in ("auto", "full"):  # a share of 4 would leave the last example out
        with pytest.raises(ValueError, match="9 does not divide among 2 processes"):
            BatchStream([torch.arange(9)], 2, sampling).bind(CPU, 0, world_size=2, kind="full")


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("chains", [None, 4])
def test_shares_of_the_whole_data_join_to_it(world: int, chains: int | None) -> None:
    shares = []
    for rank in range(world):
        own = stream("reshuffled", rank=rank, world_size=world, num_chains=chains)
        parts = list(own.whole())
        assert len(parts) <= own.batches_a_pass == 5
        assert all(part[0].shape[-1] <= 6 // world for part in parts)
        shares += [part[1] for part in parts]
    joined = torch.cat(shares, dim=-1)
    assert torch.equal(joined, (torch.arange(25) * 10.0).expand_as(joined))
    assert joined.shape == ((25,) if chains is None else (4, 25))


def test_whole_data_that_do_not_divide_leave_no_batch_size_to_choose() -> None:
    stream = BatchStream((torch.zeros(103, 2),), 103, "full")
    with pytest.raises(ValueError, match="103 does not divide among 2 processes: drop rows, or"):
        stream.bind(torch.device("cpu"), 0, world_size=2)
