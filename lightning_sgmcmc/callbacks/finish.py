"""The end of a run: results, figures and the table, made of what the run kept."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import lightning as L
import torch
from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.utils._pytree import tree_leaves

from lightning_sgmcmc.callbacks.checkpoint import ChainCheckpoint
from lightning_sgmcmc.callbacks.log import CSVLog
from lightning_sgmcmc.callbacks.report import remedy, results, table
from lightning_sgmcmc.callbacks.report.figures import draw_all
from lightning_sgmcmc.callbacks.run import keep_fuller, run_folder, task_of
from lightning_sgmcmc.chain import Task
from lightning_sgmcmc.posterior import KeptDraws


@runtime_checkable
class SumsUp(Protocol):
    """A logger that takes a run's results in a form of its own."""

    def sum_up(self, content: dict[str, Any], kept: KeptDraws) -> None:
        """Take the content of ``results.json``, and the draws."""


class Finish(L.Callback):
    """Sum a run up at its end: results, figures and the table.

    ``results.json`` and ``figures/`` go into the run's folder and to the loggers that take them,
    the table to the output. What was measured, the verdict on the draws and where they come from
    is the same whether the command line or a script has run the Trainer.

    Args:
        name: Of the task; by default that of the module's class.
        arguments: The run's command line, which the remedy of its alarms changes.
    """

    def __init__(self, name: str | None = None, arguments: Sequence[str] = ()) -> None:
        self.name, self.arguments = name, arguments
        self._began = time.monotonic()

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Take the time, for runs without checkpoints."""
        self._began = time.monotonic()

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Sum up a fit that has ended.

        Raises:
            ValueError: If the folder holds results of more draws, or no draw was kept.
        """
        if stage != "fit" or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        task = task_of(pl_module)
        task.to(_device_of_data(task))  # from where Lightning has taken the weights
        try:
            self._sum_up(trainer, task)
        finally:
            task.cpu()

    def _sum_up(self, trainer: L.Trainer, task: Task) -> None:
        callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
        checkpoints = [c for c in callbacks if isinstance(c, ChainCheckpoint)]
        seconds = checkpoints[0].seconds if checkpoints else time.monotonic() - self._began
        name = self.name or type(task).__name__.lower()
        adaptation: Any = task.adaptation
        content = results.build(task, adaptation.stability, name, seconds)
        content["changes"] = checkpoints[0].changes if checkpoints else []
        if not trainer.is_global_zero:
            return
        folder = run_folder(trainer)
        keep_fuller(folder, content["num_draws"])
        content["price"] = task.price(content)
        for logger in trainer.loggers:
            logger.save()
        results.write(folder, content)
        figures = folder / "figures"
        figures.mkdir(exist_ok=True)
        for title, figure in draw_all(folder, task, content).items():
            figure.savefig(figures / f"{title}.png", dpi=130)
        summary = task.summary(content) if content["metrics"] else []
        settings = checkpoints[0].settings if checkpoints else None
        command = None
        if self.arguments and settings is not None:
            command = remedy.command(folder, dict(settings), content, self.arguments)
        print(f"\n{table.text(content, summary, command)}\n", flush=True)
        for logger in trainer.loggers:
            _send(logger, trainer.global_step, content, task.kept, figures)
        summed_up = any(isinstance(callback, NoStep) for callback in callbacks)
        if not content["num_draws"] and not summed_up:
            raise ValueError(
                f"no draw was kept: the run ended at step {trainer.global_step} with burn_in = "
                f"{task.chain.draws.burn_in}, by max_time, max_epochs, limit_train_batches or a "
                "callback such as EarlyStopping"
            )


def _device_of_data(task: Task) -> torch.device:
    """Return where the data lie that a chain and its draws have used."""
    stream, sets = task.chain.stream, task.kept.held_out.values()
    batches = [held_out.first for held_out in sets] + ([stream.tensors] if stream else [])
    tensors = [leaf for leaf in tree_leaves(batches) if isinstance(leaf, Tensor)]
    return tensors[0].device if tensors else task.chain.device


class NoStep(L.Callback):
    """Restore a run from its checkpoint and take no step."""

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Let the run end where its checkpoint stands."""
        trainer.fit_loop.epoch_loop.max_steps = 0


def _send(
    logger: Logger, step: int, content: dict[str, Any], kept: KeptDraws, figures: Path
) -> None:
    """Send final metrics and figures to a logger that takes them; its failure is a warning.

    The folder has all of it, and a tracker that is out of reach or has no place to write to may
    raise anything.
    """
    if isinstance(logger, CSVLog):
        logger.finalize("success")
        return
    try:
        if isinstance(logger, SumsUp):
            logger.sum_up(content, kept)
        else:
            logger.log_metrics(table.numbers(content), step=step)
            for image in sorted(figures.glob("*.png")):
                _send_image(logger, image, step)
        logger.finalize("success")
    except Exception as error:
        rank_zero_warn(
            f"{type(logger).__name__} has not taken the results, which are in {figures.parent}: "
            f"{str(error) or type(error).__name__}"
        )
        with suppress(Exception):
            logger.finalize("failed")


def _send_image(logger: Logger, image: Path, step: int) -> None:
    """Send a figure to a logger of a kind that takes pictures."""
    from matplotlib.image import imread

    if isinstance(logger, TensorBoardLogger):
        pixels = imread(image)
        logger.experiment.add_image(f"figures/{image.stem}", pixels, step, dataformats="HWC")
    elif isinstance(logger, MLFlowLogger):
        logger.experiment.log_artifact(logger.run_id, str(image), "figures")
    elif hasattr(logger, "log_image"):
        logger.log_image(f"figures/{image.stem}", [str(image)])
