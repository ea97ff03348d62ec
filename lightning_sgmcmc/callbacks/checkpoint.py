"""Checkpoints from which a chain continues to the bit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Checkpoint

from lightning_sgmcmc.callbacks.run import run_folder
from lightning_sgmcmc.chain.processes import Processes, own_checkpoint


class ChainCheckpoint(Checkpoint):
    """Write ``checkpoints/last.ckpt`` every so many steps and at the end of the run.

    The file is written beside and renamed, so that a kill at any moment leaves a whole one. It
    runs after every other callback, so that it holds what they did in the same step.

    Args:
        every: Steps between checkpoints.

    Raises:
        ValueError: If ``every`` is not positive.
    """

    def __init__(self, every: int = 500) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every}")
        self.every = every

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        """Save where it is due."""
        step = trainer.global_step
        if step % self.every == 0 or step == trainer.max_steps:
            self._save(trainer)

    def _save(self, trainer: L.Trainer) -> None:
        path: Path = run_folder(trainer) / "checkpoints" / "last.ckpt"
        temporary = path.with_name(".last.ckpt.tmp")
        trainer.save_checkpoint(temporary, weights_only=False)
        if Processes.of(trainer).rank == 0:
            os.replace(own_checkpoint(trainer, temporary), own_checkpoint(trainer, path))
        trainer.strategy.barrier("ChainCheckpoint")
