"""The noise of :class:`~lightning_sgmcmc.noise.philox.Philox` on a GPU; imports Triton.

One launch serves all weights of all chains.
"""

from __future__ import annotations

import math

import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from lightning_sgmcmc.kernels.polynomials import SINE
from lightning_sgmcmc.kernels.triton_compiler import BLOCK, device_of, jit

_MATCHED = tl.constexpr(math.sqrt(3 / (128**2 - 1)))
_UNIT, _LEAST, _TURN = tl.constexpr(2.0**-32), tl.constexpr(2.0**-33), tl.constexpr(2.0**-31)
_S_0, _S_1, _S_2, _S_3, _S_4 = map(tl.constexpr, SINE)
_WORD = tl.constexpr(2**32 - 1)
_PURPOSE = tl.constexpr(2 << 24)  # moment-matched increments, see noise/philox.py


@jit()
def _sine(s):  # type: ignore[no-untyped-def]
    """Return sin(pi s) for s in [-1/2, 1/2]; the library's sine keeps memory for large angles."""
    y = s * s
    return s * (_S_0 + y * (_S_1 + y * (_S_2 + y * (_S_3 + y * _S_4))))


@jit()
def _pair(length, turn):  # type: ignore[no-untyped-def]
    """Return the two normals of two words."""
    u = length.to(tl.float32) * _UNIT + _LEAST
    s = turn.to(tl.int32, bitcast=True).to(tl.float32) * _TURN  # half turns, in [-1, 1]
    radius, size = tl.sqrt(-2.0 * tl.log(u)), tl.abs(s)
    sine = _sine(0.5 - tl.abs(size - 0.5))
    return radius * _sine(0.5 - size), radius * tl.where(s < 0, -sine, sine)


@jit()
def _odd(word, shift: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the increment of a byte of a word: sqrt(3 / (128^2 - 1)) times an odd integer."""
    byte = (word >> shift).to(tl.int8) | 1
    return byte.to(tl.float32) * _MATCHED


@jit()
def increments(first, key, draw, COUNT: tl.constexpr, MATCHED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the noise of a chain's weights ``first, ..., first + COUNT - 1``.

    Args:
        first: int64, a multiple of 4.
        key: The chain's, int64.
        draw: Number of the draw.
        COUNT: A power of 2, at least 4.
        MATCHED: Whether it is moment-matched, not normal.
    """
    four = first // 4 + tl.arange(0, COUNT // 4)  # numbers of four weights each
    block = four // 4 if MATCHED else four
    low, high = (block & _WORD).to(tl.uint32), (block >> 32).to(tl.uint32)
    if MATCHED:
        high = high | _PURPOSE
    none = tl.zeros_like(low)
    draw = draw.to(tl.int64)
    c, d = none + (draw & _WORD).to(tl.uint32), none + (draw >> 32).to(tl.uint32)
    a, b, c, d = tl.philox(key, low, high, c, d)
    if MATCHED:
        lane = four % 4
        word = tl.where(lane < 2, tl.where(lane == 0, a, b), tl.where(lane == 2, c, d))
        z_0, z_1, z_2, z_3 = _odd(word, 0), _odd(word, 8), _odd(word, 16), _odd(word, 24)
    else:
        z_0, z_1 = _pair(a, b)
        z_2, z_3 = _pair(c, d)
    return tl.interleave(tl.interleave(z_0, z_2), tl.interleave(z_1, z_3))


@jit("draw")
def _fill(out, keys, width, draw, MATCHED: tl.constexpr, COUNT: tl.constexpr):  # type: ignore[no-untyped-def]
    first = tl.program_id(0).to(tl.int64) * COUNT
    row = tl.program_id(1).to(tl.int64)
    z = increments(first, tl.load(keys + row), draw, COUNT, MATCHED)
    at = first + tl.arange(0, COUNT)
    tl.store(out + row * width + at, z, mask=at < width)


def fill(out: Tensor, keys: Tensor, draw: int, matched: bool) -> None:
    """Fill with the noise of a draw.

    Args:
        out: float32 [rows, width], contiguous.
        keys: Of the rows, int64.
        draw: Number of the draw.
        matched: Whether the noise is moment-matched, not normal.
    """
    rows, width = out.shape
    with device_of(out):
        _fill[(-(-width // BLOCK), rows)](out, keys, width, draw, matched, BLOCK)
