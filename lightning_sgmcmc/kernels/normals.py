"""Box and Muller's map from bits to normals, with polynomials that the compiler vectorises.

The logarithm and the sine of a scalar library are calls, which keep a loop from being one on
vectors. Here both are :mod:`~lightning_sgmcmc.kernels.polynomials`.
"""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from lightning_sgmcmc.kernels.compiler import (
    at,
    entry,
    floats,
    inline,
    int16s,
    int32s,
    loop,
    share,
    task,
)
from lightning_sgmcmc.kernels.polynomials import LOG, SINE
from lightning_sgmcmc.kernels.threads import Column, run

_L = tuple(np.float32(c) for c in LOG)
_S = tuple(np.float32(c) for c in SINE)
_HALF, _ONE = np.float32(0.5), np.float32(1)
# log 2 as a number of few bits, which its multiples by exponents keep, and the rest.
_LOG2_HIGH = np.float32(0.693145751953125)
_LOG2_LOW = np.float32(math.log(2) - 0.693145751953125)
_MANTISSA, _MANTISSA_BITS = 0x007FFFFF, 23
_ROOT_HALF = 0x3F3504F3  # the bits of sqrt(1/2)
_SQUARE, _TINY = np.float32(2.0**-62), np.float32(2.0**-64)
_TURN = np.float32(2.0**-15)


@inline
def log(x):  # type: ignore[no-untyped-def]
    """Return the logarithm of a positive, normal float32."""
    bits = np.int32(np.float32(x).view(np.int32) - _ROOT_HALF)
    exponent = np.float32(np.int32(bits >> _MANTISSA_BITS))
    f = np.int32((bits & _MANTISSA) + _ROOT_HALF).view(np.float32) - _ONE
    p = _L[4] + f * (_L[5] + f * (_L[6] + f * _L[7]))
    p = _L[0] + f * (_L[1] + f * (_L[2] + f * (_L[3] + f * p)))
    return exponent * _LOG2_HIGH + (f + (f * f * (f * p - _HALF) + exponent * _LOG2_LOW))


@inline
def sine(s):  # type: ignore[no-untyped-def]
    """Return sin(pi s) for s in [-1/2, 1/2]."""
    y = s * s
    return s * (_S[0] + y * (_S[1] + y * (_S[2] + y * (_S[3] + y * _S[4]))))


@loop
def _map(lengths, angles, shift, first, second):  # type: ignore[no-untyped-def]
    for i in range(len(first)):
        u = np.float32(lengths[i])
        radius = math.sqrt(-log(_SQUARE * u * u + _TINY))
        v = (np.float32(angles[i]) + shift) * _TURN  # half turns, in [-1, 1]
        size = abs(v)
        first[i] = radius * sine(_HALF - size)
        second[i] = radius * sine(math.copysign(_HALF - abs(size - _HALF), v))


@entry
def _box_muller(data):  # type: ignore[no-untyped-def]
    first, last = share(data)
    for k in range(first, last):
        w = task(data, k)
        n = w[0]
        lengths, angles, shift = (
            int32s(at(data, w, 0), n),
            int16s(at(data, w, 1), n),
            floats(at(data, w, 4), 1)[0],
        )
        _map(lengths, angles, shift, floats(at(data, w, 2), n), floats(at(data, w, 3), n))


def box_muller(words: Tensor, shifts: Tensor, out: Tensor) -> None:
    """Fill rows with normals, as :class:`~lightning_sgmcmc.noise.NoiseStream` defines them.

    Args:
        words: 64-bit words [rows, (half + 1) // 2 + (half + 3) // 4], the radii's first.
        shifts: delta of each row, [rows].
        out: [rows, 2 half]; the cosines' half comes first.
    """
    rows, half = len(out), out.shape[1] // 2
    # All numbers of a row share its shift: a vector whose elements have the size 0.
    columns = (
        _rows(words, 0, 4),
        _rows(words, 8 * ((half + 1) // 2), 2),
        _rows(out, 0, 4),
        _rows(out, 4 * half, 4),
        _rows(shifts, 0, 0),
    )
    run(_box_muller, (half,) * rows, columns)


def _rows(matrix: Tensor, offset: int, itemsize: int) -> Column:
    """Return where every row has its part that begins after ``offset`` bytes."""
    first, stride = matrix.data_ptr() + offset, matrix.stride(0) * matrix.element_size()
    return Column(tuple(first + stride * row for row in range(len(matrix))), itemsize)
