"""What the draws of several chains leave for the diagnostics, each in a folder of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_sgmcmc.posterior.pieces import Pieces


class Traces:
    """The rows that every draw of K chains adds, as :class:`Pieces` by the chain's number.

    A chain can then go on beside others than before. A row is [K, ...], or a single number that
    all chains share.

    Args:
        folders: Of the chains' pieces, in their order.
        writes: Whether this process writes them.
    """

    def __init__(self, folders: Sequence[Path], writes: bool = True) -> None:
        self._folders, self._writes = list(folders), writes
        self._pieces = [Pieces(folder, writes) for folder in folders]

    def __len__(self) -> int:
        return len(self._pieces[0])

    def add(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, float]) -> None:
        """Add a row of numbers, which is of all chains, and a row of every kind that is given."""
        each = len(self._folders) // len(self._pieces)
        for k, pieces in enumerate(self._pieces):
            own = slice(k * each, (k + 1) * each)
            pieces.add({n: t[own] if t.dim() else t for n, t in tensors.items()}, numbers)

    def of(self, kind: str) -> Tensor:
        """Return all rows of a kind, [n, K, ...] or [n]; [0, 0, 0] where there is none.

        Raises:
            DamagedFileError: If a piece is not what was written.
        """
        parts = [pieces.of(kind) for pieces in self._pieces]
        return torch.cat(parts, dim=1) if parts[0].dim() > 1 else parts[0]

    def numbers(self) -> list[dict[str, float]]:
        """Return all rows of numbers.

        Raises:
            DamagedFileError: If a piece is not what was written.
        """
        return self._pieces[0].numbers()

    def save(self) -> list[dict[str, Any]]:
        """Write what is in memory, and return what :meth:`load` takes."""
        return [pieces.save() for pieces in self._pieces]

    def load(self, states: Sequence[Mapping[str, Any]] | Mapping[str, Any]) -> None:
        """Return to a saved state, removing the pieces that came after it.

        Args:
            states: One a chain; a single one is that of an earlier version, which kept all chains
                beside the first, and goes on so.

        Raises:
            DamagedFileError: If a piece is missing or not what was written; nothing is removed.
        """
        if isinstance(states, Mapping):
            states = [states]
        if len(states) < len(self._folders):
            self._pieces = [Pieces(self._folders[0], self._writes)]
        for pieces, state in zip(self._pieces, states, strict=True):
            pieces.load(state)

    def clear(self) -> None:
        """Begin without a row, removing what an earlier run left."""
        for pieces in self._pieces:
            pieces.clear()
