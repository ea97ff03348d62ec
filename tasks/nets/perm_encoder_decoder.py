"""The encoder, coarse solver and decoder of HASGLD-SA's second PDE problem."""

from __future__ import annotations

from typing import Literal

from torch import nn

from tasks.nets.arguments import ACTIVATIONS, check_name, check_sizes
from tasks.nets.encoder_decoder import CoarseSolverNet


class PermEncoderDecoder(CoarseSolverNet):
    """A field [B, 1, ny, nx] to edges [B, E] (Wang, Deng, Lin 2020, section 5.3.2).

    The encoder is two 3x3 convolutions, average pooling by 2 and a dense layer. With 50x50 cells,
    5,100 edges, valid convolutions of 64 and 32 channels and padded ones of 32 and 32 there are
    8,367,472 weights, 1.4 % more than the paper's 8,252,320, which no natural configuration has.

    Args:
        nx: Cells in x, at least 6; the data's, where they are of another grid.
        ny: Cells in y, likewise.
        coarse: Side of the coarse square; its square is the first dense layer's width.
        encoder_channels: Channels of the first two convolutions.
        solver_channels: Channels of the two convolutions on the coarse square.
        hidden: Width of the dense layer before the decoder.
        activation: ``relu`` or ``silu``.

    Raises:
        ValueError: If a size is too small or a name is unknown.
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
        check_sizes(coarse=coarse, encoder_channels=encoder_channels, hidden=hidden)
        check_sizes(solver_channels=solver_channels)
        check_name("activation", activation, ("relu", "silu"))
        act = ACTIVATIONS[activation]
        first, second = encoder_channels
        encoder = nn.Sequential(
            nn.Conv2d(1, first, 3),
            act(),
            nn.Conv2d(first, second, 3),
            act(),
            nn.AvgPool2d(2, ceil_mode=True),
            nn.Flatten(),
            nn.Linear(second * self.pooled(nx, ny), coarse**2),
            act(),
        )
        super().__init__(encoder, nx, ny, coarse, solver_channels, 1, hidden, act)

    @staticmethod
    def pooled(nx: int, ny: int) -> int:
        """Return the number of cells after two valid convolutions and pooling."""
        if min(nx, ny) < 6:
            raise ValueError(f"the grid must have sides of at least 6 cells, got {nx}x{ny}")
        return (-(-(nx - 4) // 2)) * (-(-(ny - 4) // 2))
