"""No preconditioning."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lightning_sgmcmc.common.vectors import inner
from lightning_sgmcmc.noise import NoiseStream
from lightning_sgmcmc.preconditioners.base import Preconditioner


class Identity(Preconditioner):
    """C = I, the Euclidean metric of plain SGLD (Welling and Teh 2011)."""

    def apply_(self, vectors: list[Tensor]) -> list[Tensor]:
        """Return ``vectors``."""
        return vectors

    def noise(self, stream: NoiseStream) -> list[Tensor]:
        """Draw from N(0, I)."""
        return stream.increments()

    def inverse_norm(self, vectors: Sequence[Tensor]) -> Tensor:
        """Return v' v."""
        return inner(vectors, vectors, self.chain_dims)
