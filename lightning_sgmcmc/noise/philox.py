"""Philox4x32-10, a generator without a state: its numbers are a function of their place."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lightning_sgmcmc.kernels import Backend
from lightning_sgmcmc.noise.source import Source

#: A word of 32 bits, or a tensor of them in int64.
Word = Tensor | int

_MASK = 2**32 - 1
_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)

#: What the words of a block are for: the highest byte of the counter's second word. Words of the
#: second kind are the lower bits of float64 normals, whose upper bits are those of float32.
NORMAL, LOWER, MATCHED, UNIFORM = range(4)

# Blocks of words that torch makes at a time on a CPU: their vectors fit into its cache.
_CHUNK = 2**14


def philox4x32(
    counter: tuple[Word, Word, Word, Word], key: tuple[Word, Word]
) -> tuple[Word, Word, Word, Word]:
    """Return the four words that Philox4x32-10 makes of a counter and a key.

    Ten times, with (h, l) the upper and lower 32 bits of a product,

        (h0, l0) = M0 c0,   (h1, l1) = M1 c2,   c <- (h1 ^ c1 ^ k0, l1, h0 ^ c3 ^ k1, l0),
        k <- k + W mod 2^32

    (Salmon, Moraes, Dror and Shaw 2011, section 3.3; the Random123 library).

    Args:
        counter: Four words in [0, 2^32), numbers or int64 tensors that broadcast.
        key: Two words alike.
    """
    a, b, c, d = counter
    k, m = key
    for _ in range(_ROUNDS):
        # A product above 2^63 wraps, which leaves its bits what they are.
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, c = (second >> 32) & _MASK ^ b ^ k, (first >> 32) & _MASK ^ d ^ m
        b, d = second & _MASK, first & _MASK
        k, m = (k + _WEYL[0]) & _MASK, (m + _WEYL[1]) & _MASK
    return a, b, c, d


class Philox(Source):
    """Numbers that are a function of (seed, chain, draw, weight) alone.

    The key of a chain is the 64 bits ``SeedSequence(seed, spawn_key=(chain,)).generate_state(2)``.
    The counter's words are those of the block's number, with its purpose in the highest byte, and
    those of the draw's number, which counts the vectors of noise so far. Weight w of a chain, in
    the order of its concatenated tensors, takes lane w % 4 of block w // 4; words (0, 1) give the
    normals of lanes 0 and 1, words (2, 3) those of lanes 2 and 3, by the Box-Muller map

        z1 = sqrt(-2 log u) cos(pi s),   z2 = sqrt(-2 log u) sin(pi s)

    with u = (word + 1/2) / 2^32, which reaches 6.7 standard deviations, and s = word / 2^31 of the
    second word as a signed integer. float64 numbers take as many lower bits from another block, so
    that they agree with float32's to its rounding. Moment-matched increments take byte w % 16 of
    block w // 16, uniform ones 53 bits of two words.

    So all chains are made at once, one chain's numbers do not depend on the others, and all that a
    chain needs to go on is the count of its draws. The torch operations here, the loops of
    :mod:`lightning_sgmcmc.kernels.philox` and the kernel of
    :mod:`lightning_sgmcmc.kernels.triton_noise` agree in all bits of the words, and in the normals
    to float32's rounding.

    Args:
        sequences: The seed of each row.
        numel: Weights of a chain.
        device: Where the numbers are made.
        backend: What makes them.
    """

    def __init__(
        self,
        sequences: Sequence[np.random.SeedSequence],
        numel: int,
        device: torch.device,
        backend: Backend,
    ) -> None:
        self._device, self._backend = device, backend
        self._blocks = (numel + 3) // 4
        self.width = 4 * self._blocks
        #: The number of the next draw.
        self.count = 0
        states = np.stack([s.generate_state(2, np.uint32) for s in sequences])
        self._set_keys(torch.from_numpy(states.view(np.int64)[:, 0].copy()))

    def _set_keys(self, keys: Tensor) -> None:
        #: The 64 bits of each row's key, the first word in the lower ones, int64 [rows].
        self.keys = keys.to(self._device)
        self._key = (self.keys[:, None] & _MASK, (self.keys[:, None] >> 32) & _MASK)

    def take(self) -> int:
        """Return the number of the next draw, which then counts as drawn."""
        self.count += 1
        return self.count - 1

    def words(self, purpose: int, draw: int, first: int, count: int) -> Tensor:
        """Return the words of some blocks, int64 [rows, count, 4] in [0, 2^32).

        Args:
            purpose: What for.
            draw: Number of the draw.
            first: Number of the first block.
            count: How many.
        """
        block = torch.arange(first, first + count, device=self._device)
        high = (block >> 32) | (purpose << 24)
        counter = (block & _MASK, high, draw & _MASK, draw >> 32)
        words = philox4x32(counter, self._key)
        return torch.stack([torch.as_tensor(word) for word in words], dim=-1)

    def normal_(self, out: Tensor) -> None:
        """Fill [rows, width] with draws from N(0, 1)."""
        draw = self.take()
        if self._backend == "triton":
            from lightning_sgmcmc.kernels.triton_noise import fill

            fill(out, self.keys, draw, matched=False)
        elif self._backend == "numba":
            from lightning_sgmcmc.kernels.philox import normals

            normals(out, self.keys, draw)
        else:
            step = _CHUNK if self._device.type == "cpu" else max(1, self._blocks)
            for first in range(0, self._blocks, step):
                part = out[:, 4 * first : 4 * (first + step)]
                part.copy_(self._normals(draw, first, part.shape[1] // 4, out.dtype))

    def _normals(self, draw: int, first: int, blocks: int, dtype: torch.dtype) -> Tensor:
        """Return normals of some blocks, [rows, 4 blocks] in float64, or in float32 otherwise."""
        words = self.words(NORMAL, draw, first, blocks)
        wide = dtype == torch.float64
        u = words[..., 0::2].to(torch.float64 if wide else torch.float32) * 2.0**-32
        s = _signed(words[..., 1::2]).to(u.dtype) * 2.0**-31
        if wide:
            lower = self.words(LOWER, draw, first, blocks).to(u.dtype)
            u += (lower[..., 0::2] + 0.5) * 2.0**-64
            s += lower[..., 1::2] * 2.0**-63
        else:
            u += 2.0**-33
        radius, angle = (-2 * torch.log(u)).sqrt_(), s * math.pi
        return torch.stack((radius * angle.cos(), radius * angle.sin()), dim=-1).flatten(1)

    def draw_bytes(self) -> Tensor:
        """Draw bytes, all equally likely: int8 [rows, at least width]."""
        draw, blocks = self.take(), (self.width + 15) // 16
        if self._backend == "numba":
            from lightning_sgmcmc.kernels.philox import words

            return words(self.keys, MATCHED, draw, blocks).view(torch.int8)
        drawn = _signed(self.words(MATCHED, draw, 0, blocks)).to(torch.int32)
        return drawn.flatten(1).view(torch.int8)

    def matched_(self, out: Tensor) -> None:
        """Fill [rows, width] with moment-matched increments."""
        if self._backend != "triton":
            super().matched_(out)
            return
        from lightning_sgmcmc.kernels.triton_noise import fill

        fill(out, self.keys, self.take(), matched=True)

    def uniform(self, shape: tuple[int, ...]) -> Tensor:
        """Draw from U[0, 1) in float64, [rows, *shape]."""
        count = math.prod(shape)
        words = self.words(UNIFORM, self.take(), 0, (count + 1) // 2).flatten(1)
        high, low = words[:, 0::2] >> 5, words[:, 1::2] >> 6
        numbers = (high * 2**26 + low).double() * 2.0**-53
        return numbers[:, :count].reshape(len(words), *shape)

    def state(self) -> Tensor:
        """Return each row's key and the count of draws, int64 [rows, 2]."""
        keys = self.keys.cpu()
        return torch.stack((keys, torch.full_like(keys, self.count)), dim=1)

    def load(self, state: Tensor) -> None:
        """Go on where the source that gave ``state`` stood.

        Raises:
            ValueError: If its chains have drawn unequal numbers of vectors.
        """
        counts = set(state[:, 1].tolist())
        if len(counts) != 1:
            raise ValueError(
                f"the chains have drawn {sorted(counts)} vectors of noise and cannot go on as one "
                "computation, which draws for all of them: continue them on as many processes as "
                "before"
            )
        self.count = counts.pop()
        self._set_keys(state[:, 0].clone())


def _signed(words: Tensor) -> Tensor:
    """Return 32-bit words as the signed integers of the same bits, in int64."""
    return words - ((words & 2**31) << 1)
