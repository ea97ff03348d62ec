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
from typing import Any, BinaryIO

import numpy as np

from ..errors import FileContentError
from ..grid import Array

#: Samples in a chunk; the last may be shorter. Part of the format: the checksum and the last bits
#: of some solvers depend on it.
CHUNK = 64
KEY = "pde"  # of our metadata, among safetensors' own
_CHECKSUM, _UNFINISHED = "checksum", "00000000"
CHECKSUM_AT = 8 + len(f'{{"__metadata__": {{"{_CHECKSUM}": "')  # its place in the file
#: What reading a file of another kind may raise.
NOT_OURS = (ValueError, KeyError, TypeError, IndexError, AttributeError)

Shapes = Mapping[str, Sequence[int]]


class Contents:
    """What a file's header says of its arrays.

    Args:
        path: The file.

    Raises:
        ValueError: The file is cut short; any of `NOT_OURS` if it is of another kind.
    """

    def __init__(self, path: Path) -> None:
        self._path, size = path, path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > size:
                raise ValueError("its header is longer than the file")
            self.entries = json.loads(file.read(length))
        about = self.entries.pop("__metadata__")
        self.metadata, self.checksum_stored = json.loads(about[KEY]), about.get(_CHECKSUM)
        self._start = 8 + length
        if any(entry["dtype"] != "F64" for entry in self.entries.values()):
            raise ValueError("it holds arrays that are not of type F64")
        if size != self._start + end_of(self.entries):
            raise ValueError(f"{size} bytes, expected {self._start + end_of(self.entries)}")
        self._shared = set(self.metadata.get("shared", ()))
        self._rows = [name for name in self.entries if name not in self._shared]
        self.num_samples = int(self.entries[self._rows[0]]["shape"][0])
        self.num_chunks = -(-self.num_samples // CHUNK)

    def arrays(self) -> dict[str, Array]:
        """The arrays, mapped into memory."""
        return {
            name: np.memmap(
                self._path, "<f8", "r", self._start + entry["data_offsets"][0], (*entry["shape"],)
            )
            for name, entry in self.entries.items()
        }

    def samples(self, index: int) -> range:
        """The samples of a chunk."""
        return range(index * CHUNK, min((index + 1) * CHUNK, self.num_samples))

    def places(self, index: int) -> list[tuple[str, int, tuple[int, ...]]]:
        """Name, place in the file and shape of the rows of a chunk in each array."""
        found = []
        for name in self._rows:
            entry, samples = self.entries[name], self.samples(index)
            row = entry["shape"][1:]
            start = self._start + entry["data_offsets"][0] + samples.start * _bytes(row)
            found.append((name, start, (len(samples), *row)))
        return found

    def code(self, file: BinaryIO, index: int) -> int:
        """The CRC-32 of a chunk."""
        code = 0
        for _, start, shape in self.places(index):
            file.seek(start)
            code = zlib.crc32(file.read(_bytes(shape)), code)
        return code

    def checksum(self, file: BinaryIO, codes: Mapping[int, int] | None = None) -> int:
        """The CRC-32 of the shared arrays and of all chunks' codes, which are read if not given."""
        total = 0
        for name in sorted(self._shared):
            entry = self.entries[name]
            file.seek(self._start + entry["data_offsets"][0])
            total = zlib.crc32(file.read(_bytes(entry["shape"])), total)
        for index in range(self.num_chunks):
            code = self.code(file, index) if codes is None else codes[index]
            total = zlib.crc32(code.to_bytes(4, "little"), total)
        return total


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
            stored = contents.checksum_stored  # data sets of earlier versions have none
            if verify and stored and int(stored, 16) != contents.checksum(file):
                raise ValueError("its checksum is not that of its contents")
            return contents.metadata, contents.arrays()
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
) -> bytes:
    """The header, with its length before it, and room for the checksum."""
    if shared:
        metadata = {**metadata, "shared": list(shared)}
    entries: dict[str, Any] = {"__metadata__": {_CHECKSUM: _UNFINISHED, KEY: json.dumps(metadata)}}
    whole = {name: array.shape for name, array in shared.items()}
    offset = 0
    for name, shape in {**whole, **{n: (num_samples, *shapes[n]) for n in shapes}}.items():
        stop = offset + _bytes(shape)
        entries[name] = {"dtype": "F64", "shape": [*shape], "data_offsets": [offset, stop]}
        offset = stop
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def end_of(entries: Mapping[str, Any]) -> int:
    """Number of bytes of all arrays."""
    return max(int(e["data_offsets"][1]) for e in entries.values() if "data_offsets" in e)


def _bytes(shape: Sequence[int]) -> int:
    return 8 * int(np.prod(shape, dtype=np.int64))


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
