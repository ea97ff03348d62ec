"""Files that are whole or not there, and that name their damage when they are read."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

_TEMPORARY = ".sgmcmc.tmp"
_NOTES = "notes"


class DamagedFileError(ValueError):
    """A file does not hold what was written; the message names it and says what to do."""


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield a name beside ``path`` to write to, which takes the place of ``path`` at the end.

    The content and the name are on the disk before the block is left, so that a power cut leaves
    the old file or the new one. If the block raises, the old file stays and nothing else is left.

    Args:
        path: Of the file, in a folder that exists.

    Raises:
        OSError: If the disk is full, or the folder is read-only or gone.
    """
    require(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}{_TEMPORARY}")
    try:
        yield temporary
        with temporary.open("r+b") as file:  # Windows flushes no file that is open for reading
            os.fsync(file.fileno())
        os.replace(temporary, path)
        flush_folder(path.parent)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        _name(error, path)
        raise


def write_beside(path: Path, content: str | bytes) -> None:
    """Write a file beside ``path`` and rename it, so that no half of it is ever seen.

    Raises:
        OSError: As :func:`written_whole`.
    """
    with written_whole(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def append(path: Path, size: int, content: bytes) -> None:
    """Write behind the first ``size`` bytes of a file, in place of whatever stands there.

    If it raises, these bytes are whole, and what stands behind them is to be written again.

    Raises:
        OSError: If the disk is full, or the folder or the file is read-only or gone.
    """
    require(path)
    try:
        with path.open("r+b") as file:
            file.truncate(size)
            file.seek(size)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        _name(error, path)
        raise


def require(path: Path) -> None:
    """Refuse to go on where a run's folder or file has gone away.

    Raises:
        FileNotFoundError: If it has.
    """
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is gone: put it back and continue from the run's last checkpoint"
        )


def _name(error: BaseException, path: Path) -> None:
    if isinstance(error, OSError) and error.errno is not None:
        error.filename = str(path)  # a disk that is full names no file


def encoded(tensors: Mapping[str, Tensor], notes: Mapping[str, Any] | None = None) -> bytes:
    """Return the content of a safetensors file, equal to the bit for equal tensors and notes.

    Args:
        tensors: By name.
        notes: Plain values, for :func:`read_notes`.
    """
    # Copies, because safetensors refuses tensors that share memory, such as tied buffers.
    return save(
        {name: t.detach().cpu().clone().contiguous() for name, t in tensors.items()},
        # One entry, because safetensors writes several in an order of chance.
        {_NOTES: json.dumps(notes, sort_keys=True)} if notes else None,
    )


def save_encoded(path: Path, content: bytes) -> str:
    """Write a file as a whole and return its SHA-256."""
    write_beside(path, content)
    return hashlib.sha256(content).hexdigest()


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, Any] | None = None
) -> str:
    """Write a safetensors file as a whole.

    Args:
        path: Of the file.
        tensors: By name.
        notes: Plain values, for :func:`read_notes`.

    Returns:
        The SHA-256 of the file.
    """
    return save_encoded(path, encoded(tensors, notes))


def read_notes(file: Any) -> dict[str, Any]:
    """Return the notes of a safetensors file that is open, empty where it has none."""
    notes: dict[str, Any] = json.loads((file.metadata() or {}).get(_NOTES, "{}"))
    return notes


def digest_of(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of plain values, whatever the order of their keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def flush_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk, where the system can."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def clear_temporary(*folders: Path) -> None:
    """Remove what processes that were killed left of unfinished files in some folders."""
    for folder in folders:
        for path in folder.glob(f".*{_TEMPORARY}"):
            path.unlink(missing_ok=True)


def verify(path: Path, sha256: str) -> None:
    """Compare a file with the checksum that it was written with.

    Args:
        path: Of the file.
        sha256: The checksum; empty for a file of a run that had none.

    Raises:
        FileNotFoundError: If there is no such file.
        DamagedFileError: If the file differs.
    """
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest() if sha256 else ""
    if found != sha256:
        raise DamagedFileError(
            f"{path} is damaged, its checksum is not the one that it was written with: restore "
            "it from a copy, or run the chain anew"
        )
