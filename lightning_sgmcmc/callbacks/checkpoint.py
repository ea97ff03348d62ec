"""Checkpoints from which a chain continues to the bit."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import lightning as L
import torch
from lightning.pytorch.callbacks import Checkpoint

from lightning_sgmcmc.callbacks.checkpoint_files import (
    LAST,
    PREVIOUS,
    keep_previous,
    remove_others,
)
from lightning_sgmcmc.callbacks.requeue import requeue
from lightning_sgmcmc.callbacks.run import run_folder, task_of
from lightning_sgmcmc.callbacks.stop import RunStoppedError, StopSignal
from lightning_sgmcmc.common.files import require

#: Seconds between questions whether another process got a signal, and the most steps, so that
#: steps which become slower do not keep a signal waiting.
_APART, _MOST_STEPS = 0.5, 128


@runtime_checkable
class Resumable(Protocol):
    """A logger that returns to what it held at a checkpoint."""

    def state_dict(self) -> dict[str, Any]:
        """Return plain values, which the checkpoint holds."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Forget what was logged after the checkpoint."""


class ChainCheckpoint(Checkpoint):
    """Write ``checkpoints/last.ckpt`` every so many steps and at the end of the run.

    The checkpoint before it stays as ``previous.ckpt``. A kill at any moment leaves a whole one of
    the two, of all processes. It runs after every other callback, so that it holds what they did in
    the same step, and after a validation that is due there. The loggers write what they hold first,
    and forget what comes after the checkpoint when a run continues.

    SIGTERM, SIGINT and SIGUSR1 let the step in hand end, of several processes some steps more, half
    a second in all; then the chain is saved, on all processes alike, and
    :class:`~lightning_sgmcmc.callbacks.stop.RunStoppedError` ends the fit. After SIGUSR1 the first
    process asks SLURM to start the job again (:mod:`lightning_sgmcmc.callbacks.requeue`).

    Args:
        every: Steps between checkpoints.
        stop: Listens for the signals; None for a listener of its own.
        settings: The run's configuration, of plain values, which every checkpoint holds.
        changes: What was changed in it where the run was continued, with the steps.

    Raises:
        ValueError: If ``every`` is not positive.
    """

    def __init__(
        self,
        every: int = 500,
        stop: StopSignal | None = None,
        settings: Mapping[str, Any] | None = None,
        changes: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every}")
        self.every, self.settings, self.changes = every, settings, list(changes)
        self._stop = stop or StopSignal()
        self._began, self._before = time.monotonic(), 0.0
        self._last_is_whole = True
        self._logs: list[dict[str, Any]] = []  # of the checkpoint that the run continues from
        self._due, self._stopped_by = False, 0  # where a validation comes first
        self._saved_at = 0  # the step of the last checkpoint
        self._asks_at, self._asked_at = 0, (0, 0.0)  # step; and step and time of the last question
        #: The last checkpoint, which ``trainer.test(ckpt_path="best")`` takes; empty before.
        self.best_model_path = ""

    @property
    def seconds(self) -> float:
        """Duration of the run so far, with that of the runs that it continues."""
        return self._before + time.monotonic() - self._began

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Note the duration and the configuration."""
        checkpoint["sgmcmc_seconds"] = self.seconds
        checkpoint["sgmcmc_settings"] = json.dumps(self.settings)
        checkpoint["sgmcmc_changes"] = json.dumps(self.changes)
        checkpoint["sgmcmc_logs"] = [log.state_dict() for log in _resumable(trainer)]

    def on_load_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Continue the duration, and note where the loggers are to go on."""
        self._began, self._before = time.monotonic(), checkpoint.get("sgmcmc_seconds", 0.0)
        self._last_is_whole = Path(str(trainer.ckpt_path)).name != PREVIOUS
        self._saved_at = checkpoint["global_step"]
        self._logs = checkpoint.get("sgmcmc_logs", [])

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Take the signals, and the loggers back to the checkpoint's step."""
        self._stop.wait_for_step()
        # Lightning 2.6 waits in every step to hear whether the first process got a SIGTERM, which
        # it does not see any more.
        trainer.fit_loop.epoch_loop.__dict__["_broadcast_sigterm_tensor"] = lambda: None
        self._asks_at, self._asked_at = 0, (trainer.global_step, time.monotonic())
        self._rewind(trainer)

    def _rewind(self, trainer: L.Trainer) -> None:
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        (run_folder(trainer) / "checkpoints").mkdir(parents=True, exist_ok=True)
        for logger, state in zip(_resumable(trainer), self._logs, strict=False):
            logger.load_state_dict(state)
        self._logs = []

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Rewind in a run that was continued with no step left, which Lightning does not start."""
        self._rewind(trainer)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save what a run that ends by epochs has not saved, and stop at once from here on.

        Lightning gives the signals back.
        """
        if self._saved_at != trainer.global_step:
            self._save(trainer)
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
        step, loop = trainer.global_step, trainer.fit_loop
        self._stopped_by = self._stops(trainer)
        ends = step == trainer.max_steps or trainer.should_stop
        self._due = bool(self._stopped_by) or step % self.every == 0 or ends
        if self._due:
            trainer._logger_connector.update_train_step_metrics()  # Lightning's turn comes later
            assert loop._data_fetcher is not None
            if not loop.epoch_loop._should_check_val_fx(loop._data_fetcher):
                self._save_and_stop(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save where it was due when the validation began.

        Raises:
            RunStoppedError: After a signal.
        """
        if self._due:
            self._save_and_stop(trainer)

    def _save_and_stop(self, trainer: L.Trainer) -> None:
        self._due = False
        self._save(trainer)
        if self._stopped_by and trainer.global_step != trainer.max_steps:
            if trainer.is_global_zero:
                requeue(self._stopped_by)
            raise RunStoppedError(self._stopped_by, trainer.global_step)

    def _stops(self, trainer: L.Trainer) -> int:
        """Return the number of the signal that any process got, 0 for none.

        Several processes ask each other every so many steps, the same ones in all of them.
        """
        asked, step = self._stop.asked or 0, trainer.global_step
        if trainer.world_size == 1:
            return asked
        if step < self._asks_at:
            return 0
        now, (before, then) = time.monotonic(), self._asked_at
        found = torch.tensor(
            [asked, (now - then) / max(1, step - before)], device=trainer.strategy.root_device
        )
        torch.distributed.all_reduce(found, torch.distributed.ReduceOp.MAX)
        number, seconds = found.tolist()
        self._asked_at = step, now
        self._asks_at = step + max(1, min(_MOST_STEPS, int(_APART / max(seconds, 1e-6))))
        return int(number)

    def _save(self, trainer: L.Trainer) -> None:
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        path: Path = run_folder(trainer) / "checkpoints" / LAST
        require(path.parent)  # it would be made again, without the draws
        for logger in trainer.loggers:
            logger.save()
        if trainer.is_global_zero and self._last_is_whole and path.exists():
            keep_previous(path)
        self._last_is_whole = True
        trainer.strategy.barrier("ChainCheckpoint")  # all of the one before, then all of this one
        trainer.save_checkpoint(path, weights_only=False)
        self._saved_at = trainer.global_step
        if trainer.is_global_zero:
            remove_others(path, task_of(trainer.lightning_module).chain.groups)
        self.best_model_path = str(path)


def _resumable(trainer: L.Trainer) -> list[Resumable]:
    return [logger for logger in trainer.loggers if isinstance(logger, Resumable)]
