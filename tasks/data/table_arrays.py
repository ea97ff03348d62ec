"""A table in a NumPy file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.data.column import Column

#: Whole numbers from here on are no longer told apart in double precision.
_EXACT = 2**53


@dataclass(frozen=True)
class ArrayTable:
    """Columns of a ``.npy`` file [rows, columns], or of a ``.npz`` file.

    The latter holds ``x`` [N, D] and ``y`` [N], which rows to predict may lack, or columns [N] by
    name.

    Attributes:
        path: The file.
        arrays: Its columns by name; those of a matrix are called "0", "1", ...
    """

    path: Path
    arrays: dict[str, NDArray[Any]]

    @classmethod
    def opened(cls, path: Path) -> ArrayTable:
        """Return the table of a file.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If its arrays are no columns of equal length.
        """
        return cls(path, _columns(path, _arrays(path)))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self.arrays)

    def place(self, row: int, column: str) -> str:
        """Return what an error that concerns a value begins with."""
        return f"{self.path}, row {row}, column {column!r}"

    def read(self, labels: Mapping[str, bool]) -> dict[str, Column]:
        """Return columns by name, in the file's order.

        Args:
            labels: The columns to be read, and whether they hold labels.

        Raises:
            ValueError: If a value is missing or no number; row (from 0) and column are named.
        """
        return {
            name: self._column(name, array, labels[name])
            for name, array in self.arrays.items()
            if name in labels
        }

    def _column(self, name: str, array: NDArray[Any], labels: bool) -> Column:
        path = self.path
        if not array.size:
            raise ValueError(f"{path}, column {name!r} has no rows")
        if array.dtype.kind == "S":
            try:
                array = np.char.decode(array, "utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{path}, column {name!r} holds bytes that are no UTF-8"
                ) from error
        whole = array.dtype.kind in "iu"
        beyond = whole and (abs(int(array.min())) | abs(int(array.max()))) >= _EXACT
        if array.dtype.kind == "U" or (labels and beyond):
            column = Column(name, path, labels=labels, unit="row")
            column.add(array.astype(str).tolist(), range(len(array)))
            return column
        if array.dtype.kind not in "biuf":
            raise ValueError(f"{path}, column {name!r} holds {array.dtype}, not numbers")
        values = array.astype(np.float64)
        wrong = np.flatnonzero(~np.isfinite(values))
        if len(wrong):
            raise ValueError(
                f"{self.place(int(wrong[0]), name)}: {values[wrong[0]]} is missing, not finite "
                "or too large; fill it or drop the row"
            )
        return Column(name, path, parts=[values], first="0")


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a NumPy file by name, one of a ``.npy`` file as ``""``."""
    if not path.is_file():
        raise FileNotFoundError(f"the table {path} is missing: check the path")
    try:
        with path.open("rb") as file:
            content = np.load(file, allow_pickle=False)
            if isinstance(content, np.ndarray):
                return {"": content}
            return {name: content[name] for name in content.files}
    except Exception as error:  # NumPy, zipfile, zlib and tokenize raise a dozen kinds
        raise ValueError(f"{path} is not a NumPy file of numbers: {error}") from error


def _columns(path: Path, arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the columns [N] of a NumPy file by name."""
    if "" in arrays:
        values = arrays[""]
        if values.ndim != 2:
            raise ValueError(f"{path} needs to be [rows, columns], got {list(values.shape)}")
        return {str(i): column for i, column in enumerate(values.T)}
    shapes = {name: array.shape for name, array in arrays.items()}
    x = shapes.get("x", ())
    others = {name: shape for name, shape in shapes.items() if name != "x"}
    if len(x) == 2 and others in ({}, {"y": x[:1]}) and arrays["x"].size:
        return {str(i): column for i, column in enumerate(arrays.pop("x").T)} | arrays
    if {*map(len, shapes.values())} != {1} or len({*shapes.values()}) > 1:
        given = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        raise ValueError(f"{path} needs x [N, D] and y [N], or columns [N], got {given}")
    return arrays
