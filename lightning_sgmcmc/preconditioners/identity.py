"""No preconditioning."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lightning_sgmcmc.flat import inner
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

    def compiles(
        self, params: Sequence[Tensor], gradient: Sequence[Tensor], stream: NoiseStream
    ) -> bool:
        """Return whether the increments are moment-matched and the loops serve these tensors."""
        return stream.kind == "moment-matched" and stream.fuses(params, gradient)

    def compiled_move_(
        self,
        params: list[Tensor],
        gradient: list[Tensor],
        stream: NoiseStream,
        lr: float,
        size: float,
        pull: tuple[float, float],
    ) -> None:
        """Add size * z - lr * gradient to ``params``."""
        from lightning_sgmcmc.kernels.langevin import identity_

        numbers, scale = stream.matched_bytes()
        identity_(params, gradient, numbers, lr, size * scale, pull)

    def inverse_norm(self, vectors: Sequence[Tensor]) -> Tensor:
        """Return v' v."""
        return inner(vectors, vectors, self.lead)
