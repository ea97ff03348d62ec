"""Arrays and their parameters in one `.npz` file, written whole or not at all.

A `.npz` is a zip of `.npy` files: NumPy alone reads it, without pickle; every member carries a
checksum and the directory comes last, so that a file that was cut or altered is found out. Members
are written piece by piece, so that memory does not grow with the file.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FileContentError
from ..grid import Array

METADATA = "metadata"


@dataclass(frozen=True)
class Pieces:
    """A float64 array that comes in pieces along its first axis."""

    shape: tuple[int, ...]
    pieces: Iterable[Array]


def write_npz(
    path: Path, metadata: Mapping[str, Any], arrays: Mapping[str, Array | Pieces]
) -> None:
    """Write beside, then rename; the bytes depend on the contents alone.

    The metadata is a JSON string in the member `metadata`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with beside.open("wb") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
                text = np.array(json.dumps(metadata, indent=1))
                with archive.open(f"{METADATA}.npy", "w") as member:
                    np.lib.format.write_array(member, text, allow_pickle=False)
                for name, array in arrays.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                        _write_member(member, array)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def read_npz(path: Path, only_metadata: bool = False) -> tuple[dict[str, Any], dict[str, Array]]:
    """Read metadata and arrays, every checksum verified.

    Raises:
        FileContentError: The file is cut short, altered, or not one of ours.
    """
    arrays: dict[str, Array] = {}
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            metadata = json.loads(str(stored[METADATA][()]))
            for name in stored.files:
                if name != METADATA and not only_metadata:
                    arrays[name] = stored[name]
    except FileNotFoundError:
        raise
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise FileContentError(
            f"{path} is cut short or not a data set ({error}); delete it, or choose another path"
        ) from error
    return metadata, arrays


def _write_member(member: Any, array: Array | Pieces) -> None:
    header = {"descr": "<f8", "fortran_order": False, "shape": array.shape}
    np.lib.format.write_array_header_1_0(member, header)
    rows = 0
    for piece in _pieces(array):
        if piece.shape[1:] != array.shape[1:]:
            raise ValueError(f"a piece of shape {piece.shape} for an array of shape {array.shape}")
        rows += piece.shape[0]
        member.write(np.ascontiguousarray(piece, dtype="<f8").data.cast("B"))
    if rows != array.shape[0]:
        raise ValueError(f"{rows} rows for an array of shape {array.shape}")


def _pieces(array: Array | Pieces) -> Iterator[Array]:
    if isinstance(array, Pieces):
        yield from array.pieces
    else:
        yield array
