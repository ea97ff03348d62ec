"""How the loops are compiled; imports Numba."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

# What an entry gets, as 64-bit words: the addresses of the functions that give a thread's number
# and the count of threads (0 if there is one thread), the count of parts, the address of each
# part's first task and of the tasks, the words of a task, the count of vectors, count and address
# of the numbers, count and address of the sums; then where each column has each vector.
_HEADER = 11

carray: Any = numba.carray  # type: ignore[attr-defined]

#: For functions that loops call.
inline: Any = numba.njit(inline="always", fastmath={"contract"}, error_model="numpy")
_intrinsic: Any = intrinsic
#: For loops over the elements of arrays.
loop: Any = numba.njit(fastmath={"contract"}, error_model="numpy")
#: For loops that add up, whose order the compiler may change. The order belongs to the compiled
#: code: equal calls give equal bits.
sum_loop: Any = numba.njit(fastmath={"contract", "reassoc"}, error_model="numpy")


def cached(compile_: Callable[[bool], Any]) -> Any:
    """Compile with Numba's cache on the disk, or without where no folder can be written.

    Args:
        compile_: Compiles; its argument is Numba's ``cache``.
    """
    try:
        return compile_(True)
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
    warnings.warn(
        "Numba finds no folder that it may write, so that each process compiles for some seconds: "
        "set NUMBA_CACHE_DIR to one",
        stacklevel=2,
    )
    return compile_(False)


def entry(function: Callable[[Any], None]) -> Any:
    """Compile what a thread runs, or fetch what an earlier process compiled.

    It gets the address of what :func:`~lightning_sgmcmc.kernels.threads.run` lays out, of which
    :func:`numbers`, :func:`share` and :func:`task` read the parts. Numba's cache looks at the file
    of the entry alone: after a change of this file, delete the ``__pycache__`` beside it.
    """
    kind = types.void(types.voidptr)
    return cached(lambda cache: numba.cfunc(kind, cache=cache, error_model="numpy")(function))


@_intrinsic
def _pointer(typing_context, address):  # type: ignore[no-untyped-def]
    """Take an integer for a pointer."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@_intrinsic
def _call(typing_context, address):  # type: ignore[no-untyped-def]
    """Call a C function without arguments that returns an int."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        function = ir.FunctionType(ir.IntType(32), []).as_pointer()
        return builder.call(builder.inttoptr(arguments[0], function), [])

    return types.int32(types.int64), generate


@loop
def numbers(data):  # type: ignore[no-untyped-def]
    """Return the numbers that all tasks share, in float64."""
    header = carray(data, _HEADER, np.int64)
    return carray(_pointer(header[8]), header[7], np.float64)


@loop
def thread(data):  # type: ignore[no-untyped-def]
    """Return this thread's number."""
    header = carray(data, _HEADER, np.int64)
    return np.int64(_call(header[0])) if header[0] != 0 else np.int64(0)


@loop
def share(data):  # type: ignore[no-untyped-def]
    """Return this thread's first task and the one after its last."""
    header = carray(data, _HEADER, np.int64)
    thread, threads, parts = np.int64(0), np.int64(1), header[2]
    if header[0] != 0:
        thread, threads = np.int64(_call(header[0])), np.int64(_call(header[1]))
    firsts = carray(_pointer(header[3]), parts + 1, np.int64)
    return firsts[thread * parts // threads], firsts[(thread + 1) * parts // threads]


@loop
def task(data, number):  # type: ignore[no-untyped-def]
    """Return the words of a task.

    They are the count of its elements, the numbers that make an element, where it leaves its sums,
    the number of its vector, and how many bytes after that vector's beginning it begins in each
    column.
    """
    header = carray(data, _HEADER, np.int64)
    return carray(_pointer(header[4] + 8 * number * header[5]), header[5], np.int64)


@loop
def at(data, words, column):  # type: ignore[no-untyped-def]
    """Return the address at which a task of these words begins in a column."""
    vectors = carray(data, _HEADER, np.int64)[6]
    place = _HEADER + column * vectors + words[3]
    return carray(data, place + 1, np.int64)[place] + words[4 + column]


@loop
def sums(data, words):  # type: ignore[no-untyped-def]
    """Return where a task of these words leaves its sums, in float64."""
    header = carray(data, _HEADER, np.int64)
    count = header[9]
    return carray(_pointer(header[10] + 8 * count * words[2]), count, np.float64)


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


@inline
def int64s(address, count):  # type: ignore[no-untyped-def]
    """Return the 64-bit integers at an address."""
    return carray(_pointer(address), count, np.int64)
