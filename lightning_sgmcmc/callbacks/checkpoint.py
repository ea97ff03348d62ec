"""Checkpoints from which a chain continues to the bit."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import lightning as L
import torch
from lightning.pytorch.callbacks import Checkpoint

from lightning_sgmcmc.callbacks.run import run_folder
from lightning_sgmcmc.callbacks.stop import RunStoppedError, StopSignal
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

    SIGTERM and SIGINT let the step in hand end; then the chain is saved, on all processes alike,
    and :class:`~lightning_sgmcmc.callbacks.stop.RunStoppedError` ends the fit.

    Args:
        every: Steps between checkpoints.
        stop: Listens for the signals; None for a listener of its own.

    Raises:
        ValueError: If ``every`` is not positive.
    """

    def __init__(self, every: int = 500, stop: StopSignal | None = None) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every}")
        self.every, self._stop = every, stop or StopSignal()
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

    def on_sanity_check_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Take the signals from Lightning, whose handler waits for the other processes."""
        self._stop.wait_for_step()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Take the signals from Lightning, whose handler waits for the other processes."""
        self._stop.wait_for_step()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stop at once from here on; Lightning gives the signals back."""
        self._stop.at_once()

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Stop at once from here on; Lightning gives the signals back."""
        self._stop.at_once()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        """Save where it is due, or where a signal asks to stop.

        Raises:
            RunStoppedError: After a signal.
        """
        step = trainer.global_step
        stops = self._stops(trainer)
        if stops or step % self.every == 0 or step == trainer.max_steps:
            self._save(trainer)
        if stops and step != trainer.max_steps:
            raise RunStoppedError(stops, step)

    def _stops(self, trainer: L.Trainer) -> int:
        """Return the number of the signal that any process got, 0 for none."""
        asked = self._stop.asked or 0
        if trainer.world_size == 1:
            return asked
        number = torch.tensor(asked, device=trainer.strategy.root_device)
        torch.distributed.all_reduce(number, torch.distributed.ReduceOp.MAX)
        return int(number)

    def _save(self, trainer: L.Trainer) -> None:
        path: Path = run_folder(trainer) / "checkpoints" / "last.ckpt"
        for logger in trainer.loggers:
            logger.save()
        temporary = path.with_name(".last.ckpt.tmp")
        trainer.save_checkpoint(temporary, weights_only=False)
        if Processes.of(trainer).rank == 0:
            os.replace(own_checkpoint(trainer, temporary), own_checkpoint(trainer, path))
        trainer.strategy.barrier("ChainCheckpoint")
