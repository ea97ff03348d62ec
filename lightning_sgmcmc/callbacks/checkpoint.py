"""Checkpoints from which a chain continues to the bit."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import lightning as L
from lightning.pytorch.callbacks import Checkpoint

from lightning_sgmcmc.callbacks.run import run_folder
from lightning_sgmcmc.chain.processes import Processes, own_checkpoint


@runtime_checkable
class Rewinds(Protocol):
    """A logger that can forget what was logged after a step."""

    def rewind(self, step: int) -> None:
        """Forget what was logged after ``step``."""


class ChainCheckpoint(Checkpoint):
    """Write ``checkpoints/last.ckpt`` every so many steps and at the end of the run.

    The file is written beside and renamed, so that a kill at any moment leaves a whole one. It
    runs after every other callback, so that it holds what they did in the same step. The loggers
    write what they hold first, and forget what comes after the checkpoint when a run continues.

    Args:
        every: Steps between checkpoints.

    Raises:
        ValueError: If ``every`` is not positive.
    """

    def __init__(self, every: int = 500) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every}")
        self.every = every
        self._began, self._before = time.monotonic(), 0.0

    @property
    def seconds(self) -> float:
        """Duration of the run so far, with that of the runs that it continues."""
        return self._before + time.monotonic() - self._began

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Note the duration."""
        checkpoint["sgmcmc_seconds"] = self.seconds

    def on_load_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Continue the duration, and take the loggers back to the checkpoint's step."""
        self._began, self._before = time.monotonic(), checkpoint.get("sgmcmc_seconds", 0.0)
        for logger in trainer.loggers:
            if isinstance(logger, Rewinds):
                logger.rewind(checkpoint["global_step"])

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        """Save where it is due."""
        step = trainer.global_step
        if step % self.every == 0 or step == trainer.max_steps:
            self._save(trainer)

    def _save(self, trainer: L.Trainer) -> None:
        path: Path = run_folder(trainer) / "checkpoints" / "last.ckpt"
        for logger in trainer.loggers:
            logger.save()
        temporary = path.with_name(".last.ckpt.tmp")
        trainer.save_checkpoint(temporary, weights_only=False)
        if Processes.of(trainer).rank == 0:
            os.replace(own_checkpoint(trainer, temporary), own_checkpoint(trainer, path))
        trainer.strategy.barrier("ChainCheckpoint")
