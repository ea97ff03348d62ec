"""How the kernels for a GPU are compiled; imports Triton.

``TRITON_INTERPRET=1`` in the environment runs them on a CPU, by Triton's interpreter.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import triton  # type: ignore[import-untyped]
from torch import Tensor

#: Weights that a program serves, a power of 2.
BLOCK = 1024


def jit(*varying: str) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function for a GPU.

    Args:
        *varying: Names of numbers that differ from call to call, whose values are not compiled in.
    """
    compiled: Callable[[Callable[..., Any]], Any] = triton.jit(do_not_specialize=varying)
    return compiled


def device_of(tensor: Tensor) -> AbstractContextManager[None]:
    """Launch kernels on a tensor's device; on the CPU this does nothing."""
    context: AbstractContextManager[None] = torch.cuda.device_of(tensor)  # type: ignore[no-untyped-call]
    return context
