"""What diagonal metrics share: noise from the root of C."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from lightning_sgmcmc.noise import NoiseStream
from lightning_sgmcmc.preconditioners.base import Preconditioner


class Diagonal(Preconditioner):
    """A metric C = diag(r^2)."""

    @abstractmethod
    def root(self) -> list[Tensor]:
        """Return r, shaped like the parameters."""

    def noise(self, stream: NoiseStream) -> list[Tensor]:
        """Draw r z."""
        z = stream.increments()
        torch._foreach_mul_(z, self.root())
        return z
