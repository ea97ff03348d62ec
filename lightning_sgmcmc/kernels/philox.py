"""The words and normals of :class:`~lightning_sgmcmc.noise.philox.Philox`, on the CPU.

A block's words are kept in 64 bits each, so that the compiler multiplies them as vectors.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from lightning_sgmcmc.kernels.compiler import (
    at,
    entry,
    floats,
    inline,
    int32s,
    int64s,
    loop,
    numbers,
    share,
    task,
)
from lightning_sgmcmc.kernels.normals import log, sine
from lightning_sgmcmc.kernels.threads import Column, run

_MASK, _32 = np.uint64(2**32 - 1), np.uint64(32)
_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_HALF, _MINUS_TWO = np.float32(0.5), np.float32(-2)
_UNIT, _LEAST, _TURN = np.float32(2.0**-32), np.float32(2.0**-33), np.float32(2.0**-31)
_BYTES = 16  # of a block


@inline
def _block(k, m, a, b, c, d):  # type: ignore[no-untyped-def]
    """Return the words of a counter (a, b, c, d) with the key (k, m)."""
    for _ in range(10):
        first, second = a * _M0, c * _M1
        a, c = (second >> _32) ^ b ^ k, (first >> _32) ^ d ^ m
        b, d = second & _MASK, first & _MASK
        k, m = (k + _W0) & _MASK, (m + _W1) & _MASK
    return a, b, c, d


@inline
def _pair(length, turn):  # type: ignore[no-untyped-def]
    """Return the two normals of two words."""
    u = np.float32(np.uint32(length)) * _UNIT + _LEAST
    radius = math.sqrt(_MINUS_TWO * log(u))
    s = np.float32(np.int32(turn)) * _TURN  # half turns, in [-1, 1]
    size = abs(s)
    return radius * sine(_HALF - size), radius * sine(math.copysign(_HALF - abs(size - _HALF), s))


@loop
def _normals_loop(out, first, purpose, low, high, k, m):  # type: ignore[no-untyped-def]
    for i in range(len(out) // 4):
        n = first + np.uint64(i)
        a, b, c, d = _block(k, m, n & _MASK, (n >> _32) | purpose, low, high)
        out[4 * i], out[4 * i + 1] = _pair(a, b)
        out[4 * i + 2], out[4 * i + 3] = _pair(c, d)


@loop
def _words_loop(out, first, purpose, low, high, k, m):  # type: ignore[no-untyped-def]
    for i in range(len(out) // 4):
        n = first + np.uint64(i)
        a, b, c, d = _block(k, m, n & _MASK, (n >> _32) | purpose, low, high)
        out[4 * i], out[4 * i + 1] = np.int32(a), np.int32(b)
        out[4 * i + 2], out[4 * i + 3] = np.int32(c), np.int32(d)


@entry
def _philox(data):  # type: ignore[no-untyped-def]
    shared = numbers(data)
    low, high, purpose = np.uint64(shared[0]), np.uint64(shared[1]), np.uint64(shared[2])
    first, last = share(data)
    for number in range(first, last):
        w = task(data, number)
        n, block, key = 4 * w[0], np.uint64(w[4] // _BYTES), np.uint64(int64s(at(data, w, 1), 1)[0])
        k, m = key & _MASK, key >> _32
        if shared[3] != 0:
            _normals_loop(floats(at(data, w, 0), n), block, purpose, low, high, k, m)
        else:
            _words_loop(int32s(at(data, w, 0), n), block, purpose, low, high, k, m)


def normals(out: Tensor, keys: Tensor, draw: int) -> None:
    """Fill with normals.

    Args:
        out: float32 [rows, 4 blocks], contiguous.
        keys: Of the rows, int64.
        draw: Number of the draw.
    """
    _run(out, keys, draw, 0, normal=True)


def words(keys: Tensor, purpose: int, draw: int, blocks: int) -> Tensor:
    """Return the words of the first blocks, int32 [rows, 4 blocks].

    Args:
        keys: Of the rows, int64.
        purpose: What for.
        draw: Number of the draw.
        blocks: How many of each row.
    """
    out = torch.empty(len(keys), 4 * blocks, dtype=torch.int32)
    _run(out, keys, draw, purpose, normal=False)
    return out


def _run(out: Tensor, keys: Tensor, draw: int, purpose: int, normal: bool) -> None:
    rows, width = out.shape
    if not width:
        return
    columns = (
        Column(tuple(out.data_ptr() + 4 * width * row for row in range(rows)), 4),
        # All numbers of a row share its key: a vector whose elements have the size 0.
        Column(tuple(keys.data_ptr() + 8 * row for row in range(rows)), 0),
    )
    shared = (draw % 2**32, draw // 2**32, purpose * 2**24, float(normal))
    run(_philox, (width // 4,) * rows, columns, shared, sizes=(4,) * rows)
