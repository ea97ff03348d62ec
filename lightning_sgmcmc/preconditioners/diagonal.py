"""What diagonal metrics share: noise from the root of C."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_sgmcmc.common.vectors import inner
from lightning_sgmcmc.noise import NoiseStream
from lightning_sgmcmc.preconditioners.base import Preconditioner


class Diagonal(Preconditioner):
    """A metric C = diag(r^2)."""

    @abstractmethod
    def root(self) -> list[Tensor]:
        """Return r, shaped like the parameters."""

    def apply_(self, vectors: list[Tensor]) -> list[Tensor]:
        """Multiply by C, in place."""
        torch._foreach_mul_(vectors, self.root())
        torch._foreach_mul_(vectors, self.root())
        return vectors

    def inverse_norm(self, vectors: Sequence[Tensor]) -> Tensor:
        """Return the sum of (v / r)^2."""
        whitened = torch._foreach_div(list(vectors), self.root())
        return inner(whitened, whitened, self.chain_dims)

    def noise(self, stream: NoiseStream) -> list[Tensor]:
        """Draw r z."""
        z = stream.increments()
        torch._foreach_mul_(z, self.root())
        return z


def refuse_unstable(
    largest: float, lr: float, num_data: int, prior_precision: float, remedy: str
) -> None:
    """Refuse a step at which a weight without gradient would diverge under the prior alone.

    Args:
        largest: Largest entry of C.
        lr: Step size.
        num_data: N.
        prior_precision: The largest precision of the prior.
        remedy: What else than a lower lr helps.

    Raises:
        ValueError: If lr C / (N variance) is at least 2.
    """
    rate = lr * largest * prior_precision / num_data
    if rate >= 2:
        raise ValueError(
            f"a weight whose gradient stays zero has C = {largest:.3g}, and its prior drift "
            f"lr*C/(N*variance) = {rate:.3g} is at least 2, so it would diverge: lower lr "
            f"below {2 * lr / rate:.3g}, {remedy}"
        )
