"""A multilayer perceptron."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

_ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "silu": nn.SiLU, "sigmoid": nn.Sigmoid}


class MLP(nn.Module):
    """x [B, inputs] to [B, outputs] through hidden layers.

    Args:
        hidden: Units of the hidden layers; none makes a linear map.
        activation: ``relu``, ``tanh``, ``silu`` or ``sigmoid``.
        inputs: Features of x; None leaves it to the data, by :meth:`build`.
        outputs: Outputs.

    Raises:
        ValueError: If a number is not positive or the activation is unknown.
    """

    def __init__(
        self,
        hidden: Sequence[int] = (50,),
        activation: Literal["relu", "tanh", "silu", "sigmoid"] = "relu",
        inputs: int | None = None,
        outputs: int = 1,
    ) -> None:
        super().__init__()
        if activation not in _ACTIVATIONS:
            raise ValueError(
                f"activation must be one of {', '.join(_ACTIVATIONS)}, got {activation!r}"
            )
        if min((*hidden, outputs)) < 1 or (inputs is not None and inputs < 1):
            raise ValueError(
                f"layers need at least one unit, got inputs = {inputs}, hidden = {list(hidden)}, "
                f"outputs = {outputs}"
            )
        sizes = [*hidden, outputs]
        first = nn.Linear(1, sizes[0])
        first.in_features, first.weight = 0, nn.Parameter(torch.empty(sizes[0], 0))
        rest = [nn.Linear(m, n) for m, n in pairwise(sizes)]
        parts: list[nn.Module] = [first]
        for layer in rest:
            parts += [_ACTIVATIONS[activation](), layer]
        self.layers = nn.Sequential(*parts)
        if inputs is not None:
            self.build(inputs)

    def build(self, inputs: int) -> None:
        """Give the first layer its inputs, and weights as torch draws them; a second call is idle.

        Raises:
            ValueError: If it already has another number of inputs.
        """
        first = self.layers[0]
        assert isinstance(first, nn.Linear)
        if first.in_features == inputs:
            return
        if first.in_features:
            raise ValueError(f"the net takes {first.in_features} inputs, the data have {inputs}")
        first.in_features = inputs
        first.weight = nn.Parameter(first.weight.new_empty(first.out_features, inputs))
        first.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs, [B, outputs]."""
        result: Tensor = self.layers(x)
        return result
