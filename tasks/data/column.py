"""A column of a table while it is read: numbers, or words by their code."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.data.delimited import MISSING, is_number, unquoted

Array = NDArray[np.float64]
#: Most categories that a feature of words may have.
MOST_CATEGORIES = 50
#: Labels from here on stay words: 15 digits are what double precision has.
_EXACT = 1e15
#: What is written like a number but is none: thousands separators, units of money, percent.
_LIKE_A_NUMBER = re.compile(r"\(?[^\w\s]*[ \u00a0]?\d[\d.,' _\u00a0\u202f]*[%$£¥\u20a0-\u20cf]?\)?")
#: A comma before three digits, which may separate thousands.
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")


@dataclass
class Decimals:
    """Which sign is a file's decimal sign.

    Attributes:
        comma_allowed: Whether a comma may be it: it separates no fields.
        point: A number with a point, and where it stands.
        comma: A number with a comma, and where it stands.
        surely: Whether a comma stands where none separates thousands.
    """

    comma_allowed: bool = False
    point: str | None = None
    comma: str | None = None
    surely: bool = False

    def check(self, path: Path) -> None:
        """Refuse a file with two decimal signs, or with a comma that may separate thousands."""
        if self.point is not None and self.comma is not None:
            raise ValueError(
                f"{path} has {self.point} and {self.comma}: write all numbers with a decimal point "
                "and without thousands separators"
            )
        if self.comma is not None and not self.surely:
            raise ValueError(
                f"{path}: the comma of {self.comma} may be a decimal sign or separate thousands; "
                "write a decimal point"
            )


@dataclass
class Column:
    """A column: what its first value is, a number or a word, all are. Labels may be either.

    Attributes:
        name: Its name.
        path: The file, for errors.
        decimals: The file's decimal sign.
        labels: Whether it holds labels, which are words until all are known.
        unit: What rows are called, ``line`` or ``row``.
        codes: The words and their codes.
        parts: Numbers, or codes of words.
        first: The first value, and ``first_place`` its row.
    """

    name: str
    path: Path
    decimals: Decimals = field(default_factory=Decimals)
    labels: bool = False
    unit: str = "line"
    codes: dict[str, int] = field(default_factory=dict)
    parts: list[NDArray[Any]] = field(default_factory=list)
    first: str | None = None
    first_place: int = 0

    def __len__(self) -> int:
        return sum(map(len, self.parts))

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
            self._explain(fields[:1], places[:1])
        values = self._codes(fields) if self.words else self._numbers(fields, places)
        if values is None:
            self._explain(fields, places)
        assert values is not None
        self.parts.append(values)

    def take(self, values: NDArray[Any]) -> None:
        """Take more values as pandas reads them.

        Raises:
            ValueError: If one of them is not what :meth:`add` takes.
        """
        part: NDArray[Any] | None = None
        if self.words:
            part = self._codes(unquoted(values.tolist()))
        elif values.dtype.kind in "iuf" and np.isfinite(values).all():
            part = values.astype(np.float64)
        if part is None:
            raise ValueError(f"{self.name}: not what it was")
        self.parts.append(part)

    def keep(self, count: int) -> None:
        """Forget all but the first values."""
        self.parts = [np.concatenate(self.parts)[:count]]
        if self.words:
            self.codes = dict(itertools.islice(self.codes.items(), int(self.parts[0].max()) + 1))

    def _codes(self, fields: Sequence[str]) -> NDArray[np.int32] | None:
        """Return the codes of words, None if one will not do."""
        known = len(self.codes)
        texts = (" ".join(text.split()) for text in fields)
        found = [self.codes.setdefault(text, len(self.codes)) for text in texts]
        new = list(itertools.islice(self.codes, known, None))
        if any(text.lower() in MISSING for text in new):
            return None
        if not self.labels:
            if any(self._numeric(text) or _LIKE_A_NUMBER.fullmatch(text) for text in new):
                return None
            if len(self.codes) > MOST_CATEGORIES:
                raise ValueError(
                    f"{self.path}, column {self.name!r} holds more than {MOST_CATEGORIES} words, "
                    f"such as {self.first!r}: leave it out by data.drop, group its "
                    "words, or write numbers"
                )
        return np.array(found, np.int32)

    def _numbers(self, fields: Sequence[str], places: Sequence[int]) -> Array | None:
        """Return numbers, None if one will not do."""
        joined = "".join(fields)
        if not joined.isascii():  # spaces of other kinds around a number, as web pages have them
            fields = [text.strip() for text in fields]
            joined = "".join(fields)
        if not joined.isascii() or "_" in joined:
            return None
        if self.decimals.comma_allowed:
            self._see_decimals(joined, fields, places)
            if "," in joined:
                fields = [text.replace(",", ".") for text in fields]
        try:
            values = np.fromiter(map(float, fields), np.float64, len(fields))
        except ValueError:
            return None
        return values if np.isfinite(values).all() else None

    def _numeric(self, text: str) -> bool:
        if self.decimals.comma_allowed:
            text = text.replace(",", ".")
        # Python takes 1_000 and the digits of other scripts, no other program does.
        return is_number(text) and text.isascii() and "_" not in text

    def _see_decimals(self, joined: str, fields: Sequence[str], places: Sequence[int]) -> None:
        seen = self.decimals
        for sign, known in ((".", "point"), (",", "comma")):
            if getattr(seen, known) is None and sign in joined:
                row = next(i for i, text in enumerate(fields) if sign in text)
                setattr(seen, known, f"{fields[row].strip()!r} in {self.unit} {places[row]}")
        if "," in joined and not seen.surely:
            commas = (text.strip() for text in fields if "," in text)
            seen.surely = not all(map(_THOUSANDS.fullmatch, commas))

    def _explain(self, fields: Sequence[str], places: Sequence[int]) -> None:
        """Raise an error that names the first value that will not do."""
        assert self.first is not None
        texts = (" ".join(text.split()) for text in fields)  # as codes are taken of
        for text, place in zip(texts, places, strict=True):
            where = f"{self.path}, {self.unit} {place}, column {self.name!r}"
            if text.lower() in MISSING:
                raise ValueError(f"{where}: the value is missing; fill it or drop the row")
            if self.labels:
                continue
            numeric = self._numeric(text)
            if not numeric and _LIKE_A_NUMBER.fullmatch(text):
                raise ValueError(
                    f"{where}: {text!r} is not a number; write digits with a decimal point, "
                    "without thousands separators and signs of units"
                )
            if numeric == self.words:
                other = "the word" if self.words else "the number"
                raise ValueError(
                    f"{where}: {text!r} is {'a' if numeric else 'not a'} number, but {self.unit} "
                    f"{self.first_place} has {other} {self.first!r}; write numbers in all rows, or "
                    "words in all"
                )
            if numeric and not np.isfinite(float(text.replace(",", "."))):
                raise ValueError(f"{where}: {text} is not finite")

    def numbers(self) -> Array:
        """Return the numbers [N]."""
        values: Array = np.concatenate(self.parts)
        return values

    def features(self, known: Sequence[str] | None) -> Array:
        """Return the numbers [N, 1], or which of the known words each row holds, 0 or 1, [N, C].

        Args:
            known: The words of the training file, None where the column held numbers there.

        Raises:
            ValueError: If the column holds the other kind here, or a row none of the words.
        """
        if self.words == (known is None):
            here, there = ("words", "numbers") if self.words else ("numbers", "words")
            example = f", such as {self.first!r}" if self.words else ""
            raise ValueError(
                f"{self.path}, column {self.name!r} holds {here}{example}, and {there} in the "
                "training file"
            )
        if known is None:
            return self.numbers()[:, None]
        new = [word for word in self.codes if word not in known]
        if new:
            raise ValueError(
                f"{self.path}, column {self.name!r}: {new[0]!r} is none of the words of the "
                f"training file, {', '.join(known)}; drop its rows"
            )
        columns = np.array([known.index(word) for word in self.codes])
        result: Array = np.eye(len(known))[columns[np.concatenate(self.parts)]]
        return result

    def values(self) -> NDArray[Any]:
        """Return the target [N]: numbers, or labels as words where one of them is no number."""
        if not self.labels:
            return self.numbers()
        words = list(self.codes)
        values: NDArray[Any] = np.array(words)
        if all(map(self._numeric, words)):
            numbers = np.array([float(word.replace(",", ".")) for word in words])
            if not np.isfinite(numbers).all():
                raise ValueError(f"{self.path}, column {self.name!r}: a label is not finite")
            if np.abs(numbers).max() < _EXACT:  # above it, different ones become one number
                values = numbers
        chosen: NDArray[Any] = values[np.concatenate(self.parts)]
        return chosen
