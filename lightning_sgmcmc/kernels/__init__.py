"""Compiled loops for a chain of float32 weights on the CPU, where Numba is installed.

They read each vector once where torch's operations read and write it several times, which is what
a step costs on a CPU. :func:`chosen` alone decides whether a chain uses them. What they compute is
what the torch code beside each call computes, up to rounding.
"""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Literal

import torch

Backend = Literal["numba", "torch"]

#: Environment variable: ``auto`` (the default) uses the kernels where they apply, ``off`` never.
VARIABLE = "LIGHTNING_SGMCMC_KERNELS"


def chosen(device: torch.device, dtype: torch.dtype) -> Backend:
    """Return what computes the steps of a chain whose weights have this device and type.

    Raises:
        ValueError: If the environment variable is neither ``auto`` nor ``off``.
    """
    wish = os.environ.get(VARIABLE, "auto")
    if wish not in ("auto", "off"):
        raise ValueError(f"{VARIABLE} must be auto or off, got {wish!r}")
    served = device.type == "cpu" and dtype == torch.float32
    return "numba" if served and wish == "auto" and _installed() else "torch"


def other_backend(backend: Backend) -> str:
    """Say that a checkpoint was made by another backend than this one."""
    if backend == "numba":
        made, remedy = "torch alone", f"{VARIABLE}=off goes on to the bit"
    else:
        made = "compiled kernels"
        remedy = f"with the extra `fast`, {VARIABLE}=auto and float32 it goes on to the bit"
    return (
        f"the checkpoint's chain was computed by {made}, which this one is not: it goes on with "
        f"the same random bits, and agrees to float32's rounding; {remedy}"
    )


@cache
def _installed() -> bool:
    """Whether Numba can be imported; it is, late, by the modules beside this one."""
    if find_spec("numba") is None:
        return False
    try:
        import_module("numba")
    except ImportError:  # Numba refuses a NumPy newer than itself
        return False
    return True
