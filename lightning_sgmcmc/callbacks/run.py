"""What a callback asks of a Trainer: the folder, the loggers, batches on the device."""

from __future__ import annotations

from pathlib import Path

import lightning as L

from lightning_sgmcmc.chain import Task
from lightning_sgmcmc.target import Batch


def run_folder(trainer: L.Trainer) -> Path:
    """Return the folder of a run: its first logger's, or the Trainer's root."""
    return Path(trainer.log_dir or trainer.default_root_dir)


def task_of(module: L.LightningModule) -> Task:
    """Return a module as a task with a chain.

    Raises:
        TypeError: If it is no SGMCMCModule.
    """
    if not isinstance(module, Task):
        raise TypeError(f"this callback needs an SGMCMCModule, got {type(module).__name__}")
    return module


def received(trainer: L.Trainer, batch: Batch) -> Batch:
    """Return a loader's batch in the run's precision, on the module's device."""
    converted = trainer.precision_plugin.convert_input(batch)
    module = trainer.lightning_module
    return module.transfer_batch_to_device(converted, module.device, 0)


def record(trainer: L.Trainer, values: dict[str, float]) -> None:
    """Send values to every logger, at the number of steps taken."""
    for logger in trainer.loggers:
        logger.log_metrics(values, step=trainer.global_step)
