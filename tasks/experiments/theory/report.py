"""Theorems of pSGLD, NLD, HASGLD-SA and SGFS, measured: tables and a figure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tasks.experiments.experiment import Experiment, Study
from tasks.experiments.tables import Column, Results, Row, Table
from tasks.experiments.theory import averages


def plus_minus(key: str, digits: int, place: int | None = None) -> tuple[str, str]:
    raise NotImplementedError


def cells() -> list[Study]:
    """Return the studies of all papers."""
    return averages.cells()


def report(results: Results) -> Iterator[Table | str]:
    """Yield the tables."""
    yield ""


EXPERIMENT = Experiment(cells, report)
