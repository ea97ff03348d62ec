"""Compiled loops for a chain of float32 weights: on the CPU by Numba, on a GPU by Triton.

They read each vector once where torch's operations read and write it several times, which is what
a step costs. :func:`chosen` alone decides whether a chain uses them. What they compute is what the
torch code beside each call computes, up to rounding. Neither library is imported before a chain
needs it.
"""

from __future__ import annotations

import os
import warnings
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Literal

import torch

Backend = Literal["numba", "triton", "torch"]

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
    if dtype == torch.float32 and wish == "auto":
        if device.type == "cpu" and _installed("numba"):
            return "numba"
        if device.type == "cuda" and _installed("triton") and _launches(device):
            return "triton"
    return "torch"


def other_backend(made: Backend) -> str:
    """Say that a checkpoint was made by this backend, which is not the chain's."""
    by, remedy = {
        "torch": ("torch alone", f"{VARIABLE}=off"),
        "numba": ("compiled kernels", f"with the extra `fast`, {VARIABLE}=auto and float32"),
        "triton": ("Triton's kernels", f"on a GPU, with Triton, {VARIABLE}=auto and float32"),
    }[made]
    goes_on = "goes on" if made == "torch" else "it goes on"
    return (
        f"the checkpoint's chain was computed by {by}, which this one is not: it goes on with "
        f"the same random bits, and agrees to float32's rounding; {remedy} {goes_on} to the bit"
    )


@cache
def _launches(device: torch.device) -> bool:
    """Whether a kernel starts on a GPU; Triton builds its launcher by a C compiler, at first."""
    from lightning_sgmcmc.kernels.triton_noise import fill

    try:
        keys = torch.zeros(1, dtype=torch.int64, device=device)
        fill(torch.empty(1, 4, device=device), keys, 0, matched=False)
    except Exception as error:  # no compiler, no headers of Python, a GPU that Triton does not know
        warnings.warn(f"Triton does not start here, and steps are torch's: {error}", stacklevel=2)
        return False
    return True


@cache
def _installed(name: str) -> bool:
    """Whether a library can be imported; it is, late, by the modules beside this one."""
    if find_spec(name) is None:
        return False
    try:
        import_module(name)
    except ImportError:  # Numba refuses a NumPy newer than itself
        return False
    return True
