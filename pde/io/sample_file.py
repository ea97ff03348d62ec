"""Writing a data set's file chunk by chunk; an interrupted run goes on where it stopped."""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FileContentError, PdeError
from ..grid import Array
from .sample_layout import (
    CHECKSUM_AT,
    KEY,
    NOT_OURS,
    Contents,
    Shapes,
    differences,
    header_of,
)


class SampleFile:
    """A file under way: `<path>.part`, and beside it a journal of finished chunks.

    Args:
        path: The file to write.
        metadata: What the file is, plain values; kept in its header.
        shapes: Of each array with a row a sample, the shape of one row.
        num_samples: Number of samples.
        shared: Arrays that all samples have in common.
        ignored: Names in the metadata whose values may differ from those of the begun file.

    Raises:
        FileContentError: An earlier run began the file with other parameters.
        PdeError: The disk has not enough room.
    """

    def __init__(
        self,
        path: Path,
        metadata: Mapping[str, Any],
        shapes: Shapes,
        num_samples: int,
        shared: Mapping[str, Array],
        ignored: Collection[str] = (),
    ) -> None:
        self.path = path
        self._part = path.with_name(path.name + ".part")
        self._journal = path.with_name(path.name + ".journal")
        header, size = header_of(metadata, shapes, num_samples, shared)
        path.parent.mkdir(parents=True, exist_ok=True)
        if self._part.exists() and self._journal.exists():
            self._check(header, shared, ignored)
        else:
            self._begin(header, size, shared)
        self._contents = Contents(self._part)
        self._file = self._part.open("r+b")
        self._codes = self._verified()

    def missing(self) -> dict[int, range]:
        """The chunks that are not finished, and the samples of each."""
        chunks = {i: self._contents.samples(i) for i in range(self._contents.num_chunks)}
        return {i: samples for i, samples in chunks.items() if i not in self._codes}

    def write(self, index: int, arrays: Mapping[str, Array]) -> None:
        """Write a chunk, then note it in the journal.

        Raises:
            OSError: The disk is full, say; chunks noted before are safe.
        """
        code = 0
        samples = self._contents.samples(index)
        for name in self._contents.rows:
            whole = self._contents.arrays[name]
            rows = np.ascontiguousarray(arrays[name], dtype="<f8")
            if rows.shape != (expected := (len(samples), *whole.shape[1:])):
                raise ValueError(f"{name} of shape {rows.shape}, expected {expected}")
            # Not through the map: a full disk would kill the process.
            self._file.seek(whole.offset + samples.start * whole[0].nbytes)
            self._file.write(rows.data)
            code = zlib.crc32(rows.data, code)
        self._file.flush()
        with self._journal.open("a") as journal:
            journal.write(f"{index} {code}\n")
        self._codes[index] = code

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def finish(self) -> None:
        """Write the checksum, and give the finished file its name."""
        assert not self.missing()
        self._file.seek(CHECKSUM_AT)
        self._file.write(self._contents.checksum(self._codes).encode())
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        del self._contents  # some systems do not rename a mapped file
        os.replace(self._part, self.path)
        self._journal.unlink()

    def _begin(self, header: bytes, size: int, shared: Mapping[str, Array]) -> None:
        room = shutil.disk_usage(self.path.parent).free
        if size > room:
            raise PdeError(
                f"{self.path} takes {size / 1e9:.3g} GB and the disk has {room / 1e9:.3g} GB left: "
                "free some, make fewer samples, or write elsewhere"
            )
        self._journal.unlink(missing_ok=True)
        with self._part.open("wb") as file:
            file.write(header)
            for array in shared.values():
                file.write(np.ascontiguousarray(array, dtype="<f8").data)
            file.truncate(size)
        self._journal.touch()

    def _check(self, header: bytes, shared: Mapping[str, Array], ignored: Collection[str]) -> None:
        try:
            there = Contents(self._part)
            entries = json.loads(header[8:])
            ours = json.loads(entries.pop("__metadata__")[KEY])
            why = differences(ours, there.metadata, ignored)
            if not why and (entries != there.entries or there.stored is None):
                why = ["other arrays, or an earlier version of this format"]
            unlike = (n for n in shared if not np.array_equal(there.arrays[n], shared[n]))
            why = why or [f"another {name}" for name in unlike]
        except NOT_OURS as error:
            why = [str(error)]
        if why:
            raise FileContentError(
                f"{self._part} was begun with other parameters ({'; '.join(why)}); delete it, or "
                "choose another path"
            )

    def _verified(self) -> dict[int, int]:
        """The chunks of the journal whose bytes are what was written, and their checksums."""
        finished = {}
        for line in self._journal.read_text().splitlines():
            words = line.split()
            if len(words) != 2 or not all(word.isdecimal() for word in words):
                continue  # the run was killed as it wrote this line
            index, code = int(words[0]), int(words[1])
            known = 0 <= index < self._contents.num_chunks
            if known and self._contents.code(index) == code:
                finished[index] = code
        return finished
