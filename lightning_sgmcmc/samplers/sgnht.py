"""Underdamped Langevin dynamics with a thermostat that absorbs unknown gradient noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from lightning_sgmcmc.common.vectors import per_chain
from lightning_sgmcmc.noise import NoiseStream
from lightning_sgmcmc.samplers.common import CommonAndMetric, Unpack
from lightning_sgmcmc.samplers.sghmc import SGHMC


class SGNHT(SGHMC):
    """Stochastic-gradient Nose-Hoover thermostat with mass C^-1, as a BADODAB splitting.

    ``SGHMC`` whose friction xi follows the kinetic energy. With eta = 2 lr / ((1 + mu) N) the
    squared time step, a = -log mu the friction a step against which noise is injected, s =
    ``thermostat`` and d weights, one step is

        w <- w - sqrt(eta) * C grad U                                 (B)
        theta <- theta + sqrt(eta) w / 2                              (A)
        xi <- xi + (w' C^-1 w / (d T) - 1) / (2 s^2)                  (D)
        w <- exp(-xi) w + sqrt(a T (1 - exp(-2 xi)) / xi) C^(1/2) z   (O)
        xi <- xi + (w' C^-1 w / (d T) - 1) / (2 s^2)                  (D)
        theta <- theta + sqrt(eta) w / 2                              (A)

    Target: exp(-U/T) N(xi; a, 1 / (d s^2)) for constant C, up to O(eta) in the weights where a and
    1/s shrink with sqrt(eta), so that friction and thermal mass stay what they are in units of
    time; at constant mu and s there remains an error of O(1/s^4), .24 % of a single weight's
    variance at the defaults. Gradient noise of any constant covariance proportional to C^-1 raises
    xi instead of the temperature; noise that is not leaves the mean temperature right and single
    directions warm or cold: a few hot stiff ones cool all others, and under reshuffled epochs xi
    rises by more than the weights are heated. ``lr="auto"`` bounds both. The splitting stays stable
    up to the step of ``SGHMC``, where an explicit Euler step diverges. xi starts at a; T = 0 turns
    the thermostat off and is ``torch.optim.SGD(lr, momentum=mu)``.

    Sources: Ding et al. 2014, Algorithm 2, whose thermal mass is s^2 = 1/eta; Leimkuhler and
    Shang 2016, eq. 34 (BADODAB).

    Args:
        params: Parameters, as for any torch optimizer.
        lr: Step size on the mean loss, or ``"auto"``.
        momentum: mu = exp(-a), in (0, 1); the momentum kept in a step without gradient noise.
        thermostat: s, the time in steps within which the friction answers, positive.
        **common: See :class:`~lightning_sgmcmc.samplers.Sampler`.

    Raises:
        ValueError: If momentum lies outside (0, 1) or thermostat is not positive.
    """

    absorbs_gradient_noise = True
    has_thermostat = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Literal["auto"],
        *,
        momentum: float = 0.95,
        thermostat: float = 10.0,
        **common: Unpack[CommonAndMetric],
    ) -> None:
        if not 0 < momentum < 1:
            raise ValueError(f"momentum must lie in (0, 1), got {momentum}")
        if not (thermostat > 0 and math.isfinite(thermostat)):
            raise ValueError(f"thermostat must be positive and finite, got {thermostat}")
        super().__init__(params, lr, momentum=momentum, **common)
        self.thermostat = float(thermostat)
        self._friction: Tensor | None = None
        self._free: Tensor | None = None

    @property
    def friction(self) -> Tensor:
        """xi, [] or [K]; a = -log mu where no gradient noise is to be absorbed."""
        if self._friction is None:
            first = self.params[0]
            self._friction = torch.full(
                first.shape[: self.chain_dims],
                -math.log(self.momentum),
                dtype=torch.float64,
                device=first.device,
            )
        return self._friction

    def _check_ready(self) -> None:
        super()._check_ready()
        if self._free is None and self.temperature:
            self._free = self._count_free()

    def _count_free(self) -> Tensor:
        """Return d, the weights of a chain that are not masked.

        Raises:
            RuntimeError: If w' C^-1 w is not at hand, or not the sum of its parts on masked and
                free weights.
        """
        first = self.params[0]
        shape, stream = first.shape[: self.chain_dims], NoiseStream(self.params, seed=0)
        v = [z.clone() for z in stream.normal()]
        norm = self.preconditioner.inverse_norm(v)
        if norm is None:
            raise RuntimeError(
                f"SGNHT measures w' C^-1 w, which {self.preconditioner!r} does not have: choose "
                "another preconditioner, or SGHMC"
            )
        if self.masks is None:
            return torch.full(shape, self.num_parameters, dtype=torch.float64, device=first.device)
        kept = list(torch._foreach_mul(v, self.masks))
        lost = list(torch._foreach_sub(v, kept))
        parts = [self.preconditioner.inverse_norm(x) for x in (kept, lost)]
        if not torch.allclose(parts[0] + parts[1], norm, rtol=1e-3):  # type: ignore[operator]
            raise RuntimeError(
                f"SGNHT cannot mask weights that {self.preconditioner!r} ties to free ones: choose "
                "a diagonal preconditioner, or SGHMC"
            )
        ones = [m.reshape(*m.shape[: self.chain_dims], -1).sum(-1).double() for m in self.masks]
        return torch.stack(ones).sum(0).clamp_min(1)

    def freeze(self) -> None:
        """Make C a constant, and draw the velocity anew from N(0, T C) at the next step."""
        super().freeze()
        self._free = None

    def set_masks(self, masks: Sequence[Tensor] | None) -> None:
        """Hold weights, and their velocities, at zero where a mask is zero."""
        super().set_masks(masks)
        self._free = None

    def _thermalise(self, w: list[Tensor]) -> None:
        """Take the D, O and D steps."""
        T = self.temperature
        if not T:
            super()._thermalise(w)
            return
        self._follow(w)
        xi = self.friction
        safe = xi.masked_fill(xi.abs() < 1e-8, 1e-8)
        variance = math.log(self.momentum) * T * torch.expm1(-2 * safe) / safe
        torch._foreach_mul_(w, [per_chain(torch.exp(-xi), x).to(x.dtype) for x in w])
        sd = [per_chain(variance.sqrt(), x).to(x.dtype) for x in w]
        torch._foreach_addcmul_(w, self.noise(), sd)
        self._follow(w)

    def _follow(self, w: list[Tensor]) -> None:
        """Move xi by half a step along the kinetic energy's excess."""
        energy = self.preconditioner.inverse_norm(w)
        assert energy is not None
        assert self._free is not None
        excess = energy / (self._free * self.temperature) - 1
        self._friction = self.friction + excess / (2 * self.thermostat**2)

    def state_dict(self) -> dict[str, Any]:
        """Return the chain's state, with its friction."""
        state = super().state_dict()
        state["chain"]["friction"] = self._friction
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the chain that gave ``state_dict``, to the bit."""
        super().load_state_dict(state_dict)
        xi = state_dict["chain"]["friction"]
        self._friction = None if xi is None else xi.to(self.params[0].device)
        self._free = None
