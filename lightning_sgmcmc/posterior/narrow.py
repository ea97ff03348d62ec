"""Softmax over few classes, fast on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

#: Floats in the widest vector of a CPU, below which torch's kernel over the last axis is scalar.
_WIDTH = 16

_SOFTMAX = (functional.softmax, torch.softmax, Tensor.softmax)
_LOG_SOFTMAX = (functional.log_softmax, torch.log_softmax, Tensor.log_softmax)


class NarrowSoftmax(TorchFunctionMode):
    """Take softmax and log-softmax of fewer than 16 classes along another axis than the last.

    On the CPU torch reduces the last axis in vectors; fewer numbers than one vector holds go one
    by one, about ten times slower than over a middle axis, where neighbours are examples. Within
    this mode such float32 inputs are transposed, reduced there and transposed back, which differs
    by float32 rounding. ``cross_entropy`` with integer labels is served too.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call ``func``, or what stands for it."""
        kwargs = kwargs or {}
        if func in _SOFTMAX or func in _LOG_SOFTMAX:
            x, dim = _input(args, kwargs), kwargs.get("dim", args[1] if len(args) > 1 else None)
            if kwargs.get("dtype") is None and _narrow(x) and dim in (-1, x.dim() - 1):
                return _transposed(torch.softmax if func in _SOFTMAX else torch.log_softmax, x)
        elif func is functional.cross_entropy and not kwargs.get("label_smoothing"):
            x, target = _input(args, kwargs), kwargs.get("target", args[-1])
            if len(args) <= 2 and x.dim() == 2 and _narrow(x) and not target.is_floating_point():
                rest = {k: v for k, v in kwargs.items() if k in ("weight", "reduction")}
                if kwargs.keys() <= {"input", "target", "label_smoothing", *rest}:
                    return functional.nll_loss(_transposed(torch.log_softmax, x), target, **rest)
        return func(*args, **kwargs)


def _input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    x: Tensor = args[0] if args else kwargs["input"]
    return x


def _narrow(x: Tensor) -> bool:
    cpu = x.device.type == "cpu" and x.dtype == torch.float32
    return cpu and x.dim() > 1 and 1 < x.shape[-1] < _WIDTH


def _transposed(reduce: Callable[[Tensor, int], Tensor], x: Tensor) -> Tensor:
    return reduce(x.mT.contiguous(), x.dim() - 2).mT.contiguous()
