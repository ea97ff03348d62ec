"""One cell of a published table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """A run: its name, its YAML file in ``configs/papers``, and what differs from that."""

    name: str
    config: str
    overrides: tuple[str, ...]
