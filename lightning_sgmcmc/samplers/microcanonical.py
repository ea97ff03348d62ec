"""A velocity of constant length that the gradient turns: what microcanonical samplers share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from lightning_sgmcmc.common.vectors import flatten, unflatten
from lightning_sgmcmc.samplers.base import Sampler
from lightning_sgmcmc.samplers.common import CommonAndMetric, Unpack
from lightning_sgmcmc.samplers.free_weights import count_free
from lightning_sgmcmc.samplers.spread import Spread

# States from which the spread of a chain is known well enough to go by.
_SEEN = 50


class Microcanonical(Sampler):
    """Microcanonical Langevin dynamics by the splitting BAOAB, at one gradient a step.

    The velocity w has the length w' C^-1 w = 1 at all times. With |v|^2 = v' C^-1 v, d weights, the
    step length eps = sqrt(d T lr / N), e = -C grad U / |C grad U|, c = e' C^-1 w and
    mu = exp(-eps / L), one step is

        w <- [w + e (sinh x + c (cosh x - 1))] / (cosh x + c sinh x)         (B, of half a step)
        theta <- theta + eps w / 2                                           (A)
        w <- (mu w + sqrt((1 - mu^2) / d) C^(1/2) z), divided by its length  (O)
        theta <- theta + eps w / 2                                           (A)
        w <- as B, with the gradient there                                   (B)

    the gradient of the last B being the next step's. Here x = y (1 + k y^2) with
    y = eps |C grad U| / (2 T (d - 1)) and k = (d - 1)(d - 2) / (3 d (d + 2)). The term in k is of
    the order of the error. For many weights the step is then, as ``SGHMC``'s with the same mu and
    dt^2 = lr / N, exact on a Gaussian; for few ones k is fitted to N(0, I).

    Target: exp(-U/T), and a uniform law of C^(-1/2) w on the sphere, for constant C, up to O(eps^2)
    = O(lr) in the weights.

    Sources: Robnik, De Luca, Silverstein and Seljak 2023 (arXiv 2212.08549) for the dynamics, B,
    and the choice of L; Robnik and Seljak 2024 (arXiv 2303.18221) for O. The order BAOAB is
    Leimkuhler and Matthews' (2013); the papers' leapfrog inflates stiff variances as Euler's does.

    Args:
        params: Parameters, as for any torch optimizer; at least two weights.
        lr: Step size, or ``"auto"``.
        length: L, the distance in the metric of C^-1 over which the velocity is forgotten,
            positive; ``"auto"`` takes sqrt(tr(C^-1 S)), S the covariance of the chain's weights in
            burn-in, and sqrt(d T), its value on N(0, T C), before 50 steps.
        **common: See :class:`~lightning_sgmcmc.samplers.Sampler`.

    Raises:
        ValueError: If a value lies outside its range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Literal["auto"],
        *,
        length: float | Literal["auto"] = "auto",
        **common: Unpack[CommonAndMetric],
    ) -> None:
        if length != "auto" and not (
            isinstance(length, (int, float)) and length > 0 and math.isfinite(length)
        ):
            raise ValueError(f'length must be a positive number or "auto", got {length!r}')
        super().__init__(params, lr, **common)
        if self.temperature == 0:
            raise ValueError(f"{self.name} has no limit at temperature 0: give a positive one")
        self.length = length
        self.adapting = True
        self._spread = Spread()
        self._free: Tensor | None = None
        self._velocity: Tensor | None = None  # [d] or [K, d]
        self._arc: Tensor | None = None  # eps of the step that the next B ends, None where unknown
        self._chosen: float | None = None  # L, from freeze on

    @property
    def step_length(self) -> Tensor:
        """eps, [] or [K]."""
        return self._arc_of(self.lr)

    def _arc_of(self, lr: float) -> Tensor:
        assert self.num_data is not None
        return (self._count() * (self.temperature * lr / self.num_data)).sqrt()

    @property
    def decoherence_length(self) -> Tensor:
        """L, [] or [K]."""
        known = self._chosen if self.length == "auto" else self.length
        if known is not None:
            return torch.full_like(self._count(), known)
        if self._spread.total is None or self._spread.count < _SEEN:
            return (self._count() * self.temperature).sqrt()
        return self._spread.total.mean().sqrt().expand_as(self._count())

    @property
    def velocity(self) -> list[Tensor]:
        """w, empty before the first step."""
        return [] if self._velocity is None else self._parts(self._velocity)

    def max_stable_lr(self, eigenvalue: float) -> float:
        """Return 4 / eigenvalue, where dt^2 lambda_max(C^(1/2) (grad^2 U) C^(1/2)) = 4."""
        return 4 / eigenvalue

    def recursion(self, lr: float) -> tuple[float, float]:
        """Return mu, and (1 + mu) lr / 2: the chain is ``SGHMC``'s where d is large."""
        mu = float(torch.exp(-self._arc_of(lr) / self.decoherence_length).mean())
        return mu, (1 + mu) / 2 * lr

    def variance_bias(self, fraction: float) -> float:
        """Return 0: on a Gaussian of many weights the positions are exact at every stable step."""
        return 0.0

    def draw_weight(self) -> float:
        """Return the weight of a draw, in proportion to the step length."""
        return math.sqrt(self.lr)

    def freeze(self) -> None:
        """Make C and L constants, and draw the velocity anew."""
        super().freeze()
        if self.adapting and self.length == "auto":
            self._chosen = float(self.decoherence_length.mean())
        self.adapting, self._spread = False, Spread()
        self._forget()

    def _forget(self) -> None:
        """Draw the velocity anew at the next step, and count the weights."""
        self._velocity, self._arc, self._free = None, None, None

    def _count(self) -> Tensor:
        """Return d, [] or [K]; 2 where every weight is masked and nothing moves."""
        if self._free is None:
            free = count_free(self)
            if bool((free == 1).any()):
                raise RuntimeError(
                    f"{self.name} turns a velocity of constant length, which takes at least two "
                    "weights that move: choose another sampler"
                )
            self._free = free.clamp_min(2)
        return self._free

    def _check_ready(self) -> None:
        super()._check_ready()
        self._count()

    def formula(self, grads: list[Tensor]) -> None:
        """Take the steps B, B, A, O and A."""
        assert self.num_data is not None
        force = flatten(self.drift(grads), self.chain_dims)
        size = self._normalise(force)
        force.neg_()
        slope = size * self.num_data / (2 * self.temperature * (self._count() - 1))
        w = self._velocity
        if w is None:
            w = self._velocity = flatten(self.noise(), self.chain_dims)
            self._normalise(w)
        elif self._arc is not None:
            if not self.preconditioner.frozen:
                self._normalise(w)
            self._arrive(self._turn(w, force, self._arc * slope))
        self._arc = self.step_length
        self._depart(self._turn(w, force, self._arc * slope))
        self._travel(w, self._arc / 2)
        self._refresh(w, self._arc / self.decoherence_length)
        self._travel(w, self._arc / 2)
        if self.adapting and self.length == "auto":
            self._spread.update(self.params, self._square_of)

    def _arrive(self, gained: Tensor) -> None:
        """Take in the kinetic energy that the last B of a step has gained, [] or [K]."""

    def _depart(self, gained: Tensor) -> None:
        """Take in the kinetic energy that the first B of a step has gained, [] or [K]."""

    def _travel(self, w: Tensor, arc: Tensor) -> None:
        """Move the weights by so much along w (A)."""
        torch._foreach_add_(self.params, self._parts(_each(arc, w) * w))

    def _turn(self, w: Tensor, e: Tensor, y: Tensor) -> Tensor:
        """Turn w towards the unit vector e, in place (B).

        With z = exp(-x) the new w has the direction of 2 z w + (1 - z)(1 + z + c (1 - z)) e, in
        which nothing overflows.

        Returns:
            The kinetic energy gained, (d - 1) log(cosh x + c sinh x), [] or [K].
        """
        d = self._count()
        x = y * (1 + (d - 1) * (d - 2) / (3 * d * (d + 2)) * y.square())
        c = self._square(w + e) / 2 - 1
        z = torch.exp(-x)
        ahead = (1 - z) * (1 + z + c * (1 - z))
        w.mul_(_each(2 * z, w)).addcmul_(e, _each(ahead, w))
        self._normalise(w)
        double = (1 + c).clamp_min(0) + (1 - c) * z.square()
        return (d - 1) * (x + torch.log(double.clamp_min(1e-300) / 2))

    def _refresh(self, w: Tensor, forgotten: Tensor) -> None:
        """Mix the direction of w with noise, in place (O); mu = exp(-forgotten)."""
        spread = (-torch.expm1(-2 * forgotten) / self._count()).sqrt()
        w.mul_(_each(torch.exp(-forgotten), w))
        w.addcmul_(flatten(self.noise(), self.chain_dims), _each(spread, w))
        self._normalise(w)

    def _parts(self, vector: Tensor) -> list[Tensor]:
        return unflatten(vector, self.params, self.chain_dims)

    def _square(self, vector: Tensor) -> Tensor:
        """Return v' C^-1 v, [] or [K]."""
        return self._square_of(self._parts(vector))

    def _square_of(self, parts: list[Tensor]) -> Tensor:
        square = self.preconditioner.inverse_norm(parts)
        assert square is not None
        return square.double()

    def _normalise(self, vector: Tensor) -> Tensor:
        """Give a vector the length 1, in place, and return its length before."""
        size = self._square(vector).sqrt()
        vector.mul_(_each(1 / size.clamp_min(torch.finfo(vector.dtype).tiny), vector))
        return size

    def set_masks(self, masks: Sequence[Tensor] | None) -> None:
        """Hold weights at zero where a mask is zero, and draw the velocity of the others anew."""
        super().set_masks(masks)
        self._forget()

    def state_dict(self) -> dict[str, Any]:
        """Return the chain's state, with its velocity and what it has adapted."""
        state = super().state_dict()
        state["chain"]["microcanonical"] = {
            "velocity": self.velocity,
            "arc": self._arc,
            "adapting": self.adapting,
            "spread": self._spread.state_dict(),
            "length": self._chosen,
        }
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the chain that gave ``state_dict``, to the bit."""
        super().load_state_dict(state_dict)
        state, device = state_dict["chain"]["microcanonical"], self.params[0].device
        self._free = None
        velocity = [v.to(device) for v in state["velocity"]]
        self._velocity = flatten(velocity, self.chain_dims) if velocity else None
        self._arc = None if state["arc"] is None else state["arc"].to(device)
        self.adapting, self._chosen = state["adapting"], state["length"]
        self._spread.load_state_dict(state["spread"], device)


def _each(values: Tensor, like: Tensor) -> Tensor:
    """Return a value of each chain, [] or [K], as a factor of vectors [d] or [K, d]."""
    return values.unsqueeze(-1).to(like.dtype)
