"""A multilayer perceptron on images whose first weights are smooth fields over the pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from tasks.nets.mlp import MLP


class SmoothMLP(MLP):
    """An MLP that sees square images through a Gaussian filter.

    x [B, S^2] becomes B x, with B the filter exp(-(i - j)^2 / (2 width^2)) in both directions,
    normalised to sum one, and nothing beyond the border. The network is thus an MLP whose first
    weights are W B. Under a prior N(0, s^2) on W each row of them is a Gaussian field over the
    pixels, with covariance s^2 B'B, so that pixels at a distance of r have the correlation
    exp(-r^2 / (4 width^2)): neighbours get like weights, where independent weights expect noise.

    Args:
        hidden: Units of the hidden layers.
        activation: As for :class:`~tasks.nets.mlp.MLP`.
        inputs: Pixels of x, a square number; None leaves their number to the data.
        outputs: As for :class:`~tasks.nets.mlp.MLP`.
        width: The filter's standard deviation in pixels.

    Raises:
        ValueError: If the images are not square or the width is not positive.
    """

    blur: Tensor

    def __init__(
        self,
        hidden: Sequence[int] = (400, 400),
        activation: Literal["relu", "tanh", "silu", "sigmoid"] = "relu",
        inputs: int | None = None,
        outputs: int | None = None,
        width: float = 1.0,
    ) -> None:
        super().__init__(hidden, activation, inputs, outputs)
        if not width > 0:
            raise ValueError(f"width must be positive, got {width}")
        self.width = width
        self.register_buffer("blur", torch.empty(0, 0))
        if inputs is not None:
            self._make_filter(inputs)

    def take_sizes(self, inputs: int, outputs: int) -> None:
        """Take the sizes that are open; as for :class:`~tasks.nets.mlp.MLP`.

        Args:
            inputs: Pixels of the data.
            outputs: What the net is to give, where that is open.

        Raises:
            ValueError: If the net has another number of inputs, or the images are not square.
        """
        super().take_sizes(inputs, outputs)
        self._make_filter(inputs)

    def _make_filter(self, inputs: int) -> None:
        side = math.isqrt(inputs)
        if side**2 != inputs:
            raise ValueError(f"SmoothMLP takes square images of one channel, got {inputs} inputs")
        places = torch.arange(side, dtype=torch.float64)
        squares = (places[:, None] - places) ** 2
        filtered = torch.exp(-squares / (2 * self.width**2)) / self._sum()
        self.blur = filtered.to(next(self.layers.parameters()))

    def _sum(self) -> float:
        """Return the sum of exp(-k^2 / (2 width^2)) over all integers k."""
        reach = math.ceil(9 * self.width)
        return sum(math.exp(-((k / self.width) ** 2) / 2) for k in range(-reach, reach + 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs, [B, outputs]."""
        side = len(self.blur)
        filtered = self.blur @ x.reshape(*x.shape[:-1], side, side) @ self.blur
        return super().forward(filtered.flatten(-2))
