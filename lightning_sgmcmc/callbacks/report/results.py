"""``results.json``: what a run was and what came out."""

from __future__ import annotations

import json
import math
import platform
import subprocess
import sys
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_sgmcmc.adaptation import minibatch_noise
from lightning_sgmcmc.callbacks.report import label
from lightning_sgmcmc.chain import Chain, Task
from lightning_sgmcmc.common.files import DamagedFileError, digest_of, write_beside
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
from lightning_sgmcmc.posterior import KeptDraws
from lightning_sgmcmc.posterior.directions import FollowedDirections

# Relative change of a field's spread over the draws below which predictions count as linear.
_LINEAR = 0.1
_PACKAGES = ("torch", "lightning", "torchmetrics", "numpy", "scipy", "lightning-sgmcmc")


def provenance(device: torch.device) -> dict[str, Any]:
    """Return versions, commit and device."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    root = Path(__file__).resolve().parents[3]
    return {
        "python": platform.python_version(),
        "versions": versions,
        "commit": _commit(root),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name(),
        "threads": torch.get_num_threads(),
        "command": " ".join(sys.argv),
    }


def _commit(root: Path) -> str | None:
    """Return the commit of the repository whose top is ``root``, None where there is none."""
    if not (root / ".git").exists():  # the package was installed, maybe within another repository
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.SubprocessError):  # there is no git, or it does not answer
        return None
    return found.stdout.strip() or None


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return f"cpu ({line.split(':', 1)[1].strip()})"
    except OSError:
        pass
    return f"cpu ({platform.processor() or platform.machine()})"


def measure(task: Task) -> dict[str, Any]:
    """Return the metrics of ensemble, posterior mean, last draws and end of burn-in.

    They are of the test set if the run has one, of the validation set otherwise; the ensemble's
    and the burn-in's on the validation set stand beside.
    """
    kept = task.kept
    if not kept.held_out or not kept.num_draws:
        return {}
    name = "test" if "test" in kept.held_out else "val"
    found = {
        "ensemble": task.metrics(kept.ensemble(name), kept.held_out[name].examples),
        "last": kept.measure_network(name),
    }
    found["posterior_mean"] = kept.measure_mean(name)
    if name in kept.reference:
        found["burn_in"] = kept.reference[name]
    if name != "val" and "val" in kept.held_out:
        found["ensemble_val"] = task.metrics(kept.ensemble("val"), kept.held_out["val"].examples)
        if "val" in kept.reference:
            found["burn_in_val"] = kept.reference["val"]
    return found


def diagnostics(task: Task, stability: dict[str, float]) -> dict[str, Any]:
    """Return what tells whether the draws are a sample of the stated target, with alarms."""
    chain, kept = task.chain, task.kept
    sampler = chain.sampler
    result: dict[str, Any] = {
        "minibatches": chain.batch_law,
        "step_size": sampler.lr,
        "stability": stability,
        "notes": chain.notes(),
        "alarms": [],
    }
    verdict: dict[str, Any] = {"temperature": sampler.temperature}
    kinetic = [row["kinetic_temperature"] for row in kept.history if "kinetic_temperature" in row]
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
    verdict |= _function_space(chain, kept, result)
    if traces["forces"].size and sampler.temperature:
        measured = configurational_temperature(
            traces["weights"], traces["forces"], kept.probes.layers
        )
        verdict["configurational"] = measured
        result["configurational_temperature"] = asdict(measured.total) | {
            "layers": {name: layer.value for name, layer in measured.layers.items()}
        }
    noise = minibatch_noise(chain, sampler.lr)
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
    found = alarms(result["mixing"], **verdict, step=_step(chain, stability))
    result["alarms"] = [alarm.text for alarm in found]
    result["remedy"] = asdict(joint_remedy(found)) if found else None
    return result


def _step(chain: Chain, stability: dict[str, float]) -> Step:
    stream, sampler = chain.stream, chain.sampler
    share = 1.0
    if stream is not None and not chain.gradients.exact:
        share = stream.batch_size / stream.num_data
    return Step(
        stability.get("fraction"),
        stability.get("variance_bias", 0.0),
        share,
        corrected=sampler.corrected,
        acceptance=getattr(sampler, "acceptance", None),
        thermostat=sampler.has_thermostat,
        bounded="gradient_noise" in stability,
    )


def _function_space(chain: Chain, kept: KeptDraws, result: dict[str, Any]) -> dict[str, Any]:
    """Add the temperatures of directions and of predictions to ``diagnostics``.

    Returns:
        What :func:`~lightning_sgmcmc.diagnostics.alarms` takes of them.
    """
    followed, stated = kept.probes.directions, chain.sampler.temperature
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
    found = predictive_temperature(values[..., :count], moving, spreads, bends, stated, drawn)
    return found, False


def build(
    task: Task, stability: dict[str, float], name: str, wall_seconds: float
) -> dict[str, Any]:
    """Return the content of ``results.json``.

    Args:
        task: The task, whose chain has ended.
        stability: Where the step size stands: see
            :class:`~lightning_sgmcmc.adaptation.Adaptation`.
        name: Of the task.
        wall_seconds: Duration of the run.
    """
    chain, kept = task.chain, task.kept
    sampler = chain.sampler
    return {
        "schema": 1,
        "provenance": provenance(chain.device),
        "task": name,
        "sampler": label.describe(sampler, chain.schedule, chain.batch_law, chain.gradients),
        "seed": sampler.seed,
        "temperature": sampler.temperature,
        "num_data": sampler.num_data,
        "num_parameters": sum(weight.numel() for weight in chain.state(0).values()),
        "collapsed_head": chain.head.names if chain.head is not None else None,
        "num_chains": chain.processes.all_chains(chain.num_chains),
        "num_draws": kept.num_draws,
        "num_steps": chain.steps,
        "num_gradients": chain.num_gradients,
        "wall_seconds": wall_seconds,
        "metrics": measure(task),
        "diagnostics": diagnostics(task, stability),
        "task_details": task.describe(kept),
        "paper": task.paper(),
    }


def write(folder: Path, results: dict[str, Any]) -> None:
    """Write ``results.json`` as a whole, with its checksum among the provenance.

    Numbers that are not finite become null.
    """
    content = _plain(results)
    content["provenance"].pop("sha256", None)  # that of a file which they were read from
    content["provenance"]["sha256"] = digest_of(content)
    write_beside(folder / "results.json", json.dumps(content, indent=2) + "\n")


def read(path: Path) -> dict[str, Any]:
    """Return the content of ``results.json``.

    Raises:
        FileNotFoundError: If there is none.
        DamagedFileError: If it is not what was written.
    """
    try:
        content: dict[str, Any] = json.loads(path.read_text())
        stated = content["provenance"].pop("sha256", None)
        if stated in (None, digest_of(content)):  # older ones have none
            return content
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise DamagedFileError(f"{path} is damaged: write it again with --finish {path.parent}")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, (np.floating, float)):
        return float(value) if math.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value
