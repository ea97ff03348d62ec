"""Markdown tables of results: rows, columns, and the numbers where they meet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

#: The content of a ``results.json``, or a part of it.
Result = dict[str, Any]
Results = Mapping[str, Result | None]
#: Under which the result of a run that diverged has what it said, and nothing else.
DIVERGED = "diverged"


def ran(results: Results) -> Results:
    """Return results with None in place of those of runs that diverged."""
    return {k: None if v is not None and DIVERGED in v else v for k, v in results.items()}


def at(record: Any, path: str) -> Any:
    """Return what stands in nested dicts at names joined with dots, None where there is nothing."""
    while path and record is not None:
        if path in record:  # a name may have dots itself
            return record[path]
        name, _, path = path.partition(".")
        record = record.get(name)
    return record


def repeated(runs: Sequence[Result | None], metric: str) -> list[float]:
    """Return a metric of the ensemble of every repetition.

    Args:
        runs: The content of ``results.json`` of runs that differ in the seed alone, None where one
            is not finished. Each chain of a run of several counts as a repetition: its own
            ensemble's metric stands under ``task_details.chains.metrics``.
        metric: Name of the metric, such as ``error_percent``.
    """
    values: list[float] = []
    for run in runs:
        if run is None:
            continue
        chains = run["task_details"].get("chains")
        values += chains["metrics"][metric] if chains else [run["metrics"]["ensemble"][metric]]
    return values


def mean_and_spread(values: Sequence[float], digits: int) -> str:
    """Return ``mean +- standard deviation (number)``, the mean alone of one, ``-`` of none.

    Args:
        values: One number a repetition.
        digits: Digits after the point.
    """
    if not values:
        return "-"
    mean = f"{np.mean(values):.{digits}f}"
    if len(values) == 1:
        return mean
    return f"{mean} +- {np.std(values, ddof=1):.{digits}f} ({len(values)})"


def median_and_range(values: Sequence[float | None]) -> tuple[float | None, ...]:
    """Return median, smallest and largest of the values that are there, as short runs lack some."""
    there = [value for value in values if value is not None]
    return (float(np.median(there)), min(there), max(there)) if there else (None, None, None)


def mean_and_error(values: Sequence[float], digits: int) -> str:
    """Return ``mean ± standard error``, the mean alone of one, ``-`` of none.

    Args:
        values: Independent numbers.
        digits: Digits after the point.
    """
    if len(values) < 2:
        return mean_and_spread(values, digits)
    error = np.std(values, ddof=1) / len(values) ** 0.5
    return f"{np.mean(values):.{digits}f} ± {error:.{digits}f}"


@dataclass(frozen=True)
class Column:
    """A column: where its numbers stand in a record, and how they are written.

    Attributes:
        title: Its title, with the unit.
        at: Names joined with dots, of which ``{part}`` is the row's, several such places, or a
            function of the record. A list is the numbers of repetitions, written by mean and
            spread; a tuple fills the fields of ``form``; words stand as they are; None leaves the
            entry empty.
        form: Of the value; by default ``digits`` after the point.
        digits: Of published numbers, and of ours by default.
        scale: Factor of the number.
        offset: Added to the number after that.
        cell: Name of the cell, of which ``{}`` is the row's.
        better: Which direction is better.
        missing: What stands where the record is missing.
        each: Name of a metric in place of ``at``: that of each chain's own ensemble.
    """

    title: str
    at: str | tuple[str, ...] | Callable[[Any], Any] = ""
    form: str = ""
    digits: int = 2
    scale: float = 1.0
    offset: float = 0.0
    cell: str = "{}"
    better: Literal["lower", "higher"] | None = None
    missing: str = "-"
    each: str = ""

    def read(self, record: Any, part: str = "ensemble") -> Any:
        """Return the value in a record."""
        if callable(self.at):
            value = self.at(record)
        elif isinstance(self.at, tuple):
            value = tuple(at(record, path) for path in self.at)
        elif self.each:
            value = repeated([record], self.each)
        else:
            value = at(record, self.at.format(part=part)) if self.at else None
        if value is None or (self.scale, self.offset) == (1.0, 0.0):
            return value
        if isinstance(value, (list, tuple)):
            return type(value)(self.offset + self.scale * v for v in value)
        return self.offset + self.scale * value

    def text(self, record: Any, part: str = "ensemble") -> str:
        """Return what stands in the table for a record, None where that is missing."""
        if record is None:
            return self.missing
        if isinstance(record, dict) and DIVERGED in record:
            return "diverges"
        value = self.read(record, part)
        if isinstance(value, list):
            return mean_and_spread(value, self.digits)
        if value is None or (isinstance(value, tuple) and None in value):
            return ""
        if isinstance(value, str):
            return value
        form = self.form or f"{{:.{self.digits}f}}"
        return form.format(*value) if isinstance(value, tuple) else form.format(value)


@dataclass(frozen=True)
class Row:
    """A row.

    Attributes:
        labels: What stands in the first columns.
        cell: Name of its cell, or the part of it that columns complete.
        record: What columns read from in place of the content of that cell's ``results.json``,
            unless that cell diverged.
        part: The part of a run whose numbers are shown: ``ensemble``, ``posterior_mean``, ...
        published: Published numbers, or words, by the title of their column.
        empty: What stands in the other columns of a row of published numbers alone.
    """

    labels: Sequence[str]
    cell: str | None = None
    record: Any = None
    part: str = "ensemble"
    published: Mapping[str, float | str] = field(default_factory=dict)
    empty: str = ""

    def entry(self, column: Column, results: Results) -> str:
        """Return what stands in a column."""
        known = self.published.get(column.title)
        if known is not None:
            return known if isinstance(known, str) else f"{known:.{column.digits}f}"
        name = None if self.cell is None else column.cell.format(self.cell)
        held = None if name is None else results.get(name)
        if self.record is not None and DIVERGED not in (held or {}):
            return column.text(self.record, self.part)
        if self.cell is None and self.published:
            return self.empty
        return column.text(held, self.part)


def paper_row(
    labels: Sequence[str],
    columns: Sequence[Column],
    numbers: Iterable[float | str | None],
    empty: str = "",
) -> Row:
    """Return a row of published numbers, the first of which stands in the first column."""
    known = {c.title: n for c, n in zip(columns, numbers, strict=False) if n is not None}
    return Row(labels, published=known, empty=empty)


@dataclass(frozen=True)
class Table:
    """A table: titles of the columns that name its rows, columns of numbers, rows."""

    heading: Sequence[str]
    columns: Sequence[Column]
    rows: Sequence[Row]

    def render(self, results: Results) -> str:
        """Return the table as Markdown."""
        head = [*self.heading, *(column.title for column in self.columns)]
        body = [
            [*row.labels, *(row.entry(column, results) for column in self.columns)]
            for row in self.rows
        ]
        return markdown(head, body)


def markdown(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown, its entries written by ``str``."""
    lines = [f"| {' | '.join(map(str, row))} |" for row in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])
