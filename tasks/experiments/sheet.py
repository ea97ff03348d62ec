"""What an experiment states as data in ``configs/experiments``: runs, labels, columns, numbers."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from tasks.experiments.experiment import Best, Cell, Choices, Studies, by_rightmost_dash
from tasks.experiments.labels import label
from tasks.experiments.overrides import Overrides, changed
from tasks.experiments.tables import Column, Result, Row, Table, paper_row
from tasks.home import CONFIGS

FOLDER = CONFIGS / "experiments"


@dataclass(frozen=True)
class Sheet:
    """The content of a file.

    Attributes:
        intro: What the numbers of the table are.
        columns: Columns of the table, each the arguments of a :class:`Column`. Where ``at`` is
            ``NAME()``, it is the function that ``functions`` has under that name.
        heading: Titles of the columns that name a row.
        labels: What the table calls cells, or parts of their names.
        published: The paper's numbers. A list is a row of its own, under the paper's name and in
            the order of the columns; a mapping from titles to numbers completes a cell's row.
        config: The configuration of all runs: a file in ``configs/papers``, or its content. A
            rule's ``config`` is another one.
        cells: Names of the runs, words joined by dashes. ``a-{b,c}`` is ``a-b`` and ``a-c``.
        rules: What runs change in the configuration. The rule ``b-c`` holds for the runs whose
            names have the words ``b`` and ``c``; ``*`` holds for all. Later rules change what
            earlier ones have set.
        numbers: The override that a word such as ``lr0.1`` states, by the letters before the
            number. These come after all rules.
        trials: Names of the runs that settings were chosen from.
        held_out: What those change besides, after the rules and before the numbers.
        tried: Columns of the table of those.
        trying: What their numbers are.
        settings: Everything else that the experiment's module needs.
        functions: Of records, for columns.
    """

    intro: str = ""
    columns: Sequence[Mapping[str, Any]] = ()
    heading: Sequence[str] = ("method",)
    labels: Mapping[str, str] = field(default_factory=dict)
    published: Mapping[str, Any] = field(default_factory=dict)
    config: str | Mapping[str, Any] = ""
    cells: Sequence[str] = ()
    rules: Mapping[str, Overrides] = field(default_factory=dict)
    numbers: Mapping[str, str] = field(default_factory=dict)
    trials: Sequence[str] = ()
    held_out: Overrides = field(default_factory=dict)
    tried: Sequence[Mapping[str, Any]] = ()
    trying: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    functions: Mapping[str, Callable[[Result], Any]] = field(default_factory=dict)

    def runs(self) -> list[Cell]:
        """Return the runs of the table."""
        return [self._run(name, {}) for name in expanded(self.cells)]

    def trial_runs(self) -> list[Cell]:
        """Return the runs that settings were chosen from."""
        return [self._run(name, self.held_out) for name in expanded(self.trials)]

    def _run(self, name: str, held_out: Overrides) -> Cell:
        words, found = name.split("-"), dict[str, Any]()
        for rule, changes in self.rules.items():
            if rule == "*" or set(rule.split("-")) <= set(words):
                found = changed(found, changes)
        values = stated_numbers(words)
        numbers = {self.numbers[k]: value for k, value in values.items() if k in self.numbers}
        config = found.pop("config", self.config)
        return Cell(name, config, changed(changed(found, held_out), numbers))

    def made(self, columns: Sequence[Mapping[str, Any]]) -> list[Column]:
        """Return columns that are stated as data."""
        return [Column(**{**column, "at": self._at(column.get("at", ""))}) for column in columns]

    def _at(self, place: str | list[str]) -> Any:
        if isinstance(place, list):
            return tuple(place)
        return self.functions[place[:-2]] if place.endswith("()") else place

    def paper(self, columns: Sequence[Column]) -> list[Row]:
        """Return the rows of published numbers."""
        rows = {n: v for n, v in self.published.items() if not isinstance(v, dict)}
        return [paper_row([f"*paper*: {n}"], columns, v) for n, v in rows.items()]

    def built(self) -> dict[str, str]:
        """Return what each run builds, in words."""
        return {cell.name: label(cell.overrides) for cell in self.runs()}

    def table(self) -> Table:
        """Return the table with a row for each run."""
        rows = [
            Row([built], name, published=self.published.get(name, {}))
            for name, built in self.built().items()
        ]
        return Table(self.heading, self.made(self.columns), rows)

    def choices(
        self,
        cells: Studies | None = None,
        best: str = "",
        parts: Callable[[str], tuple[str, str]] = by_rightmost_dash,
        **more: Any,
    ) -> Choices:
        """Return what settings were chosen from.

        Args:
            cells: Returns the runs; by default those of ``trials``.
            best: The sentence that names the best by the first column, with ``{}`` for the names.
            parts: Returns the method and the setting that a cell's name states.
            **more: Further arguments of :class:`Choices`, ``entry`` of :class:`Best`.
        """
        columns = self.made(self.tried)
        entry = {"entry": more.pop("entry")} if "entry" in more else {}
        named = Best(best, columns[0], parts, **entry) if best else None
        return Choices(cells or self.trial_runs, columns, self.trying, named, **more)


def stated_numbers(words: Sequence[str]) -> dict[str, Any]:
    """Return the numbers of words such as ``lr0.1``, by the letters before them."""
    stated = [re.fullmatch(r"([a-z]+)([0-9.]+)", word) for word in words]
    return {m[1]: yaml.safe_load(m[2]) for m in stated if m}


def expanded(names: Sequence[str]) -> list[str]:
    """Return names with every choice of the words in braces, the last brace first."""
    found = []
    for name in names:
        parts = re.split(r"\{(.*?)\}", name)  # those at odd places stood in braces
        words = [part.split(",") if i % 2 else [part] for i, part in enumerate(parts)]
        found += ["".join(chosen) for chosen in itertools.product(*words)]
    return found


def sheet(name: str, **functions: Callable[[Any], Any]) -> Sheet:
    """Read an experiment's file, with the functions that its columns name."""
    content = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    return Sheet(**content, functions=functions)
