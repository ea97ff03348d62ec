"""Hamiltonian Monte Carlo with Metropolis correction: the reference for the other samplers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any, Literal

import torch
from torch import Tensor

from lightning_sgmcmc.common.vectors import inner, per_chain
from lightning_sgmcmc.samplers.base import Sampler
from lightning_sgmcmc.samplers.common import CommonAndMetric, Unpack
from lightning_sgmcmc.samplers.dual_averaging import DualAveraging
from lightning_sgmcmc.samplers.energy import mean_nll, potential
from lightning_sgmcmc.samplers.gradients import NonFiniteGradientError

#: An energy error, in units of T, at which a trajectory counts as divergent (as in Stan).
DIVERGENT = 1000.0


class HMC(Sampler):
    """Metropolis-corrected Hamiltonian Monte Carlo with mass C^-1 on the full-data gradient.

    With the time step dt, dt^2 = lr / N, and a velocity w ~ N(0, T C), one step takes L times

        w <- w - dt/2 * C grad U(theta)          (grad U = N grad mean NLL + grad(-log p))
        theta <- theta + dt * w
        w <- w - dt/2 * C grad U(theta)

    and accepts the end with probability min(1, exp(-dH / T)), H = U + w' C^-1 w / 2. The kinetic
    energy's change is -(w_0 + w_L)' g / 2 with g the sum of all the kicks, so that C^-1 is never
    needed. dt is that of ``SGHMC`` at momentum 1; a step of each trajectory is shortened by a
    factor drawn uniformly from (1 - jitter, 1], which no period of the target can resonate with.

    Target: exp(-U/T), U = N * mean NLL - log p, exactly at every lr once it is fixed (Duane et
    al. 1987; Neal 2011, section 5.3), up to the rounding of U: N * mean NLL loses about 1e-7 of
    itself in float32. Until :meth:`freeze` the step adapts by dual averaging (Hoffman and Gelman
    2014, eq. 6 and section 3.2.1) so that the mean acceptance becomes ``target_acceptance``; K
    stacked chains accept each for itself and share the step. ``lr`` is the step in use, the
    optimizer's own lr times what was adapted. A trajectory that meets a non-finite value or an
    energy error above 1000 T is rejected and counted in ``divergences``.

    The closure must return the mean NLL over the *whole* data, [] or [K], and compute its
    gradient. The potential and gradient of the current state are kept, so that a step costs L
    gradients; they are computed anew where the weights were changed from outside.

    Args:
        params: Parameters, as for any torch optimizer.
        lr: First step size, or ``"auto"``, which sets the first one from the curvature.
        leapfrog_steps: L, at least 1.
        jitter: Largest relative shortening of a trajectory's time step, in [0, 1).
        target_acceptance: Mean acceptance probability to adapt to, in (0, 1); None keeps lr.
        **common: See :class:`~lightning_sgmcmc.samplers.Sampler`.

    Raises:
        ValueError: If a value lies outside its range.
    """

    batches = "full"
    corrected = True
    _looks_at_once = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Literal["auto"],
        *,
        leapfrog_steps: int = 10,
        jitter: float = 0.3,
        target_acceptance: float | None = 0.8,
        **common: Unpack[CommonAndMetric],
    ) -> None:
        if leapfrog_steps < 1:
            raise ValueError(f"leapfrog_steps must be at least 1, got {leapfrog_steps}")
        if not 0 <= jitter < 1:
            raise ValueError(f"jitter must lie in [0, 1), got {jitter}")
        if target_acceptance is not None and not 0 < target_acceptance < 1:
            raise ValueError(
                f"target_acceptance must be None or lie in (0, 1), got {target_acceptance}"
            )
        super().__init__(params, lr, **common)
        if self.temperature == 0:
            raise ValueError("HMC has no limit at temperature 0: give a positive one")
        self.leapfrog_steps, self.jitter = int(leapfrog_steps), float(jitter)
        self.target_acceptance = target_acceptance
        self.adapting = target_acceptance is not None
        #: Divergent trajectories since :meth:`freeze`, or since the start before it.
        self.divergences = 0
        self._accepted = self._proposed = 0
        self._adaptation = DualAveraging()
        # The current state: weights, their mean NLL and its gradient; empty where unknown.
        self._theta: list[Tensor] = []
        self._grads: list[Tensor] = []
        self._loss = torch.zeros(())

    @property
    def lr(self) -> float:
        """The step size in use: the optimizer's times what dual averaging made of it."""
        return super().lr * math.exp(2 * self._adaptation.log_step)

    @property
    def acceptance(self) -> float:
        """Fraction of trajectories accepted since :meth:`freeze`; NaN before the first."""
        return self._accepted / self._proposed if self._proposed else math.nan

    def max_stable_lr(self, eigenvalue: float) -> float:
        """Return 4 / eigenvalue, where dt^2 lambda_max(C^(1/2) (grad^2 U) C^(1/2)) = 4."""
        return 4 / eigenvalue

    def variance_bias(self, fraction: float) -> float:
        """Return 0: the step size changes what is accepted, not the target."""
        return 0.0

    def set_lr(self, lr: float) -> None:
        """Change the step size; while it adapts, start the adaptation anew from there."""
        super().set_lr(lr)
        self._adaptation = DualAveraging()
        if self.adapting:
            self.auto_lr = False  # what was chosen for a start is not to replace what was adapted

    @property
    def gradients_per_step(self) -> int:
        """Leapfrog steps of a trajectory."""
        return self.leapfrog_steps

    def draw_weight(self) -> float:
        """Return 1: the target does not depend on the step."""
        return 1.0

    def refresh(self) -> None:
        """Forget the loss at the weights: the likelihood's constants may be others now."""
        self._theta = []

    def freeze(self) -> None:
        """Make C and the step constants, and count acceptance and divergences from here."""
        super().freeze()
        self.refresh()
        if self.adapting:
            self._adaptation.finish()
        self.adapting = False
        self.divergences = self._accepted = self._proposed = 0

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Draw a velocity, follow its trajectory, and accept or reject the end, chain by chain.

        Args:
            closure: Zeroes the gradients, computes the mean NLL of all the data, calls backward
                and returns the loss, [] or [K].

        Returns:
            The loss at the old weights.

        Raises:
            RuntimeError: If N or the step size is unknown, the closure is missing or returns no
                loss for each chain, or the loss or its gradient at the current weights is missing
                or not finite. Nothing has moved then.
        """
        self._check_ready()
        if closure is None:
            raise RuntimeError(
                "HMC evaluates the loss along a trajectory: call step(closure) with a closure that "
                "returns the mean NLL of all the data"
            )
        self._know_state(closure)
        loss = self._loss
        if not self.preconditioner.frozen:
            self.preconditioner.update(self._grads)
        try:
            probability, divergent = self._propose(closure)
        except BaseException:
            torch._foreach_copy_(self.params, self._theta)
            raise
        self._proposed += probability.numel()
        self.divergences += int(divergent.sum())
        if self.adapting:
            assert self.target_acceptance is not None
            self._adaptation.update(self.target_acceptance - float(probability.mean()))
        self.steps_taken += 1
        if self.prior.adaptive and not self.prior.frozen:
            self.prior.update(self.params)
            self._theta = []  # the likelihood may use what the prior has learned
        return loss

    def formula(self, grads: list[Tensor]) -> None:
        """Refuse a single step."""
        raise RuntimeError("HMC moves by whole trajectories: call step(closure)")

    def _know_state(self, closure: Callable[[], Any]) -> None:
        """Evaluate the loss and gradient, unless they are known for just these weights.

        A C that learns from the gradients of single examples needs those of these weights, too.
        """
        learns = "per_example" in self.needs and not self.preconditioner.frozen
        if self._theta and not learns and all(map(torch.equal, self._theta, self.params)):
            return
        loss = mean_nll(self, self._evaluate(closure))
        grads = self._gradients()
        if not bool(torch.isfinite(loss).all()):
            raise RuntimeError(f"the loss at the current weights is not finite: {loss.tolist()}")
        self.gradients += 1
        self._loss, self._grads = loss, [g.clone() for g in grads]
        self._theta = [p.detach().clone() for p in self.params]

    def _propose(self, closure: Callable[[], Any]) -> tuple[Tensor, Tensor]:
        """Follow a trajectory and take its end or its start; return acceptance and divergence."""
        assert self.num_data is not None
        first = self.params[0]
        w = list(torch._foreach_mul(self.noise(), math.sqrt(self.temperature)))
        start_w = [x.clone() for x in w]
        step = math.sqrt(self.lr / self.num_data) * (1 - self.jitter * self.stream.uniform())
        dice = self.stream.uniform()
        start = potential(self, self._loss)

        alive = torch.ones(first.shape[: self.chain_dims], dtype=torch.bool, device=first.device)
        kicks = self._kick(w, [g.clone() for g in self._grads], step / 2)
        loss, grads = self._loss, self._grads
        for i in range(1, self.leapfrog_steps + 1):
            for p, x in zip(self.params, w, strict=True):
                p.addcmul_(x, per_chain(step, x).to(x.dtype))
            loss = mean_nll(self, self._evaluate(closure))
            self.gradients += 1
            grads, alive = self._survivors(alive)
            if not bool(alive.any()):
                break
            last = i == self.leapfrog_steps
            force = [g.clone() for g in grads] if last else grads
            torch._foreach_add_(kicks, self._kick(w, force, step / 2 if last else step))

        torch._foreach_add_(start_w, w)
        error = potential(self, loss) - start - inner(kicks, start_w, self.chain_dims) / 2
        alive = alive & torch.isfinite(error)
        error = torch.where(alive, error / self.temperature, math.inf)
        probability = torch.exp(-error.clamp_min(0))
        self._learn_from(grads, alive)
        self._settle(dice < probability, loss, grads)
        return probability, ~alive | (error > DIVERGENT)

    def _kick(self, w: list[Tensor], grads: list[Tensor], step: Tensor) -> list[Tensor]:
        """Subtract step * C grad U from w, overwriting the likelihood's ``grads``.

        Returns:
            The change of the momentum, step * grad U.
        """
        assert self.num_data is not None
        self.prior.add_gradient_(grads, self.params, 1 / self.num_data)
        torch._foreach_mul_(grads, [per_chain(step * self.num_data, g).to(g.dtype) for g in grads])
        self._masked(grads)
        velocity = self._masked(self.preconditioner.apply_([g.clone() for g in grads]))
        torch._foreach_sub_(w, velocity)
        return grads

    def _survivors(self, alive: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return the gradients, and which chains are still finite; 0 for those that are not."""
        try:
            return self._gradients(), alive
        except NonFiniteGradientError:
            grads = [p.grad for p in self.params if p.grad is not None]
        for g in grads:
            alive = alive & torch.isfinite(g).reshape(*g.shape[: self.chain_dims], -1).all(-1)
            torch.nan_to_num_(g, nan=0.0, posinf=0.0, neginf=0.0)
        return grads, alive

    def _learn_from(self, grads: list[Tensor], alive: Tensor) -> None:
        """Show a preconditioner that asks for it the secant of the trajectory."""
        if "second_gradient" in self.needs and bool(alive.all()):
            moved = list(torch._foreach_sub(self.params, self._theta))
            change = list(torch._foreach_sub(grads, self._grads))
            self.preconditioner.observe(moved, self._masked(change), self.stream)

    def _settle(self, accept: Tensor, loss: Tensor, grads: list[Tensor]) -> None:
        """Take the end of the trajectory where accepted, its start elsewhere."""
        self._accepted += int(accept.sum())
        self._loss = torch.where(accept, loss, self._loss)
        for old, new in zip(self._grads, grads, strict=True):
            torch.where(per_chain(accept, old), new, old, out=old)
        for old, p in zip(self._theta, self.params, strict=True):
            torch.where(per_chain(accept, old), p, old, out=old)
            p.copy_(old)

    def state_dict(self) -> dict[str, Any]:
        """Return the chain's state, with what it knows of the current weights."""
        state = super().state_dict()
        state["chain"]["hmc"] = {
            "theta": self._theta,
            "loss": self._loss,
            "grads": self._grads,
            "adapting": self.adapting,
            "auto_lr": self.auto_lr,
            "adaptation": asdict(self._adaptation),
            "counts": [self._accepted, self._proposed, self.divergences],
        }
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the chain that gave ``state_dict``, to the bit."""
        super().load_state_dict(state_dict)
        state, device = state_dict["chain"]["hmc"], self.params[0].device
        self._theta = [t.to(device).clone() for t in state["theta"]]
        self._grads = [t.to(device).clone() for t in state["grads"]]
        self._loss = state["loss"].to(device)
        self.adapting, self.auto_lr = state["adapting"], state["auto_lr"]
        self._adaptation = DualAveraging(**state["adaptation"])
        self._accepted, self._proposed, self.divergences = state["counts"]
