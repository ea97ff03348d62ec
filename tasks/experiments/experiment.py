"""The parts of a reproduced experiment: runs of the command line, and computations of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Cell:
    """A run: its name, its YAML file in ``configs/papers``, and what differs from that."""

    name: str
    config: str
    overrides: tuple[str, ...]


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
