"""Tables of numbers and words: features in float64, words as 0 and 1, errors that name the place.

Numbers stay in float64 until they are standardised. A column of words becomes a feature of 0 and 1
for each of its categories.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from lightning.pytorch.utilities import rank_zero_info
from numpy.typing import NDArray

from tasks.data.column import Array, Column
from tasks.data.delimited import shown
from tasks.data.table_arrays import ArrayTable
from tasks.data.table_text import TextTable

#: The columns of features in their order: of words which ones these are, of numbers None.
Columns = Mapping[str, Sequence[str] | None]


class Place(Protocol):
    """Says where a value stands in a file: row, from 0, and column."""

    def __call__(self, row: int, column: str) -> str:
        """Return what an error that concerns the value begins with."""


@dataclass(frozen=True)
class Table:
    """Features and the target of a table.

    Attributes:
        x: Features [N, D].
        y: The target [N], float64 or words.
        columns: The columns of the features.
        target: Name of the target.
        path: The file.
        place: Where a value stands in it.
    """

    x: Array
    y: NDArray[Any]
    columns: Columns
    target: str
    path: Path
    place: Place

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features; that of a category is COLUMN=WORD."""
        return feature_names(self.columns)


def feature_names(columns: Columns) -> tuple[str, ...]:
    """Return the names of the features that columns become."""
    named = (
        [name] if words is None else [f"{name}={word}" for word in words]
        for name, words in columns.items()
    )
    return tuple(name for names in named for name in names)


def described(columns: Columns, train: Array) -> dict[str, Any]:
    """Return what a run keeps of its table: the columns, and the training rows' range.

    Args:
        columns: Of the table.
        train: Features of the training rows [N, D], in the table's units.
    """
    ends = {"lowest": train.min(0).tolist(), "highest": train.max(0).tolist()}
    return {"columns": dict(columns)} | ends


def read_table(
    source: str | Path | ArrayTable,
    target: str | int | None = None,
    labels: bool = False,
    at_least: int = 1,
    drop: Collection[str] = (),
    like: Table | None = None,
) -> Table:
    """Read the table of a text file or a NumPy file.

    Args:
        source: The file, see :class:`~tasks.data.table_text.TextTable` and
            :class:`~tasks.data.table_arrays.ArrayTable`; or the latter itself.
        target: Name or number of the target's column; None is the last one.
        labels: Whether the target may hold words.
        at_least: Smallest number of rows.
        drop: Names of columns that are left out.
        like: A table whose columns this one has, by name.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is not of that form; line or row, and column, are named.
    """
    file = source if isinstance(source, ArrayTable) else _opened(Path(source))
    path, names = file.path, _without(file, drop)
    target = target_of(path, names, target if like is None else like.target)
    if like is not None:
        names = [*_found(file, like.columns, target, *drop), target]
    read = file.read({name: labels and name == target for name in names})
    column = read.pop(target)
    if len(column) < at_least:
        raise ValueError(f"{path} has {len(column)} rows of data: at least {at_least} are needed")
    if column.words and not column.labels:
        raise ValueError(
            f"{file.place(0, target)}: {column.first!r} is not a number; choose a column of "
            "numbers as data.target"
        )
    known = _columns(read) if like is None else like.columns
    words = {name: len(words) for name, words in known.items() if words is not None}
    if words and like is None:
        counts = ", ".join(f"{name} ({count})" for name, count in words.items())
        rank_zero_info(
            f"Note: columns of words in {path}, a feature of 0 and 1 for each category: {counts}"
        )
    x = _features(read, known)
    return Table(x, column.values(), known, target, path, file.place)


def read_features(path: str | Path, columns: Columns) -> Array:
    """Read the features [N, D] of further rows, in float64.

    Args:
        path: As for :func:`read_table`.
        columns: The columns of the table that was trained on. They are found by name, in any order;
            others are not used, which a note says.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a column is missing, or holds what that of the table does not.
    """
    file = _opened(Path(path))
    read = file.read(dict.fromkeys(_found(file, columns), False))
    if not all(map(len, read.values())):
        raise ValueError(f"{path} has no rows of data")
    return _features(read, columns)


def remark_range(x: Array, inputs: Mapping[str, Any], path: str | Path) -> None:
    """Say which features [N, D] leave the range that a run has seen.

    Args:
        x: Of other rows.
        inputs: What the run keeps of its table, see :func:`described`.
        path: Of the rows' file.
    """
    beyond = (x < inputs["lowest"]) | (x > inputs["highest"])
    if rows := int(beyond.any(1).sum()):
        names = np.array(feature_names(inputs["columns"]))[beyond.any(0)]
        rank_zero_info(
            f"Note: {rows:,} of {len(x):,} rows of {path} lie outside the range of the training "
            f"rows, in {shown(names.tolist())}: what is predicted there is extrapolated"
        )


def _opened(path: Path) -> TextTable | ArrayTable:
    kind = ArrayTable if path.suffix in (".npy", ".npz") else TextTable
    return kind.opened(path)


def _without(file: TextTable | ArrayTable, drop: Collection[str]) -> list[str]:
    """Return the names of a file's columns but for those that are left out, which it must have."""
    unknown = [name for name in drop if name not in file.names]
    if unknown:
        raise ValueError(
            f"{file.path} has no column {unknown[0]!r} to drop: choose among {shown(file.names)}"
        )
    return [name for name in file.names if name not in drop]


def _found(file: TextTable | ArrayTable, columns: Columns, *others: str) -> list[str]:
    """Return the names of columns, which a file must have; a note names the unknown of the rest."""
    missing = [name for name in columns if name not in file.names]
    if missing:
        raise ValueError(
            f"{file.path} has no column {missing[0]!r}, which the training table has: it has "
            f"{shown(file.names)}, and needs {shown(list(columns))}, in any order"
        )
    unused = [name for name in file.names if name not in columns and name not in others]
    if unused:
        rank_zero_info(f"Note: columns of {file.path} that are not used: {shown(unused)}")
    return list(columns)


def target_of(path: Path, names: Sequence[str], target: str | int | None) -> str:
    """Return the name of the target's column.

    Args:
        path: The file, for errors.
        names: Names of its columns.
        target: Name or number of the target's column; None is the last one.

    Raises:
        ValueError: If there is no such column, or it is the only one.
    """
    if len(names) < 2:
        raise ValueError(
            f"{path} has one column: a target and a feature are needed, between commas, "
            "semicolons, tabs or spaces"
        )
    name = names[-1] if target is None else str(target)
    if name in names:
        return name
    if re.fullmatch(r"-?[0-9]+", name) and -len(names) <= int(name) < len(names):
        return names[int(name)]
    raise ValueError(f"{path} has no column {name!r}: choose among {shown(names)}")


def _columns(read: Mapping[str, Column]) -> Columns:
    return {name: tuple(sorted(c.codes)) if c.words else None for name, c in read.items()}


def _features(read: Mapping[str, Column], columns: Columns) -> Array:
    """Return the features of columns that have been read, each of the kind that it must be."""
    return np.hstack([read[name].features(words) for name, words in columns.items()])
