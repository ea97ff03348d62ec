"""The step size of a chain beside the largest stable one, and choosing it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Literal

from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from scipy.optimize import brentq

from lightning_sgmcmc.adaptation.directions import leading_directions
from lightning_sgmcmc.adaptation.gradients import Plan, plans, slowest_curvature
from lightning_sgmcmc.adaptation.heating import jacobian
from lightning_sgmcmc.adaptation.stability import largest_eigenvalue
from lightning_sgmcmc.chain import Chain
from lightning_sgmcmc.samplers import Sampler
from lightning_sgmcmc.target import Batch, ControlVariate

_DIRECTIONS = 8
#: Weights of which all directions are looked at where a thermostat cools those that have no noise.
_FEW = 32
#: Largest fraction before burn-in ends: on the way the curvature may grow fourfold unseen.
_ON_THE_WAY = 0.25
#: Of ``"auto"``: the fraction before burn-in ends, or where nothing bounds the minibatches' noise.
_CAREFUL = 0.1
#: Of ``"auto"``: the largest fraction elsewhere.
_AUTO = 0.25
#: What samplers adapt their steps to, and the change that lowers them. None of these diverges: a
#: velocity has a constant length, or a proposal is accepted or not.
_ADAPTED_TO = {"target_energy_variance": "lower", "target_acceptance": "raise"}
#: Of ``"auto"``: the bound on the step's own error where ``max_gradient_noise`` sets none.
_AUTO_BIAS = 0.05


@dataclass(frozen=True)
class _Kinds:
    """Measure the kinds of gradients with their noise, and what predictions wait for."""

    plans: Callable[[], list[Plan]]
    slowest: Callable[[], float]


@dataclass(frozen=True)
class _Priced:
    """A kind of gradients, the step that its noise allows, and the gradients to relax there."""

    plan: Plan
    lr: float
    price: float


@dataclass(frozen=True)
class StepSize:
    """How ``lr="auto"`` is chosen, and the gradients with it.

    The step is a fraction of the largest stable one. ``"auto"`` takes the largest, up to a quarter,
    at which variances are off by at most the bound below on a Gaussian: with exact gradients a
    quarter for the samplers that are exact there, 1/21 for Euler-Maruyama with 5 %; a tenth where
    nothing bounds the minibatches' noise. Before burn-in ends it is a tenth, and a number that is
    given at most a quarter, since the curvature changes fast on the way.

    Where gradients are of minibatches, the step is lowered, from the chain's first one on, until no
    variance along the leading directions, and none of a prediction, is off by more than a bound
    (:class:`~lightning_sgmcmc.adaptation.heating.Heating`). Before burn-in ends, noise is set by
    the energy that the chain still has to lose, if that is far above T: a chain far from a mode,
    where examples differ most, would crawl otherwise.

    Where the chain is to choose its gradients, that step is found for each kind, plain minibatches,
    a control variate and the whole data, and the kind is taken with which predictions relax in the
    fewest minibatch gradients, but for a hundredth of their variance, on a quadratic: wherever the
    step is set, from where the sampler takes over on, since a control variate is as good as its
    centre is near. One that has become dearer than another kind moves its centre where the
    potential is lower, and waits with that centre if it stays dearer. What is chosen where burn-in
    ends is kept. Larger minibatches are no kind of their own: their noise falls and their cost
    rises by the same factor, and the whole data is where that ends.

    Args:
        fraction: The step size as a fraction of the largest stable one, in (0, 1), or ``"auto"``.
        curvature_batches: Minibatches from which that one is estimated.
        max_gradient_noise: The bound on the relative error of a variance, from minibatches and the
            step together; None sets none.

    Raises:
        ValueError: If a value lies outside its range.
    """

    fraction: float | Literal["auto"] = "auto"
    curvature_batches: int = 4
    max_gradient_noise: float | None = 0.05

    def __post_init__(self) -> None:
        if self.fraction != "auto" and not 0 < self.fraction < 1:
            raise ValueError(f'step_fraction must be "auto" or lie in (0, 1), got {self.fraction}')
        if self.curvature_batches < 1:
            raise ValueError(f"curvature_batches must be at least 1, got {self.curvature_batches}")
        bound = self.max_gradient_noise
        if bound is not None and not bound > 0:
            raise ValueError(f"max_gradient_noise must be positive, got {bound}")

    def settle(
        self,
        chain: Chain,
        batches: Sequence[Batch],
        largest: float = math.inf,
        known: float = 0.0,
    ) -> dict[str, float]:
        """Measure the stability limit at a chain's weights; if lr is "auto", take a part of it.

        The limit is where lr lambda_max(C^(1/2) H C^(1/2)) reaches what the sampler's integrator
        can bear, H the Hessian of U/N. A fraction f of it inflates the variance along the stiffest
        direction by f / (1 - f) for Euler-Maruyama, and less along others.

        Args:
            chain: The chain, bound to its data.
            batches: Equally large minibatches that stand for the data; the first
                ``curvature_batches`` for its curvature, all for its noise.
            largest: The largest lr to be chosen.
            known: A curvature that was measured before and counts where it is the larger.

        Returns:
            ``lr``, ``largest_stable_lr``, ``fraction``, ``curvature`` (the one measured here, in
            1/lr), ``variance_bias``, for ``lr="auto"`` the ``step_fraction`` that is wanted and,
            where it bounds lr, ``gradient_noise``; empty for a sampler that has no such limit, and
            where the limit cannot be measured and lr is given.

        Raises:
            ValueError: If lr is "auto" and the limit cannot be measured.
        """
        sampler = chain.sampler
        if math.isinf(sampler.max_stable_lr(1.0)):
            return {}
        try:
            eigenvalue, options = self._measure(chain, batches)
        except (RuntimeError, ValueError) as error:
            if sampler.auto_lr:
                raise ValueError(
                    f'lr="auto" needs the curvature of the potential, which failed: {error}'
                ) from error
            rank_zero_info(f"Note: the largest stable step could not be measured: {error}")
            return {}
        measured = eigenvalue
        eigenvalue = max(eigenvalue, sampler.preconditioner.expected_eigenvalue, known)
        limit = chain.processes.broadcast(sampler.max_stable_lr(eigenvalue))
        wanted = self._wanted(chain, bounded=options is not None)
        chosen = self._choose(chain, wanted * limit, largest, options) if sampler.auto_lr else None
        fraction = sampler.lr / limit
        result = {"lr": sampler.lr, "largest_stable_lr": limit, "fraction": fraction}
        result["curvature"] = measured
        if fraction < 1:
            result["variance_bias"] = sampler.variance_bias(fraction)
        if sampler.auto_lr:
            result["step_fraction"] = wanted
            why = _bias(result["variance_bias"])
            if chosen is not None:
                worst = chosen.heating.worst(sampler, sampler.lr)
                result["variance_error"] = worst.value
                if fraction < 0.999 * wanted:
                    assert self.max_gradient_noise is not None
                    result["gradient_noise"] = self.max_gradient_noise
                if chosen.heating.far > 1:
                    why = (
                        f"on the way to a mode the chain's energy along a stiff direction is still "
                        f"{chosen.heating.energy:.2g}, and minibatches may add a part of that"
                    )
                elif worst.value:
                    why = (
                        "with minibatches and the step variances are at most "
                        f"{100 * worst.value:.2g} % off on a Gaussian, {worst.where}"
                    )
            if chain.steps == chain.draws.burn_in:  # earlier ones are shown by the progress
                rank_zero_info(
                    f"lr: {sampler.lr:.3g}, {fraction:.2g} of the largest stable step {limit:.3g} "
                    f"(lambda_max of C H is {eigenvalue:.3g}); {why}"
                )
        elif fraction >= 1:
            exceeds = (
                f"lr = {sampler.lr:.3g} exceeds the largest stable step {limit:.3g} at these "
                f"weights (lambda_max of C H is {eigenvalue:.3g})"
            )
            remedies = [
                f"{change} {name}"
                for name, change in _ADAPTED_TO.items()
                if getattr(sampler, name, None) is not None
            ]
            if remedies:
                rank_zero_info(
                    f"Note: {exceeds}, to which it was adapted: burn in for longer, or "
                    f"{remedies[0]}"
                )
            else:
                rank_zero_warn(
                    f"{exceeds}: the chain will leave them or diverge. Lower lr, or let lr: auto "
                    "choose it"
                )
        return result

    def curvature(self, chain: Chain, batches: Sequence[Batch]) -> float:
        """Return lambda_max(C^(1/2) H C^(1/2)) at a chain's weights, 0 where it limits no step.

        Args:
            chain: The chain, bound to its data.
            batches: As for :meth:`settle`.

        Raises:
            ValueError: If it comes out not finite.
        """
        sampler = chain.sampler
        assert chain.target is not None
        if math.isinf(sampler.max_stable_lr(1.0)):
            return 0.0
        few = batches[: self.curvature_batches]
        return largest_eigenvalue(chain.target, sampler.preconditioner, few, masks=sampler.masks)

    def lower(self, chain: Chain, curvature: float) -> bool:
        """Lower lr to the wanted part of the largest stable step where it is larger.

        Args:
            chain: The chain, with ``lr="auto"``.
            curvature: lambda_max(C^(1/2) H C^(1/2)).

        Returns:
            Whether lr was lowered.
        """
        limit = chain.sampler.max_stable_lr(curvature) if curvature else math.inf
        largest = chain.processes.broadcast(self._wanted(chain) * limit)
        if chain.base_lr <= largest:
            return False
        chain.set_lr(largest)
        return True

    def _wanted(self, chain: Chain, *, bounded: bool = False) -> float:
        """Return the part of the largest stable step that is wanted where the chain stands.

        Args:
            chain: The chain.
            bounded: Whether the error of noise and step together is bounded besides.
        """
        if chain.steps < chain.draws.burn_in:
            return _CAREFUL if self.fraction == "auto" else min(self.fraction, _ON_THE_WAY)
        if self.fraction != "auto":
            return self.fraction
        if bounded:
            return _AUTO
        if chain.batch_law != "full":
            return _CAREFUL  # nothing bounds the noise, which larger steps may not bear
        return _within(chain.sampler, self.max_gradient_noise or _AUTO_BIAS)

    def _measure(self, chain: Chain, batches: Sequence[Batch]) -> tuple[float, _Kinds | None]:
        """Return lambda_max(C^(1/2) H C^(1/2)), and how the kinds of gradients are measured."""
        sampler, few = chain.sampler, batches[: self.curvature_batches]
        assert chain.target is not None
        noisy = chain.batch_law != "full" and bool(sampler.temperature)
        if not (sampler.auto_lr and noisy and self.max_gradient_noise is not None):
            return self.curvature(chain, few), None
        count = sampler.num_parameters
        count = count if sampler.has_thermostat and count <= _FEW else _DIRECTIONS
        J = jacobian(chain, batches[0])
        directions = leading_directions(
            chain.target, sampler.preconditioner, few, count, masks=sampler.masks
        )
        eigenvalue = float(directions.eigenvalues.abs().max())
        if not eigenvalue > 0:
            raise ValueError(f"the curvature of the potential came out as {eigenvalue}")

        def options() -> list[Plan]:
            found = plans(chain, directions, J, batches)
            if chain.steps >= chain.draws.burn_in:
                return found
            heated = [plan.heating.on_the_way(sampler.temperature) for plan in found]
            return [replace(p, heating=h) for p, h in zip(found, heated, strict=True)]

        return eigenvalue, _Kinds(options, cache(partial(slowest_curvature, chain, J, few)))

    def _choose(
        self, chain: Chain, wanted: float, largest: float, kinds: _Kinds | None
    ) -> Plan | None:
        """Set lr, and the kind of gradients where it is open; return what was chosen."""
        if kinds is None:
            chain.set_lr(min(wanted, largest))
            return None
        estimator = chain.gradients
        best, *others = self._priced(chain, wanted, kinds)
        changes = bool(others) and best.plan.kind is not type(estimator)
        if changes and type(estimator) is ControlVariate:
            estimator.follow(chain.sampler.masks)  # it may have lost by an early centre alone
            best, *others = self._priced(chain, wanted, kinds)
            changes = best.plan.kind is not ControlVariate
        chain.set_lr(min(best.lr, largest))
        if changes or (others and chain.steps == chain.draws.burn_in):
            rest = "; ".join(
                f"{other.plan.name} would take {other.price:.2g}, at lr {other.lr:.3g}"
                for other in others
            )
            rank_zero_info(
                f"gradients: {best.plan.name}, {best.plan.cost:g} minibatch gradients a step, "
                f"{best.price:.2g} for predictions to relax; {rest}"
            )
        if changes:
            chain.use_gradients(best.plan.kind)
        if chain.steps >= chain.draws.burn_in:
            chain.keep_gradients()
        return best.plan

    def _priced(self, chain: Chain, wanted: float, kinds: _Kinds) -> list[_Priced]:
        """Return the kinds of gradients, the cheapest first, alike in every process."""
        bound, found = self.max_gradient_noise, list[_Priced]()
        assert bound is not None
        plans = kinds.plans()
        slowest = kinds.slowest() if len(plans) > 1 else 1.0
        for plan in plans:
            lr = chain.processes.broadcast(plan.heating.bounded(chain.sampler, wanted, bound))
            price = plan.price(chain.sampler, lr, slowest)
            found.append(_Priced(plan, lr, chain.processes.broadcast(price)))
        return sorted(found, key=lambda priced: priced.price)


def _within(sampler: Sampler, bound: float) -> float:
    """Return the largest fraction of ``"auto"`` at which the step's own error keeps a bound."""

    def above(fraction: float) -> float:
        return sampler.variance_bias(fraction) - bound

    return _AUTO if above(_AUTO) <= 0 else float(brentq(above, 0.0, _AUTO))


def _bias(value: float) -> str:
    if value == 0:
        return "exact variances on a Gaussian"
    return f"variances at most {100 * value:.2g} % too large on a Gaussian"
