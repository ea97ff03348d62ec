"""What may change where a run is continued, and from which step on it did."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning_sgmcmc.callbacks.checkpoint_files import read_checkpoint

#: The settings that change neither what is drawn nor the data. Paths of data count among them,
#: because the checkpoint knows the data by their content. So do devices and the chains of each
#: process: the number of all chains is compared by itself.
MAY_CHANGE = (
    "checkpoint_every",
    "data.file",
    "data.root",
    "model.draw_budget",
    "model.num_chains",
    "name",
    "trainer.accelerator",
    "trainer.devices",
    "trainer.enable_model_summary",
    "trainer.enable_progress_bar",
    "trainer.log_every_n_steps",
    "trainer.logger",
    "trainer.max_epochs",
    "trainer.max_steps",
    "trainer.max_time",
    "trainer.num_nodes",
    "trainer.num_sanity_val_steps",
    "trainer.profiler",
    "trainer.strategy",
    "wandb_draws",
    "wandb_project",
)

Change = dict[str, Any]


def changes(checkpoint: Path, settings: Mapping[str, Any]) -> list[Change]:
    """Return what changed in a run's settings so far.

    Args:
        checkpoint: From which the run goes on.
        settings: The configuration that it goes on with, of plain values.

    Returns:
        One entry a change: the setting, its value before and after, and the number of steps that
        were taken with the value before.

    Raises:
        ValueError: If a setting changes that must not; the message names it and both values. Or if
            the run has taken more steps already.
        DamagedFileError: If the checkpoint is not what was written.
    """
    content = read_checkpoint(checkpoint)
    before = json.loads(content["sgmcmc_settings"]) if "sgmcmc_settings" in content else None
    if before is None:  # the run was not started by the command line
        return []
    steps, most = content["global_step"], settings["trainer"]["max_steps"]
    if 0 <= most < steps:
        raise ValueError(
            f"the run has taken {steps} steps, and trainer.max_steps = {most} is fewer: give as "
            "many or more"
        )
    found: list[Change] = json.loads(content["sgmcmc_changes"])
    old, new = named(before), named(settings)
    for name in sorted(old.keys() | new.keys(), key=lambda n: (not n.endswith("class_path"), n)):
        if name not in old and not any(name.startswith(f"{known}.") for known in old):
            continue  # an option of a later version, whose value the checkpoint's target judges
        values = old.get(name), new.get(name)
        if values[0] == values[1]:
            continue
        if not any(name == free or name.startswith(f"{free}.") for free in MAY_CHANGE):
            raise ValueError(
                f"{name.removesuffix('.class_path')} cannot change where a run is continued: "
                f"{_shown(values[0])} so far, {_shown(values[1])} now; give what it had, or start "
                "a run of its own"
            )
        found.append({"setting": name, "from": values[0], "to": values[1], "step": steps})
    return found


def named(settings: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested settings by the dotted names of the command line.

    Args:
        settings: Mappings within mappings; those of a class have ``class_path`` and ``init_args``.
        prefix: Of all names.
    """
    if not isinstance(settings, Mapping) or not settings:
        return {prefix.removesuffix("."): settings}
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= named(value, prefix if key == "init_args" else f"{prefix}{key}.")
    return found


def _shown(value: Any) -> str:
    return json.dumps(value) if not isinstance(value, str) else value
