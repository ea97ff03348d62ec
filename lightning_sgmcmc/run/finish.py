"""The end of a run: results, figures and the table, made of what the run kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.loggers import WandbLogger

from lightning_sgmcmc.callbacks import ChainCheckpoint
from lightning_sgmcmc.module import SGMCMCModule
from lightning_sgmcmc.posterior import KeptDraws
from lightning_sgmcmc.run import remedy, results, table
from lightning_sgmcmc.run.figures import draw_all
from lightning_sgmcmc.run.loggers import CSVLog
from lightning_sgmcmc.run.wandb_run import WandbRun, numbers


def finish(
    trainer: L.Trainer,
    module: SGMCMCModule,
    folder: Path,
    name: str,
    checkpoints: ChainCheckpoint,
    arguments: Sequence[str] = (),
) -> None:
    """Write results and figures, send them to the loggers and print the table.

    Args:
        trainer: The run's trainer, whose fit has ended.
        module: The task, with what was kept of its draws.
        folder: Of the run.
        name: Of the task.
        checkpoints: Of the run, which know its duration, its configuration and what changed on the
            way.
        arguments: The run's command line, which the remedy of its alarms changes.

    Raises:
        ValueError: If the folder holds results of more draws, or no draw was kept.
    """
    seconds = checkpoints.seconds
    content = results.build(module, module.adaptation.stability, name, seconds)
    content["changes"] = checkpoints.changes
    if not trainer.is_global_zero:
        return
    _keep_fuller(folder, content["num_draws"])
    for logger in trainer.loggers:
        logger.save()
    results.write(folder, content)
    figures = folder / "figures"
    figures.mkdir(exist_ok=True)
    for title, figure in draw_all(folder, module).items():
        figure.savefig(figures / f"{title}.png", dpi=130)
    _send(trainer, content, module.kept, figures)
    summary = module.summary(content) if content["metrics"] else []
    command = None
    if arguments and checkpoints.settings is not None:
        command = remedy.command(folder, dict(checkpoints.settings), content, arguments)
    print(f"\n{table.text(content, summary, command)}\n")
    callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    summed_up = any(isinstance(callback, NoStep) for callback in callbacks)
    if not content["num_draws"] and not summed_up:
        raise ValueError(
            f"no draw was kept: the run ended at step {trainer.global_step} with burn_in = "
            f"{module.chain.draws.burn_in}, by max_time, max_epochs or limit_train_batches"
        )


class NoStep(L.Callback):
    """Restore a run from its checkpoint and take no step."""

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Let the run end where its checkpoint stands."""
        trainer.fit_loop.epoch_loop.max_steps = 0


def _keep_fuller(folder: Path, num_draws: int) -> None:
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


def _send(trainer: L.Trainer, content: dict[str, Any], kept: KeptDraws, figures: Path) -> None:
    """Send final metrics and figures to the loggers that take them."""
    for logger in trainer.loggers:
        if isinstance(logger, WandbRun):
            logger.close(content, kept)
        elif not isinstance(logger, CSVLog):
            logger.log_metrics(numbers(content), step=trainer.global_step)
            if hasattr(logger, "log_image"):
                for image in sorted(figures.glob("*.png")):
                    logger.log_image(f"figures/{image.stem}", [str(image)])
        logger.finalize("success")
        if isinstance(logger, WandbLogger) and not isinstance(logger, WandbRun):
            logger.experiment.finish()
