"""Linear layers and softmax in the order in memory that suits stacked draws on the CPU."""

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


class ExamplesLast(TorchFunctionMode):
    """Let examples lie next to each other in memory, where torch would put features there.

    - Softmax and log-softmax of fewer than 16 float32 classes: torch reduces the last axis in
      vectors on the CPU, and numbers that do not fill one go one by one, some ten times slower
      than over a middle axis. They are transposed, reduced and transposed back.
      ``cross_entropy`` with integer labels is served too.
    - ``linear`` of stacked draws: (W x^T + b)^T, one matrix product for all draws where they share
      x; torch's own rule under ``vmap`` multiplies bias and product by one besides, a pass over
      memory each.

    Results differ by float32's rounding.

    Args:
        stacked: Whether draws are stacked by ``vmap``; results are then views of transposed
            tensors.
    """

    def __init__(self, stacked: bool = False) -> None:
        super().__init__()
        self.stacked = stacked

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
            typed = len(args) > 2 or kwargs.get("dtype") is not None
            if not typed and _narrow(x) and dim in (-1, x.dim() - 1):
                reduce = torch.softmax if func in _SOFTMAX else torch.log_softmax
                return self._transposed(reduce, x)
        elif func is functional.cross_entropy and not kwargs["label_smoothing"]:
            x, target = args  # torch gives all else by name, defaults included
            if x.dim() == 2 and _narrow(x) and not target.is_floating_point():
                rest = {k: v for k, v in kwargs.items() if k != "label_smoothing"}
                return functional.nll_loss(self._transposed(torch.log_softmax, x), target, **rest)
        elif self.stacked and func is functional.linear and not kwargs:
            x, weight, bias = (*args, None)[:3]
            if x.dim() == weight.dim() == 2 and x.device.type == "cpu":
                product = torch.matmul(weight, x.mT)
                return (product if bias is None else product + bias[:, None]).mT
        return func(*args, **kwargs)

    def _transposed(self, reduce: Callable[[Tensor, int], Tensor], x: Tensor) -> Tensor:
        result = reduce(x.mT.contiguous(), x.dim() - 2).mT
        return result if self.stacked else result.contiguous()


def _input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    x: Tensor = args[0] if args else kwargs["input"]
    return x


def _narrow(x: Tensor) -> bool:
    cpu = x.device.type == "cpu" and x.dtype == torch.float32
    return cpu and x.dim() > 1 and 1 < x.shape[-1] < _WIDTH
