"""The encoder, coarse solver and decoder of HASGLD-SA's first PDE problem."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "silu": nn.SiLU}


class EncoderDecoder(nn.Module):
    """Source field to edge velocities (Wang, Deng, Lin 2020, section 5.3.1).

    Average pooling by 2, flattening and a dense layer of ``coarse**2`` units stand for upscaling;
    two 3x3 convolutions on the coarse square and a dense layer for the coarse solver; a last
    dense layer for downscaling. With 60x60 cells, 7,320 edges, valid convolutions and 64-128
    channels it has 2,557,716 weights, 0.4 % fewer than the paper's 2,566,828, which no natural
    configuration has.

    Inputs are divided by ``input_scale`` and outputs multiplied by ``output_scale``, two buffers
    that a task sets from its training data, so that the weights see numbers of order one.

    Args:
        nx: Cells in x, even.
        ny: Cells in y, even.
        coarse: Side of the coarse square; its square is the first dense layer's width.
        channels: Channels of the two convolutions.
        hidden: Width of the dense layer before the decoder.
        activation: ``relu`` or ``silu``.

    Raises:
        ValueError: If the grid cannot be pooled by two or a name is unknown.
    """

    input_scale: Tensor
    output_scale: Tensor

    def __init__(
        self,
        nx: int = 60,
        ny: int = 60,
        coarse: int = 10,
        channels: tuple[int, int] = (64, 128),
        hidden: int = 200,
        activation: Literal["relu", "silu"] = "relu",
    ) -> None:
        super().__init__()
        if nx % 2 or ny % 2:
            raise ValueError(f"the grid must have even sides to be pooled by 2, got {nx}x{ny}")
        if activation not in ACTIVATIONS:
            raise ValueError(
                f"activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}"
            )
        act = ACTIVATIONS[activation]
        self.nx, self.ny = nx, ny
        edges = ny * (nx + 1) + (ny + 1) * nx
        self.encoder = nn.Sequential(
            nn.AvgPool2d(2), nn.Flatten(), nn.Linear(nx * ny // 4, coarse**2), act()
        )
        self.solver = nn.Sequential(
            nn.Unflatten(1, (1, coarse, coarse)),
            nn.Conv2d(1, channels[0], 3),
            act(),
            nn.Conv2d(channels[0], channels[1], 3),
            act(),
            nn.Flatten(),
            nn.Linear(channels[1] * (coarse - 4) ** 2, hidden),
            act(),
        )
        self.decoder = nn.Linear(hidden, edges)
        self.register_buffer("input_scale", torch.ones(()))
        self.register_buffer("output_scale", torch.ones(()))

    def forward(self, source: Tensor) -> Tensor:
        """Map cell means of the source [B, ny, nx] to normal velocities on edges [B, E]."""
        x = (source / self.input_scale).unsqueeze(1)
        decoded: Tensor = self.decoder(self.solver(self.encoder(x)))
        return decoded * self.output_scale
