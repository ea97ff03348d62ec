"""Counts what makes the host wait for a device, on any device."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

#: Operators whose result the host waits for.
READS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero", "aten::equal")


class Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes reads of a number and copies from one device to another, while it is entered.

    Attributes:
        found: The operators, in order.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name
        moved = False
        if name == "aten::_to_copy":
            moved = args[0].device != result.device
        elif name == "aten::copy_" and isinstance(args[1], Tensor):
            moved = args[0].device != args[1].device
        if moved or name in READS:
            self.found.append(name)
        return result
