"""The command that follows the remedy of a run's alarms."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning_sgmcmc.diagnostics import MOMENTUM

#: Options of a run that has begun, or that a new one has of its own.
_OF_ONE_RUN = ("--out", "--ckpt_path", "--finish", "--until", "--max_time", "--print_config")

#: Bounds of a run beside its steps, and the values that lift them.
_LIFTED = {"max_time": "null", "max_epochs": "-1"}


def is_anew(content: dict[str, Any]) -> bool:
    """Return whether a remedy begins a new chain, because earlier draws are of another target.

    Args:
        content: Of the run's ``results.json``, which has a remedy.
    """
    remedy = content["diagnostics"]["remedy"]
    return bool(remedy["lr"] != 1 or remedy["whole_data"] or remedy["momentum"])


def can_be_followed(config: dict[str, Any], content: dict[str, Any]) -> bool:
    """Return whether the remedy says something that options of the run's own classes do.

    The whole data go into every step by the option ``sampling`` of a data module, which one's own
    may lack.

    Args:
        config: Configuration of the chain.
        content: Its results, with a remedy.
    """
    remedy = content["diagnostics"]["remedy"]
    options = (config.get("data") or {}).get("init_args") or {}
    says = is_anew(content) or remedy["steps"] > 1
    return says and ("sampling" in options or not remedy["whole_data"])


def changed_options(
    config: dict[str, Any], content: dict[str, Any], share: float, digits: int = 17
) -> list[str]:
    """Return the options of a new chain with the remedy's sampler, step size and minibatches.

    A step that minibatches bound is lowered by that bound.

    Args:
        config: Configuration of the present chain.
        content: Its results.
        share: Steps of the new chain over those that the present burn-in was chosen for.
        digits: Of the step size; 17 are all.
    """
    diagnostics = content["diagnostics"]
    remedy = diagnostics["remedy"]
    model = config["model"]["init_args"]
    arguments, factor = [], remedy["lr"]
    if remedy["whole_data"]:
        arguments.append("--data.sampling=full")
    sampler = model["sampler"]["init_args"]
    if remedy["momentum"]:
        arguments += ["--model.sampler=SGHMC", f"--model.sampler.momentum={MOMENTUM:g}"]
        # Another class takes over neither a given step nor the metric.
        if sampler["lr"] != "auto" and factor == 1:
            arguments.append(f"--model.sampler.lr={_rounded(sampler['lr'], digits)}")
        if metric := sampler.get("preconditioner"):
            arguments.append(f"--model.sampler.preconditioner={json.dumps(metric)}")
    energy = sampler.get("target_energy_variance")
    bound = diagnostics.get("stability", {}).get("gradient_noise")
    if factor != 1 and energy is not None:  # which the step is adapted to: it grows as lr^3
        energy = _rounded(energy * factor**3, digits)
        arguments.append(f"--model.sampler.target_energy_variance={energy}")
    elif factor < 1 and bound is not None and not remedy["whole_data"]:
        arguments.append(f"--model.max_gradient_noise={_rounded(bound * factor, digits)}")
    elif factor != 1 and sampler["lr"] == "auto":
        fraction = model["step_fraction"]
        if fraction == "auto":
            fraction = diagnostics["stability"]["step_fraction"]
        fraction = _rounded(min(0.5, fraction * factor), digits)
        arguments.append(f"--model.step_fraction={fraction}")
    elif factor != 1:
        # A schedule begins at the first step again.
        decays = model.get("schedule") is not None
        step = content["sampler"]["step"]["first"] if decays else diagnostics["step_size"]
        step *= factor
        arguments.append(f"--model.sampler.lr={_rounded(step, digits)}")
    optimizer = model.get("burn_in_optimizer") or {}
    fixed = int(optimizer.get("init_args", optimizer).get("steps", 0))
    burn_in = fixed + round((int(model["burn_in"]) - fixed) * max(1.0, share))
    return [*arguments, f"--model.burn_in={burn_in}"]


def ended_early(config: dict[str, Any], content: dict[str, Any]) -> bool:
    """Return whether something else than ``trainer.max_steps`` has ended a run.

    Args:
        config: Its configuration.
        content: Its results.
    """
    most = int(config["trainer"]["max_steps"])
    return most < 0 or int(content["num_steps"]) < most


def _without_bounds(config: dict[str, Any], content: dict[str, Any]) -> list[str]:
    """Return the options that lift what has ended a run, which would end a longer one as well."""
    if not ended_early(config, content):
        return []
    found = {name: config["trainer"].get(name) for name in _LIFTED}
    return [
        f"--trainer.{name}={_LIFTED[name]}"
        for name, value in found.items()
        if value not in (None, -1)
    ]


def command(
    folder: Path, config: dict[str, Any], content: dict[str, Any], own: Sequence[str]
) -> str | None:
    """Return the command line that follows a run's remedy; None where none is known.

    A longer run continues the chain. Any other remedy is the run's own command with the options
    that change; for another sampler, which may lack arguments of this one, the run's configuration.

    Args:
        folder: Of the run.
        config: Its configuration, of plain values.
        content: Of its ``results.json``.
        own: Its command line, without the program's name.
    """
    remedy, steps = content["diagnostics"].get("remedy"), int(content["num_steps"])
    if remedy is None or steps < 1 or not can_be_followed(config, content):
        return None
    more = int(steps * remedy["steps"])
    if not is_anew(content):
        if more <= steps:
            return None
        arguments = ["--out", str(folder), "--ckpt_path", "last"]
        arguments += _without_bounds(config, content)
        return shlex.join([*program(), *arguments, f"--trainer.max_steps={more}"])
    changed = changed_options(config, content, more / steps, digits=4)
    changed += [*_without_bounds(config, content), f"--trainer.max_steps={more}"]
    names = {option.partition("=")[0] for option in changed}
    given = [argument.partition("=")[0] for argument in own]
    if "--ckpt_path" in given or "--finish" in given or remedy["momentum"]:
        own = ["--config", str(folder / "config.yaml")]
    kept = without(own, {*names, *_OF_ONE_RUN})
    out = ["--out", f"{folder}-2"] if "--out" in given or remedy["momentum"] else []
    return shlex.join([*program(), *kept, *changed, *out])


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")


def without(arguments: Sequence[str], names: set[str]) -> list[str]:
    """Return a command line without the options of these names, and their values."""
    kept: list[str] = []
    skips = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if skips and not argument.startswith("--"):
            skips = False
            continue
        skips = name in names and not equals
        if name not in names:
            kept.append(argument)
    return kept


def program() -> list[str]:
    """Return how ``train`` was started, for a command that can be pasted."""
    started = Path(sys.argv[0])
    if started.name == "sgmcmc.py":
        return ["python", "-m", "sgmcmc", "train"]
    return ["python", sys.argv[0]] if started.name == "train.py" else ["sgmcmc", "train"]
