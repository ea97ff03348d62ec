"""A Fourier neural operator whose parameters are real, as samplers need them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tasks.nets.arguments import check_sizes
from tasks.nets.places import with_places


class SpectralConv(nn.Module):
    """Channels mixed mode by mode, of the lowest modes in each direction (Li et al. 2021, eq. 4).

    With F the discrete Fourier transform, F(out)_o(l, k) = sum_i W_oi(l, k) F(in)_i(l, k) for
    -modes <= l < modes and 0 <= k < modes, and zero else. W is complex, kept as pairs of reals:
    ``low`` [out, in, modes, modes, 2] of l >= 0 and ``high`` of l < 0.

    Args:
        width: Channels in and out.
        modes: Modes in each direction.
    """

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        shape = (width, width, modes, modes, 2)
        self.low = nn.Parameter(torch.rand(shape) / width**2)
        self.high = nn.Parameter(torch.rand(shape) / width**2)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, width, ny, nx] to the same shape."""
        ny, nx, m = x.shape[-2], x.shape[-1], self.modes
        if ny < 2 * m or nx // 2 + 1 < m:
            raise ValueError(f"{m} modes need 2 x {m} places in each direction, got {nx}x{ny}")
        waves = torch.fft.rfft2(x)
        low, high = (
            torch.einsum("bilk,oilk->bolk", part, torch.view_as_complex(weight))
            for part, weight in ((waves[..., :m, :m], self.low), (waves[..., -m:, :m], self.high))
        )
        between = low.new_zeros(*low.shape[:-2], ny - 2 * m, m)
        mixed: Tensor = torch.fft.irfft2(torch.cat([low, between, high], -2), s=(ny, nx))
        return mixed


class FourierNet(nn.Module):
    """Fields [B, 1, ny, nx] to one number a place, [B, ny nx] (Li et al. 2021).

    The field and the coordinates are lifted to ``width`` channels; ``layers`` times, a spectral and
    a pointwise convolution are summed and pass a GELU, but for the last; two pointwise layers give
    the output. Zeros are appended on two sides, since a field is not periodic. The published
    network for Darcy flow has these defaults.

    ``neuraloperator`` keeps its weights as complex numbers, which no sampler here takes, and writes
    them in place, which K chains as one computation cannot; hence these lines.

    Args:
        width: Channels.
        modes: Modes in each direction.
        layers: Number of spectral layers.
        padding: Zeros appended in each direction.

    Raises:
        ValueError: If a size is not positive, or the padding negative.
    """

    def __init__(self, width: int = 32, modes: int = 12, layers: int = 4, padding: int = 9) -> None:
        super().__init__()
        check_sizes(width=width, modes=modes, layers=layers)
        if padding < 0:
            raise ValueError(f"padding must be at least 0, got {padding}")
        self.padding = padding
        self.lift = nn.Conv2d(3, width, 1)
        self.spectral = nn.ModuleList(SpectralConv(width, modes) for _ in range(layers))
        self.pointwise = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(layers))
        self.project = nn.Sequential(nn.Conv2d(width, 128, 1), nn.GELU(), nn.Conv2d(128, 1, 1))

    def forward(self, field: Tensor) -> Tensor:
        """Map fields [B, 1, ny, nx] to values at their places [B, ny nx]."""
        ny, nx = field.shape[-2:]
        x = functional.pad(self.lift(with_places(field)), (0, self.padding, 0, self.padding))
        for number, (spectral, pointwise) in enumerate(
            zip(self.spectral, self.pointwise, strict=True), 1
        ):
            x = spectral(x) + pointwise(x)
            if number < len(self.spectral):
                x = functional.gelu(x)
        values: Tensor = self.project(x[..., :ny, :nx]).flatten(-3)
        return values
