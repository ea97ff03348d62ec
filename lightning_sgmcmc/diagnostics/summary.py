"""What ``results.json`` says about the chains, and alarms in words."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import f as fisher_f

from lightning_sgmcmc.diagnostics.gradient_noise import GradientNoise
from lightning_sgmcmc.diagnostics.mixing import Array, as_traces, columns, ess, rhat
from lightning_sgmcmc.diagnostics.temperature import ConfigurationalTemperature
from lightning_sgmcmc.diagnostics.weighted import effective_draws

#: Fewest draws a chain for a verdict on mixing.
ENOUGH_DRAWS = 20
#: R-hat above which chains count as not mixed, if draws are many (Vehtari et al. 2021 say 1.01
#: for a well-run chain).
RHAT = 1.05


def summarise(
    weights: ArrayLike | None = None,
    predictions: ArrayLike | None = None,
    weights_in_averages: ArrayLike | None = None,
    limit: int = 1000,
) -> dict[str, Any]:
    """Return ESS and R-hat of weights and of predictions as plain values for JSON.

    Predictions on a fixed probe set are what mixing means for a network: permuting hidden units
    changes weights and leaves the function as it is.

    Args:
        weights: Draws [C, D, ...], of all weights or of some.
        predictions: The same draws' predictions on a fixed probe set, [C, D, ...].
        weights_in_averages: Of the draws, [D] or [C, D], where they count unequally.
        limit: Quantities of each kind that are examined, spread evenly over all there are.

    Returns:
        ``num_chains``, ``draws_per_chain``, ``effective_draws`` (Kish's number, of the weights in
        averages alone), and for ``weights`` and ``predictions``, where given:
        ``count``, ``examined``, ``constant``, ``not_finite``; ``ess_bulk``, ``ess_tail`` and
        ``rhat``, each with ``min``, ``q05``, ``median``, ``q95``, ``max`` over the quantities that
        vary (None if there are none, or with fewer than 8 draws a chain); ``rhat_limit``, see
        :func:`rhat_limit`, and ``rhat_above``, the fraction above it. ESS and R-hat take all draws
        for equal.

    Raises:
        ValueError: If nothing is given or shapes disagree.
    """
    given = {"weights": weights, "predictions": predictions}
    traces = {name: as_traces(x) for name, x in given.items() if x is not None}
    shapes = {x.shape[:2] for x in traces.values()}
    if len(shapes) != 1:
        raise ValueError(
            f"weights and predictions need the same [chains, draws] in front, got {sorted(shapes)}"
            if shapes
            else "nothing to summarise: give weights, predictions or both"
        )
    chains, draws = shapes.pop()
    result: dict[str, Any] = {"num_chains": chains, "draws_per_chain": draws}
    if weights_in_averages is not None:
        w = np.asarray(weights_in_averages, dtype=np.float64)
        if w.shape not in ((draws,), (chains, draws)):
            raise ValueError(
                f"weights in averages are [{draws}] or [{chains}, {draws}], got shape {w.shape}"
            )
        result["effective_draws"] = effective_draws(np.broadcast_to(w, (chains, draws)))
    for name, x in traces.items():
        result[name] = _space(x, limit)
    return result


def rhat_limit(chains: int, draws: int) -> float:
    """Return the R-hat above which chains count as not mixed: 1.05, or more where draws are few.

    For m half chains of n independent normal draws B / W has the F distribution with m - 1 and
    m (n - 1) degrees of freedom; below its 99.9 % quantile an R-hat is no evidence.
    """
    m, n = 2 * chains, draws // 2
    if n < 2:
        return float("inf")
    chance = np.sqrt(1 + (fisher_f.ppf(0.999, m - 1, m * (n - 1)) - 1) / n)
    return float(max(RHAT, chance))


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
    where more than 5 % of the quantities have an R-hat above :func:`rhat_limit`, or their median
    ESS is below 20. A temperature is off outside 0.9 to 1.15 times the stated one, the
    configurational one also by more than three standard errors; gradient noise above 10 % of the
    injected noise.

    Args:
        summary: Of :func:`summarise`.
        temperature: T that the run states.
        kinetic_temperature: The sampler's, averaged over draws.
        configurational: Of :func:`~lightning_sgmcmc.diagnostics.configurational_temperature`.
        noise: Of :func:`~lightning_sgmcmc.diagnostics.gradient_noise`; not for SGFS, which counts
            that noise as its own.
    """
    found = _mixing_alarms(summary)
    if not temperature:
        return found
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


def _space(traces: Array, limit: int) -> dict[str, Any]:
    flat = traces.reshape(*traces.shape[:2], -1)
    count = flat.shape[2]
    chosen = np.unique(np.linspace(0, count - 1, min(limit, count)).astype(int))
    flat = flat[:, :, chosen]
    varies = columns(flat)[1]
    finite = np.isfinite(flat).all((0, 1))
    result: dict[str, Any] = {
        "count": count,
        "examined": len(chosen),
        "constant": int((finite & ~varies).sum()),
        "not_finite": int((~finite).sum()),
    }
    flat = flat[:, :, varies]
    values = rhat(flat)
    result["ess_bulk"] = _spread(ess(flat))
    result["ess_tail"] = _spread(ess(flat, "tail"))
    result["rhat"] = _spread(values)
    limit_of_rhat = rhat_limit(*flat.shape[:2])
    known = values[~np.isnan(values)]
    result["rhat_limit"] = limit_of_rhat if known.size else None
    result["rhat_above"] = float((known > limit_of_rhat).mean()) if known.size else None
    return result


def _spread(values: Array) -> dict[str, float] | None:
    known = values[~np.isnan(values)]
    if not known.size:
        return None
    # Of order statistics, since interpolation between infinities is not a number.
    levels = {"min": 0.0, "q05": 0.05, "median": 0.5, "q95": 0.95, "max": 1.0}
    return {k: float(np.quantile(known, q, method="nearest")) for k, q in levels.items()}


def _mixing_alarms(summary: dict[str, Any]) -> list[str]:
    chains, draws = summary["num_chains"], summary["draws_per_chain"]
    name = "predictions" if "predictions" in summary else "weights"
    space, found = summary[name], []
    if space["not_finite"]:
        found.append(
            f"{space['not_finite']} of {space['examined']} {name} are not finite in some draw: the "
            "chain diverged; lower the step size"
        )
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
