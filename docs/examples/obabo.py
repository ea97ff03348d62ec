"""Underdamped Langevin dynamics by the OBABO splitting, for every metric of lightning_sgmcmc."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from lightning_sgmcmc import Sampler


class OBABO(Sampler):
    """OBABO (Bussi and Parrinello 2007) with mass C^-1, at one gradient a step.

    With eta = 2 lr / ((1 + mu) N) the squared time step and w the velocity, one step is

        w <- w - sqrt(eta)/2 * C grad U            (B)
        w <- mu w + sqrt((1 - mu^2) T) C^(1/2) z   (O, the two halves of successive steps as one)
        w <- w - sqrt(eta)/2 * C grad U            (B, with the same gradient)
        theta <- theta + sqrt(eta) w               (A)

    Target: exp(-U/T) for constant C, up to O(eta). On a Gaussian with precision A the covariance
    is T (A - (eta/4) A C A)^-1. Stable while eta lambda_max(C^(1/2) (grad^2 U) C^(1/2)) < 4. T = 0
    with a flat prior is ``torch.optim.SGD(lr, momentum=mu)``.

    Args:
        params: Parameters, as for any torch optimizer.
        lr: Step size on the mean loss, or ``"auto"``.
        momentum: mu = exp(-friction * time step), in [0, 1).
        **common: See :class:`~lightning_sgmcmc.samplers.Sampler`.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Literal["auto"],
        *,
        momentum: float = 0.95,
        **common: Any,
    ) -> None:
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must lie in [0, 1), got {momentum}")
        super().__init__(params, lr, **common)
        self.momentum, self.velocity = momentum, list[Tensor]()

    def formula(self, grads: list[Tensor]) -> None:
        """Take the steps B, O, B and A."""
        assert self.num_data is not None
        if not self.velocity:
            self.velocity = list(torch._foreach_mul(self.noise(), math.sqrt(self.temperature)))
        root = math.sqrt(2 * self.lr / ((1 + self.momentum) * self.num_data))
        force, w = self.drift(grads), self.velocity
        torch._foreach_add_(w, force, alpha=-root / 2 * self.num_data)
        torch._foreach_mul_(w, self.momentum)
        if self.temperature:
            size = math.sqrt((1 - self.momentum**2) * self.temperature)
            torch._foreach_add_(w, self.noise(), alpha=size)
        torch._foreach_add_(w, force, alpha=-root / 2 * self.num_data)
        torch._foreach_add_(self.params, w, alpha=root)

    def max_stable_lr(self, eigenvalue: float) -> float:
        """Return 2 (1 + mu) / eigenvalue, which ``lr: auto`` takes a fraction of."""
        return 2 * (1 + self.momentum) / eigenvalue

    def draw_weight(self) -> float:
        """Return a draw's weight, in proportion to the time step."""
        return math.sqrt(self.lr)

    def freeze(self) -> None:
        """Make C a constant, and draw the velocity anew from N(0, T C) at the next step."""
        super().freeze()
        self.velocity = []

    def set_masks(self, masks: Sequence[Tensor] | None) -> None:
        """Hold weights, and their velocities, at zero where a mask is zero."""
        super().set_masks(masks)
        if masks is not None and self.velocity:
            torch._foreach_mul_(self.velocity, self.masks)

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resumed chain needs."""
        state = super().state_dict()
        state["chain"]["velocity"] = self.velocity
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore it."""
        super().load_state_dict(state_dict)
        device = self.params[0].device
        self.velocity = [v.to(device).clone() for v in state_dict["chain"]["velocity"]]
