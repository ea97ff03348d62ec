"""What a script of ``scripts/bench`` leaves of its measurements, and the table that shows it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.experiments.tables import markdown

#: A number, a median with its quartiles, words, or nothing.
Cell = float | Sequence[float] | str | None


def spread(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Return the median of ratios over rounds, and the quartiles."""
    ratios = [a / b for a, b in zip(above, below, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return [middle, low, high]


def cell(value: Cell) -> str:
    """Return what a table shows of a value: three digits, and quartiles in brackets."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, Sequence):
        middle, low, high = (f"{v:.2f}" for v in value)
        return f"{middle} ({low}, {high})"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def table(record: dict[str, Any]) -> str:
    """Return the table of a record with ``said``, ``heading`` and ``rows``."""
    rows = ([cell(value) for value in row] for row in record["rows"])
    return f"{record['said']}\n\n{markdown(record['heading'], rows)}"


def publish(
    said: str, heading: Sequence[str], rows: Sequence[Sequence[Cell]], path: Path | None
) -> None:
    """Print a table, and keep what it is made from.

    Args:
        said: What was measured on what.
        heading: Of the columns.
        rows: Of the table.
        path: Of the record, if one is asked for.
    """
    record = {"said": said, "heading": list(heading), "rows": [list(row) for row in rows]}
    print(table(record))
    if path is not None:
        path.write_text(json.dumps(record, indent=1) + "\n")
