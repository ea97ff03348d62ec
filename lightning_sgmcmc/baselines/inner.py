"""The torch optimizer inside a baseline: built once, its step size the baseline's."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightning_sgmcmc.common.arguments import check_optimizer

#: Builds an optimizer from parameters, for instance ``partial(Adam, betas=(0.9, 0.99))``.
MakeOptimizer = Callable[[Iterable[Any]], Optimizer]

# Optimizers whose steps treat every weight by itself, so that K chains can be stacked.
_ELEMENTWISE = {
    getattr(torch.optim, name)
    for name in (
        "ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop",
        "Rprop", "SGD",
    )
}  # fmt: skip


def build(make: MakeOptimizer, tensors: Sequence[Tensor], lr: float) -> Optimizer:
    """Return the optimizer of some tensors, with the step size ``lr``.

    Raises:
        ValueError: If a step evaluates a closure.
    """
    optimizer = make(list(tensors))
    check_optimizer(optimizer)
    optimizer.param_groups[0]["lr"] = lr
    return optimizer


def step(
    optimizer: Optimizer, tensors: Sequence[Tensor], grads: Sequence[Tensor], lr: float
) -> None:
    """Take one step along the given gradients with the step size ``lr``."""
    for tensor, grad in zip(tensors, grads, strict=True):
        tensor.grad = grad
    optimizer.param_groups[0]["lr"] = lr
    optimizer.step()


def unstackable(optimizer: Optimizer) -> str | None:
    """Return why an optimizer's step does not keep stacked chains apart, None where it does."""
    kind = type(optimizer)
    if kind in _ELEMENTWISE:
        return None
    return f"the steps of {kind.__name__} are not known to treat every weight by itself"


def state_dict(optimizer: Optimizer) -> dict[str, Any]:
    """Return the optimizer's kind and state."""
    return {"kind": type(optimizer).__name__, "state": optimizer.state_dict()}


def load_state_dict(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Restore what :func:`state_dict` gave.

    Raises:
        ValueError: If it is that of another kind of optimizer.
    """
    kind = type(optimizer).__name__
    if state["kind"] != kind:
        raise ValueError(f"the state is that of {state['kind']}, not of {kind}")
    saved = copy.deepcopy(state["state"])  # torch would go on in the given tensors themselves
    optimizer.load_state_dict(saved)
    tensors = optimizer.param_groups[0]["params"]
    for i, values in saved["state"].items():
        own = optimizer.state[tensors[i]]
        for key, value in values.items():
            if isinstance(value, Tensor):  # torch gives it the type of the weights
                own[key] = value.to(own[key].device)
