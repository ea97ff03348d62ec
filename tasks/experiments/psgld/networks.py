"""An experiment of pSGLD's on networks: every method on every column, as its file states them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch

from tasks.experiments.experiment import Cell, Cells
from tasks.experiments.overrides import Component, Overrides, changed, component
from tasks.experiments.psgld.methods import RECIPES, Protocol
from tasks.experiments.sheet import Sheet

#: Training examples that are held out where something is chosen.
HELD_OUT = 10_000


@dataclass(frozen=True)
class Column:
    """A network and the length of its runs.

    Attributes:
        title: What tables call it.
        epochs: Passes through the training set.
        decay: L, the epochs after which a step that decays is halved.
        repetitions: Chains of a run; None takes as many as the machine is fast enough for.
        changes: What its runs change in the configuration, after the method's changes.
        weights: Of its network, where a step costs as much as they are many; else 1.
    """

    title: str
    epochs: int
    decay: int
    repetitions: int | None = None
    changes: Overrides = field(default_factory=dict)
    weights: int = 1


@dataclass(frozen=True)
class Method:
    """A method, a row of the table.

    Attributes:
        label: What the table calls it.
        recipe: Its function in ``methods``; none for what is computed of other runs.
        arguments: Arguments of that.
        changes: What its runs change in the configuration besides.
        curve: Whose error its learning curve shows: of the ensemble of draws so far, or of the
            current network; None for no curve.
        paper: Name of the published row that it stands beside.
        together: Whether its chains are one predictor, not repetitions.
    """

    label: str
    recipe: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    changes: Overrides = field(default_factory=dict)
    curve: Literal["ensemble", "network"] | None = None
    paper: str | None = None
    together: bool = False


def on_gpu() -> bool:
    """Return whether runs are on a GPU."""
    return torch.cuda.is_available()


@dataclass(frozen=True)
class Networks:
    """The columns and methods of an experiment's file.

    Attributes:
        sheet: The file.
        cost: What a run of the full length costs without a GPU, in words.
    """

    sheet: Sheet
    cost: str

    @cached_property
    def columns(self) -> dict[str, Column]:
        """The columns by the first words of their cells' names."""
        return {name: Column(**column) for name, column in self.sheet.settings["columns"].items()}

    @cached_property
    def methods(self) -> dict[str, Method]:
        """The methods by the other words of their cells' names."""
        return {name: Method(**method) for name, method in self.sheet.settings["methods"].items()}

    @property
    def tempered(self) -> dict[str, dict[str, Any]]:
        """The methods that also run at other temperatures, and what they change there."""
        found: dict[str, dict[str, Any]] = self.sheet.settings.get("tempered", {})
        return found

    def protocol(self, column: str, held_out: int = 0) -> Protocol:
        """Return the length of a column's runs, with some of the training examples held out."""
        of = self.columns[column]
        repetitions = of.repetitions or (10 if on_gpu() else 3)
        num_data = self.sheet.settings["num_data"] - held_out
        return Protocol(of.epochs, of.decay, repetitions, num_data)

    def cells(self) -> list[Cell]:
        """Return the cells ``COLUMN-METHOD`` of all methods."""
        return [self.cell(column, method) for column in self.columns for method in self.methods]

    def cell(
        self,
        column: str,
        method: str,
        length: Protocol | None = None,
        callbacks: Sequence[Component] = (),
    ) -> Cell:
        """Return a method's run: its length, its repetitions, what it writes and what it is."""
        length, of = length or self.protocol(column), self.methods[method]
        curve = component("tasks.experiments.learning_curve.LearningCurve", every=length.epoch)
        common = {
            "trainer.max_steps": length.steps,
            "model.num_chains": length.repetitions,
            "checkpoint_every": length.epoch,
            "trainer.callbacks": [curve, *callbacks],
        }
        changes = changed(of.changes, self.columns[column].changes)
        recipe = RECIPES[of.recipe](length, **of.arguments)
        return Cell(f"{column}-{method}", self.sheet.config, common | changes | recipe)

    def trials(self) -> list[Cell]:
        """Return runs at the step sizes to choose from: one chain, 10,000 held-out examples."""
        length = replace(self.protocol("reduced", HELD_OUT), repetitions=1)
        return [
            self.cell("reduced", method, length).but(
                f"trial-{method}-{lr:g}", {"data.num_val": HELD_OUT, "model.sampler.lr": lr}
            )
            for method, steps in self.sheet.settings["grid"].items()
            for lr in steps
        ]

    def temperatures(self) -> list[Cell]:
        """Return reduced runs at other temperatures, measured on held-out training examples too."""
        length = self.protocol("reduced", HELD_OUT)
        return [
            self.cell("reduced", method, length).but(
                f"temperature-{method}-{T:g}",
                {"data.num_val": HELD_OUT, "model.sampler.temperature": T} | changes,
            )
            for method, changes in self.tempered.items()
            for T in (1 / length.num_data, *self.sheet.settings["temperatures"])
        ]

    def left_out(self, cells: Cells | None = None) -> tuple[list[str], str]:
        """Return the cells that this machine is too slow for, or need not run, and why.

        Names of short ones start with ``reduced`` or ``temperature``.
        """
        names = [cell.name for cell in cells or self.cells()]
        if on_gpu():
            return [name for name in names if name.startswith("reduced")], (
                "the reduced cells are left out: a GPU runs the paper's protocol"
            )
        long = [name for name in names if not name.startswith(("reduced", "temperature"))]
        return long, (
            f"{len(long)} cells by the paper's protocol are left out: {self.cost} without a GPU; "
            "ask for one with --cell NAME"
        )
