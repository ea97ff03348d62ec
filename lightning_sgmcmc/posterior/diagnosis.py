"""Whether what is kept of a chain's draws is a sample of its target, from all its traces."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_sgmcmc.adaptation import minibatch_noise
from lightning_sgmcmc.chain import Chain
from lightning_sgmcmc.diagnostics import (
    PredictiveTemperature,
    Step,
    alarms,
    configurational_temperature,
    directional_temperatures,
    joint_remedy,
    mean_temperature,
    predictive_temperature,
    summarise,
)
from lightning_sgmcmc.posterior.directions import FollowedDirections
from lightning_sgmcmc.posterior.kept import KeptDraws

# Relative change of a field's spread over the draws below which predictions count as linear.
_LINEAR = 0.1


def diagnose(kept: KeptDraws, stability: dict[str, float]) -> dict[str, Any]:
    """Return what tells whether the draws are a sample of the stated target, with alarms.

    Args:
        kept: What is kept of the draws.
        stability: Where the step size stands: see
            :class:`~lightning_sgmcmc.adaptation.Adaptation`.

    Returns:
        The ``diagnostics`` of ``results.json``: temperatures, gradient noise, mixing, ``notes`` on
        the target, ``alarms`` in words, and the ``remedy`` that ends them.
    """
    chain = kept.chain
    sampler, history = chain.sampler, kept.history
    # Of the last draw: a schedule may end at 0.
    lr = history[-1].get("lr", sampler.lr) if history else sampler.lr
    result: dict[str, Any] = {
        "minibatches": chain.batch_law,
        "step_size": lr,
        "stability": stability,
        "notes": chain.notes(),
        "alarms": [],
    }
    verdict: dict[str, Any] = {"temperature": sampler.temperature}
    kinetic = [row["kinetic_temperature"] for row in history if "kinetic_temperature" in row]
    if kinetic:
        verdict["kinetic_temperature"] = heat = mean_temperature(kinetic)
        result["kinetic_temperature"] = heat.value
        result["kinetic_temperature_error"] = heat.standard_error
    if not kept.num_draws:
        return result
    traces = {
        kind: chain.processes.of_all_chains(kept.probes.trace(kind), chain.device)
        for kind in ("weights", "forces", "predictions")
    }
    verdict |= _function_space(kept, result)
    if traces["forces"].size and sampler.temperature:
        measured = configurational_temperature(
            traces["weights"], traces["forces"], kept.probes.layers
        )
        verdict["configurational"] = measured
        result["configurational_temperature"] = asdict(measured.total) | {
            "layers": {name: layer.value for name, layer in measured.layers.items()}
        }
    noise = minibatch_noise(chain, lr)
    if noise is not None:
        result["gradient_noise"] = {
            "ratio": noise.total.ratio,
            "effective_temperature": noise.total.effective,
            "layers": {name: tensor.ratio for name, tensor in noise.tensors.items()},
        }
        if not sampler.absorbs_gradient_noise:
            verdict["noise"] = noise
    result["mixing"] = summarise(
        traces["weights"],
        traces["predictions"] if traces["predictions"].size else None,
        kept.draw_weights,
    )
    found = alarms(
        result["mixing"],
        **verdict,
        step=_step(chain, stability, lr),
        examples_known=chain.spare is not None,
    )
    result["alarms"] = [alarm.text for alarm in found]
    result["remedy"] = asdict(joint_remedy(found)) if found else None
    return result


def _step(chain: Chain, stability: dict[str, float], lr: float) -> Step:
    sampler, share = chain.sampler, 1.0
    if sampler.batch_size and sampler.num_data and not chain.gradients.exact:
        share = min(1.0, sampler.batch_size / sampler.num_data)
    return Step(
        stability.get("fraction"),
        stability.get("variance_bias", 0.0),
        batch_share=share,
        corrected=sampler.corrected,
        acceptance=getattr(sampler, "acceptance", None),
        thermostat=sampler.has_thermostat,
        bounded="gradient_noise" in stability,
        last=lr / stability["largest_stable_lr"] if stability else None,
        overdamped=sampler.overdamped,
    )


def _function_space(kept: KeptDraws, result: dict[str, Any]) -> dict[str, Any]:
    """Add the temperatures of directions and of predictions to ``diagnostics``.

    Returns:
        What :func:`~lightning_sgmcmc.diagnostics.alarms` takes of them.
    """
    chain, followed = kept.chain, kept.probes.directions
    stated = chain.sampler.temperature
    if followed is None or not stated:
        return {}
    traces = {
        kind: chain.processes.of_all_chains(trace, chain.device)
        for kind, trace in kept.probes.followed().items()
    }
    temperatures = directional_temperatures(traces["coordinates"], traces["forces"])
    found = {
        "leading": temperatures[: followed.leading],
        "random": temperatures[followed.leading :],
    }
    result["directional_temperatures"] = {
        kind: [{"value": t.value, "standard_error": t.standard_error} for t in values]
        for kind, values in found.items()
    }
    verdict: dict[str, Any] = {"directions": found}
    measured, linear = _predictive(chain, followed, traces)
    if measured is not None:
        verdict["predictive"] = measured
        result["predictive"] = {
            "temperature": measured.temperature.value,
            "temperature_error": measured.temperature.standard_error,
            "deviation_over_true": measured.deviation,
            "deviation_over_true_error": measured.deviation_error,
            "mean_error_in_deviations": measured.mean_error,
            "mean_error_p_value": measured.mean_error_significance,
            "independent_draws": measured.ess,
            "exact_share_of_variance": measured.exact_share,
            "linear_in_weights": linear,
        }
    return verdict


def _predictive(
    chain: Chain, followed: FollowedDirections, traces: dict[str, NDArray[np.float64]]
) -> tuple[PredictiveTemperature | None, bool]:
    """Return the temperature of predictions, and whether they are linear in the weights.

    They count as linear where the spread of the moving vector fields hardly changes from draw to
    draw. The constant fields serve then, which are closer to the inverse curvature.
    """
    values, spreads = traces["values"], traces["spreads"]
    if not values.size or not spreads.size:
        return None, False
    stated = chain.sampler.temperature
    exact = traces["exact_variances"]
    drawn = exact if exact.shape[:2] == values.shape[:2] else None
    changes = spreads.std(1) / np.maximum(spreads.mean(1), np.finfo(float).tiny)
    if np.median(changes) < _LINEAR:
        variances = chain.processes.of_all_chains(
            followed.variances.double().cpu().numpy(), chain.device
        )
        fixed = traces["fixed_forces"]
        spreads = variances[:, None]
        return predictive_temperature(values, fixed, spreads, stated=stated, exact=drawn), True
    count = spreads.shape[2]
    moving, bends = traces["moving_forces"], traces["bends"]
    drawn = drawn[..., :count] if drawn is not None else None
    found = predictive_temperature(
        values[..., :count], moving, spreads, bends, stated, drawn, traces["sums"]
    )
    return found, False
