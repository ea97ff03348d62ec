"""Arrays in one safetensors file, written in place, resumed after any interruption.

A safetensors file is eight bytes of length, a JSON header with type, shape and offsets of every
array, and the arrays themselves, row-major and uncompressed. So a reader maps it into memory,
without this package (`safetensors.numpy`, `safetensors.torch`, or `numpy.memmap`); and since every
sample's place is known before the first is made, chunks are written where they belong in any order,
nothing is copied at the end, and the bytes do not depend on how often the run was stopped.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FileContentError, PdeError
from ..grid import Array

_KEY = "pde"  # of our metadata, among safetensors' own


class Store:
    """A file under way: `<path>.part`, and beside it a journal of finished chunks.

    Args:
        path: The file to write.
        metadata: What the file is, plain values; kept in its header.
        shapes: Of each array the shape of one sample.
        num_samples: Number of samples.
        chunk: Samples in a chunk; the last may be shorter.

    Raises:
        FileContentError: An earlier run began the file with other parameters.
        PdeError: The disk has not enough room.
    """

    def __init__(
        self,
        path: Path,
        metadata: Mapping[str, Any],
        shapes: Mapping[str, Sequence[int]],
        num_samples: int,
        chunk: int,
    ) -> None:
        self.path, self._num_samples, self._chunk = path, num_samples, chunk
        self._part = path.with_name(path.name + ".part")
        self._journal = path.with_name(path.name + ".journal")
        header, self._arrays, size = _layout(metadata, shapes, num_samples)
        path.parent.mkdir(parents=True, exist_ok=True)
        if self._part.exists() and self._journal.exists():
            self._check(header)
        else:
            self._begin(header, size)
        self._file = self._part.open("r+b")
        self.finished = self._verified()

    @property
    def num_chunks(self) -> int:
        """Number of chunks."""
        return -(-self._num_samples // self._chunk)

    def samples(self, index: int) -> range:
        """The samples of a chunk."""
        return range(index * self._chunk, min((index + 1) * self._chunk, self._num_samples))

    def missing(self) -> list[int]:
        """Chunks that are not finished."""
        return [i for i in range(self.num_chunks) if i not in self.finished]

    def write(self, index: int, arrays: Mapping[str, Array]) -> None:
        """Write a chunk, then note it in the journal.

        Raises:
            OSError: The disk is full, say; chunks noted before are safe.
        """
        code = 0
        for name, (start, shape) in self._arrays.items():
            rows = np.ascontiguousarray(arrays[name], dtype="<f8")
            expected = (len(self.samples(index)), *shape)
            if rows.shape != expected:
                raise ValueError(f"{name} of shape {rows.shape}, expected {expected}")
            self._file.seek(start + index * self._chunk * _bytes(shape))
            self._file.write(rows.data)
            code = zlib.crc32(rows.data, code)
        self._file.flush()
        with self._journal.open("a") as journal:
            journal.write(f"{index} {code}\n")
        self.finished.add(index)

    def close(self) -> None:
        """Stop for now."""
        self._file.close()

    def finish(self) -> None:
        """Give the finished file its name."""
        assert not self.missing()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._part, self.path)
        self._journal.unlink()

    def _begin(self, header: bytes, size: int) -> None:
        room = shutil.disk_usage(self.path.parent).free
        if size > room:
            raise PdeError(
                f"{self.path} takes {size / 1e9:.3g} GB and the disk has {room / 1e9:.3g} GB left: "
                "free some, make fewer samples, or write elsewhere"
            )
        self._journal.unlink(missing_ok=True)
        with self._part.open("wb") as file:
            file.write(header)
            file.truncate(size)
        self._journal.touch()

    def _check(self, header: bytes) -> None:
        with self._part.open("rb") as file:
            stored = file.read(len(header))
        if stored == header:
            return
        try:
            there = _metadata(stored)
        except ValueError:
            there = {}
        ours = _metadata(header)
        why = "; ".join(differences(ours, there)) or "other arrays"
        raise FileContentError(
            f"{self._part} was begun with other parameters ({why}); delete it, or choose another "
            "path"
        )

    def _verified(self) -> set[int]:
        """Chunks of the journal whose bytes are what was written."""
        finished = set()
        for line in self._journal.read_text().splitlines():
            words = line.split()
            if len(words) != 2 or not all(word.isdecimal() for word in words):
                continue  # the run was killed as it wrote this line
            index, code = int(words[0]), int(words[1])
            if 0 <= index < self.num_chunks and self._checksum(index) == code:
                finished.add(index)
        return finished

    def _checksum(self, index: int) -> int:
        code = 0
        for start, shape in self._arrays.values():
            self._file.seek(start + index * self._chunk * _bytes(shape))
            rows = self._file.read(len(self.samples(index)) * _bytes(shape))
            code = zlib.crc32(rows, code)
        return code


def read(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """Read the metadata, and map the arrays into memory.

    Raises:
        FileContentError: The file is cut short, or not one of ours.
    """
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > size:
                raise ValueError("its header is longer than the file")
            header = file.read(length)
        entries = json.loads(header)
        metadata = json.loads(entries.pop("__metadata__")[_KEY])
        arrays: dict[str, Array] = {}
        for name, entry in entries.items():
            start, stop = entry["data_offsets"]
            if entry["dtype"] != "F64" or 8 + length + stop > size:
                raise ValueError(f"{name} is cut short or not of type F64")
            shape = tuple(entry["shape"])
            arrays[name] = np.memmap(path, "<f8", "r", 8 + length + start, shape)
    except (ValueError, KeyError, TypeError) as error:
        raise FileContentError(
            f"{path} is cut short or not a data set ({error}); delete it, or choose another path"
        ) from error
    return metadata, arrays


def differences(ours: Mapping[str, Any], stored: Mapping[str, Any]) -> list[str]:
    """Say in which plain values two records differ, those of nested ones by their own names."""
    found = []
    for name in {**ours, **stored}:
        here, there = ours.get(name), stored.get(name)
        if isinstance(here, Mapping) and isinstance(there, Mapping):
            found += differences(here, there)
        elif here != there:
            found.append(f"{name} is {there!r} there, {here!r} here")
    return found


def _layout(
    metadata: Mapping[str, Any], shapes: Mapping[str, Sequence[int]], num_samples: int
) -> tuple[bytes, dict[str, tuple[int, tuple[int, ...]]], int]:
    """The header, where each array starts, and the size of the whole."""
    entries: dict[str, Any] = {"__metadata__": {_KEY: json.dumps(metadata)}}
    offset, starts = 0, {}
    for name, shape in shapes.items():
        stop = offset + num_samples * _bytes(shape)
        entries[name] = {
            "dtype": "F64",
            "shape": [num_samples, *shape],
            "data_offsets": [offset, stop],
        }
        starts[name], offset = offset, stop
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    arrays = {name: (len(header) + starts[name], tuple(shapes[name])) for name in shapes}
    return header, arrays, len(header) + offset


def _metadata(header: bytes) -> dict[str, Any]:
    length = int.from_bytes(header[:8], "little")
    result: dict[str, Any] = json.loads(json.loads(header[8 : 8 + length])["__metadata__"][_KEY])
    return result


def _bytes(shape: Sequence[int]) -> int:
    return 8 * int(np.prod(shape, dtype=np.int64))
