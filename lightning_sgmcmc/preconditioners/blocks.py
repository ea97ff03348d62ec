"""Blocks of weights that a dense Fisher matrix ties together, and the memory that they take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor


@dataclass(frozen=True)
class Block:
    """Which weights share U blocks of J, each m by m.

    Attributes:
        indices: The parameters.
        kind: ``"whole"`` is one block of all their weights, ``"unit"`` a block an output unit,
            its weights first and its bias last, ``"single"`` a block a weight.
    """

    indices: tuple[int, ...]
    kind: str

    def pack(self, tensors: Sequence[Tensor], axes: int) -> Tensor:
        """Return [..., U, m] from tensors shaped like the parameters after ``axes`` axes."""
        front = tensors[0].shape[:axes]
        if self.kind == "single":
            return tensors[0].reshape(*front, -1, 1)
        units = tensors[0].shape[axes] if self.kind == "unit" else 1
        return torch.cat([t.reshape(*front, units, -1) for t in tensors], dim=-1)

    def unpack(self, packed: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
        """Undo :meth:`pack`."""
        units = packed.shape[-2]
        sizes = [t.numel() // (packed.shape[0] * units) for t in like]
        parts = torch.split(packed, sizes, dim=-1)
        return [part.reshape(t.shape) for part, t in zip(parts, like, strict=True)]


def free_bytes(device: torch.device) -> int | None:
    """Return the memory that is free for new tensors, None where that is unknown."""
    if device.type == "cuda":
        # What torch has taken from the device and does not use is free, too.
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + kept
    meminfo = Path("/proc/meminfo")
    if device.type == "cpu" and meminfo.exists():
        lines = dict(line.split(":") for line in meminfo.read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024
    return None
