"""Launches of Triton's kernels over all tensors of some chains at once; imports Triton.

A program serves up to ``BLOCK`` weights of one tensor and one chain, whose place in the order of
the chain's concatenated tensors begins at a multiple of 4, as a block of noise does. Two tables on
the device say where they lie: the pieces, which do not change, and the addresses of the tensors,
which are sent again only where one has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from lightning_sgmcmc.kernels.triton_compiler import BLOCK, device_of, jit


@jit()
def piece(pieces, COUNT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return a program's tensor and first weight, and its places in the tensor, with their mask."""
    words = pieces + 4 * tl.program_id(0)
    start, first, numel = tl.load(words + 1), tl.load(words + 2), tl.load(words + 3)
    inside = start - first + tl.arange(0, COUNT)
    mask = (inside >= 0) & (inside < numel)
    return tl.load(words), start, tl.program_id(1) * numel + inside, mask


@jit()
def vector(addresses, tensor, column: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return where a tensor of a column begins."""
    address = tl.load(addresses + tensor * COLUMNS + column)
    return address.to(tl.pointer_type(tl.float32))


def launch(
    kernel: Any, columns: Sequence[Sequence[Tensor]], rows: int, *arguments: Any, **constants: Any
) -> None:
    """Run a kernel over all weights.

    Args:
        kernel: Takes the pieces, the addresses, what follows, and ``COUNT``, a piece's length.
        columns: Lists of contiguous float32 tensors on one device, shaped alike.
        rows: K, the chains along the tensors' first axis; 1 for a single one.
        *arguments: What else it takes.
        **constants: What it is compiled for.
    """
    device = columns[0][0].device
    pieces = _pieces(tuple(t.numel() // rows for t in columns[0]), device)
    tensors = (t for row in zip(*columns, strict=True) for t in row)
    table = _addresses(tuple(t.data_ptr() for t in tensors), device)
    if len(pieces):
        with device_of(table):
            kernel[(len(pieces), rows)](pieces, table, *arguments, COUNT=BLOCK, **constants)


@lru_cache(maxsize=16)
def _pieces(lengths: tuple[int, ...], device: torch.device) -> Tensor:
    """Return tensor, first place, the tensor's first place and its length for each piece."""
    found, first = [], 0
    for tensor, length in enumerate(lengths):
        starts = range(first - first % 4, first + length, BLOCK)
        found += [(tensor, start, first, length) for start in starts]
        first += length
    return torch.tensor(found, dtype=torch.int64).reshape(-1, 4).to(device)


@lru_cache(maxsize=64)
def _addresses(pointers: tuple[int, ...], device: torch.device) -> Tensor:
    """Return the addresses on the device, which does not wait for them."""
    table = torch.tensor(pointers, dtype=torch.int64, pin_memory=device.type == "cuda")
    return table.to(device, non_blocking=True)
