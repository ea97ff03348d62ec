"""What an experiment states as data in ``configs/experiments``: labels, columns, numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tasks.experiments.experiment import Best, Cell, Cells, Choices
from tasks.experiments.overrides import Overrides, changed
from tasks.experiments.tables import Column, Result, Row, Table, paper_row

FOLDER = Path(__file__).resolve().parents[2] / "configs" / "experiments"


@dataclass(frozen=True)
class Sheet:
    """The content of a file.

    Attributes:
        intro: What the numbers of the table are.
        columns: Columns of the table, each the arguments of a :class:`Column`; where ``at`` is
            ``NAME()``, the function that ``functions`` has under that name.
        heading: Titles of the columns that name a row.
        labels: What the table calls cells, or parts of their names.
        published: The paper's numbers by the paper's names, in the order of the columns.
        tried: Columns of the table of what settings were chosen from.
        trying: What those numbers are.
        settings: Everything else, of which the experiment's module makes cells.
        base: The configuration of all runs, where it has no file of its own in ``configs/papers``.
        cells: What each run differs in from that.
        functions: Of records, for columns.
    """

    intro: str = ""
    columns: Sequence[Mapping[str, Any]] = ()
    heading: Sequence[str] = ("method",)
    labels: Mapping[str, str] = field(default_factory=dict)
    published: Mapping[str, Any] = field(default_factory=dict)
    tried: Sequence[Mapping[str, Any]] = ()
    trying: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    base: Mapping[str, Any] = field(default_factory=dict)
    cells: Mapping[str, Overrides] = field(default_factory=dict)
    functions: Mapping[str, Callable[[Result], Any]] = field(default_factory=dict)

    def runs(self) -> list[Cell]:
        """Return the runs that are stated as data."""
        return [Cell(name, self.base, changed({}, run)) for name, run in self.cells.items()]

    def made(self, columns: Sequence[Mapping[str, Any]]) -> list[Column]:
        """Return columns that are stated as data."""
        return [Column(**{**column, "at": self._at(column.get("at", ""))}) for column in columns]

    def _at(self, place: str | list[str]) -> Any:
        if isinstance(place, list):
            return tuple(place)
        return self.functions[place[:-2]] if place.endswith("()") else place

    def paper(self, columns: Sequence[Column]) -> list[Row]:
        """Return the rows of published numbers."""
        return [paper_row([f"*paper*: {n}"], columns, v) for n, v in self.published.items()]

    def table(self) -> Table:
        """Return the table with a row for each label."""
        rows = [Row([label], name) for name, label in self.labels.items()]
        return Table(self.heading, self.made(self.columns), rows)

    def choices(
        self,
        cells: Callable[[], Cells],
        best: str = "",
        parts: Callable[[str], tuple[str, str]] | None = None,
        **more: Any,
    ) -> Choices:
        """Return what settings were chosen from.

        Args:
            cells: Returns the runs.
            best: The sentence that names the best by the first column, with ``{}`` for the names.
            parts: Returns the method and the setting that a cell's name states.
            **more: Further arguments of :class:`Choices`, ``entry`` of :class:`Best`.
        """
        columns = self.made(self.tried)
        entry = {"entry": more.pop("entry")} if "entry" in more else {}
        named = Best(best, columns[0], parts, **entry) if parts else None
        return Choices(cells, columns, self.trying, named, **more)


def sheet(name: str, **functions: Callable[[Any], Any]) -> Sheet:
    """Read an experiment's file, with the functions that its columns name."""
    content = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    return Sheet(**content, functions=functions)
