"""Rows of delimited text: encoding, separator, header and row names, each read right or refused."""

from __future__ import annotations

import csv
import io
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from tasks.data.download import open_with_bar

#: A row's line, from 1, and its fields.
Row = tuple[int, list[str]]
#: What stands for a missing value, in lower case.
MISSING = frozenset(("", "na", "n/a", "#n/a", "<na>", "nan", "null", "none", "?"))
#: Rows that are in memory as text at once, and by which the form of a file is judged.
CHUNK = 10_000
_LARGE = 20_000_000  # bytes, a second
#: What pandas calls a first column that had no name.
_UNNAMED = frozenset({"", "unnamed: 0"})
_FORMS = {
    b"PK": "a zip archive, such as an Excel workbook: save it as CSV (UTF-8)",
    b"\x1f\x8b": "compressed: unpack it",
}
#: A comment, and Excel's line for a separator.
_NO_ROW = re.compile(r'#+ ?[^,;\t]|"?sep=')
_MARKS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16", b"\xef\xbb": "utf-8-sig"}


@dataclass(frozen=True)
class Layout:
    """How the rows of a file become columns.

    Attributes:
        names: Names of the columns, "0", "1", ... if the file has none.
        first: The first field of a row that is a value: 1 after row names.
        header: Whether the first row names the columns.
    """

    names: tuple[str, ...]
    first: int
    header: bool

    @property
    def width(self) -> int:
        """Fields in a row."""
        return self.first + len(self.names)


def is_number(field: str) -> bool:
    """Return whether a field is a number, finite or not."""
    try:
        float(field)
    except ValueError:
        return False
    return True


def unquoted(fields: list[str]) -> list[str]:
    """Return words without the quotes around them.

    Raises:
        ValueError: If quotes do not stand around a whole word.
    """
    for text in fields:
        if text[:1] == '"' and (len(text) < 2 or text.find('"', 1) < len(text) - 1):
            raise ValueError(f"quotes in {text!r}")
    return [text[1:-1] if text[:1] == '"' else text for text in fields]


def separator_of(path: Path) -> tuple[str, str]:
    """Return a file's encoding, and what stands between its fields.

    The separator is a tab, semicolon or comma, the first of these that the first line holds
    outside quotes, or else spaces. A decimal comma is then never one.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no text, or holds nothing.
    """
    if not path.is_file():
        what = "is a folder, not a table" if path.is_dir() else "is missing"
        raise FileNotFoundError(f"the table {path} {what}: check the path")
    with path.open("rb") as file:
        start = file.read(2)
    if start in _FORMS:
        raise ValueError(f"{path} is {_FORMS[start]}")
    encoding = _MARKS.get(start, "utf-8")
    with opened(path, encoding, bar=False) as text:
        line = next((line for line in text if line.strip()), "")
        # The first name, in quotes, may hold new lines.
        while not _between(line) and line.count('"') % 2 and len(line) < CHUNK:
            line += (more := next(text, ""))
            if not more:
                break
    if not line:
        raise ValueError(f"{path} is empty")
    if "\0" in line:
        raise ValueError(f"{path} is not a text file in UTF-8: save it as CSV (UTF-8)")
    if _NO_ROW.match(line):
        shown = line.strip()[:40]
        raise ValueError(f"{path}: its first line, {shown!r}, is no row of a table; leave it out")
    return encoding, _between(line) or " "


def _between(line: str) -> str | None:
    """Return what separates the fields of a line outside quotes, None if that may be spaces."""
    bare = "".join(line.strip(" \r\n").split('"')[::2])
    return next((s for s in "\t;," if s in bare), None)


@contextmanager
def opened(path: Path, encoding: str, bar: bool = True) -> Iterator[TextIO]:
    """Open a text file, a large one with a progress bar where a person looks on.

    Raises:
        ValueError: If a character that is read is not of the encoding; its line is named.
    """
    try:
        bar = bar and path.stat().st_size > _LARGE
        with (
            open_with_bar(path) if bar else path.open("rb") as raw,
            io.TextIOWrapper(raw, encoding=encoding, newline="") as text,
        ):
            yield text
    except UnicodeError:
        raise _undecoded(path, encoding) from None


def rows_of(path: Path, text: TextIO, separator: str) -> Iterator[Row]:
    """Yield the rows of a file that hold anything.

    Raises:
        ValueError: If quotes do not match, or a field is too long; the line is named.
    """
    line = 1
    rows = csv.reader(text, delimiter=separator, skipinitialspace=True, strict=True)
    try:
        for fields in rows:
            if separator == " " and fields and not fields[-1]:
                fields.pop()
            if any(fields):
                yield line, fields
            line = rows.line_num + 1
    except csv.Error as error:
        reason = str(error)
        if "field larger" in reason:
            reason = f"a field has more than {csv.field_size_limit():,} characters"
        elif "unexpected end" in reason:
            reason = "the file ends within quotes"
        raise ValueError(
            f"{path}, line {line}: {reason}; close every quote, and check that the file is whole"
        ) from None


def layout_of(path: Path, head: list[Row]) -> Layout:
    """Return how rows become columns, given the first of them.

    A header is a first row of words. Row names, which pandas writes under an empty field and R
    under none, are no column.

    Raises:
        ValueError: If names repeat or are missing, or numbers look like a header.
    """
    line, fields = head[0]
    fields = [" ".join(field.split()) for field in fields]
    following = head[1][1] if len(head) > 1 else []
    if not (_is_header(fields, head) or _is_numbered(fields, head)):
        while not fields[-1]:
            fields.pop()
        _refuse_header_of_numbers(path, fields, head)
        return Layout(tuple(map(str, range(len(fields)))), 0, header=False)
    first = int(fields[0].lower() in _UNNAMED)
    if len(following) == len(fields) + 1 and following[-1].strip():
        fields.insert(0, "")
        first = 1
    while not fields[-1]:
        fields.pop()
    names = tuple(fields[first:])
    if "" in names:
        number = names.index("") + first + 1
        raise ValueError(f"{path}, line {line}: column {number} has no name; give it one")
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(
            f"{path}, line {line}: several columns named {', '.join(map(repr, repeated[:5]))}; "
            "rename them, or add a header if this is a row of data"
        )
    return Layout(names, first, header=True)


def _is_header(fields: list[str], head: list[Row]) -> bool:
    doubtful = [bool(field) and _is_no_word(field) for field in fields]
    columns = list(zip(*(row for _, row in head[1:]), strict=False))
    if any(doubtful):  # "Na" is sodium, beside another word over numbers
        surely = any(
            field and not doubt and all(map(is_number, below))
            for field, doubt, below in zip(fields, doubtful, columns, strict=False)
        )
        if not surely or any(_is_finite(field) for field in fields):
            return False
    # Words over words: a row of data, if one of them stands below in its own column too.
    return not any(f in column for f, column in zip(fields, columns, strict=False) if f)


def _is_finite(field: str) -> bool:
    return is_number(field) and math.isfinite(float(field))


def _is_no_word(field: str) -> bool:
    """Return whether a field is a number, or stands for a missing value."""
    return is_number(field) or field.lower() in MISSING


def _is_numbered(fields: list[str], head: list[Row]) -> bool:
    """Return whether pandas numbered the columns and, under an empty field, the rows."""
    numbers = [str(i) for i in range(max(len(fields), len(head)))]
    rows = [row[0] for _, row in head[1:]]
    return (
        fields[0] == ""
        and fields[1:] == numbers[: len(fields) - 1]
        and rows == numbers[: len(rows)]
    )


def _refuse_header_of_numbers(path: Path, fields: list[str], head: list[Row]) -> None:
    """Refuse a first row with numbers that is not like those below it."""
    others = [row for _, row in head[1:]]
    columns = list(zip(*others, strict=False))
    words = [
        (field, below)
        for field, below in zip(fields, columns, strict=False)
        if not is_number(field) and field.lower() not in MISSING and field not in below
    ]
    # A word over numbers, or one that stands nowhere else in a column of few words.
    alone = any(
        all(map(is_number, below)) or 2 * len(set(below)) <= len(below) for _, below in words
    )
    if alone or _counts(fields) or _is_whole_alone(fields, others):
        raise ValueError(
            f"{path}, line {head[0][0]}: {shown(fields, 4)} reads like a header of numbers: name "
            "the columns by words; if it is a row of data, mend it, or put a header above it"
        )


def _whole(fields: Iterable[str]) -> bool:
    return all(field.strip().lstrip("+-").isdecimal() for field in fields if field)


def _counts(fields: list[str]) -> bool:
    """Return whether these are whole numbers at equal distances, but for empty fields."""
    fields = [field for field in fields if field]
    if len(fields) < 3 or not _whole(fields):
        return False
    steps = {int(b) - int(a) for a, b in itertools.pairwise(fields)}
    return len(steps) == 1 and steps != {0}


def _is_whole_alone(fields: list[str], others: list[list[str]]) -> bool:
    """Return whether these are different whole numbers, over rows of which none is whole."""
    different = len(set(fields)) == len(fields) > 1 and _whole(fields)
    return different and len(others) >= 10 and not any(map(_whole, others))


def fitted(path: Path, rows: list[Row], layout: Layout) -> list[tuple[str, ...]]:
    """Return the columns of rows, without row names and empty fields at a row's end.

    Raises:
        ValueError: If a row has too few fields, or too many; its line is named.
    """
    width = layout.width
    for line, fields in rows:
        if len(fields) != width:
            if len(fields) < width or any(fields[width:]):
                raise ValueError(
                    f"{path}, line {line} has {len(fields)} fields, not {width}: check its "
                    "separators and quotes, and that the file is whole"
                )
            del fields[width:]
    return list(zip(*(fields for _, fields in rows), strict=True))[layout.first :]


def _undecoded(path: Path, encoding: str) -> ValueError:
    where = ""
    if encoding != "utf-16":
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    line.decode()
                except UnicodeDecodeError:
                    where = f", line {number}"
                    break
    return ValueError(f"{path}{where} is not a text file in UTF-8: save it as CSV (UTF-8)")


def shown(names: Sequence[str], most: int = 10) -> str:
    """Return the first names, for an error."""
    return ", ".join(names[:most]) + (f", ... ({len(names)} in all)" if len(names) > most else "")
