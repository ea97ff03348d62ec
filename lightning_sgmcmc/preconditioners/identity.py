"""No preconditioning."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_sgmcmc.noise import NoiseStream
from lightning_sgmcmc.preconditioners.base import Preconditioner


class Identity(Preconditioner):
    """C = I, the Euclidean metric of plain SGLD (Welling and Teh 2011)."""

    def apply_(self, vectors: list[Tensor]) -> list[Tensor]:
        """Return ``vectors``."""
        return vectors

    def noise(self, stream: NoiseStream) -> list[Tensor]:
        """Draw from N(0, I)."""
        return stream.normal()

    def inverse_norm(self, vectors: Sequence[Tensor]) -> Tensor:
        """Return v' v."""
        return torch.stack([(v * v).sum(dtype=torch.float64) for v in vectors]).sum()

    def __repr__(self) -> str:
        return "Identity()"
