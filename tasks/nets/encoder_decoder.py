"""The encoder, coarse solver and decoder of HASGLD-SA's first PDE problem."""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

from torch import Tensor, nn

from tasks.nets.arguments import ACTIVATIONS, check_name, check_sizes
from tasks.nets.mlp import resize


class CoarseSolverNet(nn.Module):
    """A field [B, 1, ny, nx] to edges [B, E]: encoder, coarse solver, decoder.

    The encoder, which is given and has one dense layer, stands for upscaling. Two 3x3 convolutions
    on the coarse square of its ``coarse**2`` outputs and a dense layer of ``hidden`` units stand
    for the coarse solver, a last dense layer for downscaling.
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
        self.nx, self.ny = nx, ny
        for layer in (self._dense, self.decoder):
            for parameter in layer.parameters():
                parameter.provisional = True  # type: ignore[attr-defined]

    @property
    def _dense(self) -> nn.Linear:
        """The encoder's dense layer."""
        assert isinstance(self.encoder, nn.Sequential)
        return next(part for part in self.encoder if isinstance(part, nn.Linear))

    def take_grid(self, nx: int, ny: int) -> None:
        """Take another grid: the first dense layer and the decoder get its sizes and new weights.

        Args:
            nx: Cells in x.
            ny: Cells in y.

        Raises:
            ValueError: If the encoder cannot take such a grid.
        """
        if (nx, ny) == (self.nx, self.ny):
            return
        channels = self._dense.in_features // self.pooled(self.nx, self.ny)
        self.nx, self.ny = nx, ny
        resize(self._dense, inputs=channels * self.pooled(nx, ny))
        resize(self.decoder, outputs=ny * (nx + 1) + (ny + 1) * nx)
        for layer in (self._dense, self.decoder):
            layer.reset_parameters()

    @staticmethod
    @abstractmethod
    def pooled(nx: int, ny: int) -> int:
        """Return the number of places that the encoder's dense layer takes of a grid."""

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
        nx: Cells in x; the data's, where they are of another grid.
        ny: Cells in y, likewise.
        coarse: Side of the coarse square; its square is the first dense layer's width.
        channels: Channels of the two convolutions.
        hidden: Width of the dense layer before the decoder.
        activation: ``relu`` or ``silu``.

    Raises:
        ValueError: If a size is not positive or a name is unknown.
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
        check_sizes(channels=channels, hidden=hidden)
        if coarse < 5:
            raise ValueError(f"coarse must be at least 5, for two 3x3 convolutions, got {coarse}")
        check_name("activation", activation, ("relu", "silu"))
        act = ACTIVATIONS[activation]
        encoder = nn.Sequential(
            nn.AvgPool2d(2, ceil_mode=True),
            nn.Flatten(),
            nn.Linear(self.pooled(nx, ny), coarse**2),
            act(),
        )
        super().__init__(encoder, nx, ny, coarse, channels, 0, hidden, act)

    @staticmethod
    def pooled(nx: int, ny: int) -> int:
        """Return the number of pooled cells."""
        check_sizes(nx=nx, ny=ny)
        return (-(-nx // 2)) * (-(-ny // 2))
