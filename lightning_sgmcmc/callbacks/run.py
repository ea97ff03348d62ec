"""What a callback asks of a Trainer: the folder, the loggers, batches on the device."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.model_helpers import is_overridden

from lightning_sgmcmc.callbacks.log import CSVLog
from lightning_sgmcmc.chain import Task
from lightning_sgmcmc.target import Batch


def run_folder(trainer: L.Trainer) -> Path:
    """Return the folder of a run: that of its log, which :func:`open_log` has opened.

    Without a log it is the folder in which Lightning makes ``checkpoints/``: of the first logger's
    version, or the Trainer's root. All processes ask together.
    """
    for logger in trainer.loggers:
        if isinstance(logger, CSVLog):
            return logger.folder
    folder = Path(trainer.default_root_dir)
    if trainer.loggers:
        first = trainer.loggers[0]
        version = first.version if isinstance(first.version, str) else f"version_{first.version}"
        folder = Path(first.save_dir or folder, str(first.name), version)
    return Path(trainer.strategy.broadcast(str(folder)))


def open_log(trainer: L.Trainer) -> CSVLog | None:
    """Give a run its ``metrics.csv``; return None where it has one.

    Lightning's own ``CSVLogger`` gives way where it would write the same file, which it begins
    anew when a run continues.
    """
    if any(isinstance(logger, CSVLog) for logger in trainer.loggers):
        return None
    log = CSVLog(run_folder(trainer))
    own = [logger for logger in trainer.loggers if isinstance(logger, CSVLogger)]
    folder = log.folder.absolute()
    same = [logger for logger in own if Path(logger.log_dir).absolute() == folder]
    kept = [log if logger in same else logger for logger in trainer.loggers]
    trainer.loggers = kept if same else [*kept, log]
    return log


def continue_log(trainer: L.Trainer, log: CSVLog) -> None:
    """Let a run that continues from ``<folder>/checkpoints/`` keep that folder, where draws lie.

    Args:
        trainer: The run's, whose loggers have chosen a new folder.
        log: That :func:`open_log` has opened in the new folder.
    """
    before = Path(trainer.ckpt_path or "").absolute().parent.parent
    if before == log.folder.absolute() or not (before / "samples").is_dir():
        return
    rank_zero_info(f"Note: the run continues in {before}, the folder of its checkpoint")
    trainer.loggers = [CSVLog(before) if logger is log else logger for logger in trainer.loggers]
    with contextlib.suppress(OSError):
        log.folder.rmdir()  # which the logger has made, if nothing else is there


def task_of(module: L.LightningModule) -> Task:
    """Return a module as a task with a chain.

    Raises:
        TypeError: If it is no SGMCMCModule.
    """
    if not isinstance(module, Task):
        raise TypeError(f"this callback needs an SGMCMCModule, got {type(module).__name__}")
    return module


#: Lightning's hooks of modules and data modules that a loader's batches pass through.
BATCH_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")


def overrides(trainer: L.Trainer, hook: str) -> bool:
    """Return whether the task or the data module has a hook on batches of its own."""
    module, data = trainer.lightning_module, trainer.datamodule  # type: ignore[attr-defined]
    return is_overridden(hook, module, L.LightningModule) or (
        data is not None and is_overridden(hook, data, L.LightningDataModule)
    )


def received(trainer: L.Trainer, batch: Batch) -> Batch:
    """Return a loader's batch as Lightning hands it to a step: converted, moved, by all hooks."""
    module = trainer.lightning_module
    batch = trainer.precision_plugin.convert_input(batch)
    batch = module._on_before_batch_transfer(batch, 0)
    return module._apply_batch_transfer_handler(batch, module.device, 0)


def keep_fuller(folder: Path, num_draws: int) -> None:
    """Refuse to replace results of more draws.

    Raises:
        ValueError: If the folder holds them.
    """
    path = folder / "results.json"
    if not path.is_file():
        return
    try:
        held = json.loads(path.read_bytes())["num_draws"]
    except (ValueError, KeyError, TypeError):  # damaged, and so written again
        return
    if isinstance(held, int) and held > num_draws:
        raise ValueError(
            f"{path} is of {held} draws, the checkpoint of {num_draws}: the results stay as they "
            "are; move them away to sum up the checkpoint"
        )


def record(trainer: L.Trainer, values: dict[str, float]) -> None:
    """Send values to every logger, at the number of steps taken, and to callbacks that monitor."""
    for logger in trainer.loggers:
        logger.log_metrics(values, step=trainer.global_step)
    publish(trainer, values)


def publish(trainer: L.Trainer, values: Mapping[str, float]) -> None:
    """Let callbacks monitor values, as ``self.log`` does."""
    trainer.callback_metrics.update({name: torch.tensor(v) for name, v in values.items()})
