"""The encoder, coarse solver and decoder of HASGLD-SA's second PDE problem."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from tasks.nets.encoder_decoder import ACTIVATIONS


class PermEncoderDecoder(nn.Module):
    """A field [B, 1, ny, nx] to edges [B, E] (Wang, Deng, Lin 2020, section 5.3.2).

    Two 3x3 convolutions, average pooling by 2 and a dense layer of ``coarse**2`` units are the
    encoder; two 3x3 convolutions on the coarse square and a dense layer of ``hidden`` units stand
    for the coarse solver; a last dense layer is the decoder. With 50x50 cells, 5,100 edges, valid
    convolutions of 64 and 32 channels and padded ones of 32 and 32 it has 8,367,472 weights, 1.4 %
    more than the paper's 8,252,320, which no natural configuration has.

    Args:
        nx: Cells in x, even.
        ny: Cells in y, even.
        coarse: Side of the coarse square; its square is the first dense layer's width.
        encoder_channels: Channels of the first two convolutions.
        solver_channels: Channels of the two convolutions on the coarse square.
        hidden: Width of the dense layer before the decoder.
        activation: ``relu`` or ``silu``.

    Raises:
        ValueError: If the grid cannot be pooled by two or a name is unknown.
    """

    def __init__(
        self,
        nx: int = 50,
        ny: int = 50,
        coarse: int = 10,
        encoder_channels: tuple[int, int] = (64, 32),
        solver_channels: tuple[int, int] = (32, 32),
        hidden: int = 800,
        activation: Literal["relu", "silu"] = "relu",
    ) -> None:
        super().__init__()
        if nx % 2 or ny % 2 or min(nx, ny) < 6:
            raise ValueError(f"the grid must have even sides of at least 6 cells, got {nx}x{ny}")
        if activation not in ACTIVATIONS:
            raise ValueError(
                f"activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}"
            )
        act = ACTIVATIONS[activation]
        first, second = encoder_channels
        pooled = second * ((nx - 4) // 2) * ((ny - 4) // 2)
        self.encoder = nn.Sequential(
            nn.Conv2d(1, first, 3),
            act(),
            nn.Conv2d(first, second, 3),
            act(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(pooled, coarse**2),
            act(),
        )
        first, second = solver_channels
        self.solver = nn.Sequential(
            nn.Unflatten(1, (1, coarse, coarse)),
            nn.Conv2d(1, first, 3, padding=1),
            act(),
            nn.Conv2d(first, second, 3, padding=1),
            act(),
            nn.Flatten(),
            nn.Linear(second * coarse**2, hidden),
            act(),
        )
        self.decoder = nn.Linear(hidden, ny * (nx + 1) + (ny + 1) * nx)

    def forward(self, field: Tensor) -> Tensor:
        """Map fields [B, 1, ny, nx] to values on edges [B, E]."""
        decoded: Tensor = self.decoder(self.solver(self.encoder(field)))
        return decoded
