"""The encoder, coarse solver and decoder of HASGLD-SA's second PDE problem."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from tasks.nets.encoder_decoder import ACTIVATIONS


class PermEncoderDecoder(nn.Module):
    """Permeability to edge velocities (Wang, Deng, Lin 2020, section 5.3.2).

    Two 3x3 convolutions, average pooling by 2 and a dense layer of ``coarse**2`` units are the
    encoder; two 3x3 convolutions on the coarse square and a dense layer of ``hidden`` units stand
    for the coarse solver; a last dense layer is the decoder. With 50x50 cells, 5,100 edges, valid
    convolutions of 64 and 32 channels and padded ones of 32 and 32 it has 8,367,472 weights, 1.4 %
    more than the paper's 8,252,320, which no natural configuration has.

    The input is log kappa less ``log_mean``, over ``log_std``. The output is multiplied by
    ``output_scale`` and by the geometric mean of kappa, to which the flow of a given pressure is
    proportional when a field is multiplied by a number. The three are buffers that a task sets
    from its training data.

    With ``conservative`` the decoder gives a stream function psi on the grid's nodes, zero on the
    bottom and constant on the top, and the velocities are

        u_x = d psi / dy + source x,   u_y = -d psi / dx,

    the difference quotients along an edge: the divergence is ``source`` in every cell and nothing
    flows below and above, for any weights. Every velocity field with these two properties is of
    this form.

    Args:
        nx: Cells in x, even.
        ny: Cells in y, even.
        coarse: Side of the coarse square; its square is the first dense layer's width.
        encoder_channels: Channels of the first two convolutions.
        solver_channels: Channels of the two convolutions on the coarse square.
        hidden: Width of the dense layer before the decoder.
        activation: ``relu`` or ``silu``.
        conservative: Make the output a field of divergence ``source``.
        source: The source f, the same everywhere, of a unit square; for ``conservative``.

    Raises:
        ValueError: If the grid cannot be pooled by two or a name is unknown.
    """

    log_mean: Tensor
    log_std: Tensor
    output_scale: Tensor

    def __init__(
        self,
        nx: int = 50,
        ny: int = 50,
        coarse: int = 10,
        encoder_channels: tuple[int, int] = (64, 32),
        solver_channels: tuple[int, int] = (32, 32),
        hidden: int = 800,
        activation: Literal["relu", "silu"] = "relu",
        conservative: bool = False,
        source: float = 1.0,
    ) -> None:
        super().__init__()
        if nx % 2 or ny % 2 or min(nx, ny) < 6:
            raise ValueError(f"the grid must have even sides of at least 6 cells, got {nx}x{ny}")
        if activation not in ACTIVATIONS:
            raise ValueError(
                f"activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}"
            )
        act = ACTIVATIONS[activation]
        self.nx, self.ny, self.conservative, self.source = nx, ny, conservative, float(source)
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
        edges = ny * (nx + 1) + (ny + 1) * nx
        self.decoder = nn.Linear(hidden, (nx + 1) * (ny - 1) + 1 if conservative else edges)
        self.register_buffer("log_mean", torch.zeros(()))
        self.register_buffer("log_std", torch.ones(()))
        self.register_buffer("output_scale", torch.ones(()))

    def forward(self, permeability: Tensor) -> Tensor:
        """Map permeabilities [B, ny, nx] to normal velocities on edges [B, E]."""
        logs = permeability.log()
        x = ((logs - self.log_mean) / self.log_std).unsqueeze(1)
        decoded: Tensor = self.decoder(self.solver(self.encoder(x)))
        scale = self.output_scale * logs.mean((-2, -1)).exp().unsqueeze(-1)
        if not self.conservative:
            return decoded * scale
        return self._curl(decoded * scale)

    def _curl(self, values: Tensor) -> Tensor:
        """Return the velocities of the stream function with these node values, [B, E].

        The last value is that of the whole top, the others are those of the inner lines; they
        count the flow through one edge's length.
        """
        lead = values.shape[:-1]
        inner = values[..., :-1].reshape(*lead, self.ny - 1, self.nx + 1)
        bottom = torch.zeros_like(inner[..., :1, :])
        top = values[..., -1:, None].expand_as(bottom)
        psi = torch.cat([bottom, inner, top], dim=-2)
        x = torch.linspace(0, 1, self.nx + 1, device=psi.device, dtype=psi.dtype)
        vertical = psi.diff(dim=-2) + self.source * x
        # A unit of psi is the flow through a vertical edge, 1 / ny long; this one is 1 / nx long.
        horizontal = -psi.diff(dim=-1) * (self.nx / self.ny)
        return torch.cat([vertical.flatten(-2), horizontal.flatten(-2)], dim=-1)
