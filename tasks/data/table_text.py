"""A table in a text file: fields between commas, semicolons, tabs or spaces."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import pandas as pd  # type: ignore[import-untyped]
from lightning.pytorch.utilities import rank_zero_info

from tasks.data.column import Column, Decimals
from tasks.data.delimited import (
    CHUNK,
    Layout,
    Row,
    fitted,
    layout_of,
    opened,
    rows_of,
    separator_of,
    unquoted,
)

_BLOCK = 100_000  # rows that pandas reads at once


@dataclass(frozen=True)
class TextTable:
    """A text file whose form is known, and whose columns are still to be read.

    Attributes:
        path: The file, in UTF-8, or in UTF-16 with its mark; empty lines are skipped.
        encoding: Its encoding.
        separator: What stands between fields.
        layout: How its rows become columns.
    """

    path: Path
    encoding: str
    separator: str
    layout: Layout

    @classmethod
    def opened(cls, path: Path) -> TextTable:
        """Return the table of a file.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If it is not of that form; the line is named.
        """
        encoding, separator = separator_of(path)
        with opened(path, encoding, bar=False) as text:
            head = list(itertools.islice(rows_of(path, text, separator), CHUNK))
        return cls(path, encoding, separator, layout_of(path, head))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, "0", "1", ... if the file has none."""
        return self.layout.names

    def place(self, row: int, column: str) -> str:
        """Return what an error that concerns a value begins with."""
        with opened(self.path, self.encoding) as text:
            rows = rows_of(self.path, text, self.separator)
            line = next(itertools.islice(rows, row + self.layout.header, None))[0]
        return f"{self.path}, line {line}, column {column!r}"

    def read(self, labels: Mapping[str, bool]) -> dict[str, Column]:
        """Return columns by name, in the file's order.

        Args:
            labels: The columns to be read, and whether they hold labels.

        Raises:
            ValueError: If a row or a value is not of its column's form; line and column are named.
        """
        path, layout, decimals = self.path, self.layout, Decimals(self.separator in ";\t")
        columns = [
            Column(name, path, decimals, labels=labels[name]) if name in labels else None
            for name in layout.names
        ]
        with opened(path, self.encoding) as text:
            head = list(itertools.islice(rows_of(path, text, self.separator), CHUNK))
            _take(columns, path, layout, head[layout.header :])
            read_quickly = len(head) == CHUNK and _read_quickly(
                columns, text, self.separator, layout, decimals
            )
        found = [column for column in columns if column is not None]
        if len(head) == CHUNK and not read_quickly:
            # pandas names no line, and knows less: what it does not take is read again.
            with opened(path, self.encoding) as text:
                rows = itertools.islice(rows_of(path, text, self.separator), CHUNK, None)
                for column in found:
                    column.keep(CHUNK - layout.header)
                while chunk := list(itertools.islice(rows, CHUNK)):
                    _take(columns, path, layout, chunk)
        decimals.check(path)
        if layout.first:
            rank_zero_info(f"Note: the first column of {path} names its rows and is no feature")
        return {column.name: column for column in found}


def _take(columns: Sequence[Column | None], path: Path, layout: Layout, rows: list[Row]) -> None:
    lines = [line for line, _ in rows]
    for column, fields in zip(columns, fitted(path, rows, layout), strict=bool(rows)):
        if column is not None:
            column.add(fields, lines)


def _read_quickly(
    columns: Sequence[Column | None],
    text: TextIO,
    separator: str,
    layout: Layout,
    decimals: Decimals,
) -> bool:
    """Let pandas read the rest of a file, and return whether that is what a strict reader reads."""
    words = [layout.first + i for i, column in enumerate(columns) if column is None or column.words]
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
                if column is None:
                    unquoted(values.tolist())
                else:
                    column.take(values)
    except pd.errors.EmptyDataError:
        return True
    except ValueError:
        return False
    return True
