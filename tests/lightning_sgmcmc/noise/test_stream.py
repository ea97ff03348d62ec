"""The noise stream is standard normal, its own, and resumable.

Bounds of five standard errors: 6e-7 a statistic, about 25 statistics a generator.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from lightning_sgmcmc.noise import Generator, NoiseStream
from tests.device import DEVICE

GENERATORS: list[Generator] = ["sfc64", "philox"] if DEVICE.type == "cpu" else ["philox"]
generators = pytest.mark.parametrize("generator", GENERATORS)


def draws(
    dtype: torch.dtype, size: int, count: int, seed: int = 0, generator: Generator | None = None
) -> np.ndarray:
    stream = NoiseStream([torch.empty(size, dtype=dtype)], seed, generator=generator)
    return np.concatenate([stream.normal()[0].double().numpy().copy() for _ in range(count)])


@pytest.fixture(scope="module", params=GENERATORS)
def million(request: pytest.FixtureRequest) -> np.ndarray:
    return draws(torch.float32, 1_000_001, 8, generator=request.param)


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
    assert np.abs(million).max() < 6.8


def test_numbers_of_one_draw_are_independent(million: np.ndarray) -> None:
    """Box-Muller partners are neighbours (philox) or half a buffer apart (sfc64)."""
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
@generators
def test_every_size_and_type(generator: Generator, dtype: torch.dtype, size: int) -> None:
    count = 20_000 if generator == "sfc64" else 600  # small draws take philox longer
    z = draws(dtype, size, count // size + 1, generator=generator)
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


@generators
def test_chains_and_seeds_differ(generator: Generator) -> None:
    z = [
        NoiseStream([torch.empty(10_000)], seed, chain, generator=generator).normal()[0].numpy()
        for seed, chain in ((0, 0), (0, 1), (1, 0), (1, 1))
    ]
    for i in range(4):
        for j in range(i):
            assert abs(z[i] @ z[j]) / 100 < 5
    same = NoiseStream([torch.empty(10_000)], 1, 1, generator=generator).normal()[0].numpy()
    np.testing.assert_array_equal(z[3], same)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@generators
def test_state_continues_to_the_bit(generator: Generator, dtype: torch.dtype) -> None:
    like = [torch.empty(33, dtype=dtype), torch.empty(4, dtype=dtype)]
    stream = NoiseStream(like, 5, 2, generator=generator)
    stream.normal()
    float(stream.uniform())
    file = io.BytesIO()
    torch.save(stream.state_dict(), file)
    expected = [[t.clone() for t in stream.normal()], float(stream.uniform()), stream.normal()]
    file.seek(0)
    other = NoiseStream(like, 99, 7, generator=generator)
    other.load_state_dict(torch.load(file, weights_only=True))
    found = [[t.clone() for t in other.normal()], float(other.uniform()), other.normal()]
    assert found[1] == expected[1]
    for a, b in zip(_flat(expected), _flat(found), strict=True):
        assert torch.equal(a, b)


@generators
def test_uniform_is_uniform(generator: Generator) -> None:
    stream = NoiseStream([torch.empty(1)], 3, generator=generator)
    assert stats.kstest(stream.uniform(20_001).numpy(), "uniform").pvalue > 1e-6
    assert stats.kstest([float(stream.uniform()) for _ in range(300)], "uniform").pvalue > 1e-6


@generators
def test_one_generator_serves_all_chains_with_numbers_of_their_own(generator: Generator) -> None:
    like = [torch.empty(4, 3)]
    stream = NoiseStream(like, 3, 0, 4, one_generator=True, generator=generator)
    z, u = stream.normal()[0], stream.uniform(3)
    assert (z.shape, u.shape, stream.rows) == ((4, 3), (4, 3), 1)
    assert z.unique().numel() == u.unique().numel() == 12


def test_errors() -> None:
    with pytest.raises(ValueError, match="seed must not be negative, got -1"):
        NoiseStream([torch.empty(1)], -1)
    with pytest.raises(ValueError, match="one device and one floating-point type"):
        NoiseStream([torch.empty(1), torch.empty(1, dtype=torch.float64)], 0)
    with pytest.raises(ValueError, match="another kind of device"):
        NoiseStream([torch.empty(1)], 0).load_state_dict({"generator": torch.empty(0)})
    with pytest.raises(ValueError, match="noise must be sfc64 or philox, got 'mt19937'"):
        NoiseStream([torch.empty(1)], 0, generator="mt19937")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sfc64 is made on a CPU, not on meta: choose philox"):
        NoiseStream([torch.empty(1, device="meta")], 0, generator="sfc64")
    other = NoiseStream([torch.empty(1)], 0, generator="philox").state_dict()
    with pytest.raises(ValueError, match=r"generator philox.*set the sampler's noise='philox'"):
        NoiseStream([torch.empty(1)], 0).load_state_dict(other)


@pytest.mark.parametrize("increments", ["gaussian", "moment-matched"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@generators
def test_a_chain_draws_alone_what_it_draws_beside_others(
    generator: Generator, dtype: torch.dtype, increments: Any
) -> None:
    """Chain 5 as the third of four, the first of two, and alone; also after a resume."""
    shapes, found = [(3, 5), (7,), ()], []
    for first, count in ((3, 4), (5, 2), (5, None)):
        lead = () if count is None else (count,)
        like = [torch.empty((*lead, *shape), dtype=dtype) for shape in shapes]
        more: dict[str, Any] = {"increments": increments, "generator": generator}
        stream = NoiseStream(like, 9, first, count, **more)
        stream.increments()
        again = NoiseStream(like, 0, 0, count, **more)
        again.load_state_dict(stream.state_dict())
        row = () if count is None else (5 - first,)
        drawn = [t[row].clone() for t in stream.increments()]
        drawn.append(stream.uniform(3)[row])
        for a, b in zip(again.increments(), drawn, strict=False):
            assert torch.equal(a[row], b)
        found.append(drawn)
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert torch.equal(a, b)


@generators
def test_matched_increments_take_their_values_alike(generator: Generator) -> None:
    """Chi-square over the 128 values, and the variance 1 to five standard errors."""
    like = [torch.empty(100_003)]
    stream = NoiseStream(like, 2, increments="moment-matched", generator=generator)
    z = stream.increments()[0].double().numpy()
    values, counts = np.unique(z, return_counts=True)
    assert len(values) == 128
    assert stats.chisquare(counts).pvalue > 1e-6
    kurtosis = 1.8 - 1.2 / 128**2  # about: of a uniform number
    assert abs((z**2).mean() - 1) < 5 * np.sqrt((kurtosis - 1) / len(z))


def _flat(parts: list) -> list[Tensor]:
    return [*parts[0], *parts[2]]


@pytest.mark.parametrize("increments", ["gaussian", "moment-matched"])
@generators
def test_adding_increments_is_adding_what_is_drawn(generator: Generator, increments: Any) -> None:
    like = [torch.zeros(3, 4), torch.zeros(5)]
    more: dict[str, Any] = {"increments": increments, "generator": generator}
    drawn = NoiseStream(like, 1, **more).increments()
    NoiseStream(like, 1, **more).add_increments_(like, 0.25)
    for found, z in zip(like, drawn, strict=True):
        torch.testing.assert_close(found, 0.25 * z)
