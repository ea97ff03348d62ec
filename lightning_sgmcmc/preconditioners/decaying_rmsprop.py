"""The RMSProp metric of natural Langevin dynamics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_sgmcmc.preconditioners.diagonal import Diagonal, refuse_unstable


class DecayingRMSProp(Diagonal):
    """C = diag((D + eps)^-1/2), D <- (1 - gamma_t) D + gamma_t g^2, gamma_t = (t + delay)^-power.

    Marceau-Caron and Ollivier 2017, Algorithm 2: g is the minibatch's mean likelihood gradient, D
    starts at 1, and power = 1/2. It differs from :class:`RMSProp`, which is pSGLD's, in that eps
    stands inside the root and that the memory grows.

    With delay = 0, gamma_1 = 1 and the start D = 1 is forgotten at the first step; the authors'
    code has delay = 3.

    Args:
        eps: Positive constant added to D. A weight whose gradient is always zero has
            C = eps^-1/2 once D has decayed.
        power: Decay of gamma_t, in (0, 1].
        delay: Added to t, at least 0.

    Raises:
        ValueError: If a value lies outside its range.
    """

    adaptive = True

    def __init__(self, eps: float = 1e-4, power: float = 0.5, delay: int = 0) -> None:
        super().__init__()
        if not 0 < eps < math.inf:
            raise ValueError(f"eps must be positive and finite, got {eps}")
        if not 0 < power <= 1:
            raise ValueError(f"power must lie in (0, 1], got {power}")
        if not delay >= 0:
            raise ValueError(f"delay must not be negative, got {delay}")
        self.eps, self.power, self.delay = eps, power, delay
        #: D, shaped like the parameters.
        self.square_avg: list[Tensor] = []
        #: Gradients taken in so far.
        self.updates = 0
        self._root: list[Tensor] = []

    def attach(self, params: Sequence[Tensor], chain_dims: int = 0) -> None:
        """Set D = 1 for these parameters."""
        super().attach(params, chain_dims)
        self.updates = 0
        self.square_avg = [torch.ones_like(p) for p in params]
        self._refresh()

    @property
    def horizon(self) -> int:
        """Ten gradients, as for the Fisher metrics, whose gamma_t decays as this one."""
        return 10

    def update(self, grads: Sequence[Tensor]) -> None:
        """Take g^2 into D."""
        self.updates += 1
        rate = math.pow(self.updates + self.delay, -self.power)
        torch._foreach_mul_(self.square_avg, 1 - rate)
        torch._foreach_addcmul_(self.square_avg, list(grads), list(grads), value=rate)
        self._refresh()

    def _refresh(self) -> None:
        self._root = list(torch._foreach_pow(torch._foreach_add(self.square_avg, self.eps), -0.25))

    def root(self) -> list[Tensor]:
        """Return C^(1/2) = (D + eps)^-1/4."""
        return self._root

    def check(self, lr: float, num_data: int, prior_precision: float) -> None:
        """Refuse a step at which a weight without gradient would diverge under the prior alone."""
        largest = max((float(r.max()) for r in self._root if r.numel()), default=0.0) ** 2
        refuse_unstable(largest, lr, num_data, prior_precision, "or raise eps")

    def state_dict(self) -> dict[str, Any]:
        """Return D and the number of gradients in it."""
        return super().state_dict() | {"square_avg": self.square_avg, "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore D, and C from it."""
        super().load_state_dict(state)
        torch._foreach_copy_(self.square_avg, list(state["square_avg"]))
        self.updates = int(state["updates"])
        self._refresh()
