"""Tables of numbers and words: features in float64, words as 0 and 1, errors that name the place.

Numbers stay in float64 until they are standardised. A column of words becomes a feature of 0 and 1
for each of its categories.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch.utilities import rank_zero_info
from numpy.typing import NDArray

from tasks.data.delimited import (
    CHUNK,
    MISSING,
    fitted,
    is_number,
    layout_of,
    read_rows,
    separator_of,
)

Array = NDArray[np.float64]
#: Most categories that a feature of words may have.
MOST_CATEGORIES = 50
#: What is written like a number but is none: thousands separators, units of money, percent.
_LIKE_A_NUMBER = re.compile(r"[^\w\s]*\d[\d.,' _\u00a0\u202f]*[%€$£]?")
#: A comma before three digits, which may separate thousands.
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")


@dataclass(frozen=True)
class Table:
    """Features and the target of a table.

    Attributes:
        path: The file.
        x: Features [N, D].
        y: The target [N], float64 or words.
        features: Names of the features; that of a category is COLUMN=WORD.
        target: Name of the target.
        places: Where each row stands, such as "line 2", [N].
        categories: The words of the columns of words.
    """

    path: Path
    x: Array
    y: NDArray[Any]
    features: tuple[str, ...]
    target: str
    places: Places
    categories: dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Places:
    """Where rows stand in a file: its lines, or rows from 0."""

    path: Path
    unit: str = "row"
    numbers: NDArray[np.int64] | None = None

    def of(self, row: int, column: str) -> str:
        """Return what an error begins with."""
        number = row if self.numbers is None else int(self.numbers[row])
        return f"{self.path}, {self.unit} {number}, column {column!r}"


@dataclass
class Decimals:
    """Which sign is a file's decimal sign: a comma only where it is no separator."""

    comma_allowed: bool = False
    point: str | None = None
    comma: str | None = None
    surely: bool = False


@dataclass
class Column:
    """A column while it is read: numbers, or the codes of its words.

    What the first value is, number or word, all are. Labels are words until the end.
    """

    name: str
    path: Path
    decimals: Decimals
    labels: bool = False
    unit: str = "line"
    codes: dict[str, int] = field(default_factory=dict)
    parts: list[NDArray[Any]] = field(default_factory=list)
    first: str | None = None
    first_place: int = 0

    @property
    def words(self) -> bool:
        """Whether the column holds words."""
        return self.labels or (self.first is not None and not self._numeric(self.first))

    def add(self, fields: Sequence[str], places: Sequence[int]) -> None:
        """Take more values, which stand in these lines or rows.

        Raises:
            ValueError: If one is missing, or not of the column's kind.
        """
        if self.first is None:
            self.first, self.first_place = fields[0].strip(), places[0]
            self._explain([fields[0]], [places[0]])
        if self.words:
            self._add_words(fields, places)
            return
        try:
            joined = "".join(fields)
            self._see_decimals(joined, fields, places)
            texts = (f.replace(",", ".") for f in fields) if "," in joined else fields
            values = np.fromiter(map(float, texts), np.float64, len(fields))
            sound = joined.isascii() and "_" not in joined and bool(np.isfinite(values).all())
        except ValueError as error:
            if str(error).startswith(str(self.path)):
                raise
            sound = False
        if not sound:
            self._explain(fields, places)
        self.parts.append(values)

    def _add_words(self, fields: Sequence[str], places: Sequence[int]) -> None:
        texts = [" ".join(f.split()) for f in fields]
        known = len(self.codes)
        found = [self.codes.setdefault(text, len(self.codes)) for text in texts]
        new = list(self.codes)[known:]
        if any(text.lower() in MISSING for text in new) or (
            not self.labels and any(_LIKE_A_NUMBER.fullmatch(text) for text in new)
        ):
            self._explain(fields, places)
        if not self.labels and len(self.codes) > MOST_CATEGORIES:
            raise ValueError(
                f"{self.path}, column {self.name!r} holds more than {MOST_CATEGORIES} different "
                f"words, such as {self.first!r}: drop it, group its words, or write numbers"
            )
        self.parts.append(np.array(found, np.int32))

    def _numeric(self, text: str) -> bool:
        return is_number(text.replace(",", ".") if self.decimals.comma_allowed else text)

    def _see_decimals(self, joined: str, fields: Sequence[str], places: Sequence[int]) -> None:
        """Refuse a file with two decimal signs."""
        seen = self.decimals
        if not seen.comma_allowed:
            return
        for sign, known in ((".", "point"), (",", "comma")):
            if getattr(seen, known) is None and sign in joined:
                row = next(i for i, f in enumerate(fields) if sign in f)
                setattr(seen, known, f"{fields[row].strip()!r} in {self.unit} {places[row]}")
        if seen.comma is not None and not seen.surely:
            seen.surely = any("," in f and not _THOUSANDS.fullmatch(f.strip()) for f in fields)
        if seen.point is not None and seen.comma is not None:
            raise ValueError(
                f"{self.path} has {seen.point} and {seen.comma}: write all numbers with a decimal "
                "point and without thousands separators"
            )

    def _explain(self, fields: Sequence[str], places: Sequence[int]) -> None:
        """Raise an error that names the first value that will not do."""
        assert self.first is not None
        for text, place in zip(map(str.strip, fields), places, strict=True):
            where = f"{self.path}, {self.unit} {place}, column {self.name!r}"
            numeric = self._numeric(text) and text.isascii() and "_" not in text
            if text.lower() in MISSING:
                raise ValueError(f"{where}: the value is missing; fill it or drop the row")
            if self.labels:
                continue
            if not numeric and _LIKE_A_NUMBER.fullmatch(text):
                raise ValueError(
                    f"{where}: {text!r} is not a number; write digits with a decimal point, "
                    "without separators of thousands and signs"
                )
            if numeric == self.words:
                kind = "a number" if numeric else "not a number"
                other = "the word" if numeric else "the number"
                raise ValueError(
                    f"{where}: {text!r} is {kind}, but {self.unit} {self.first_place} has {other} "
                    f"{self.first!r}; write numbers in all rows, or words in all"
                )
            if numeric and not np.isfinite(float(text.replace(",", "."))):
                raise ValueError(f"{where}: {text} is not finite")

    def numbers(self) -> Array:
        """Return the numbers [N]."""
        return np.concatenate(self.parts)

    def values(self) -> NDArray[Any]:
        """Return labels [N], in float64 where all of them are numbers, else as words."""
        words = list(self.codes)
        if all(map(self._numeric, words)):
            number = np.array([float(word.replace(",", ".")) for word in words])
            if not np.isfinite(number).all():
                raise ValueError(f"{self.path}, column {self.name!r}: a label is not finite")
            return number[np.concatenate(self.parts)]
        return np.array(words)[np.concatenate(self.parts)]


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
        raise ValueError(f"{path} has one column: a target and a feature are needed")
    name = names[-1] if target is None else str(target)
    if name in names:
        return list(names).index(name)
    if name.lstrip("-").isdigit() and -len(names) <= int(name) < len(names):
        return int(name) % len(names)
    raise ValueError(f"{path} has no column {name!r}: choose among {shown(names)}")


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
    rows = read_rows(path, encoding, separator)
    head = list(itertools.islice(rows, CHUNK))
    layout = layout_of(path, head)
    place = place_of(path, layout.names, target)
    decimals = Decimals(separator in ";\t")
    columns = [
        Column(name, path, decimals, labels=labels and i == place)
        for i, name in enumerate(layout.names)
    ]
    lines: list[int] = []
    chunk = head[layout.header :]
    while chunk:
        numbers = [line for line, _ in chunk]
        for column, fields in zip(columns, fitted(path, chunk, layout), strict=True):
            column.add(fields, numbers)
        lines += numbers
        chunk = list(itertools.islice(rows, CHUNK))
    if len(lines) < at_least:
        raise ValueError(f"{path} has {len(lines)} rows of data: at least {at_least} are needed")
    if decimals.comma is not None and not decimals.surely:
        raise ValueError(
            f"{path}: {decimals.comma} may have a decimal comma or one of thousands; write a "
            "decimal point"
        )
    if layout.first:
        rank_zero_info(f"Note: the first column of {path} names its rows and is no feature")
    return assemble(columns, place, Places(path, "line", np.array(lines)), like)


def assemble(columns: Sequence[Column], place: int, places: Places, like: Table | None) -> Table:
    """Return the table of columns that have been read.

    Raises:
        ValueError: If the target holds words that are no labels, or a word is unknown to ``like``.
    """
    path = places.path
    target = columns[place]
    if target.words and not target.labels:
        raise ValueError(
            f"{places.of(0, target.name)}: {target.first!r} is not a number: choose a target of "
            "numbers as data.target"
        )
    y = target.values() if target.labels else target.numbers()
    names: list[str] = []
    parts: list[Array] = []
    categories: dict[str, tuple[str, ...]] = {}
    for column in (c for i, c in enumerate(columns) if i != place):
        if not column.words:
            names.append(column.name)
            parts.append(column.numbers()[:, None])
            continue
        known = tuple(sorted(column.codes)) if like is None else like.categories.get(column.name)
        if known is None:
            raise ValueError(f"{path}, column {column.name!r} holds words, {like.path} numbers")
        new = sorted(column.codes.keys() - set(known))
        if new:
            raise ValueError(
                f"{path}, column {column.name!r}: {new[0]!r} is none of the words of {like.path}: "
                f"{shown(known)}; drop these rows"
            )
        words = np.array(list(column.codes))[np.concatenate(column.parts)]
        names += [f"{column.name}={word}" for word in known]
        parts.append((words[:, None] == np.array(known)).astype(np.float64))
        categories[column.name] = known
    if categories and like is None:
        counts = ", ".join(f"{name} ({len(words)})" for name, words in categories.items())
        rank_zero_info(
            f"Note: columns of words in {path}, a feature of 0 and 1 for each category: {counts}"
        )
    return Table(path, np.hstack(parts), y, tuple(names), target.name, places, categories)


def shown(names: Sequence[str]) -> str:
    """Return the first names, for an error."""
    return ", ".join(names[:10]) + (f", ... ({len(names)} in all)" if len(names) > 10 else "")
