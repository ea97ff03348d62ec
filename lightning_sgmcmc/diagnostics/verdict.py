"""What is wrong with a sample, in words, and what ends it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lightning_sgmcmc.adaptation import GradientNoise
from lightning_sgmcmc.diagnostics.directions import PredictiveTemperature, significance
from lightning_sgmcmc.diagnostics.temperature import (
    BLOCKS,
    ConfigurationalTemperature,
    Temperature,
)

#: Fewest draws a chain for a verdict on mixing.
ENOUGH_DRAWS = 20
#: Relative errors of the predictive deviation, and errors of the predictive mean in deviations,
#: that are no alarm; the latter where they are significant.
DEVIATION, MEAN = 0.07, 0.15
#: The largest error of the deviation, two standard errors out, with which it counts as known.
UNKNOWN = 0.2
#: P-value below which a difference is not chance.
_CHANCE = 0.002
# The excess variance that a remedy aims at, and the smallest factor of one.
_AIM, _SMALLEST = 0.04, 1 / 16
# Fractions of the largest stable step: one to go up to, and one that is needlessly small.
_USUAL, _SMALL = 0.1, 0.02
# The smallest factor by which a larger step is worth a new chain.
_WORTH_WHILE = 2.0
#: The momentum that a remedy gives to a chain that has none.
MOMENTUM = 0.99
# The factor of the run's length from which that is worth a new chain.
_SLOW = 4.0
# The fraction that a step beyond the largest stable one is brought down to.
_STABLE = 0.5
# A share of accepted proposals with which a chain stands still.
_FEW = 0.1
_UNMEASURED = (
    "how hot the chain is was not measured, since the training loader does not tell which examples "
    "it goes through: train on a BatchStream, or on a DataLoader with one of torch's samplers over "
    "a data set with indices"
)


@dataclass(frozen=True)
class Remedy:
    """Changes that end an alarm.

    Attributes:
        lr: Factor of the step size, or of ``step_fraction`` with ``lr: auto``. Where it is not 1
            the chain burns in anew, and earlier draws do not count.
        steps: Factor of the number of steps.
        whole_data: Take the gradient of the whole data at every step.
        momentum: Take ``SGHMC`` with the momentum :data:`MOMENTUM` in the same metric, in a chain
            that burns in anew.
    """

    lr: float = 1.0
    steps: float = 1.0
    whole_data: bool = False
    momentum: bool = False

    def __str__(self) -> str:
        parts = ["take the whole data at every step"] if self.whole_data else []
        if self.momentum:
            parts.append(f"take SGHMC with momentum {MOMENTUM:g} in the same metric")
        if self.lr != 1:
            parts.append(f"multiply the step size by {self.lr:.2g}")
        if self.steps != 1:
            parts.append(f"run {self.steps:.2g} times as long")
        return " and ".join(parts)


@dataclass(frozen=True)
class Alarm:
    """One thing that is wrong: a sentence, and what ends it if that is known."""

    text: str
    remedy: Remedy | None = None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Step:
    """What a chain's step is, as far as a remedy depends on it.

    Attributes:
        fraction: The step size over the largest stable one; None where it is not known.
        bias: Relative excess of variances that the step brings with exact gradients, at most.
        noise: That which gradient noise brings, in the mean over the weights; :func:`alarms` takes
            it from the noise that it is given.
        batch_share: n / N, the minibatch's share of the data.
        corrected: Whether a Metropolis test makes every step size exact.
        acceptance: Share of the proposals that it took; None where there is none.
        thermostat: Whether a thermostat takes the heat of gradient noise out of all directions
            alike, so that those with little of it are cold.
        bounded: Whether ``lr: auto`` keeps the step so small for the minibatches' sake.
        last: The last draw's step size over the largest stable one; None where it is not known.
        overdamped: Whether ``SGHMC`` in the same constant metric would move faster.
    """

    fraction: float | None = None
    bias: float = 0.0
    noise: float = 0.0
    batch_share: float = 1.0
    corrected: bool = False
    acceptance: float | None = None
    thermostat: bool = False
    bounded: bool = False
    last: float | None = None
    overdamped: bool = False

    @property
    def explains_excess(self) -> bool:
        """Whether the step or its gradient noise can make variances a good deal too large."""
        small = self.fraction is not None and self.fraction < _SMALL
        return not self.corrected and not (small and self.batch_share == 1)

    @property
    def rejected(self) -> bool:
        """Whether nearly all proposals were refused."""
        return self.acceptance is not None and self.acceptance < _FEW


def alarms(
    summary: dict[str, Any],
    *,
    temperature: float = 1.0,
    kinetic_temperature: Temperature | None = None,
    configurational: ConfigurationalTemperature | None = None,
    noise: GradientNoise | None = None,
    predictive: PredictiveTemperature | None = None,
    directions: Mapping[str, Sequence[Temperature]] | None = None,
    step: Step | None = None,
    examples_known: bool = True,
) -> list[Alarm]:
    """Return what is wrong with a sample, one sentence in plain words each, and what ends it.

    Mixing is judged by the predictions where there are any, by the weights otherwise. It is off
    where more than 5 % of the quantities have an R-hat above the summary's limit, but for 1.1 with
    200 independent draws of nearly all, or their median ESS is below 20.

    Without a Metropolis test a step beyond the largest stable one is off too. Predictions that
    saturate may hide what it does.

    The law of the draws is judged by the temperature of the predictions where it is known. It is
    off where the predictive deviation that it implies differs by more than 7 % from the true one,
    or the predictive mean by more than .15 deviations, and chance does so in less than two of a
    thousand right runs. It is unknown where an error of 20 % lies within two standard errors.
    Then, or without that temperature, kinetic and configurational temperature count, off outside
    0.9 to 1.15 times the stated one, where chance hardly does that (as above, and three standard
    errors), and gradient noise above 10 % of the injected noise. Where the training examples are
    not known no temperature but the kinetic one is, which is an alarm too. At T = 0 nothing is
    sampled, and only values that are not finite are wrong.

    Args:
        summary: Of :func:`~lightning_sgmcmc.diagnostics.summarise`.
        temperature: T that the run states.
        kinetic_temperature: The sampler's, averaged over draws, of
            :func:`~lightning_sgmcmc.diagnostics.mean_temperature`.
        configurational: Of :func:`~lightning_sgmcmc.diagnostics.configurational_temperature`.
        noise: Of :func:`~lightning_sgmcmc.adaptation.minibatch_noise`; not for samplers that count
            that noise as their own.
        predictive: Of :func:`~lightning_sgmcmc.diagnostics.predictive_temperature`.
        directions: Of :func:`~lightning_sgmcmc.diagnostics.directional_temperatures`, by kind.
        step: What the chain's step is.
        examples_known: Whether the loader tells which examples it goes through.
    """
    diverged = _divergence_alarms(summary)
    if not temperature or diverged:
        return diverged  # iterates of an optimizer do not mix
    step = step or Step()
    if noise is not None:
        step = replace(step, noise=noise.total.ratio)
    found = _mixing_alarms(summary, step) + _stability_alarms(step)
    others = _other_alarms(temperature, kinetic_temperature, configurational, noise, step)
    if not examples_known and not step.corrected:
        others.append(Alarm(_UNMEASURED))
    if predictive is None or not np.isfinite(predictive.temperature.value):
        return found + others
    unknown = _unknown_alarms(predictive, temperature, step)
    return (
        found
        + ((others or unknown) if unknown else [])
        + _predictive_alarms(predictive, dict(directions or {}), temperature, step, noise)
    )


def joint_remedy(found: Sequence[Alarm]) -> Remedy:
    """Return one remedy for all alarms: the smallest step, the longest run.

    A remedy that makes the step smaller goes before those that would make it larger.
    """
    remedies = [alarm.remedy for alarm in found if alarm.remedy is not None]
    factors = [r.lr for r in remedies]
    smallest = min(factors, default=1.0)
    return Remedy(
        smallest if smallest < 1 else max(factors, default=1.0),
        max((r.steps for r in remedies), default=1.0),
        any(r.whole_data for r in remedies),
        any(r.momentum for r in remedies),
    )


def _judged(summary: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    name = "predictions" if "predictions" in summary else "weights"
    return name, summary[name]


def _divergence_alarms(summary: dict[str, Any]) -> list[Alarm]:
    name, space = _judged(summary)
    if not space["not_finite"]:
        return []
    return [
        Alarm(
            f"{space['not_finite']} of {space['examined']} {name} are not finite in some draw: the "
            "chain diverged; lower the step size",
            Remedy(lr=0.25),
        )
    ]


def _longer(step: Step, factor: float) -> Remedy:
    """Return the remedy for a slow chain: a larger step where it is needlessly small.

    A step that its own error or gradient noise does not let grow is not needlessly small: a larger
    one would be the next alarm, and its remedy the step as it was. Where minibatches bound the
    step, the whole data allow it, and pay if it grows by more than a gradient does. Where nearly
    all proposals are refused it is a smaller one. A chain that is far too slow for its step gets
    momentum, which moves it up to 1 / (1 - mu) times as fast, where gradients are exact: it would
    make as much more of their noise.
    """
    if step.rejected:
        return Remedy(lr=_SMALLEST)
    if step.fraction is not None and step.fraction < _SMALL and not step.corrected:
        larger = _USUAL / step.fraction
        if step.bounded:
            if step.batch_share < 1 < larger * step.batch_share:
                return Remedy(whole_data=True)
        elif (allowed := min(larger, _AIM / max(step.bias + step.noise, 1e-9))) >= _WORTH_WHILE:
            return Remedy(lr=allowed)
    if step.overdamped and step.batch_share == 1 and factor >= _SLOW:
        larger = 1.0 if step.fraction is None else max(1.0, _USUAL / step.fraction)
        return Remedy(lr=larger, momentum=True)
    return Remedy(steps=factor)


def _mixing_alarms(summary: dict[str, Any], step: Step) -> list[Alarm]:
    chains, draws = summary["num_chains"], summary["draws_per_chain"]
    (name, space), found = _judged(summary), []
    varying = space["examined"] - space["not_finite"] - space["constant"]
    if space["constant"] and not varying:
        found.append(
            Alarm(
                f"no {name[:-1]} changes from draw to draw: the chain does not move",
                _longer(step, 4),
            )
        )
    if not varying:
        return found
    if draws < ENOUGH_DRAWS:
        found.append(
            Alarm(
                f"with {draws} draws a chain nothing can be said about mixing: keep {ENOUGH_DRAWS} "
                "or more",
                Remedy(steps=ENOUGH_DRAWS / draws),
            )
        )
        return found
    # Many chains of few independent draws each can be right together.
    enough = space["rhat"]["q95"] < 1.1 and space["ess_bulk"]["q05"] >= 200
    if space["rhat_above"] > 0.05 and not enough:
        what = "the chains have" if chains > 1 else "the two halves of the chain differ: it has"
        remedy = _longer(step, _mixed_after(space["rhat"]["q95"], space["rhat_limit"]))
        found.append(
            Alarm(
                f"R-hat of the {name} has the median {space['rhat']['median']:.2f} and is above "
                f"{space['rhat_limit']:.2f} in {space['rhat_above']:.0%} of them: {what} not "
                f"mixed; {remedy}, or start the chains closer to where they end",
                remedy,
            )
        )
    size = space["ess_bulk"]["median"]
    if size < 20:
        remedy = _longer(step, min(16.0, 40 / size))
        found.append(
            Alarm(
                f"a typical one of the {name} rests on {size:.0f} independent draws out of "
                f"{chains * draws}, so its mean is uncertain by {1 / np.sqrt(size):.0%} of its "
                f"posterior deviation: {remedy}, or run more chains",
                remedy,
            )
        )
    return found


def _mixed_after(rhat: float, limit: float) -> float:
    """Return how many times as long a run would be for an R-hat at its limit, 2 to 4.

    R-hat^2 - 1 is the variance of a chain's mean over the posterior's, and falls as 1/n once the
    chains move between all places; half as much more is for the error of the R-hat itself.
    """
    return float(np.clip(1.5 * (rhat**2 - 1) / (limit**2 - 1), 2, 4))


def _stability_alarms(step: Step) -> list[Alarm]:
    if step.corrected or step.last is None or step.last < 1:
        return []
    remedy = _smaller(_STABLE / step.last)
    return [
        Alarm(
            f"the step is {step.last:.3g} times the largest stable one, so that stiff directions "
            f"are sampled too wide: {remedy}",
            remedy,
        )
    ]


def _other_alarms(
    stated: float,
    kinetic: Temperature | None,
    configurational: ConfigurationalTemperature | None,
    noise: GradientNoise | None,
    step: Step,
) -> list[Alarm]:
    """Return what is to be said where the temperature of the predictions is not known."""
    found = []
    if (
        kinetic is not None
        and _off(kinetic.value, stated)
        and significance(kinetic, stated, BLOCKS - 1) < _CHANCE
    ):
        found.append(
            Alarm(
                f"the chain's kinetic temperature is {kinetic.value:.3g} +- "
                f"{kinetic.standard_error:.2g}, not within 0.9 to 1.15 times the stated "
                f"{stated:g}: it does not sample its posterior; lower the step size",
                _cooler(abs(kinetic.value / stated - 1), step),
            )
        )
    if configurational is not None:
        found += _configurational_alarms(configurational, stated, step)
    if noise is not None and noise.total.ratio > 0.1:
        worst = max(noise.tensors, key=lambda name: noise.tensors[name].ratio)
        factor = 0.1 / noise.total.ratio
        found.append(
            Alarm(
                f"gradient noise adds {noise.total.ratio:.0%} to the injected noise (most in "
                f"{worst}: {noise.tensors[worst].ratio:.0%}), so that the chain's temperature is "
                f"about {noise.total.effective:.3g} instead of {stated:g}: multiply the step "
                f"size by {factor:.2g} for a tenth, or take larger minibatches",
                _cooler(noise.total.ratio, step),
            )
        )
    return found


def _unknown_alarms(measured: PredictiveTemperature, stated: float, step: Step) -> list[Alarm]:
    """Return an alarm where the predictive deviation is neither known nor known to be off."""
    ratio, error = measured.deviation, measured.deviation_error
    if abs(ratio - 1) + 2 * error <= UNKNOWN or _differs(measured, stated):
        return []
    remedy = _longer(step, float(np.clip((4 * error / UNKNOWN) ** 2, 2, 16)))
    return [
        Alarm(
            f"the predictive deviation is known to {error:.0%} of the true one only (temperature "
            f"of the predictions {measured.temperature.value:.3g} +- "
            f"{measured.temperature.standard_error:.2g}, stated {stated:g}): {remedy}",
            remedy,
        )
    ]


def _differs(measured: PredictiveTemperature, stated: float) -> bool:
    """Return whether the predictive deviation is off, and not by chance."""
    return abs(measured.deviation - 1) > DEVIATION and measured.significance(stated) < _CHANCE


def _predictive_alarms(
    measured: PredictiveTemperature,
    directions: Mapping[str, Sequence[Temperature]],
    stated: float,
    step: Step,
    noise: GradientNoise | None,
) -> list[Alarm]:
    found = []
    ratio = measured.deviation
    value = (
        f"(temperature of the predictions {measured.temperature.value:.3g} +- "
        f"{measured.temperature.standard_error:.2g}, stated {stated:g}"
        f"{_extreme(directions, stated, measured, hot=ratio > 1)})"
    )
    if _differs(measured, stated) and ratio > 1:
        remedy = _cooler(ratio**2 - 1, step)
        found.append(
            Alarm(
                f"predictions are about {ratio:.2f} times too wide {value}: "
                f"{_cause(ratio**2 - 1, step, noise)}; {remedy}",
                remedy,
            )
        )
    elif _differs(measured, stated):
        why, remedy = _cold(measured.ess, step)
        found.append(
            Alarm(
                f"predictions are only {ratio:.2f} times as wide as they should be {value}: {why}; "
                f"{remedy}",
                remedy,
            )
        )
    if measured.mean_error > MEAN and measured.mean_error_significance < _CHANCE:
        remedy = _longer(step, 4)
        found.append(
            Alarm(
                f"the mean force on the predictions is not zero, as if their mean were off by "
                f"{measured.mean_error:.2g} of their deviations: the chain still moves to where "
                f"the posterior is; {remedy}, with as much more burn-in",
                remedy,
            )
        )
    return found


def _cold(ess: float, step: Step) -> tuple[str, Remedy]:
    """Return why predictions are too narrow, and what ends it."""
    if ess <= 200:
        why = f"with {ess:.0f} independent draws the chain has not yet explored what "
        return why + "the posterior allows", _longer(step, 4)
    if step.thermostat and step.batch_share < 1:
        why = "the thermostat takes the heat of the minibatches' gradient noise out of directions "
        return why + "that have little of it", Remedy(whole_data=True)
    why = "draws follow each other independently enough, so the step's error is the cause"
    return why, _longer(step, 4) if step.corrected else Remedy(lr=0.25, steps=4)


def _cooler(excess: float, step: Step) -> Remedy:
    """Return the remedy for variances that are too large by a relative excess.

    That of gradient noise and of the step are both proportional to the step size.
    """
    if not step.explains_excess:
        return _longer(step, 4)
    factor = _AIM / excess
    if step.batch_share < 1 and excess > 2 * step.bias and factor < step.batch_share:
        return Remedy(whole_data=True)  # cheaper than the smaller step
    return _smaller(factor)


def _smaller(factor: float) -> Remedy:
    """Return the remedy of a smaller step, of a run that is as much longer."""
    factor = max(factor, _SMALLEST)
    return Remedy(lr=factor, steps=min(1 / factor, 8.0))


def _cause(excess: float, step: Step, noise: GradientNoise | None) -> str:
    if not step.explains_excess:
        return "the chain has not yet mixed"
    if step.batch_share < 1 and excess > 2 * step.bias:
        known = f" ({noise.total.ratio:.0%} of the injected noise)" if noise is not None else ""
        return (
            f"the minibatches' gradient noise{known} heats them; a smaller step, larger "
            "minibatches or a control variate lower it"
        )
    return "the step is too large"


def _extreme(
    directions: Mapping[str, Sequence[Temperature]],
    stated: float,
    measured: PredictiveTemperature,
    hot: bool,
) -> str:
    """Return, in words, the direction that is furthest off, nothing where none is significantly."""
    known = [
        (t.value, f"{kind} direction {i + 1}")
        for kind, values in directions.items()
        for i, t in enumerate(values)
        if significance(t, stated, measured.degrees) < _CHANCE and (t.value > stated) == hot
    ]
    if not known:
        return ""
    value, name = (max if hot else min)(known)
    return f", of {name} {value:.3g}"


def _configurational_alarms(
    measured: ConfigurationalTemperature, stated: float, step: Step
) -> list[Alarm]:
    total = measured.total
    if not (_off(total.value, stated) and abs(total.value - stated) > 3 * total.standard_error):
        return []
    text = (
        f"the configurational temperature is {total.value:.3g} +- {total.standard_error:.2g}, not "
        f"within 0.9 to 1.15 times the stated {stated:g}: "
    )
    if total.value < stated:
        return [
            Alarm(
                text + "the chain has not yet explored what the posterior allows; run longer",
                Remedy(steps=4),
            )
        ]
    known = {k: t.value for k, t in measured.layers.items() if np.isfinite(t.value)}
    hottest = max(known, key=lambda name: known[name], default=None)
    where = f" (hottest: {hottest}, {known[hottest]:.3g})" if hottest is not None else ""
    return [
        Alarm(
            text + f"the step or its gradient noise is too large{where}; lower the step size",
            _cooler(total.value / stated - 1, step),
        )
    ]


def _off(value: float, stated: float) -> bool:
    return not 0.9 * stated <= value <= 1.15 * stated and not np.isnan(value)
