"""Where a data set's arrays lie in its safetensors file.

A safetensors file is eight bytes of length, a JSON header with type, shape and offsets of every
array, and the arrays themselves, row-major and uncompressed. So a reader maps it into memory
without this package (`safetensors.numpy`, `safetensors.torch`, or `numpy.memmap`). The place of
every sample is known before the first is made: chunks are written where they belong in any order,
nothing is copied at the end, and the bytes do not depend on how often the run was stopped.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FileContentError
from ..grid import Array

#: Samples in a chunk; the last may be shorter. Part of the format: the checksum and the last bits
#: of some solvers depend on it.
CHUNK = 64
KEY = "pde"  # of our metadata, among safetensors' own
_CHECKSUM = "checksum"
CHECKSUM_AT = 8 + len(f'{{"__metadata__": {{"{_CHECKSUM}": "')  # its place in the file
#: What reading a file of another kind may raise.
NOT_OURS = (ValueError, KeyError, TypeError, IndexError, AttributeError)

Shapes = Mapping[str, Sequence[int]]


class Contents:
    """What a file holds, mapped into memory.

    Args:
        path: The file.

    Attributes:
        entries: What the header says of each array.
        metadata: Ours, plain values.
        stored: The checksum in the header; None in files of earlier versions.
        arrays: All arrays.
        shared: Names of those that all samples have in common; the others have a row a sample.

    Raises:
        ValueError: The file is cut short; any of `NOT_OURS` if it is of another kind.
    """

    def __init__(self, path: Path) -> None:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = 8 + int.from_bytes(file.read(8), "little")
            if start > size:
                raise ValueError("its header is longer than the file")
            self.entries = json.loads(file.read(start - 8))
        about = self.entries.pop("__metadata__")
        self.metadata, self.stored = json.loads(about[KEY]), about.get(_CHECKSUM)
        self.shared = self.metadata.get("shared", [])
        self.arrays: dict[str, np.memmap[Any, np.dtype[np.float64]]] = {}
        for name, entry in self.entries.items():
            first, last = entry["data_offsets"]
            if entry["dtype"] != "F64" or start + last > size:
                raise ValueError(f"{name} is cut short or not of type F64")
            self.arrays[name] = np.memmap(path, "<f8", "r", start + first, (*entry["shape"],))
        self.rows = [name for name in self.arrays if name not in self.shared]
        self.num_samples = len(self.arrays[self.rows[0]])
        self.num_chunks = -(-self.num_samples // CHUNK)

    def samples(self, index: int) -> range:
        """The samples of a chunk."""
        return range(index * CHUNK, min((index + 1) * CHUNK, self.num_samples))

    def code(self, index: int) -> int:
        """The CRC-32 of a chunk."""
        first, code = index * CHUNK, 0
        for name in self.rows:
            code = zlib.crc32(self.arrays[name][first : first + CHUNK].data, code)
        return code

    def checksum(self, codes: Mapping[int, int] | None = None) -> str:
        """The CRC-32 of the shared arrays and of all chunks' codes, which are read if not given."""
        total = 0
        for name in self.shared:
            total = zlib.crc32(self.arrays[name].data, total)
        for index in range(self.num_chunks):
            code = self.code(index) if codes is None else codes[index]
            total = zlib.crc32(code.to_bytes(4, "little"), total)
        return f"{total:08x}"


def read(path: Path, verify: bool = True) -> tuple[dict[str, Any], dict[str, Array]]:
    """Read the metadata, and map the arrays into memory.

    Args:
        path: The file.
        verify: Whether all bytes are read and compared with the file's checksum.

    Raises:
        FileContentError: No such file, one that is cut short or altered, or not one of ours.
    """
    try:
        with path.open("rb") as file:
            if file.read(2) == b"PK":
                raise FileContentError(
                    f"{path} is a .npz file, as earlier versions wrote data sets; generate the set "
                    "again into a .safetensors file, the same parameters give the same numbers"
                )
        contents = Contents(path)
        if verify and contents.stored not in (None, contents.checksum()):
            raise ValueError("its checksum is not that of its contents")
        return contents.metadata, {**contents.arrays}
    except FileNotFoundError as error:
        raise FileContentError(f"no data set at {path}; generate it first") from error
    except FileContentError:
        raise
    except NOT_OURS as error:
        raise FileContentError(
            f"{path} is cut short or not a data set ({error}); delete it, or choose another path"
        ) from error


def header_of(
    metadata: Mapping[str, Any], shapes: Shapes, num_samples: int, shared: Mapping[str, Array]
) -> tuple[bytes, int]:
    """The header, with its length before it and room for the checksum; the size of the file."""
    if shared:
        metadata = {**metadata, "shared": list(shared)}
    entries: dict[str, Any] = {"__metadata__": {_CHECKSUM: "0" * 8, KEY: json.dumps(metadata)}}
    whole: dict[str, Sequence[int]] = {name: array.shape for name, array in shared.items()}
    offset = 0
    for name, shape in (whole | {n: (num_samples, *shapes[n]) for n in shapes}).items():
        stop = offset + 8 * int(np.prod(shape, dtype=np.int64))
        entries[name] = {"dtype": "F64", "shape": [*shape], "data_offsets": [offset, stop]}
        offset = stop
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, 8 + len(text) + offset


def differences(
    ours: Mapping[str, Any], stored: Mapping[str, Any], ignored: Collection[str] = ()
) -> list[str]:
    """Say in which plain values two records differ, those of nested ones by their own names."""
    found = []
    for name in {**ours, **stored}:
        here, there = ours.get(name), stored.get(name)
        if isinstance(here, Mapping) and isinstance(there, Mapping):
            found += differences(here, there, ignored)
        elif here != there and name not in ignored:
            found.append(f"{name} is {there!r} there, {here!r} here")
    return found
