"""Compiled loops on the threads of torch's own operations.

Between two operations the threads of an OpenMP pool wait by spinning, so that a second pool on the
same cores, as Numba's is, would wait for the first one. GNU's OpenMP library, which torch brings on
Linux, starts a function on its pool by a documented entry, ``GOMP_parallel``; where that library
is not found, one thread does all. Tasks are small and fixed, and no result depends on who does
which: the number of threads changes no bit.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_sgmcmc.kernels.compiler import HEADER

#: Numbers in a task: a few vectors of them fit into a core's own cache.
CHUNK = 8192


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
        narrow: Whether a vector has one number where others have ``Tasks.sizes``.
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


class Tasks:
    """Pieces of some vectors, of about :data:`CHUNK` numbers each, laid out for an entry.

    The words of a task are the count of its elements, the numbers that make an element, an
    address for each column, and that of its sums.

    Args:
        lengths: Elements of each vector.
        columns: The arguments.
        numbers: Count of numbers that all tasks share.
        sums: Count of sums that each task leaves.
        sizes: Numbers that make an element of each vector, 1 unless given.
    """

    def __init__(
        self,
        lengths: tuple[int, ...],
        columns: tuple[Column, ...],
        numbers: int,
        sums: int = 0,
        sizes: tuple[int, ...] | None = None,
    ) -> None:
        sizes = sizes or (1,) * len(lengths)
        rows = []
        for v, (length, size) in enumerate(zip(lengths, sizes, strict=True)):
            step = max(1, CHUNK // size)
            for start in range(0, length, step):
                places = [
                    c.addresses[v] + c.itemsize * start * (1 if c.narrow else size) for c in columns
                ]
                rows.append([min(step, length - start), size, *places, 0])
        self.sums = np.zeros((len(rows), sums))
        table = np.array(rows, dtype=np.int64)
        table[:, -1] = self.sums.ctypes.data + self.sums.strides[0] * np.arange(len(rows))
        header = [0, *table.shape, numbers]
        self._words = np.concatenate([header, np.zeros(numbers, np.int64), table.ravel()])
        self._numbers = self._words[HEADER : HEADER + numbers].view(np.float64)
        self._address = self._words.ctypes.data

    def run(self, entry: Any, *numbers: float) -> NDArray[np.float64]:
        """Do all tasks.

        Args:
            entry: What :func:`~lightning_sgmcmc.kernels.compiler.entry` compiled.
            numbers: What all tasks share.

        Returns:
            The sums, added over the tasks.
        """
        self._words[0] = 0
        self._numbers[:] = numbers
        threads, start = min(torch.get_num_threads(), len(self.sums)), _openmp()
        if threads == 1 or start is None:
            entry.ctypes(self._address)
        else:
            start(entry.address, self._address, threads, 0)
        total: NDArray[np.float64] = self.sums.sum(0)
        return total


#: Tasks by their arguments: most tensors stay where they are from step to step.
tasks = lru_cache(maxsize=64)(Tasks)
