"""Memory that a process frees and needs again at the next step."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import lightning as L
import torch

# Of glibc's malloc.h: what keeps, and the largest block that comes from what is kept.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT, _LARGEST_BLOCK = 2**31 - 1, 2**25
_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")


class KeepFreedMemory(L.Callback):
    """Let glibc's allocator keep what a step on the CPU frees for the next one.

    By default it gives memory back to the system as soon as a few tensors at the end of its heap
    are free, and asks for it again some operations later. The system fills every page that it hands
    out with zeros, which for tensors of some megabytes takes longer than what is computed in them.
    Blocks of more than 32 MiB still go back. The process keeps its largest use of the others, also
    after the run. Nothing changes where the environment sets one of glibc's thresholds, for
    instance MALLOC_TRIM_THRESHOLD_, on a GPU, or where there is no glibc.
    """

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Begin."""
        keep(pl_module.device)


def keep(device: torch.device) -> bool:
    """Let the allocator keep memory that steps on a device free, and return whether it does."""
    mallopt = _mallopt() if device.type == "cpu" else None
    if mallopt is None or any(name in os.environ for name in _SETTINGS):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK) and mallopt(_TRIM_THRESHOLD, _KEPT))


def _mallopt() -> Any:
    try:
        return ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return None
