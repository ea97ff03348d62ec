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

import lightning as L
import numpy as np
import torch
from numpy.typing import NDArray

from lightning_sgmcmc import label
from lightning_sgmcmc.callbacks.draws import KeepDraws
from lightning_sgmcmc.diagnostics import alarms, configurational_temperature, summarise
from lightning_sgmcmc.module import SGMCMCModule
from lightning_sgmcmc.posterior.draws import write_beside
from lightning_sgmcmc.step_size import minibatch_noise
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


def diagnostics(trainer: L.Trainer, module: SGMCMCModule, keep: KeepDraws) -> dict[str, Any]:
    """Return what tells whether the draws are a sample of the stated target, with alarms."""
    sampler = module.sampler
    result: dict[str, Any] = {
        "minibatches": _batches(module),
        "step_size": sampler.lr,
        "stability": module.stability,
        "notes": module.notes(),
        "alarms": [],
    }
    verdict: dict[str, Any] = {"temperature": sampler.temperature}
    kinetic = [row["kinetic_temperature"] for row in keep.history if "kinetic_temperature" in row]
    if kinetic:
        verdict["kinetic_temperature"] = float(np.mean(kinetic))
        result["kinetic_temperature"] = verdict["kinetic_temperature"]
    if not keep.num_draws:
        return result
    traces = {
        kind: _joined(trainer, keep.probes.trace(kind))
        for kind in ("weights", "forces", "predictions")
    }
    if traces["forces"].size and sampler.temperature:
        measured = configurational_temperature(
            traces["weights"], traces["forces"], keep.probes.layers
        )
        verdict["configurational"] = measured
        result["configurational_temperature"] = asdict(measured.total) | {
            "layers": {name: layer.value for name, layer in measured.layers.items()}
        }
    noise = minibatch_noise(module, sampler.lr)
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
        keep.draw_weights,
    )
    result["alarms"] = alarms(result["mixing"], **verdict)
    return result


def _batches(module: SGMCMCModule) -> str:
    """Return how minibatches were drawn."""
    return module.stream.sampling if module.stream is not None else "dataloader"


def _joined(trainer: L.Trainer, traces: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return traces [K, ...] with the chains of all processes."""
    if replicas(trainer).data_parallel:
        return traces
    gathered = trainer.strategy.all_gather(
        torch.from_numpy(traces).to(trainer.strategy.root_device)
    )
    return gathered.flatten(0, 1).cpu().numpy()


def build(
    trainer: L.Trainer, module: SGMCMCModule, keep: KeepDraws, task: str, wall_seconds: float
) -> dict[str, Any]:
    """Return the content of ``results.json``."""
    sampler = module.sampler
    return {
        "schema": 1,
        "provenance": provenance(module.device),
        "task": task,
        "sampler": label.describe(sampler, module._scheduler(0), _batches(module)),
        "seed": sampler.seed,
        "temperature": sampler.temperature,
        "num_data": sampler.num_data,
        "num_parameters": sampler.num_parameters,
        "num_chains": module.num_chains
        * (1 if replicas(trainer).data_parallel else trainer.world_size),
        "num_draws": keep.num_draws,
        "num_gradients": module.num_gradients,
        "wall_seconds": wall_seconds,
        "metrics": measure(trainer, module, keep),
        "diagnostics": diagnostics(trainer, module, keep),
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
