"""A multilayer perceptron."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from torch import Tensor, nn

from tasks.nets.arguments import ACTIVATIONS, check_name


class MLP(nn.Module):
    """x [B, inputs] to [B, outputs] through hidden layers.

    Args:
        hidden: Units of the hidden layers; none makes a linear map.
        activation: ``relu``, ``tanh``, ``silu`` or ``sigmoid``.
        inputs: Features of x; None leaves their number to the data
            (:class:`~tasks.networks.TakesSizes`).
        outputs: Outputs; None leaves their number to the data.

    Raises:
        ValueError: If a number is not positive or the activation is unknown.
    """

    def __init__(
        self,
        hidden: Sequence[int] = (50,),
        activation: Literal["relu", "tanh", "silu", "sigmoid"] = "relu",
        inputs: int | None = None,
        outputs: int | None = 1,
    ) -> None:
        super().__init__()
        check_name("activation", activation, ACTIVATIONS)
        if min((*hidden, outputs or 1)) < 1 or outputs == 0 or (inputs is not None and inputs < 1):
            raise ValueError(
                f"layers need at least one unit, got inputs = {inputs}, hidden = {list(hidden)}, "
                f"outputs = {outputs}"
            )
        sizes = [*hidden, outputs or 1]
        first = nn.Linear(1, sizes[0])
        rest = [nn.Linear(m, n) for m, n in pairwise(sizes)]
        resize(first, inputs=0)
        if outputs is None:
            resize([first, *rest][-1], outputs=0)
        parts: list[nn.Module] = [first]
        for layer in rest:
            parts += [ACTIVATIONS[activation](), layer]
        self.layers = nn.Sequential(*parts)
        if inputs is not None:
            resize(first, inputs=inputs)
            if first.out_features:
                first.reset_parameters()

    def take_sizes(self, inputs: int, outputs: int) -> None:
        """Take the sizes that are open, and draw weights of the layers concerned as torch does.

        Args:
            inputs: Features of the data.
            outputs: What the net is to give, where that is open.

        Raises:
            ValueError: If the net has another number of inputs already.
        """
        first, last = self.layers[0], self.layers[-1]
        assert isinstance(first, nn.Linear)
        assert isinstance(last, nn.Linear)
        if first.in_features not in (0, inputs):
            raise ValueError(f"the net takes {first.in_features} inputs, the data have {inputs}")
        opened: dict[nn.Linear, dict[str, int]] = {}
        if not first.in_features:
            opened[first] = {"inputs": inputs}
        if not last.out_features:
            opened[last] = opened.get(last, {}) | {"outputs": outputs}
        for layer, sizes in opened.items():
            resize(layer, **sizes)
            layer.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs, [B, outputs]."""
        result: Tensor = self.layers(x)
        return result


def resize(layer: nn.Linear, inputs: int | None = None, outputs: int | None = None) -> None:
    """Give a layer other sizes, and weights that are not set; None keeps a size."""
    layer.in_features = layer.in_features if inputs is None else inputs
    layer.out_features = layer.out_features if outputs is None else outputs
    layer.weight = nn.Parameter(layer.weight.new_empty(layer.out_features, layer.in_features))
    layer.bias = nn.Parameter(layer.bias.new_empty(layer.out_features))
