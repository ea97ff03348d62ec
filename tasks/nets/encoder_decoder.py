"""The encoder, coarse solver and decoder of HASGLD-SA's first PDE problem."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from tasks.nets.arguments import ACTIVATIONS, check_name, check_sizes


class CoarseSolverNet(nn.Module):
    """A field [B, 1, ny, nx] to edges [B, E]: encoder, coarse solver, decoder.

    The encoder, which is given, stands for upscaling. Two 3x3 convolutions on the coarse square of
    its ``coarse**2`` outputs and a dense layer of ``hidden`` units stand for the coarse solver, a
    last dense layer for downscaling.
    """

    def __init__(
        self,
        encoder: nn.Module,
        nx: int,
        ny: int,
        coarse: int,
        channels: tuple[int, int],
        padding: int,
        hidden: int,
        activation: type[nn.Module],
    ) -> None:
        super().__init__()
        first, second = channels
        self.encoder = encoder
        self.solver = nn.Sequential(
            nn.Unflatten(1, (1, coarse, coarse)),
            nn.Conv2d(1, first, 3, padding=padding),
            activation(),
            nn.Conv2d(first, second, 3, padding=padding),
            activation(),
            nn.Flatten(),
            nn.Linear(second * (coarse - 4 + 4 * padding) ** 2, hidden),
            activation(),
        )
        self.decoder = nn.Linear(hidden, ny * (nx + 1) + (ny + 1) * nx)

    def forward(self, field: Tensor) -> Tensor:
        """Map fields [B, 1, ny, nx] to values on edges [B, E]."""
        decoded: Tensor = self.decoder(self.solver(self.encoder(field)))
        return decoded


class EncoderDecoder(CoarseSolverNet):
    """Source [B, 1, ny, nx] to edges [B, E] (Wang, Deng, Lin 2020, section 5.3.1).

    The encoder is average pooling by 2 and a dense layer. With 60x60 cells, 7,320 edges, valid
    convolutions and 64-128 channels there are 2,557,716 weights, 0.4 % fewer than the paper's
    2,566,828, which no natural configuration has.

    Args:
        nx: Cells in x, even.
        ny: Cells in y, even.
        coarse: Side of the coarse square; its square is the first dense layer's width.
        channels: Channels of the two convolutions.
        hidden: Width of the dense layer before the decoder.
        activation: ``relu`` or ``silu``.

    Raises:
        ValueError: If a size is not positive, the grid not even, or a name unknown.
    """

    def __init__(
        self,
        nx: int = 60,
        ny: int = 60,
        coarse: int = 10,
        channels: tuple[int, int] = (64, 128),
        hidden: int = 200,
        activation: Literal["relu", "silu"] = "relu",
    ) -> None:
        check_sizes(nx=nx, ny=ny, coarse=coarse, channels=channels, hidden=hidden)
        if coarse < 5:
            raise ValueError(f"coarse must be at least 5, for two 3x3 convolutions, got {coarse}")
        if nx % 2 or ny % 2:
            raise ValueError(f"the grid must have even sides to be pooled by 2, got {nx}x{ny}")
        check_name("activation", activation, ("relu", "silu"))
        act = ACTIVATIONS[activation]
        pooled = nx * ny // 4
        encoder = nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(pooled, coarse**2), act())
        super().__init__(encoder, nx, ny, coarse, channels, 0, hidden, act)
