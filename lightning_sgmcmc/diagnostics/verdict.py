"""What is wrong with a sample, in words."""

from __future__ import annotations

from typing import Any

import numpy as np

from lightning_sgmcmc.adaptation import GradientNoise
from lightning_sgmcmc.diagnostics.temperature import ConfigurationalTemperature

#: Fewest draws a chain for a verdict on mixing.
ENOUGH_DRAWS = 20


def alarms(
    summary: dict[str, Any],
    *,
    temperature: float = 1.0,
    kinetic_temperature: float | None = None,
    configurational: ConfigurationalTemperature | None = None,
    noise: GradientNoise | None = None,
) -> list[str]:
    """Return what is wrong with a sample, one sentence in plain words each.

    Mixing is judged by the predictions where there are any, by the weights otherwise. It is off
    where more than 5 % of the quantities have an R-hat above the summary's limit, or their median
    ESS is below 20. A temperature is off outside 0.9 to 1.15 times the stated one, the
    configurational one also by more than three standard errors; gradient noise above 10 % of the
    injected noise. At T = 0 nothing is sampled, and only values that are not finite are wrong.

    Args:
        summary: Of :func:`~lightning_sgmcmc.diagnostics.summarise`.
        temperature: T that the run states.
        kinetic_temperature: The sampler's, averaged over draws.
        configurational: Of :func:`~lightning_sgmcmc.diagnostics.configurational_temperature`.
        noise: Of :func:`~lightning_sgmcmc.adaptation`; not for SGFS, which counts
            that noise as its own.
    """
    if not temperature:
        return _divergence_alarms(summary)  # iterates of an optimizer do not mix
    found = _divergence_alarms(summary) + _mixing_alarms(summary)
    if kinetic_temperature is not None and _off(kinetic_temperature, temperature):
        found.append(
            f"the chain's kinetic temperature is {kinetic_temperature:.3g}, not within 0.9 to 1.15 "
            f"times the stated {temperature:g}: it does not sample its posterior; lower the step "
            "size"
        )
    if configurational is not None:
        found += _configurational_alarms(configurational, temperature)
    if noise is not None and noise.total.ratio > 0.1:
        worst = max(noise.tensors, key=lambda name: noise.tensors[name].ratio)
        found.append(
            f"gradient noise adds {noise.total.ratio:.0%} to the injected noise (most in {worst}: "
            f"{noise.tensors[worst].ratio:.0%}), so that the chain's temperature is about "
            f"{noise.total.effective:.3g} instead of {temperature:g}: multiply the step size by "
            f"{0.1 / noise.total.ratio:.2g} for a tenth, or take larger minibatches"
        )
    return found


def _judged(summary: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    name = "predictions" if "predictions" in summary else "weights"
    return name, summary[name]


def _divergence_alarms(summary: dict[str, Any]) -> list[str]:
    name, space = _judged(summary)
    if not space["not_finite"]:
        return []
    return [
        f"{space['not_finite']} of {space['examined']} {name} are not finite in some draw: the "
        "chain diverged; lower the step size"
    ]


def _mixing_alarms(summary: dict[str, Any]) -> list[str]:
    chains, draws = summary["num_chains"], summary["draws_per_chain"]
    (name, space), found = _judged(summary), []
    varying = space["examined"] - space["not_finite"] - space["constant"]
    if space["constant"] and not varying:
        found.append(f"no {name[:-1]} changes from draw to draw: the chain does not move")
    if not varying:
        return found
    if draws < ENOUGH_DRAWS:
        found.append(
            f"with {draws} draws a chain nothing can be said about mixing: keep {ENOUGH_DRAWS} or "
            "more"
        )
        return found
    if space["rhat_above"] > 0.05:
        what = "the chains have" if chains > 1 else "the two halves of the chain differ: it has"
        found.append(
            f"R-hat of the {name} has the median {space['rhat']['median']:.2f} and is above "
            f"{space['rhat_limit']:.2f} in {space['rhat_above']:.0%} of them: {what} not mixed; "
            "run longer, or start the chains closer to where they end"
        )
    size = space["ess_bulk"]["median"]
    if size < 20:
        found.append(
            f"a typical one of the {name} rests on {size:.0f} independent draws out of "
            f"{chains * draws}, so its mean is uncertain by {1 / np.sqrt(size):.0%} of its "
            "posterior deviation: run longer, or run more chains"
        )
    return found


def _configurational_alarms(measured: ConfigurationalTemperature, stated: float) -> list[str]:
    total = measured.total
    if not (_off(total.value, stated) and abs(total.value - stated) > 3 * total.standard_error):
        return []
    text = (
        f"the configurational temperature is {total.value:.3g} +- {total.standard_error:.2g}, not "
        f"within 0.9 to 1.15 times the stated {stated:g}: "
    )
    if total.value < stated:
        return [text + "the chain has not yet explored what the posterior allows; run longer"]
    known = {k: t.value for k, t in measured.layers.items() if np.isfinite(t.value)}
    hottest = max(known, key=lambda name: known[name], default=None)
    where = f" (hottest: {hottest}, {known[hottest]:.3g})" if hottest is not None else ""
    return [text + f"the step or its gradient noise is too large{where}; lower the step size"]


def _off(value: float, stated: float) -> bool:
    return not 0.9 * stated <= value <= 1.15 * stated and not np.isnan(value)
