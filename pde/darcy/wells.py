"""Wells: where they are, and what is prescribed there."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FileContentError, PdeError, check_positive
from ..grid import Grid


@dataclass(frozen=True)
class Well:
    """A vertical well in the cell that holds its place.

    It has a rate, or a pressure with a radius, or neither: then it takes what the others give, so
    that all rates sum to zero.

    Args:
        x: Place, in the grid's unit of length.
        y: Likewise.
        rate: What it gives to a layer of unit thickness, positive for an injector.
        spread: Standard deviation of the rate between the samples of a data set.
        pressure: The pressure in the well.
        radius: Of the well; needed with a pressure.

    Raises:
        PdeError: A number that is not finite, both a rate and a pressure, or a pressure without a
            radius.
    """

    x: float
    y: float
    rate: float | None = None
    spread: float = 0.0
    pressure: float | None = None
    radius: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.default is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float | np.number):
                raise PdeError(f"well: {field.name}={value!r}, expected a number")
            if not np.isfinite(value):
                raise PdeError(f"well: {field.name}={value!r}, expected a finite number")
            object.__setattr__(self, field.name, float(value))
        at = f"the well at ({self.x:g}, {self.y:g})"
        if self.rate is not None and self.pressure is not None:
            raise PdeError(f"{at} has a rate and a pressure: give one of them")
        if (self.pressure is None) != (self.radius is None):
            raise PdeError(f"{at} has a pressure or a radius alone: give both or neither")
        if self.radius is not None:
            check_positive(f"{at}: radius", self.radius)
        if self.spread < 0 or (self.spread and self.rate is None):
            raise PdeError(f"{at} has spread={self.spread:g}, expected one of a rate, not below 0")

    @property
    def balances(self) -> bool:
        """Whether it takes what the others give."""
        return self.rate is None and self.pressure is None

    def cell(self, grid: Grid) -> tuple[int, int]:
        """Row and column of its cell.

        Raises:
            PdeError: It lies outside the grid.
        """
        slack = 1 + 1e-12  # of lengths that were summed from widths
        if not (0 <= self.x <= grid.lx * slack and 0 <= self.y <= grid.ly * slack):
            raise PdeError(
                f"the well at ({self.x:g}, {self.y:g}) lies outside [0, {grid.lx:g}] x "
                f"[0, {grid.ly:g}]: give its place in the unit of the lengths, not in cells"
            )
        row = int(np.searchsorted(grid.y_lines, self.y, "right")) - 1
        column = int(np.searchsorted(grid.x_lines, self.x, "right")) - 1
        return min(row, grid.ny - 1), min(column, grid.nx - 1)


def cells_of(grid: Grid, wells: Iterable[Well]) -> list[tuple[int, int]]:
    """The cells of wells.

    Raises:
        PdeError: Two share a cell, or one lies outside.
    """
    found: dict[tuple[int, int], Well] = {}
    for well in wells:
        cell = well.cell(grid)
        if cell in found:
            other = found[cell]
            raise PdeError(
                f"the wells at ({other.x:g}, {other.y:g}) and ({well.x:g}, {well.y:g}) lie in one "
                "cell: move one, or refine the grid"
            )
        found[cell] = well
    return list(found)


def read_wells(path: str | os.PathLike[str]) -> tuple[Well, ...]:
    """Read a table of wells.

    Args:
        path: Comma-separated text with a header, `x,y` and what is there of `rate,spread,pressure,
            radius`; an empty cell is a value that is not given. A line is a well.

    Raises:
        FileContentError: No such file, an unknown column, or a cell that is no number.
        PdeError: As for `Well`.
    """
    path = Path(path)
    if not path.is_file():
        raise FileContentError(f"{path} is not there, or no file")
    known = [field.name for field in fields(Well)]
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            rows = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FileContentError(f"{path} is not a table of text ({error})") from error
    if not rows:
        raise FileContentError(f"{path} has no wells: a header {','.join(known)}, then a line each")
    names = list(reader.fieldnames or ())
    if not {"x", "y"} <= set(names) <= set(known):
        raise FileContentError(
            f"{path} has the columns {', '.join(map(str, names))}; expected x, y and any of "
            f"{', '.join(known[2:])}"
        )
    return tuple(_well(path, number, row) for number, row in rows)


def _well(path: Path, line: int, row: dict[str, Any]) -> Well:
    if None in row:
        raise FileContentError(f"{path}, line {line}: more values than the header has columns")
    try:
        values = {name: float(text) for name, text in row.items() if text and text.strip()}
    except ValueError as error:
        raise FileContentError(f"{path}, line {line}: {error}") from error
    try:
        return Well(**values)
    except TypeError as error:
        raise FileContentError(f"{path}, line {line}: a well needs x and y") from error
