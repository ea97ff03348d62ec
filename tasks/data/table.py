"""Tables of numbers and words: features in float64, words as 0 and 1, errors that name the place.

Numbers stay in float64 until they are standardised. A column of words becomes a feature of 0 and 1
for each of its categories.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
from lightning.pytorch.utilities import rank_zero_info
from numpy.typing import NDArray

from tasks.data.column import Array, Column, Decimals
from tasks.data.delimited import (
    CHUNK,
    Layout,
    Row,
    fitted,
    layout_of,
    opened,
    rows_of,
    separator_of,
    shown,
    unquoted,
)

_BLOCK = 100_000  # rows that pandas reads at once


@dataclass(frozen=True)
class Places:
    """Where the rows of a table stand: lines of a text file, or rows of an array, from 0."""

    path: Path
    header: bool | None = None

    def of(self, row: int, column: str) -> str:
        """Return what an error that concerns a value begins with."""
        where = f"row {row}"
        if self.header is not None:
            encoding, separator = separator_of(self.path)
            with opened(self.path, encoding) as text:
                rows = rows_of(self.path, text, separator)
                where = f"line {next(itertools.islice(rows, row + self.header, None))[0]}"
        return f"{self.path}, {where}, column {column!r}"


@dataclass(frozen=True)
class Table:
    """Features and the target of a table.

    Attributes:
        x: Features [N, D].
        y: The target [N], float64 or words.
        features: Names of the features; that of a category is COLUMN=WORD.
        target: Name of the target.
        places: Where the rows stand in the file.
        categories: The words of the columns of words.
    """

    x: Array
    y: NDArray[Any]
    features: tuple[str, ...]
    target: str
    places: Places
    categories: dict[str, tuple[str, ...]]


def read_table(
    path: str | Path,
    target: str | int | None = None,
    labels: bool = False,
    at_least: int = 1,
    like: Table | None = None,
) -> Table:
    """Read fields between commas, semicolons, tabs or spaces.

    Args:
        path: A text file, in UTF-8, or in UTF-16 with its mark; empty lines are skipped.
        target: Name or number of the target's column; None is the last one.
        labels: Whether the target may hold words.
        at_least: Smallest number of rows.
        like: A table whose categories this one has.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is not of that form; line and column are named.
    """
    path = Path(path)
    encoding, separator = separator_of(path)
    with opened(path, encoding) as text:
        rows = rows_of(path, text, separator)
        head = list(itertools.islice(rows, CHUNK))
        layout = layout_of(path, head)
        place = place_of(path, layout.names, target)
        decimals = Decimals(separator in ";\t")
        columns = [
            Column(name, path, decimals, labels=labels and i == place)
            for i, name in enumerate(layout.names)
        ]
        _take(columns, path, layout, head[layout.header :])
        read_quickly = len(head) == CHUNK and _read_quickly(columns, text, separator, layout)
    if len(head) == CHUNK and not read_quickly:
        # pandas names no line, and knows less: what it does not take is read again.
        with opened(path, encoding) as text:
            rows = itertools.islice(rows_of(path, text, separator), CHUNK, None)
            for column in columns:
                column.keep(CHUNK - layout.header)
            while chunk := list(itertools.islice(rows, CHUNK)):
                _take(columns, path, layout, chunk)
    decimals.check(path)
    count = len(columns[0])
    if count < at_least:
        raise ValueError(f"{path} has {count} rows of data: at least {at_least} are needed")
    if layout.first:
        rank_zero_info(f"Note: the first column of {path} names its rows and is no feature")
    return assemble(columns, place, Places(path, layout.header), like)


def _take(columns: Sequence[Column], path: Path, layout: Layout, rows: list[Row]) -> None:
    lines = [line for line, _ in rows]
    for column, fields in zip(columns, fitted(path, rows, layout), strict=bool(rows)):
        column.add(fields, lines)


def _read_quickly(columns: Sequence[Column], text: TextIO, separator: str, layout: Layout) -> bool:
    """Let pandas read the rest of a file, and return whether that is what a strict reader reads."""
    decimals = columns[0].decimals
    words = [layout.first + i for i, column in enumerate(columns) if column.words]
    try:
        blocks = pd.read_csv(
            text,
            sep=separator,
            header=None,
            na_filter=False,
            skipinitialspace=True,
            quoting=csv.QUOTE_NONE,  # with quotes, pandas takes "1"2 for 12
            dtype=dict.fromkeys([*range(layout.first), *words], str),
            decimal="," if decimals.surely else ".",
            chunksize=_BLOCK,
        )
        for block in blocks:
            fields = [values.to_numpy() for _, values in block.items()]
            for row_names in fields[: layout.first]:
                unquoted(row_names.tolist())
            for column, values in zip(columns, fields[layout.first :], strict=True):
                column.take(values)
    except pd.errors.EmptyDataError:
        return True
    except ValueError:
        return False
    return True


def place_of(path: Path, names: Sequence[str], target: str | int | None) -> int:
    """Return which column is the target.

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
        return list(names).index(name)
    if re.fullmatch(r"-?[0-9]+", name) and -len(names) <= int(name) < len(names):
        return int(name) % len(names)
    raise ValueError(f"{path} has no column {name!r}: choose among {shown(names)}")


def assemble(columns: Sequence[Column], place: int, places: Places, like: Table | None) -> Table:
    """Return the table of columns that have been read.

    Args:
        columns: All columns.
        place: Which of them is the target.
        places: Where the rows stand.
        like: A table whose categories this one has.

    Raises:
        ValueError: If the target holds words that are no labels, or a word is unknown to ``like``.
    """
    target = columns[place]
    if target.words and not target.labels:
        raise ValueError(
            f"{places.of(0, target.name)}: {target.first!r} is not a number; choose a column of "
            "numbers as data.target"
        )
    names: list[str] = []
    parts: list[Array] = []
    categories: dict[str, tuple[str, ...]] = {}
    for column in (c for c in columns if c is not target):
        if not column.words:
            names.append(column.name)
            parts.append(column.numbers()[:, None])
            continue
        known = tuple(sorted(column.codes)) if like is None else like.categories.get(column.name)
        names += [f"{column.name}={word}" for word in known or column.codes]
        parts.append(column.indicators(known))
        categories[column.name] = known or tuple(column.codes)
    if categories and like is None:
        counts = ", ".join(f"{name} ({len(words)})" for name, words in categories.items())
        rank_zero_info(
            f"Note: columns of words in {places.path}, a feature of 0 and 1 for each category: "
            f"{counts}"
        )
    y = target.values()
    return Table(np.hstack(parts), y, tuple(names), target.name, places, categories)
