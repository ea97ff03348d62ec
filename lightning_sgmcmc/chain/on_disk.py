"""The rows of an array in a file, read when they are asked for."""

from __future__ import annotations

import copy
import os
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from io import FileIO
from pathlib import Path
from threading import Lock
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_sgmcmc.chain.row_place import of_memmap, of_npy, of_safetensors

# Bytes of rows in order that are read at once: systems read less than 2 GiB at a time.
_AT_ONCE = 1 << 26
# Rows that a function of rows is tried on.
_TRIED = 2


class OnDisk:
    """A tensor [N, ...] whose rows lie in a file, for a :class:`~lightning_sgmcmc.BatchStream`.

    It is used like a tensor as far as rows go: length, shape, type, slices and tensors of indices.
    Reading gives tensors, and nothing else of the file is held in memory; what the system caches of
    it is the system's own.

        OnDisk("x.npy")
        OnDisk("set.safetensors", "velocity").map(torch.Tensor.float)
        OnDisk(np.load("x.npy", mmap_mode="r")[:40_000_000])

    Args:
        source: A file ``.npy`` or ``.safetensors``, or an array that ``numpy.memmap`` or
            ``numpy.load(..., mmap_mode="r")`` mapped; a part of one has to be rows that lie one
            after another.
        name: Of the tensor in a safetensors file.

    Raises:
        FileNotFoundError: If there is no such file.
        KeyError: If a safetensors file has no tensor of that name.
        TypeError: If the array is of a type that torch does not know, or is not mapped.
        ValueError: If a file is cut short or of another format, or rows do not lie one after
            another.
    """

    _file: FileIO | None
    _thread: ThreadPoolExecutor | None
    _ahead: tuple[NDArray[np.int64], Future[NDArray[np.uint8]]] | None

    def __init__(self, source: str | os.PathLike[str] | NDArray[Any], name: str | None = None):
        if isinstance(source, np.ndarray):
            self._place = of_memmap(source)
        elif Path(source).suffix == ".npy" and name is None:
            self._place = of_npy(Path(source))
        elif Path(source).suffix == ".safetensors" and name is not None:
            self._place = of_safetensors(Path(source), name)
        else:
            raise ValueError(
                f"{source} is not readable row by row: give FILE.npy, FILE.safetensors with the "
                "name of a tensor, or an array mapped by numpy.memmap"
            )
        self._functions: tuple[Callable[[Tensor], Tensor], ...] = ()
        self._device = torch.device("cpu")
        self._forget()
        self._place.check()
        self.dtype, self.shape = self._place.dtype, torch.Size(self._place.shape)

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Return the rows after a function of each of them, computed as they are read.

        Args:
            function: Of rows [n, ...], returns as many rows; a row's value must not depend on the
                others that are read with it. Types and scales are usual uses.

        Raises:
            ValueError: If it returns another number of rows.
        """
        mapped = copy.copy(self)
        mapped._functions = (*self._functions, function)
        tried = min(_TRIED, len(self))
        rows = mapped[:tried]
        if not isinstance(rows, Tensor) or not rows.dim() or len(rows) != tried:
            found = list(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
            raise ValueError(f"a function of {tried} rows must return as many, got {found}")
        mapped.dtype, mapped.shape = rows.dtype, torch.Size((len(self), *rows.shape[1:]))
        return mapped

    def mean_and_std(self) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation over the rows, float64, by one pass over blocks.

        The divisor is N - 1, as :func:`torch.std` has it. Blocks are merged as by Chan, Golub and
        LeVeque 1983 (The American Statistician 37).
        """
        shape = self.shape[1:]
        mean, squares = (torch.zeros(shape, dtype=torch.float64) for _ in range(2))
        size = max(1, _AT_ONCE // (8 * max(1, shape.numel())))
        for first in range(0, len(self), size):
            rows = self[first : first + size].cpu().double()
            part, n, total = rows.mean(0), len(rows), first + len(rows)
            gap = part - mean
            squares += ((rows - part) ** 2).sum(0) + gap**2 * (first * n / total)
            mean += gap * (n / total)
        return mean, (squares / (len(self) - 1)).sqrt()

    def to(self, device: torch.device) -> Self:
        """Return the rows as tensors on a device; what a function of rows sees is on the CPU."""
        moved = copy.copy(self)
        moved._device = device
        return moved

    @property
    def device(self) -> torch.device:
        """Where rows are given."""
        return self._device

    def __len__(self) -> int:
        return self._place.shape[0]

    def dim(self) -> int:
        """Return the number of axes, that of the rows included."""
        return len(self.shape)

    def numel(self) -> int:
        """Return the number of elements of all rows."""
        return self.shape.numel()

    def element_size(self) -> int:
        """Return the bytes of an element."""
        return self.dtype.itemsize

    def __getitem__(self, part: slice | Tensor) -> Tensor:
        """Return the rows of a slice, or those with the numbers of a tensor [n]."""
        if isinstance(part, slice):
            step = part.indices(len(self))
            if step[2] != 1:
                return self.index_select(0, torch.arange(*step))
            return self._ready(self._slice(step[0], max(step[0], step[1])))
        return self.index_select(0, part)

    def index_select(self, dim: int, indices: Tensor) -> Tensor:
        """Return the rows with these numbers, [n, ...], as :func:`torch.index_select` along 0."""
        assert dim == 0
        numbers = _numbers(indices)
        ahead, self._ahead = self._ahead, None
        if ahead is not None and np.array_equal(ahead[0], numbers):
            return self._ready(ahead[1].result())
        self._ahead = ahead
        return self._ready(self._rows(numbers))

    def read_ahead(self, indices: Tensor) -> None:
        """Let a thread read the rows that :meth:`index_select` is asked for next."""
        numbers = _numbers(indices)
        if self._ahead is not None and np.array_equal(self._ahead[0], numbers):
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "OnDisk")
        self._ahead = numbers, self._thread.submit(self._rows, numbers)

    def _ready(self, raw: NDArray[np.uint8]) -> Tensor:
        """Return the tensor of some rows' bytes."""
        shape = self._place.shape[1:]
        rows = torch.from_numpy(raw).view(-1).view(self._place.dtype).view(len(raw), *shape)
        for function in self._functions:
            rows = function(rows)
        if self._device.type == "cpu":
            return rows
        return rows.pin_memory().to(self._device, non_blocking=True)

    def _rows(self, numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return rows' bytes, [n, b]; other threads run while the system reads."""
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(self):
            raise IndexError(f"rows {numbers.min()} to {numbers.max()} of {len(self)}")
        size = self._place.row_bytes
        found = np.empty((len(numbers), size), np.uint8)
        view = found.reshape(-1).data
        parts = [view[first : first + size] for first in range(0, len(view), size)]
        offsets = (self._place.offset + numbers * size).tolist()
        if hasattr(os, "posix_fadvise"):  # so that the system reads rows from the disk side by side
            number = self._opened().fileno()
            for offset in offsets:
                os.posix_fadvise(number, offset, size, os.POSIX_FADV_WILLNEED)
        self._read(parts, offsets)
        return found

    def _slice(self, first: int, stop: int) -> NDArray[np.uint8]:
        """Return the bytes of rows that lie one after another, [n, b]."""
        size = self._place.row_bytes
        found = np.empty((stop - first, size), np.uint8)
        view = found.reshape(-1).data
        starts = range(0, len(view), _AT_ONCE)
        begin = self._place.offset + first * size
        self._read([view[at : at + _AT_ONCE] for at in starts], [begin + at for at in starts])
        return found

    def _read(self, parts: Sequence[memoryview], offsets: Sequence[int]) -> None:
        """Fill parts of memory with what stands in the file from some offsets on."""
        file = self._opened()
        for part, offset in zip(parts, offsets, strict=True):
            if hasattr(os, "preadv"):
                read = os.preadv(file.fileno(), [part], offset)
            else:  # Windows has no reading at an offset
                with self._lock:
                    file.seek(offset)
                    read = file.readinto(part)
            if read != len(part):
                raise ValueError(
                    f"{self._place.path} is cut short: it ends at {offset + read:,} bytes, within "
                    f"the {len(part):,} from {offset:,} on; it was changed after it was opened"
                )

    def _opened(self) -> FileIO:
        """Return the open file."""
        if self._file is None:
            self._file = self._place.path.open("rb", buffering=0)
            weakref.finalize(self, self._file.close)
        return self._file

    def _forget(self) -> None:
        """Hold no open file and no thread; they are made where they are first needed."""
        self._file = None
        self._lock = Lock()
        self._thread, self._ahead = None, None

    def __getstate__(self) -> dict[str, Any]:
        own = ("_file", "_lock", "_thread", "_ahead")
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()


def _numbers(indices: Tensor) -> NDArray[np.int64]:
    """Return row numbers as places are computed with.

    Raises:
        IndexError: For a mask.
    """
    if indices.dtype == torch.bool:
        raise IndexError("rows are chosen by their numbers: give mask.nonzero()[:, 0]")
    numbers: NDArray[np.int64] = indices.cpu().numpy().astype(np.int64)
    return numbers
