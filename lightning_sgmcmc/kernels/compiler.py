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

# What an entry gets, in words: the next task, how many there are, the words of one and where they
# lie, the count of vectors, count and place of the numbers, count and place of the sums; then where
# each column has each vector.
_HEADER = 9

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

    It gets the address of what :func:`~lightning_sgmcmc.kernels.threads.run` lays out, of which
    :func:`numbers` and :func:`take` hand out the parts. What is kept follows the file of the
    entry alone: a change to this one needs the folders of caches removed.
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
    header = carray(data, _HEADER, np.int64)
    return carray(_pointer(header[6]), header[5], np.float64)


@loop
def take(data):  # type: ignore[no-untyped-def]
    """Return the words of the next task, none if all are taken.

    They are the count of its elements, the numbers that make an element, the task's number, its
    vector's, and how many bytes after that vector's beginning it begins in each column.
    """
    header = carray(data, _HEADER, np.int64)
    count, width = header[1], header[2]
    task = _increment(data)
    words = carray(_pointer(header[3]), count * width, np.int64)
    return words[task * width : (task + 1) * width] if task < count else words[:0]


@loop
def at(data, task, column):  # type: ignore[no-untyped-def]
    """Return the address at which a task begins in a column."""
    vectors = carray(data, _HEADER, np.int64)[4]
    place = _HEADER + column * vectors + task[3]
    return carray(data, place + 1, np.int64)[place] + task[4 + column]


@loop
def sums(data, task):  # type: ignore[no-untyped-def]
    """Return where a task leaves its sums, in float64."""
    header = carray(data, _HEADER, np.int64)
    count = header[7]
    return carray(_pointer(header[8] + 8 * count * task[2]), count, np.float64)


@inline
def floats(address, count):  # type: ignore[no-untyped-def]
    """Return the float32 numbers at an address."""
    return carray(_pointer(address), count, np.float32)


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
