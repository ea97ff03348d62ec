"""The contract of a reproduced experiment: its cells, its tables, its choices, its figures."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_sgmcmc.callbacks import ChainDivergedError
from lightning_sgmcmc.callbacks.report import results
from tasks.experiments.overrides import Overrides, arguments, changed
from tasks.experiments.tables import DIVERGED, Column, Results, Table, markdown, ran

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Cell:
    """A run of the command line.

    Attributes:
        name: Name of its folder.
        config: Its YAML file, relative to ``configs/papers``, or the content of one.
        overrides: What differs from that.
    """

    name: str
    config: str | Mapping[str, Any]
    overrides: Overrides

    def but(self, name: str, changes: Overrides) -> Cell:
        """Return the same run under another name with some values changed."""
        return Cell(name, self.config, changed(self.overrides, changes))

    def arguments(self, root: Path) -> list[str]:
        """Return the command line, with configuration files in ``root``."""
        if isinstance(self.config, str):
            config = str(root / "papers" / self.config)
        else:
            config = json.dumps(self.config)
        return ["--config", config, *arguments(self.overrides)]


@dataclass(frozen=True)
class Study:
    """A computation of its own, for what is not one run of a task.

    Attributes:
        name: Name of its folder.
        compute: Called with that folder, which exists; returns what goes into ``results.json``:
            numbers, words, lists and dicts of them. Arrays it writes into the folder itself. It is
            called again from the start if it was stopped before it returned.
    """

    name: str
    compute: Callable[[Path], dict[str, Any]]


def need(run: Path) -> None:
    """Refuse to compute a study before the run that it takes from is finished.

    Args:
        run: The run's folder.

    Raises:
        ValueError: If the run is not finished.
        ChainDivergedError: If it diverged.
    """
    if not (run / "results.json").is_file():
        raise ValueError(f"needs the finished run {run.name}: run that cell first")
    if DIVERGED in results.read(run / "results.json"):
        raise ChainDivergedError(f"needs the run {run.name}, which diverged")


Cells = Sequence[Cell | Study]
Studies = Callable[[], Cells]


def by_rightmost_dash(name: str) -> tuple[str, str]:
    """Return method and setting of a cell named ``METHOD-SETTING``, such as ``sgd-1e-05``."""
    last = re.search(r"([0-9.]+e-)?[^-]*$", name)
    assert last is not None
    return name[: last.start()].removesuffix("-"), last[0]


@dataclass(frozen=True)
class Best:
    """The sentence that names the best setting of each method among those that have run.

    Attributes:
        sentence: With ``{}`` where the settings stand.
        column: The number that decides, with its better direction.
        parts: Returns the method and the setting that a cell's name states.
        entry: How a method's best is written, of ``method``, ``setting`` and ``name``.
    """

    sentence: str
    column: Column
    parts: Callable[[str], tuple[str, str]] = by_rightmost_dash
    entry: str = "{method} at {setting}"

    def lines(self, results: Results) -> list[str]:
        """Return the sentence, nothing before the first run is finished."""
        sign = {"lower": 1.0, "higher": -1.0}[self.column.better or "lower"]
        found: dict[str, tuple[float, str]] = {}
        for name, run in ran(results).items():
            if run is not None:
                method, setting = self.parts(name)
                value = sign * float(self.column.read(run))
                if method not in found or value < found[method][0]:
                    entry = self.entry.format(method=method, setting=setting, name=name)
                    found[method] = value, entry
        entries = ", ".join(entry for _, entry in found.values())
        return [self.sentence.format(entries)] if found else []


@dataclass(frozen=True)
class Choices:
    """The runs that an experiment's settings were chosen from.

    Attributes:
        cells: Returns the runs, each on held-out training examples.
        columns: What the table shows of each.
        intro: What the numbers are.
        best: The sentence below the table.
        heading: Titles of the columns that name a run.
        labels: Returns their entries for a run's name.
    """

    cells: Callable[[], Cells]
    columns: Sequence[Column]
    intro: str = ""
    best: Best | None = None
    heading: Sequence[str] = ("run",)
    labels: Callable[[str], Sequence[str]] = lambda name: (name,)

    def render(self, results: Results) -> str:
        """Return the table of the runs that have ended, and the best settings."""
        runs = {cell.name: results.get(cell.name) for cell in self.cells()}
        best = self.best.lines(runs) if self.best else []
        return "\n\n".join(part for part in (self.intro, self.table(results), *best) if part)

    def table(self, results: Results) -> str:
        """Return the table of the runs that have a record, and how many have none."""
        runs = {cell.name: results.get(cell.name) for cell in self.cells()}
        ended = {name: run for name, run in runs.items() if run is not None}
        head = [*self.heading, *(column.title for column in self.columns)]
        rows = [
            [*self.labels(name), *(column.text(run) for column in self.columns)]
            for name, run in ended.items()
        ]
        missing = len(runs) - len(ended)
        have = "has" if missing == 1 else "have"
        rest = [f"{missing} of the {len(runs)} runs {have} no record."] if missing else []
        return "\n\n".join([markdown(head, rows), *rest])


def _no_figures(results: Results, out: Path) -> Mapping[str, Figure | str]:
    return {}


@dataclass(frozen=True)
class Experiment:
    """A published experiment.

    Attributes:
        cells: Returns its runs and computations; they may depend on the machine.
        report: The parts of its report, tables and paragraphs, or a function of the results that
            returns them. ``results`` holds the content of every cell's ``results.json``, None
            where it is not finished, or diverged.
        choices: What its settings were chosen from.
        left_out: Returns the names of cells that run only where they are asked for, and why.
        figures: Returns figures by name, of the results and of the folder of the cells; in place of
            one that needs a missing file, the line that says so.
    """

    cells: Callable[[], Cells]
    report: Sequence[Table | str] | Callable[[Results], Iterable[Table | str]]
    choices: Choices | None = None
    left_out: Callable[[], tuple[list[str], str]] = lambda: ([], "")
    figures: Callable[[Results, Path], Mapping[str, Figure | str]] = _no_figures

    def parts(self, results: Results) -> list[Table | str]:
        """Return the tables and paragraphs of the report."""
        return list(self.report(ran(results)) if callable(self.report) else self.report)

    def render(self, results: Results) -> str:
        """Return the report as Markdown, ours beside the paper's; unfinished cells are hyphens."""
        parts = self.parts(results)
        return "\n\n".join(p if isinstance(p, str) else p.render(results) for p in parts)
