"""Underdamped Langevin dynamics by the BAOAB splitting."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from lightning_sgmcmc.samplers.base import Sampler
from lightning_sgmcmc.samplers.common import CommonAndMetric, Unpack
from lightning_sgmcmc.samplers.free_weights import count_free


class SGHMC(Sampler):
    """Stochastic-gradient Hamiltonian Monte Carlo with mass C^-1, as a BAOAB splitting.

    With eta = 2 lr / ((1 + mu) N) the squared time step and w the velocity, one step is

        w <- w - sqrt(eta) * C grad U              (B; grad U = N grad mean NLL + grad(-log p))
        theta <- theta + sqrt(eta) w / 2           (A)
        w <- mu w + sqrt((1 - mu^2) T) C^(1/2) z   (O)
        theta <- theta + sqrt(eta) w / 2           (A)

    so that the weights stand where BAOAB's positions do (Leimkuhler and Matthews 2013).
    Target: exp(-U/T) for constant C; the configurational error is O(eta), and exactly zero on a
    Gaussian at every stable step, eta lambda_max(C^(1/2) (grad^2 U) C^(1/2)) < 4. T = 0 with a
    flat prior is ``torch.optim.SGD(lr, momentum=mu)``, and mu = 0 is ``SGLD`` at the same lr with
    the Leimkuhler-Matthews noise. The effective step is lr / (1 - mu), as for SGD with momentum.

    Args:
        params: Parameters, as for any torch optimizer.
        lr: Step size on the mean loss, or ``"auto"``.
        momentum: mu = exp(-friction * time step), in [0, 1).
        **common: See :class:`~lightning_sgmcmc.samplers.Sampler`.

    Raises:
        ValueError: If momentum lies outside [0, 1).
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Literal["auto"],
        *,
        momentum: float = 0.95,
        **common: Unpack[CommonAndMetric],
    ) -> None:
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must lie in [0, 1), got {momentum}")
        super().__init__(params, lr, **common)
        self.momentum = float(momentum)
        self._velocity: list[Tensor] = []

    @property
    def eta(self) -> float:
        """The squared time step, 2 lr / ((1 + mu) N)."""
        assert self.num_data is not None
        return 2 * self.lr / ((1 + self.momentum) * self.num_data)

    def max_stable_lr(self, eigenvalue: float) -> float:
        """Return 2 (1 + mu) / eigenvalue, where eta lambda_max(C^(1/2) (grad^2 U) C^(1/2)) = 4."""
        return 2 * (1 + self.momentum) / eigenvalue

    def recursion(self, lr: float) -> tuple[float, float]:
        """Return mu and lr."""
        return self.momentum, lr

    def variance_bias(self, fraction: float) -> float:
        """Return 0: on a Gaussian the positions are exact at every stable step."""
        return 0.0

    def draw_weight(self) -> float:
        """Return the time step, which is proportional to the square root of lr."""
        return math.sqrt(self.eta)

    def kinetic_temperature(self) -> float | None:
        """Return w' C^-1 w / d just after the O step, which is T on average for a true chain.

        Gradient noise and too large a step heat it. None before the first step and for a C whose
        inverse is not at hand, or that ties masked weights to free ones.
        """
        if not self._velocity:
            return None
        energy = self.preconditioner.inverse_norm(self._velocity)
        if energy is None:
            return None
        if self.masks is None:
            free = float(sum(p.numel() for p in self.params))
        else:
            try:
                free = float(count_free(self).sum())
            except RuntimeError:
                return None
        return float(energy.sum()) / max(free, 1.0)

    def freeze(self) -> None:
        """Make C a constant, and draw the velocity anew from N(0, T C) at the next step."""
        super().freeze()
        self.refresh()

    def refresh(self) -> None:
        """Draw the velocity anew from N(0, T C) at the next step."""
        self._velocity = []

    @property
    def velocity(self) -> list[Tensor]:
        """w, empty before the first step."""
        return self._velocity

    def formula(self, grads: list[Tensor]) -> None:
        """Take the steps B, A, O and A."""
        if not self._velocity:
            self._velocity = list(torch._foreach_mul(self.noise(), math.sqrt(self.temperature)))
        assert self.num_data is not None
        root = math.sqrt(self.eta)
        w = self._velocity
        torch._foreach_add_(w, self.drift(grads), alpha=-root * self.num_data)
        torch._foreach_add_(self.params, w, alpha=root / 2)
        self._thermalise(w)
        torch._foreach_add_(self.params, w, alpha=root / 2)

    def _thermalise(self, w: list[Tensor]) -> None:
        """Damp the velocity and add its noise, in place (O)."""
        torch._foreach_mul_(w, self.momentum)
        if self.temperature:
            scale = math.sqrt((1 - self.momentum**2) * self.temperature)
            torch._foreach_add_(w, self.noise(), alpha=scale)

    def set_masks(self, masks: Sequence[Tensor] | None) -> None:
        """Hold weights, and their velocities, at zero where a mask is zero."""
        super().set_masks(masks)
        if self._velocity:
            self._masked(self._velocity)

    def state_dict(self) -> dict[str, Any]:
        """Return the chain's state, with its velocity."""
        state = super().state_dict()
        state["chain"]["velocity"] = self._velocity
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the chain that gave ``state_dict``, to the bit."""
        super().load_state_dict(state_dict)
        device = self.params[0].device
        self._velocity = [v.to(device).clone() for v in state_dict["chain"]["velocity"]]
