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

import numpy as np
import torch

from lightning_sgmcmc.callbacks.report import label
from lightning_sgmcmc.chain import Task
from lightning_sgmcmc.common.files import DamagedFileError, digest_of, write_beside
from lightning_sgmcmc.posterior import diagnose
from lightning_sgmcmc.posterior.held_out import MEASURED

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
    if not kept.num_draws or not set(MEASURED) & set(kept.held_out):
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
        "draw_weights": chain.draw_weights,
        "num_steps": chain.steps,
        "num_gradients": chain.num_gradients,
        "wall_seconds": wall_seconds,
        "metrics": measure(task),
        "diagnostics": diagnose(kept, stability),
        "task_details": task.describe(kept),
        "paper": task.paper(),
    }


def write(folder: Path, results: dict[str, Any]) -> None:
    """Write ``results.json`` as a whole, with its checksum among the provenance.

    Numbers that are not finite become null.
    """
    content = plain(results)
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


def plain(value: Any) -> Any:
    """Return a value as JSON has it: numbers of Python's own, None for those not finite."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (np.floating, float)):
        return float(value) if math.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value
