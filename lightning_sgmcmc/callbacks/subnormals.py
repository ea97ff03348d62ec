"""Subnormal numbers, taken for zero while a chain runs."""

from __future__ import annotations

import ctypes
from typing import Any

import lightning as L
import torch


class FlushSubnormals(L.Callback):
    """Let the processor take numbers below its smallest normal one for zero while a chain runs.

    In float32 these are the numbers below 1.2e-38, which processors compute with some hundred
    times more slowly. Chains meet them: an example that a network is sure of has gradients of
    1e-20, and their squares, of which Fisher matrices are averages, are subnormal. XLA takes them
    for zero as well. Every thread of torch's operations does it, so that no result depends on the
    number of threads; what the process did before is restored after the run. Where a processor
    cannot do it nothing changes.
    """

    def __init__(self) -> None:
        self._before: bool | None = None

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Begin."""
        self._before = flushed()
        flush(True)

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """End."""
        self._restore()

    def on_exception(self, *args: Any) -> None:
        """End where a run ends early."""
        self._restore()

    def _restore(self) -> None:
        if self._before is not None:
            flush(self._before)
            self._before = None


def flushed() -> bool:
    """Return whether this thread takes subnormal numbers for zero."""
    return not bool(torch.tensor(1e-30) * torch.tensor(1e-10))


def flush(on: bool) -> None:
    """Let the threads of torch's operations take subnormal numbers for zero, or not.

    ``torch.set_flush_denormal`` is about the thread that calls it; the others get its environment.
    """
    from lightning_sgmcmc.kernels.threads import everywhere

    if not torch.set_flush_denormal(on):
        return
    library = _libm()
    if library is None:
        return
    environment = ctypes.create_string_buffer(256)  # an fenv_t has 32 bytes
    library.fegetenv(environment)
    everywhere(library.fesetenv, ctypes.addressof(environment))


def _libm() -> Any:
    try:
        return ctypes.CDLL("libm.so.6")
    except OSError:  # GNU's OpenMP is not there either
        return None
