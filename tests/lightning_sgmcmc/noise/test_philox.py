"""Philox against Random123's known answers, a scalar implementation and its own convention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_sgmcmc import SGLD, kernels
from lightning_sgmcmc.chain.split import state_of, together
from lightning_sgmcmc.kernels import Backend
from lightning_sgmcmc.noise import NoiseStream
from lightning_sgmcmc.noise.philox import LOWER, MATCHED, NORMAL, UNIFORM, Philox, philox4x32
from tests.device import DEVICE

# Random123's `kat_vectors`, philox4x32 with 10 rounds: counter, key, answer.
KNOWN = (
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
)  # fmt: skip
WORD = st.integers(0, 2**32 - 1)


def words(text: str) -> tuple[int, ...]:
    return tuple(int(word, 16) for word in text.split())


def reference(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    """Philox4x32-10 in Python's integers, as section 3.3 of the paper draws it."""
    left_0, right_0, left_1, right_1 = counter[1], counter[0], counter[3], counter[2]
    for number in range(10):
        k_0 = (key[0] + number * 0x9E3779B9) % 2**32
        k_1 = (key[1] + number * 0xBB67AE85) % 2**32
        high_0, low_0 = divmod(0xD2511F53 * right_0, 2**32)
        high_1, low_1 = divmod(0xCD9E8D57 * right_1, 2**32)
        right_0, right_1 = high_1 ^ left_0 ^ k_0, high_0 ^ left_1 ^ k_1
        left_0, left_1 = low_1, low_0
    return right_0, left_0, right_1, left_1


def place(seed: int, chain: int) -> tuple[int, ...]:
    """The key of a chain."""
    state = np.random.SeedSequence(seed, spawn_key=(chain,)).generate_state(2, np.uint32)
    return tuple(int(word) for word in state)


def source(backend: Backend, rows: int = 1, numel: int = 50) -> Philox:
    sequences = [np.random.SeedSequence(3, spawn_key=(chain,)) for chain in range(rows)]
    device = DEVICE if backend == "torch" else torch.device("cpu")
    return Philox(sequences, numel, device, backend)


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_known_answers(counter: str, key: str, answer: str) -> None:
    as_tensors = [tuple(torch.tensor([w]) for w in words(text)) for text in (counter, key)]
    assert reference(words(counter), words(key)) == words(answer)
    assert tuple(int(w) for w in philox4x32(*as_tensors)) == words(answer)  # type: ignore[arg-type]


@given(st.tuples(WORD, WORD, WORD, WORD), st.tuples(WORD, WORD))
@settings(max_examples=50, deadline=None)
def test_it_is_the_scalar_implementation(counter: tuple[int, ...], key: tuple[int, ...]) -> None:
    found = philox4x32(
        tuple(torch.tensor(w) for w in counter),  # type: ignore[arg-type]
        tuple(torch.tensor(w) for w in key),  # type: ignore[arg-type]
    )
    assert tuple(int(w) for w in found) == reference(counter, key)


@pytest.mark.parametrize("draw", [0, 7, 2**32 - 1, 2**32, 3 * 2**40 + 5])
@pytest.mark.parametrize("purpose", [NORMAL, LOWER, MATCHED, UNIFORM])
def test_a_word_is_that_of_its_place(purpose: int, draw: int) -> None:
    """(block, purpose, draw) make the counter, also beyond 2^32 blocks; (seed, chain) the key."""
    generator = source("torch", rows=3)
    for first in (0, 5, 2**32 - 1, 2**33):
        found = generator.words(purpose, draw, first, 2).tolist()
        for chain in range(3):
            for i in range(2):
                block = first + i
                high = block // 2**32 + purpose * 2**24
                counter = (block % 2**32, high, draw % 2**32, draw // 2**32)
                assert tuple(found[chain][i]) == reference(counter, place(3, chain))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("backend", ["torch", "numba"])
def test_normals_are_made_of_their_words(
    backend: Backend, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weight w of the concatenated tensors takes lane w % 4 of block w // 4, by Box-Muller."""
    if backend == "numba":
        pytest.importorskip("numba", reason="numba is in the extra fast")
        if dtype != torch.float32 or DEVICE.type != "cpu":
            pytest.skip("compiled loops are for float32 on a CPU")
    monkeypatch.setattr(kernels, "chosen", lambda *_: backend)
    like = [torch.empty(2, 3, dtype=dtype), torch.empty(4, dtype=dtype)]
    stream = NoiseStream(like, 8, 2, generator="philox")
    stream.uniform()
    z = torch.cat([t.flatten() for t in stream.normal()]).double().numpy()
    wide = dtype == torch.float64
    for weight in range(10):
        block, lane = divmod(weight, 4)
        upper = reference((block, 0, 1, 0), place(8, 2))
        lower = reference((block, LOWER << 24, 1, 0), place(8, 2)) if wide else (2**31,) * 4
        pair = 2 * (lane // 2)
        u = (upper[pair] + (lower[pair] + 0.5) / 2**32) / 2**32
        angle = 2 * math.pi * (upper[pair + 1] + lower[pair + 1] / 2**32 * wide) / 2**32
        exact = math.sqrt(-2 * math.log(u)) * (math.sin(angle) if lane % 2 else math.cos(angle))
        assert z[weight] == pytest.approx(exact, rel=0, abs=1e-14 if wide else 1e-6)


def test_matched_increments_are_the_bytes_of_their_words() -> None:
    """Weight w takes byte w % 16 of block w // 16, with its lowest bit set."""
    found = source("torch").draw_bytes()[0]
    for weight in range(50):
        block, byte = divmod(weight, 16)
        word = reference((block, MATCHED << 24, 0, 0), place(3, 0))[byte // 4]
        assert int(found[weight]) % 256 == (word >> 8 * (byte % 4)) % 256


def test_the_loops_make_the_same_bits() -> None:
    """Words and bytes to the bit; normals to float32's rounding, over several pieces of a row."""
    pytest.importorskip("numba", reason="numba is in the extra fast")
    loops, torchs = (source(backend, 2, 70_001) for backend in ("numba", "torch"))
    for draw in (0, 2**32 + 3):
        loops.count = torchs.count = draw
        assert torch.equal(loops.draw_bytes()[:, :70_001], torchs.draw_bytes()[:, :70_001])
        out = [torch.empty(2, loops.width) for _ in range(2)]
        loops.normal_(out[0])
        torchs.normal_(out[1])
        torch.testing.assert_close(*out, rtol=0, atol=2e-6)
    assert loops.count == torchs.count == draw + 2


def test_the_loops_count_beyond_2_32_blocks() -> None:
    """Two blocks, the second of which carries into the counter's second word."""
    pytest.importorskip("numba", reason="numba is in the extra fast")
    from lightning_sgmcmc.kernels.philox import _normals_loop, _words_loop

    first, draw, torchs = 2**32 - 1, 2**32 + 7, source("torch")
    key = place(3, 0)

    def made(loop: Any, dtype: Any, purpose: int) -> torch.Tensor:
        out = np.empty(8, dtype)
        loop(out, *np.array([first, purpose << 24, draw % 2**32, draw >> 32, *key], np.uint64))
        return torch.from_numpy(out)

    words = made(_words_loop, np.int32, MATCHED).long() % 2**32
    assert torch.equal(words, torchs.words(MATCHED, draw, first, 2).flatten())
    exact = torchs._normals(draw, first, 2, torch.float64)[0].float()
    torch.testing.assert_close(made(_normals_loop, np.float32, NORMAL), exact, rtol=0, atol=2e-6)


def test_float64_and_float32_agree() -> None:
    """A chain in either type sees the same noise, to float32's rounding."""
    double, single = (
        NoiseStream([torch.empty(1001, dtype=t)], 4, generator="philox").normal()[0]
        for t in (torch.float64, torch.float32)
    )
    torch.testing.assert_close(double, single.double(), rtol=0, atol=1e-6)
    assert not torch.equal(double, single.double())


def test_the_state_is_a_key_and_a_count() -> None:
    """Chains of one computation part and meet again; with unequal counts they cannot meet."""
    like = [torch.empty(2, 3)]
    stream = NoiseStream(like, 5, num_chains=2, generator="philox")
    for _ in range(3):
        stream.normal()
    state = stream.state_dict()
    assert state["philox"][:, 1].tolist() == [3, 3]
    parts = [state_of(state, chain, 2) for chain in range(2)]
    expected = stream.normal()[0].clone()
    for chain, part in enumerate(parts):
        alone = NoiseStream([torch.empty(3)], 0, generator="philox")
        alone.load_state_dict(part)
        assert torch.equal(alone.normal()[0], expected[chain])
    again = NoiseStream(like, 0, num_chains=2, generator="philox")
    again.load_state_dict(together(parts))
    assert torch.equal(again.normal()[0], expected)
    parts[1]["philox"][:, 1] += 1
    with pytest.raises(ValueError, match=r"drawn \[3, 4\] vectors of noise"):
        again.load_state_dict(together(parts))


def test_a_sampler_takes_the_generator_by_name() -> None:
    theta = torch.zeros(5, requires_grad=True)
    sampler = SGLD([theta], 0.5, num_data=1, seed=2, noise="philox")
    theta.grad = torch.zeros(5)
    sampler.step()
    expected = NoiseStream([torch.empty(5)], 2, generator="philox").normal()[0]
    torch.testing.assert_close(theta.detach(), expected)
    assert SGLD([theta], 0.5).stream.generator == ("sfc64" if DEVICE.type == "cpu" else "philox")
    with pytest.raises(ValueError, match="noise must be sfc64 or philox, got 'threefry'"):
        SGLD([theta], 0.5, noise="threefry")  # type: ignore[typeddict-item]
