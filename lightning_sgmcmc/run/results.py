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
from lightning_sgmcmc.chain import Chain, Task
from lightning_sgmcmc.diagnostics import alarms, configurational_temperature, summarise
from lightning_sgmcmc.posterior.draws import write_beside
from lightning_sgmcmc.run import label

_PACKAGES = ("torch", "lightning", "torchmetrics", "numpy", "scipy", "lightning-sgmcmc")


def provenance(device: torch.device) -> dict[str, Any]:
    """Return versions, commit and device."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    root = Path(__file__).resolve().parents[2]
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
        verdict["kinetic_temperature"] = float(np.mean(kinetic))
        result["kinetic_temperature"] = verdict["kinetic_temperature"]
    if not kept.num_draws:
        return result
    traces = {
        kind: _joined(chain, kept.probes.trace(kind))
        for kind in ("weights", "forces", "predictions")
    }
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
    result["alarms"] = alarms(result["mixing"], **verdict)
    return result


def _joined(chain: Chain, traces: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return traces [K, ...] with the chains of all processes."""
    if chain.processes.data_parallel:
        return traces
    own = torch.from_numpy(traces).to(chain.device)
    return chain.processes.gather(own).flatten(0, 1).cpu().numpy()


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
        "sampler": label.describe(sampler, chain.schedule, chain.batch_law),
        "seed": sampler.seed,
        "temperature": sampler.temperature,
        "num_data": sampler.num_data,
        "num_parameters": sum(weight.numel() for weight in chain.state(0).values()),
        "collapsed_head": chain.head.names if chain.head is not None else None,
        "num_chains": chain.processes.all_chains(chain.num_chains),
        "num_draws": kept.num_draws,
        "num_gradients": chain.num_gradients,
        "wall_seconds": wall_seconds,
        "metrics": measure(task),
        "diagnostics": diagnostics(task, stability),
        "task_details": task.describe(kept),
        "paper": task.paper(),
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
