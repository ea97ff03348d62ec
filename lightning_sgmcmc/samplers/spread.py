"""The size of the region that a chain has seen, in its metric."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

# As in energy_step.py: weights that forget where a chain started.
_POWER, _DELAY = 4.0, 3.0


class Spread:
    """Running tr(C^-1 S), S the covariance of a chain's weights, [] or [K].

    State n enters with the weight a_n = 4 / (n + 4), so that the latest quarter counts most:
    s <- (1 - a)(s + a |theta - m|^2), m <- m + a (theta - m), with |v|^2 = v' C^-1 v.

    Attributes:
        count: Number of states.
        total: s, None before the first.
    """

    def __init__(self) -> None:
        self.count = 0
        self.total: Tensor | None = None
        self._mean: list[Tensor] = []

    def update(self, params: Sequence[Tensor], norm: Callable[[list[Tensor]], Tensor]) -> None:
        """Take in a state.

        Args:
            params: The weights.
            norm: Returns v' C^-1 v, [] or [K].
        """
        if not self._mean:
            self._mean = [p.detach().clone() for p in params]
        self.count += 1
        weight = _POWER / (self.count + _DELAY)
        moved = list(torch._foreach_sub(list(params), self._mean))
        square = norm(moved)
        total = torch.zeros_like(square) if self.total is None else self.total
        self.total = (1 - weight) * (total + weight * square)
        torch._foreach_add_(self._mean, moved, alpha=weight)

    def state_dict(self) -> dict[str, Any]:
        """Return what :meth:`load_state_dict` needs."""
        return {"count": self.count, "total": self.total, "mean": self._mean}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Restore it on a device."""
        self.count, total = state["count"], state["total"]
        self.total = None if total is None else total.to(device)
        self._mean = [m.to(device).clone() for m in state["mean"]]
