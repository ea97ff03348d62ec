"""The noise stream is standard normal, its own, and resumable.

Bounds of five standard errors: 6e-7 a statistic, about 25 statistics.
"""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from lightning_sgmcmc.noise import NoiseStream


def draws(dtype: torch.dtype, size: int, count: int, seed: int = 0) -> np.ndarray:
    stream = NoiseStream([torch.empty(size, dtype=dtype)], seed)
    return np.concatenate([stream.normal()[0].double().numpy().copy() for _ in range(count)])


@pytest.fixture(scope="module")
def million() -> np.ndarray:
    return draws(torch.float32, 1_000_001, 8)


def test_moments_to_the_fourth(million: np.ndarray) -> None:
    n = len(million)
    for power, exact, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]:
        moment = (million**power).mean()
        assert abs(moment - exact) < 5 * np.sqrt(variance / n), f"moment {power} is {moment}"


def test_distribution_function(million: np.ndarray) -> None:
    assert stats.kstest(million[:1_000_001], "norm").pvalue > 1e-6


def test_tails(million: np.ndarray) -> None:
    """Counts beyond 4 and 5 standard deviations are Poisson; nothing is infinite."""
    assert np.isfinite(million).all()
    for bound in (4.0, 5.0):
        expected = 2 * stats.norm.sf(bound) * len(million)
        found = (np.abs(million) > bound).sum()
        assert stats.poisson.ppf(1e-6, expected) <= found <= stats.poisson.isf(1e-6, expected)
    assert np.abs(million).max() < 6.7


def test_numbers_of_one_draw_are_independent(million: np.ndarray) -> None:
    """Box-Muller partners stand half a buffer apart; neighbours share a word of bits."""
    size = 1_000_001
    half = (size + 1) // 2
    first = million[:size]
    for lag in (1, 2, half):
        x, y = first[:-lag], first[lag:]
        for a, b in ((x, y), (x**2 - 1, y**2 - 1), (x, y**2 - 1)):
            score = (a * b).sum() / np.sqrt((a**2).sum() * (b**2).mean())
            assert abs(score) < 5, f"lag {lag}: {score}"
    following = million[size : 2 * size]
    assert abs(first @ following) / np.sqrt(size) < 5


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_every_size_and_type(dtype: torch.dtype, size: int) -> None:
    z = draws(dtype, size, 20_000 // size + 1)
    assert abs(z.mean()) < 5 / np.sqrt(len(z))
    rounding = 0.01 if dtype == torch.bfloat16 else 0.0
    assert abs((z**2).mean() - 1) < 5 * np.sqrt(2 / len(z)) + rounding
    if dtype == torch.float64:
        assert stats.kstest(z, "norm").pvalue > 1e-6


def test_shapes_and_buffer() -> None:
    like = [torch.empty(3, 2), torch.empty(()), torch.empty(5)]
    stream = NoiseStream(like, 0)
    z = stream.normal()
    assert [t.shape for t in z] == [t.shape for t in like]
    kept = [t.clone() for t in z]
    z[0].mul_(100)
    again = stream.normal()
    assert not any(torch.equal(a, b) for a, b in zip(kept, again, strict=True))


def test_chains_and_seeds_differ() -> None:
    z = [
        NoiseStream([torch.empty(10_000)], seed, chain).normal()[0].numpy()
        for seed, chain in ((0, 0), (0, 1), (1, 0), (1, 1))
    ]
    for i in range(4):
        for j in range(i):
            assert abs(z[i] @ z[j]) / 100 < 5
    same = NoiseStream([torch.empty(10_000)], 1, 1).normal()[0].numpy()
    np.testing.assert_array_equal(z[3], same)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_state_continues_to_the_bit(dtype: torch.dtype) -> None:
    like = [torch.empty(33, dtype=dtype), torch.empty(4, dtype=dtype)]
    stream = NoiseStream(like, 5, 2)
    stream.normal()
    float(stream.uniform())
    file = io.BytesIO()
    torch.save(stream.state_dict(), file)
    expected = [[t.clone() for t in stream.normal()], float(stream.uniform()), stream.normal()]
    file.seek(0)
    other = NoiseStream(like, 99, 7)
    other.load_state_dict(torch.load(file, weights_only=True))
    found = [[t.clone() for t in other.normal()], float(other.uniform()), other.normal()]
    assert found[1] == expected[1]
    for a, b in zip(_flat(expected), _flat(found), strict=True):
        assert torch.equal(a, b)


def test_uniform_is_uniform() -> None:
    stream = NoiseStream([torch.empty(1)], 3)
    assert stats.kstest([float(stream.uniform()) for _ in range(20_000)], "uniform").pvalue > 1e-6


def test_errors() -> None:
    with pytest.raises(ValueError, match="seed must not be negative, got -1"):
        NoiseStream([torch.empty(1)], -1)
    with pytest.raises(ValueError, match="one device and one floating-point type"):
        NoiseStream([torch.empty(1), torch.empty(1, dtype=torch.float64)], 0)
    with pytest.raises(ValueError, match="another kind of device"):
        NoiseStream([torch.empty(1)], 0).load_state_dict({"generator": torch.empty(0)})


def _flat(parts: list) -> list[Tensor]:
    return [*parts[0], *parts[2]]


@pytest.mark.parametrize("increments", ["gaussian", "moment-matched"])
def test_adding_increments_is_adding_what_is_drawn(increments: str) -> None:
    like = [torch.zeros(3, 4), torch.zeros(5)]
    drawn = NoiseStream(like, 1, increments=increments).increments()
    NoiseStream(like, 1, increments=increments).add_increments_(like, 0.25)
    for found, z in zip(like, drawn, strict=True):
        torch.testing.assert_close(found, 0.25 * z)
