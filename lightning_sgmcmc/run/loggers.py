"""W&B that never asks."""

from __future__ import annotations

import netrc
import os
from pathlib import Path

from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_info


def wandb_has_key() -> bool:
    """Return whether W&B can log in without asking."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        entry = netrc.netrc().authenticators("api.wandb.ai")
        return entry is not None and bool(entry[2])
    except (FileNotFoundError, netrc.NetrcParseError, OSError):
        return False


def wandb_logger(folder: Path, name: str, project: str = "lightning-sgmcmc") -> WandbLogger:
    """Return a W&B logger that writes into the run's folder, offline when there is no key.

    The environment variable ``WANDB_MODE`` wins if it is set.

    Args:
        folder: The run's folder.
        name: The run's display name.
        project: The W&B project.
    """
    mode = os.environ.get("WANDB_MODE")  # Lightning itself leaves "dryrun" there
    offline = mode in ("offline", "dryrun") or (mode is None and not wandb_has_key())
    os.environ.setdefault("WANDB_SILENT", "true")
    if offline:
        rank_zero_info(
            "W&B: no API key, logging offline; send the run later with "
            f"`wandb sync {folder / 'wandb'}/offline-run-*`"
        )
    logger = WandbLogger(name=name, save_dir=str(folder), project=project, offline=offline)
    # Lightning always passes on a setting of which W&B only says that it has no effect.
    getattr(logger, "_wandb_init", {}).pop("anonymous", None)
    return logger
