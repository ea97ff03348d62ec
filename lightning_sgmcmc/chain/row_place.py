"""Where the rows of an array lie in a file."""

from __future__ import annotations

import json
import math
import mmap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

_SAFETENSORS = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


class RowPlace(NamedTuple):
    """Where an array [N, ...] lies in a file, row after row.

    Attributes:
        path: The file.
        offset: Of the first row, in bytes.
        dtype: Type of an element.
        shape: Of the array.
    """

    path: Path
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """The bytes of a row."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def check(self) -> None:
        """Refuse what has no rows, or not all that it should have.

        Raises:
            ValueError: If the array is a single number, or the file is cut short.
        """
        if not self.shape:
            raise ValueError(f"{self.path} holds a single number, expected rows [N, ...]")
        size, needed = self.path.stat().st_size, self.offset + self.shape[0] * self.row_bytes
        if size < needed:
            raise ValueError(
                f"{self.path} is cut short: it has {size:,} bytes, expected at least {needed:,} "
                f"for {list(self.shape)} of {self.dtype}; write it again"
            )


def of_memmap(array: NDArray[Any]) -> RowPlace:
    """Return where an array that ``numpy.memmap`` mapped lies, a part of one included."""
    whole: Any = array
    while isinstance(whole, np.ndarray) and not isinstance(whole.base, mmap.mmap):
        whole = whole.base
    if not isinstance(whole, np.memmap) or whole.filename is None or whole.mode == "c":
        raise TypeError(
            "an array is in memory, or mapped copy-on-write or from no named file: make it a "
            'tensor by torch.from_numpy, or map it by numpy.load(FILE, mmap_mode="r")'
        )
    if not array.flags.c_contiguous:
        raise ValueError(
            f"the mapped rows of {whole.filename} do not lie one after another: give the whole "
            "array or a slice of its rows, and choose columns by OnDisk(...).map"
        )
    begin = array.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    path = Path(whole.filename).absolute()
    return RowPlace(path, whole.offset + begin, _torch_type(array.dtype, path), array.shape)


def of_npy(path: Path) -> RowPlace:
    """Return where the array of a ``.npy`` file lies."""
    with path.open("rb") as file:
        try:
            version = np.lib.format.read_magic(file)
            read = getattr(np.lib.format, f"read_array_header_{version[0]}_0")
            shape, by_columns, dtype = read(file)
        except (ValueError, AttributeError) as error:
            raise ValueError(f"{path} is no .npy file, or is cut short: {error}") from error
        if by_columns and len(shape) > 1:
            raise ValueError(
                f"{path} is stored column by column (Fortran order), expected row by row: write it "
                "again with numpy.save(FILE, numpy.ascontiguousarray(array))"
            )
        return RowPlace(path.absolute(), file.tell(), _torch_type(dtype, path), shape)


def of_safetensors(path: Path, name: str) -> RowPlace:
    """Return where a tensor of a safetensors file lies."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
        if not 8 < start <= size:
            raise ValueError(f"{path} is no safetensors file, or is cut short: write it again")
        entries = json.loads(file.read(start - 8))
    if name not in entries:
        names = ", ".join(sorted(set(entries) - {"__metadata__"}))
        raise KeyError(f"{path} has no tensor {name!r}: choose among {names}")
    entry = entries[name]
    if entry["dtype"] not in _SAFETENSORS:
        raise TypeError(f"{name} of {path} is of type {entry['dtype']}: convert it")
    dtype = _SAFETENSORS[entry["dtype"]]
    return RowPlace(path.absolute(), start + entry["data_offsets"][0], dtype, tuple(entry["shape"]))


def _torch_type(dtype: np.dtype[Any], path: Path) -> torch.dtype:
    try:
        return torch.from_numpy(np.empty(0, dtype)).dtype
    except (TypeError, ValueError):
        raise TypeError(
            f"{path} holds values of type {dtype}, which torch does not know: convert them to "
            "float32, int64, uint8 or the like, in this machine's byte order"
        ) from None
