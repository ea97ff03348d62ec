"""Compiled loops on the threads of torch's own operations.

Between two operations the threads of an OpenMP pool wait by spinning, so that a second pool on the
same cores, as Numba's is, would wait for the first one. GNU's OpenMP library, which torch brings on
Linux, starts a function on its pool by a documented entry, ``GOMP_parallel``; where that library
is not found, one thread does all. Tasks are small and fixed, and no result depends on who does
which: the number of threads changes no bit.
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
CHUNK = 2048


@cache
def _openmp() -> Any:
    """Return how torch's own GNU OpenMP library starts its threads, None if it has none."""
    found = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
    if len(found) != 1:
        return None
    start = ctypes.CDLL(str(found[0])).GOMP_parallel
    start.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    start.restype = None
    return start


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
    """

    def __init__(
        self,
        lengths: tuple[int, ...],
        sizes: tuple[int, ...],
        itemsizes: tuple[int, ...],
        narrow: tuple[bool, ...],
    ) -> None:
        rows: list[list[int]] = []
        for v, (length, size) in enumerate(zip(lengths, sizes, strict=True)):
            step = max(1, CHUNK // size)
            for start in range(0, length, step):
                offsets = [
                    start * bytes_ * (1 if single else size)
                    for bytes_, single in zip(itemsizes, narrow, strict=True)
                ]
                rows.append([min(step, length - start), size, len(rows), v, *offsets])
        #: The words of each piece, see :func:`~lightning_sgmcmc.kernels.compiler.take`.
        self.words = np.array(rows, dtype=np.int64)
        self.count, self.width = self.words.shape
        self.address = self.words.ctypes.data


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
    plan = layout(lengths, sizes or (1,) * len(lengths), itemsizes, narrow)
    found = np.zeros((plan.count, sums))
    shared = array("d", numbers)
    header = [0, plan.count, plan.width, plan.address, len(lengths), len(shared)]
    header += [shared.buffer_info()[0], sums, found.ctypes.data if sums else 0]
    words = array("q", chain(header, *addresses))
    address, threads, start = words.buffer_info()[0], torch.get_num_threads(), _openmp()
    if start is None or threads == 1 or plan.count == 1:
        entry.ctypes(address)
    else:
        start(entry.address, address, min(threads, plan.count), 0)
    total: NDArray[np.float64] = found.sum(0)
    return total
