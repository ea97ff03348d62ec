"""Compiled loops on the threads of torch's own operations.

Between two operations the threads of an OpenMP pool wait by spinning, so that a second pool on the
same cores, as Numba's is, would wait for the first one. GNU's OpenMP library, which torch brings
along on Linux, starts a function on its pool by ``GOMP_parallel``, the entry that compilers call;
where that library is not found, one thread does all. A thread gets the same part of every vector,
as it does in torch's operations, so that much of what it needs lies in its core's cache. Tasks are
small and fixed, and no result depends on who does which: the number of threads changes no bit.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

#: Numbers in a task: a few vectors of them fit into a core's own cache.
CHUNK = 4096


@cache
def _openmp() -> tuple[Any, int, int] | None:
    """Return what starts torch's threads, and the addresses of what numbers and counts them."""
    found = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
    if len(found) != 1:
        return None
    library = ctypes.CDLL(str(found[0]))
    start = library.GOMP_parallel
    start.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    start.restype = None
    number, count = (
        ctypes.cast(function, ctypes.c_void_p).value or 0
        for function in (library.omp_get_thread_num, library.omp_get_num_threads)
    )
    return start, number, count


def everywhere(function: Any, argument: int) -> None:
    """Call a C function of one pointer on every thread, or on this one where the pool is unknown.

    Args:
        function: As ``ctypes`` finds it.
        argument: The address that it is given.
    """
    pool = _openmp()
    if pool is None:
        function(ctypes.c_void_p(argument))
    else:
        address = ctypes.cast(function, ctypes.c_void_p).value
        pool[0](address, argument, torch.get_num_threads(), 0)


class Column(NamedTuple):
    """Where the vectors of one argument of a loop begin.

    Args:
        addresses: One for each vector.
        itemsize: Bytes of a number.
        narrow: Whether an element is one number, also where it is more in other columns.
    """

    addresses: tuple[int, ...]
    itemsize: int
    narrow: bool = False


def each(tensors: Sequence[Tensor], narrow: bool = False) -> Column:
    """Return where contiguous tensors begin."""
    addresses = tuple(t.data_ptr() for t in tensors)
    return Column(addresses, tensors[0].element_size(), narrow)


def along(vector: Tensor, lengths: Sequence[int]) -> Column:
    """Return where vectors of these lengths begin that make up a longer one."""
    size, first = vector.element_size(), vector.data_ptr()
    return Column(tuple(first + size * n for n in accumulate(lengths[:-1], initial=0)), size)


def lengths_of(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """Return the numbers of elements."""
    return tuple(t.numel() for t in tensors)


class Layout:
    """Pieces of some vectors, of about :data:`CHUNK` numbers each: what a thread takes at a time.

    Args:
        lengths: Elements of each vector.
        sizes: Numbers that make an element of each vector.
        itemsizes: Bytes of a number, for each column.
        narrow: Whether an element is one number, for each column.
        parts: How many parts of every vector are kept together, one for a thread.
    """

    def __init__(
        self,
        lengths: tuple[int, ...],
        sizes: tuple[int, ...],
        itemsizes: tuple[int, ...],
        narrow: tuple[bool, ...],
        parts: int,
    ) -> None:
        shares: list[list[list[int]]] = [[] for _ in range(parts)]
        count = 0
        for v, (length, size) in enumerate(zip(lengths, sizes, strict=True)):
            step = max(1, CHUNK // max(1, size))
            starts = range(0, length, step)
            for i, start in enumerate(starts):
                offsets = [
                    start * bytes_ * (1 if single else size)
                    for bytes_, single in zip(itemsizes, narrow, strict=True)
                ]
                words = [min(step, length - start), size, count, v, *offsets]
                shares[i * parts // len(starts)].append(words)
                count += 1
        #: The words of each piece, see :func:`~lightning_sgmcmc.kernels.compiler.task`.
        self.words = np.array([words for own in shares for words in own], dtype=np.int64)
        #: The first piece of each part, and the count of all.
        self.firsts = np.cumsum([0, *map(len, shares)], dtype=np.int64)
        self.count, width = self.words.shape
        #: Whether there is work for one thread alone.
        self.small = bool(self.firsts[1] == self.count)
        self.header = (
            parts, self.firsts.ctypes.data, self.words.ctypes.data, width, len(lengths)
        )  # fmt: skip


layout = lru_cache(maxsize=256)(Layout)


def run(
    entry: Any,
    lengths: tuple[int, ...],
    columns: Sequence[Column],
    numbers: Sequence[float] = (),
    sums: int = 0,
    sizes: tuple[int, ...] | None = None,
) -> NDArray[np.float64]:
    """Run a loop over some vectors.

    Args:
        entry: What :func:`~lightning_sgmcmc.kernels.compiler.entry` compiled.
        lengths: Elements of each vector.
        columns: Its arguments.
        numbers: What all tasks share.
        sums: Count of sums that each task leaves.
        sizes: Numbers that make an element of each vector, 1 unless given.

    Returns:
        The sums, added over the tasks.
    """
    addresses, itemsizes, narrow = zip(*columns, strict=True)
    start, *functions = _openmp() or (None, 0, 0)
    threads = torch.get_num_threads() if start else 1
    plan = layout(lengths, sizes or (1,) * len(lengths), itemsizes, narrow, threads)
    found, shared = np.zeros((plan.count, sums)), array("d", numbers)
    header = (*functions, *plan.header, len(shared), shared.buffer_info()[0])
    words = array("q", chain(header, (sums, found.ctypes.data), *addresses))
    address = words.buffer_info()[0]
    if start is None or plan.small:
        entry.ctypes(address)
    else:
        start(entry.address, address, threads, 0)
    total: NDArray[np.float64] = found.sum(0)
    return total
