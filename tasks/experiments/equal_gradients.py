"""The table of a record of ``scripts/bench/microcanonical.py``."""

from __future__ import annotations

from typing import Any

from tasks.experiments.tables import markdown, mean_and_error


def table(record: dict[str, Any]) -> str:
    """Return samplers by target, each number with its standard error over groups of chains."""
    head = ("target", "sampler", "of the value", "of its square", "deviation over the true one")
    rows = []
    for row in record["rows"]:
        cells = []
        for name, digits in (("value", 1), ("square", 1), ("ratio", 3)):
            cells.append(mean_and_error([group[name] for group in row["groups"]], digits))
        rows.append((row["target"], row["sampler"], *cells))
    return markdown(head, rows)
