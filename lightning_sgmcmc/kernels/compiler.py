"""How the loops are compiled; imports Numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

#: Words before the numbers and the tasks in what an entry gets: the next task, how many there are,
#: the words of each, and the count of numbers.
HEADER = 4

carray: Any = numba.carray  # type: ignore[attr-defined]

#: For functions that loops call.
inline: Any = numba.njit(inline="always", fastmath={"contract"}, error_model="numpy")
_intrinsic: Any = intrinsic
#: For loops over the elements of arrays.
loop: Any = numba.njit(fastmath={"contract"}, error_model="numpy")
#: For loops that add up, whose order the compiler may change. The order belongs to the compiled
#: code: equal calls give equal bits.
sum_loop: Any = numba.njit(fastmath={"contract", "reassoc"}, error_model="numpy")


def entry(function: Callable[[Any], None]) -> Any:
    """Compile what a thread runs, or fetch what an earlier process compiled.

    It gets the address of what :class:`~lightning_sgmcmc.kernels.threads.Tasks` lays out, of which
    :func:`numbers` and :func:`take` hand out the parts.
    """
    return numba.cfunc(types.void(types.voidptr), cache=True, error_model="numpy")(function)


@_intrinsic
def _pointer(typing_context, address):  # type: ignore[no-untyped-def]
    """Take an integer for a pointer."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@_intrinsic
def _increment(typing_context, pointer):  # type: ignore[no-untyped-def]
    """Add one to the integer at a pointer, which other threads may do too; return the old one."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        word = ir.IntType(64)
        place = builder.bitcast(arguments[0], word.as_pointer())
        return builder.atomic_rmw("add", place, word(1), "monotonic")

    return types.int64(types.voidptr), generate


@loop
def numbers(data):  # type: ignore[no-untyped-def]
    """Return the numbers that all tasks share, in float64."""
    count = carray(data, HEADER, np.int64)[3]
    return carray(data, HEADER + count, np.float64)[HEADER:]


@loop
def take(data):  # type: ignore[no-untyped-def]
    """Return the words of the next task, none if all are taken."""
    header = carray(data, HEADER, np.int64)
    count, width, start = header[1], header[2], HEADER + header[3]
    task = _increment(data)
    words = carray(data, start + count * width, np.int64)[start:]
    return words[task * width : (task + 1) * width] if task < count else words[:0]


@inline
def floats(address, count):  # type: ignore[no-untyped-def]
    """Return the float32 numbers at an address."""
    return carray(_pointer(address), count, np.float32)


@inline
def doubles(address, count):  # type: ignore[no-untyped-def]
    """Return the float64 numbers at an address."""
    return carray(_pointer(address), count, np.float64)


@inline
def int8s(address, count):  # type: ignore[no-untyped-def]
    """Return the bytes at an address."""
    return carray(_pointer(address), count, np.int8)


@inline
def int16s(address, count):  # type: ignore[no-untyped-def]
    """Return the 16-bit integers at an address."""
    return carray(_pointer(address), count, np.int16)


@inline
def int32s(address, count):  # type: ignore[no-untyped-def]
    """Return the 32-bit integers at an address."""
    return carray(_pointer(address), count, np.int32)
