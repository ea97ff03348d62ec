"""Where a run's files go."""

from __future__ import annotations

from pathlib import Path

import lightning as L


def run_folder(trainer: L.Trainer) -> Path:
    """Return the folder of a run: its first logger's, or the Trainer's root."""
    return Path(trainer.log_dir or trainer.default_root_dir)
