"""Tables of numbers and labels in text files, with errors that name the row and the column."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
#: Numbers of lines, and their fields.
Rows = list[tuple[int, list[str]]]
#: What stands for a missing value, in lower case.
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})
#: Largest value, far from where squares overflow in single precision.
LARGEST = 1e15
ENCODE_WORDS = "encode words as numbers, one column of 0 and 1 a category"


@dataclass(frozen=True)
class Table:
    """Columns of a text file, whose fields are numbers or words.

    Attributes:
        path: The file.
        names: Names of the columns; "0", "1", ... if the file has none.
        rows: The number of every row's line, and its fields.
    """

    path: Path
    names: tuple[str, ...]
    rows: tuple[tuple[int, list[str]], ...]

    def numbers(self, columns: Sequence[int] | None = None) -> Array:
        """Return some columns, or all, as [rows, columns].

        Raises:
            ValueError: If a value is missing or no finite number; line and column are named.
        """
        chosen = range(len(self.names)) if columns is None else columns
        return np.array(
            [
                [_number(self.path, line, self.names[i], fields[i]) for i in chosen]
                for line, fields in self.rows
            ]
        )

    def labels(self, column: int) -> NDArray[Any]:
        """Return one column as [rows], in float64 where all of it are numbers, else as words.

        Raises:
            ValueError: If a value is missing or not finite; line and column are named.
        """
        if all(is_number(fields[column]) for _, fields in self.rows):
            return self.numbers([column])[:, 0]
        for line, fields in self.rows:
            _refuse_missing(self.path, line, self.names[column], fields[column])
        return np.array([fields[column] for _, fields in self.rows])

    def split(self, target: str | int | None) -> tuple[Array, Array, tuple[str, ...], str]:
        """Return features [N, D], target [N, 1] and their names, all numbers.

        Args:
            target: Name or number of the target's column; None is the last one.

        Raises:
            ValueError: If there is no such column, it is the only one, or a value is no number.
        """
        place, rest = places(self.path, self.names, target)
        values = self.numbers()
        names = tuple(self.names[i] for i in rest)
        return values[:, rest], values[:, [place]], names, self.names[place]


def places(path: Path, names: Sequence[str], target: str | int | None) -> tuple[int, list[int]]:
    """Return which column is the target, and which are the features.

    Args:
        path: The file, for errors.
        names: Names of its columns.
        target: Name or number of the target's column; None is the last one.

    Raises:
        ValueError: If there is no such column, or it is the only one.
    """
    if len(names) < 2:
        raise ValueError(f"{path} has one column: a target and a feature are needed")
    name = names[-1] if target is None else str(target)
    if name in names:
        place = list(names).index(name)
    elif name.lstrip("-").isdigit() and -len(names) <= int(name) < len(names):
        place = int(name) % len(names)
    else:
        raise ValueError(f"{path} has no column {name!r}: choose among {', '.join(names)}")
    return place, [i for i in range(len(names)) if i != place]


def read_table(path: str | Path, at_least: int = 1) -> Table:
    """Read fields between commas, semicolons, tabs or spaces; a first row of words is a header.

    Names of rows, as pandas and R write them by default, are left out. Where semicolons separate,
    a comma may be the decimal point.

    Args:
        path: A text file; empty lines are skipped.
        at_least: Smallest number of rows.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If rows differ in length, names repeat, there are too few rows, or the header
            is of numbers.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"the table {path} is missing: check the path")
    rows = _rows(path)
    if not rows:
        raise ValueError(f"{path} is empty")
    rows = _without_row_names(rows)
    first = rows[0][1]
    header = not any(is_number(field) or field.lower() in MISSING for field in first)
    if not header:
        _refuse_header_of_numbers(path, rows)
    names = tuple(first) if header else tuple(str(i) for i in range(len(first)))
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"{path} has several columns named {', '.join(map(repr, repeated))}")
    body = rows[header:]
    if len(body) < at_least:
        raise ValueError(f"{path} has {len(body)} rows of data: at least {at_least} are needed")
    for line, fields in body:
        if len(fields) != len(names):
            raise ValueError(f"{path}, line {line} has {len(fields)} fields, not {len(names)}")
    return Table(path, names, tuple(body))


def _rows(path: Path) -> Rows:
    """Return the fields of every line that is not empty, with its number."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file in UTF-8") from None
    lines = [(i, line) for i, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        return []
    separator = next((s for s in (",", ";", "\t") if s in lines[0][1].strip()), None)
    if separator is None:
        separator, lines = " ", [(i, " ".join(line.split())) for i, line in lines]
    # Some published sets end every line with a separator: no field follows it.
    if all(line.rstrip(" \r").endswith(separator) for _, line in lines):
        lines = [(i, line.rstrip(" \r")[:-1]) for i, line in lines]
    found = []
    for i, line in lines:
        try:
            (fields,) = csv.reader([line], delimiter=separator, skipinitialspace=True, strict=True)
        except csv.Error as error:
            raise ValueError(
                f"{path}, line {i}: {error}; a field may hold no line break, and quotes come in "
                "pairs"
            ) from None
        found.append((i, [field.strip() for field in fields]))
    return _with_decimal_points(found) if separator == ";" else found


def _with_decimal_points(rows: Rows) -> Rows:
    """Return rows with points for decimal commas, if every comma is one."""
    commas = [field for _, fields in rows for field in fields if "," in field]
    if not all(is_number(field.replace(",", ".")) for field in commas):
        return rows
    return [(i, [field.replace(",", ".") for field in fields]) for i, fields in rows]


def _without_row_names(rows: Rows) -> Rows:
    """Return rows without a first column of names, which the header leaves out or leaves empty."""
    first, rest = rows[0][1], rows[1:]
    words = [field for field in first if field and not is_number(field)]
    if len(words) == len(first) and rest and all(len(f) == len(first) + 1 for _, f in rest):
        return [rows[0], *((i, fields[1:]) for i, fields in rest)]
    if first[0] == "" and len(words) == len(first) - 1 > 0:
        return [(i, fields[1:]) for i, fields in rows]
    return rows


def _refuse_header_of_numbers(path: Path, rows: Rows) -> None:
    """Refuse a first row that holds a word where all others hold numbers, or a word of its own."""
    for place, field in enumerate(rows[0][1]):
        below = [fields[place] for _, fields in rows[1:] if place < len(fields)]
        if is_number(field) or field.lower() in MISSING or len(below) < 2:
            continue
        if field not in below and len({*below}) <= len(below) / 2:
            raise ValueError(
                f"{path}, line {rows[0][0]} reads like a header with numbers for names: "
                f"{field!r} stands in no other row; give every column a name that is a word"
            )


def _refuse_missing(path: Path, line: int, name: str, field: str) -> None:
    if field.lower() in MISSING:
        raise ValueError(
            f"{path}, line {line}, column {name!r}: the value is missing; fill it or drop the row"
        )


def _number(path: Path, line: int, name: str, field: str) -> float:
    _refuse_missing(path, line, name, field)
    if not is_number(field):
        raise ValueError(
            f"{path}, line {line}, column {name!r}: {field!r} is not a number; {ENCODE_WORDS}"
        )
    value = float(field)
    if not math.isfinite(value):
        raise ValueError(f"{path}, line {line}, column {name!r}: {field} is not finite")
    if abs(value) > LARGEST:
        raise ValueError(
            f"{path}, line {line}, column {name!r}: {field} is larger than {LARGEST:g}; mend the "
            "value, or drop the row"
        )
    return value


def refuse_unresolved(path: Path | str, names: Sequence[str], columns: Array) -> None:
    """Refuse columns whose spread single precision does not resolve.

    Args:
        path: The file, for errors.
        names: Of the columns.
        columns: Training rows [N, D].

    Raises:
        ValueError: If rounding to float32 moves a column by a hundredth of its deviation.
    """
    moved = np.abs(columns - columns.astype(np.float32)).max(0)
    for name, size, spread in zip(names, moved, columns.std(0), strict=True):
        if size > spread / 100 > 0:
            raise ValueError(
                f"{path}, column {name!r}: single precision rounds its values by {size:.2g}, and "
                f"they vary by {spread:.2g}: subtract their mean in the file"
            )


def is_number(field: str) -> bool:
    """Return whether a field of a text file is a number, finite or not."""
    try:
        float(field)
    except ValueError:
        return False
    return True
