"""Microcanonical Langevin dynamics on the whole data, its step by the energy's error."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any, Literal

from torch import Tensor

from lightning_sgmcmc.samplers.common import CommonAndMetric, Unpack
from lightning_sgmcmc.samplers.energy import mean_nll, potential
from lightning_sgmcmc.samplers.energy_step import EnergyStep
from lightning_sgmcmc.samplers.microcanonical import Microcanonical


class MCLMC(Microcanonical):
    """Microcanonical Langevin Monte Carlo, unadjusted, on the full-data gradient.

    The step is that of :class:`~lightning_sgmcmc.samplers.microcanonical.Microcanonical`. Its error
    of O(lr), which nothing corrects, shows in the energy

        E = U/T + (d - 1) log(cosh x + c sinh x), the second term summed over all B,

    which the exact dynamics keeps. Until :meth:`freeze` the step adapts so that its change a step
    has the mean square d * ``target_energy_variance``; K stacked chains share the step. ``lr`` is
    the step in use, the optimizer's own times what was adapted. The closure must return the mean
    NLL over the *whole* data, [] or [K]. A velocity of constant length cannot diverge: too large a
    step shows in ``energy_variance`` alone.

    Source: Robnik, De Luca, Silverstein and Seljak 2023 (arXiv 2212.08549), also for the choice of
    eps. :class:`SMILE` is the form for minibatches.

    Args:
        params: Parameters, as for any torch optimizer; at least two weights.
        lr: First step size, or ``"auto"``, which sets the first one from the curvature.
        length: L, the distance in the metric of C^-1 over which the velocity is forgotten,
            positive; ``"auto"`` takes sqrt(tr(C^-1 S)), S the covariance of the chain's weights in
            burn-in, and sqrt(d T), its value on N(0, T C), before 50 steps.
        target_energy_variance: Mean square of the energy's change a step and weight to adapt to,
            positive; None keeps lr.
        **common: See :class:`~lightning_sgmcmc.samplers.Sampler`.

    Raises:
        ValueError: If a value lies outside its range.
    """

    batches = "full"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Literal["auto"],
        *,
        length: float | Literal["auto"] = "auto",
        target_energy_variance: float | None = 5e-4,
        **common: Unpack[CommonAndMetric],
    ) -> None:
        bound = target_energy_variance
        if bound is not None and not (bound > 0 and math.isfinite(bound)):
            raise ValueError(f"target_energy_variance must be None or positive, got {bound}")
        super().__init__(params, lr, length=length, **common)
        self.target_energy_variance = bound
        self._adaptation = EnergyStep()
        self._loss: Tensor | None = None
        self._height: Tensor | None = None  # U/T at the weights
        #: Where the step began that the next B ends: U/T less the kinetic energy gained there.
        self._energy: Tensor | None = None
        self._squares: Tensor | None = None
        self._counted = 0

    @property
    def lr(self) -> float:
        """The step size in use: the optimizer's times what was adapted."""
        return super().lr * math.exp(2 * self._adaptation.log_step)

    @property
    def energy_variance(self) -> float:
        """Mean of dE^2 / d over steps and chains since :meth:`freeze`; NaN before the first."""
        return math.nan if self._squares is None else float(self._squares.mean()) / self._counted

    def set_lr(self, lr: float) -> None:
        """Change the step size; while it adapts, start the adaptation anew from there."""
        super().set_lr(lr)
        self._adaptation = EnergyStep()
        if self._tunes:
            self.auto_lr = False  # what was chosen for a start is not to replace what was adapted

    def freeze(self) -> None:
        """Make C, the step length and L constants, and draw the velocity anew."""
        super().freeze()
        self._squares, self._counted = None, 0

    def check_burn_in(self, steps: int) -> None:
        """Raise ValueError if there is no step to adapt the step length in, which sets the bias."""
        if steps == 0 and self._tunes:
            raise ValueError(
                "MCLMC adapts its step during burn-in, but burn_in leaves it none: raise burn_in, "
                "or set target_energy_variance to null and give lr"
            )

    @property
    def _tunes(self) -> bool:
        return self.adapting and self.target_energy_variance is not None

    def _forget(self) -> None:
        super()._forget()
        self._energy = None

    def _evaluate(self, closure: Callable[[], Any] | None) -> Any:
        returned = super()._evaluate(closure)
        self._loss = None
        if closure is not None:
            self._loss = mean_nll(self, returned)
        elif self._tunes:
            raise RuntimeError(
                "MCLMC adapts its step to the energy: call step(closure) with a closure that "
                "returns the mean NLL of all the data, or give target_energy_variance=None"
            )
        return returned

    def formula(self, grads: list[Tensor]) -> None:
        """Take the steps B, B, A, O and A, and follow the energy."""
        self._height = None
        if self._loss is not None:
            self._height = potential(self, self._loss) / self.temperature
        super().formula(grads)

    def _arrive(self, gained: Tensor) -> None:
        if self._height is not None and self._energy is not None:
            self._observe(self._height + gained - self._energy)

    def _depart(self, gained: Tensor) -> None:
        self._energy = None if self._height is None else self._height - gained

    def _observe(self, change: Tensor) -> None:
        """Take in the energy's change over a step, [] or [K]."""
        squares = change.square() / self._count()
        self._squares = squares if self._squares is None else self._squares + squares
        self._counted += 1
        if self._tunes:
            assert self.target_energy_variance is not None
            self._adaptation.update(float(squares.mean()) / self.target_energy_variance)

    def state_dict(self) -> dict[str, Any]:
        """Return the chain's state, with its energy and the step that it has adapted."""
        state = super().state_dict()
        state["chain"]["mclmc"] = {
            "energy": self._energy,
            "auto_lr": self.auto_lr,
            "adaptation": asdict(self._adaptation),
            "squares": self._squares,
            "counted": self._counted,
        }
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the chain that gave ``state_dict``, to the bit."""
        super().load_state_dict(state_dict)
        state, device = state_dict["chain"]["mclmc"], self.params[0].device
        self._energy, self._squares = (
            None if state[name] is None else state[name].to(device)
            for name in ("energy", "squares")
        )
        self.auto_lr, self._counted = state["auto_lr"], state["counted"]
        self._adaptation = EnergyStep(**state["adaptation"])
