"""A multilayer perceptron that starts as N(0, 1 / fan-in), with or without dropout."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

from torch import nn

from lightning_sgmcmc.baselines import Dropout
from tasks.nets.mlp import MLP


class FanInMLP(MLP):
    """The network of Marceau-Caron and Ollivier 2017: x [B, inputs] to [B, outputs].

    Weights start as N(0, 1 / fan-in), biases at zero.

    Args:
        hidden: This, ``activation``, ``inputs`` and ``outputs`` as for
            :class:`~tasks.nets.mlp.MLP`.
        dropout: Probability with which an input of a hidden activation is set to zero in
            training, in [0, 1); their code has .5.
        monte_carlo: Drop inputs in evaluation too, so that every draw predicts under a mask.
    """

    def __init__(
        self,
        hidden: Sequence[int] = (400, 400),
        activation: Literal["relu", "tanh", "silu", "sigmoid"] = "relu",
        inputs: int | None = None,
        outputs: int = 10,
        dropout: float = 0.0,
        monte_carlo: bool = False,
    ) -> None:
        super().__init__(hidden, activation, None, outputs)
        parts: list[nn.Module] = []
        for part in self.layers:
            if isinstance(part, nn.Linear):
                # Not a subclass: per-example statistics know plain linear layers only.
                part.reset_parameters = partial(_start, part)  # type: ignore[method-assign]
                part.reset_parameters()
                parts.append(part)
            else:
                parts += [Dropout(dropout, monte_carlo=monte_carlo), part] if dropout else [part]
        self.layers = nn.Sequential(*parts)
        if inputs is not None:
            self.take_sizes(inputs, outputs)


def _start(layer: nn.Linear) -> None:
    if layer.weight.numel():
        nn.init.normal_(layer.weight, std=layer.weight.shape[1] ** -0.5)
    nn.init.zeros_(layer.bias)
