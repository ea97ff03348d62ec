"""``results.json``: what a run was and what came out."""

from __future__ import annotations

import json
import math
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from numpy.typing import NDArray

from lightning_sgmcmc.callbacks.draws import KeepDraws
from lightning_sgmcmc.module import SGMCMCModule
from lightning_sgmcmc.posterior.draws import write_beside
from lightning_sgmcmc.strategies import replicas

_PACKAGES = ("torch", "lightning", "torchmetrics", "numpy", "scipy", "lightning-sgmcmc")


def provenance(device: torch.device) -> dict[str, Any]:
    """Return versions, commit and device."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    root = Path(__file__).resolve().parents[1]
    commit = subprocess.run(
        ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return {
        "python": platform.python_version(),
        "versions": versions,
        "commit": commit or None,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name(),
        "threads": torch.get_num_threads(),
        "command": " ".join(sys.argv),
    }


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return f"cpu ({line.split(':', 1)[1].strip()})"
    except OSError:
        pass
    return f"cpu ({platform.processor() or platform.machine()})"


def measure(trainer: L.Trainer, module: SGMCMCModule, keep: KeepDraws) -> dict[str, Any]:
    """Return the metrics of ensemble, posterior mean, last draws and end of burn-in.

    They are of the test set if the run has one, of the validation set otherwise; the ensemble's
    and the burn-in's on the validation set stand beside.
    """
    if not keep.held_out or not keep.num_draws:
        return {}
    name = "test" if "test" in keep.held_out else "val"
    module_metrics = {
        "ensemble": module.metrics(keep.ensemble(name), keep.held_out[name].examples),
        "last": keep.measure_network(trainer, module, name),
    }
    module_metrics["posterior_mean"] = keep.measure_mean(trainer, module, name)
    if name in keep.reference:
        module_metrics["burn_in"] = keep.reference[name]
    if name != "val" and "val" in keep.held_out:
        module_metrics["ensemble_val"] = module.metrics(
            keep.ensemble("val"), keep.held_out["val"].examples
        )
        if "val" in keep.reference:
            module_metrics["burn_in_val"] = keep.reference["val"]
    return module_metrics


def diagnostics(module: SGMCMCModule, keep: KeepDraws) -> dict[str, Any]:
    """Return the chain's temperature and whether it is that of the stated target."""
    temperatures = [
        row["kinetic_temperature"] for row in keep.history if "kinetic_temperature" in row
    ]
    result: dict[str, Any] = {
        "minibatches": module.stream.sampling if module.stream is not None else "dataloader",
        "step_size": module.sampler.lr,
        "stability": module.stability,
        "notes": module.notes(),
        "alarms": [],
    }
    target = module.sampler.temperature
    if temperatures and target > 0:
        value = float(np.mean(temperatures))
        result["kinetic_temperature"] = value
        if not 0.9 * target <= value <= 1.15 * target:
            result["alarms"].append(
                f"the chain's kinetic temperature is {value:.3g}, not within 0.9 to 1.15 times the "
                f"stated {target:g}: it does not sample its posterior; lower the step size"
            )
    shift = half_chain_shift(keep.weight_traces(module, 1000)[1])
    if shift is not None:
        result["half_chain_shift"] = shift
        if shift > 0.2:
            result["notes"].append(
                f"the two halves of the chain differ by {shift:.2f} standard deviations in a "
                "typical weight: it explores around where burn-in ended and has not mixed over "
                "the posterior; chains from several seeds show more of it"
            )
    return result


def half_chain_shift(traces: NDArray[np.float64]) -> float | None:
    """Return how far the means of a chain's halves lie apart, in standard deviations.

    Args:
        traces: Values of some weights, [chains, draws, weights].

    Returns:
        The median over chains and weights of |mean of first half - mean of second half| / standard
        deviation of the whole; about 2 / sqrt(effective sample size) for a chain that mixes, at
        most 2. None for fewer than four draws.
    """
    if traces.shape[1] < 4:
        return None
    half = traces.shape[1] // 2
    gap = np.abs(traces[:, :half].mean(1) - traces[:, -half:].mean(1))
    spread = traces.std(1)
    moving = spread > 0
    return float(np.median(gap[moving] / spread[moving])) if moving.any() else None


def build(
    trainer: L.Trainer, module: SGMCMCModule, keep: KeepDraws, task: str, wall_seconds: float
) -> dict[str, Any]:
    """Return the content of ``results.json``."""
    sampler = module.sampler
    return {
        "schema": 1,
        "provenance": provenance(module.device),
        "task": task,
        "sampler": {
            "name": sampler.name,
            "preconditioner": repr(sampler.preconditioner),
            "prior": repr(sampler.prior),
            "lr": sampler.lr,
        },
        "seed": sampler.seed,
        "temperature": sampler.temperature,
        "num_data": sampler.num_data,
        "num_parameters": sampler.num_parameters,
        "num_chains": module.num_chains * (1 if replicas(trainer)[2] else trainer.world_size),
        "num_draws": keep.num_draws,
        "num_gradients": module.num_gradients,
        "wall_seconds": wall_seconds,
        "metrics": measure(trainer, module, keep),
        "diagnostics": diagnostics(module, keep),
        "task_details": module.describe(),
        "paper": module.paper(),
    }


def write(folder: Path, results: dict[str, Any]) -> None:
    """Write ``results.json`` beside and rename it; numbers that are not finite become null."""
    write_beside(folder / "results.json", json.dumps(_plain(results), indent=2) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, (np.floating, float)):
        return float(value) if math.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value
