"""Rows that every draw adds to, on disk in pieces that are written once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from lightning_sgmcmc.common.files import DamagedFileError, read_notes, save_tensors, verify


@dataclass(frozen=True)
class Piece:
    """A file with the rows between two saves."""

    file: str
    sha256: str


class Pieces:
    """Tensors of several kinds and a row of numbers, of which every draw may add one of each.

    New rows stay in memory until :meth:`save` writes them as one more piece, so that a save costs
    what the new rows cost. A piece names the one before it with its checksum, so that a checkpoint
    holds the last one's name and checksum alone, and all pieces that it counts on can be verified.

    Args:
        folder: Of the pieces.
        writes: Whether this process writes them; others read what the first one wrote.
    """

    def __init__(self, folder: Path, writes: bool = True) -> None:
        self.folder, self._writes = folder, writes
        self._pieces: list[Piece] = []
        self._rows: dict[str, list[Tensor]] = {}
        self._numbers: list[dict[str, float]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, float]) -> None:
        """Add a row of numbers, and a row of every kind that is given."""
        self._count += 1
        self._numbers.append(dict(numbers))
        for kind, row in tensors.items():
            self._rows.setdefault(kind, []).append(row)

    def of(self, kind: str) -> Tensor:
        """Return all rows of a kind, [n, ...]; [0, 0, 0] where there is none.

        Raises:
            DamagedFileError: If a piece is not what was written.
        """
        parts = []
        for piece in self._pieces:
            with self._opened(piece) as file:
                if kind in file.keys():  # noqa: SIM118, safe_open is no mapping
                    parts.append(file.get_tensor(kind))
        parts += [row[None] for row in self._rows.get(kind, [])]
        return torch.cat(parts) if parts else torch.empty(0, 0, 0, dtype=torch.float64)

    def numbers(self) -> list[dict[str, float]]:
        """Return all rows of numbers.

        Raises:
            DamagedFileError: If a piece is not what was written.
        """
        rows = []
        for piece in self._pieces:
            rows += self._notes(piece)["numbers"]
        return rows + self._numbers

    def save(self) -> dict[str, Any]:
        """Write what is in memory as a piece.

        Returns:
            What :meth:`load` takes.
        """
        if self._numbers:
            last = self._pieces[-1] if self._pieces else Piece("", "")
            first = self._count - len(self._numbers) + 1
            name, digest = f"{first}-{self._count}.safetensors", ""
            if self._writes:
                if not self._pieces:
                    self.folder.mkdir(parents=True, exist_ok=True)
                digest = save_tensors(
                    self.folder / name,
                    {kind: torch.stack(rows) for kind, rows in self._rows.items()},
                    {
                        "previous": last.file,
                        "previous_sha256": last.sha256,
                        "numbers": self._numbers,
                    },
                )
            self._pieces.append(Piece(name, digest))
            self._rows, self._numbers = {}, []
        last = self._pieces[-1] if self._pieces else Piece("", "")
        return {"count": self._count, "last": last.file, "sha256": last.sha256}

    def load(self, state: Mapping[str, Any]) -> None:
        """Return to a saved state, removing the pieces that came after it.

        Raises:
            DamagedFileError: If a piece is missing or not what was written; nothing is removed.
        """
        self._pieces, self._rows, self._numbers = [], {}, []
        piece = Piece(state["last"], state["sha256"])
        while piece.file:
            self._verify(piece)
            self._pieces.insert(0, piece)
            notes = self._notes(piece)
            piece = Piece(notes["previous"], notes["previous_sha256"])
        self._count = state["count"]
        self._remove_others()

    def clear(self) -> None:
        """Begin without a row, removing what an earlier run left."""
        self.load({"count": 0, "last": "", "sha256": ""})

    def _remove_others(self) -> None:
        known = {piece.file for piece in self._pieces}
        for path in self.folder.glob("*.safetensors") if self._writes else ():
            if path.name not in known:
                path.unlink()

    def _verify(self, piece: Piece) -> None:
        path = self.folder / piece.file
        if not path.is_file():
            raise DamagedFileError(
                f"{path} is missing, and the checkpoint counts on it: restore it from a copy, or "
                "run the chain anew"
            )
        verify(path, piece.sha256)

    def _notes(self, piece: Piece) -> dict[str, Any]:
        with self._opened(piece) as file:
            return read_notes(file)

    def _opened(self, piece: Piece) -> Any:
        path = self.folder / piece.file
        try:
            return safe_open(path, framework="pt")
        except (SafetensorError, OSError) as error:
            raise DamagedFileError(
                f"{path} is damaged ({error}): restore it from a copy, or run the chain anew"
            ) from error
