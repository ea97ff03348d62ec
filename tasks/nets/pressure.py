"""What every surrogate of a Darcy pressure from its permeability shares, whatever its network."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class PressureNet(nn.Module):
    """Permeability [B, ny, nx] to pressures at the same places [B, ny nx], around a network.

    The network sees z = (log kappa - ``log_mean``) / ``log_std`` as [B, 1, ny, nx] and gives q at
    the places. With g the geometric mean of kappa over the places, the pressure is

        p = size q / g    where ``inner``, 0 elsewhere,

    so that a field times a number gives the pressure over that number for the same z, and the
    boundary's values are exact. The buffers ``log_mean``, ``log_std``, ``size`` and ``inner``
    [ny nx] are set from the training data.

    Args:
        net: Maps [B, 1, ny, nx] to [B, ny nx].
    """

    log_mean: Tensor
    log_std: Tensor
    size: Tensor
    inner: Tensor

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        for name in ("log_mean", "log_std", "size"):
            self.register_buffer(name, torch.ones(()))
        self.register_buffer("inner", torch.ones(0, dtype=torch.bool))

    def take_scales(self, permeability: Tensor, pressure: Tensor) -> None:
        """Set the buffers from training pairs [n, ny, nx] and [n, ny nx]."""
        logs = permeability.log()
        self.log_mean.copy_(logs.mean())
        self.log_std.copy_(logs.std())
        self.size.fill_(1.0)
        self.size.copy_((pressure / self.sizes(permeability)).square().mean().sqrt())
        self.inner = pressure.abs().amax(0) > 0

    def network_inputs(self, permeability: Tensor) -> Tensor:
        """Return what the network sees, [B, 1, ny, nx]."""
        z: Tensor = (permeability.log() - self.log_mean) / self.log_std
        return z.unsqueeze(-3)

    def sizes(self, permeability: Tensor) -> Tensor:
        """Return size / g, [B, 1]."""
        found: Tensor = self.size * torch.exp(-permeability.log().mean((-2, -1))).unsqueeze(-1)
        return found

    def forward(self, permeability: Tensor) -> Tensor:
        """Map permeabilities [B, ny, nx] to pressures [B, ny nx]."""
        scaled: Tensor = self.net(self.network_inputs(permeability)) * self.sizes(permeability)
        return scaled * self.inner if self.inner.numel() else scaled
