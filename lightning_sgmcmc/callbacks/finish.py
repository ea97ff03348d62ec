"""The end of a run: results, figures and the table, made of what the run kept."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger
from torch import Tensor
from torch.utils._pytree import tree_leaves

from lightning_sgmcmc.callbacks.checkpoint import ChainCheckpoint
from lightning_sgmcmc.callbacks.log import CSVLog
from lightning_sgmcmc.callbacks.report import results
from lightning_sgmcmc.callbacks.report.figures import draw_all
from lightning_sgmcmc.callbacks.run import run_folder, task_of
from lightning_sgmcmc.chain import Task


class Finish(L.Callback):
    """Sum a run up at its end: results, figures and the table.

    ``results.json`` and ``figures/`` go into the run's folder and to the loggers that take them,
    the table to the output. What was measured, the verdict on the draws and where they come from
    is the same whether the command line or a script has run the Trainer.

    Args:
        name: Of the task; by default that of the module's class.
    """

    def __init__(self, name: str | None = None) -> None:
        self.name = name
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
        _keep_fuller(folder, content["num_draws"])
        for logger in trainer.loggers:
            logger.save()
        results.write(folder, content)
        figures = folder / "figures"
        figures.mkdir(exist_ok=True)
        for title, figure in draw_all(folder, task).items():
            figure.savefig(figures / f"{title}.png", dpi=130)
        _send(trainer, content, figures)
        _print_table(task, content)
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


def _print_table(task: Task, content: dict[str, Any]) -> None:
    """Print what came out, and what is to be said of it."""
    rows = [("chain", content["sampler"]["label"])]
    rows += task.summary(content) if content["metrics"] else []
    chains = content["num_chains"]
    of_each = f" of each of {chains} chains" if chains > 1 else ""
    rows.append(("draws kept", f"{content['num_draws']}{of_each}"))
    rows += _diagnostic_rows(content["diagnostics"], task.chain.sampler.temperature)
    rows.append(("time", f"{content['wall_seconds'] / 60:.1f} min"))
    width = max(len(row) for row, _ in rows)
    print()
    for row, value in rows:
        print(f"  {row:<{width}}  {value}")
    for note in content["diagnostics"]["notes"] + content["diagnostics"]["alarms"]:
        print(f"  Note: {note}")
    print()


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


def _diagnostic_rows(found: dict[str, Any], stated: float) -> list[tuple[str, str]]:
    """Return the rows that say how good a sample the draws are."""
    rows = []
    predictive = found.get("predictive", {})
    if np.isfinite(predictive.get("deviation_over_true", np.nan)):
        value, error = predictive["deviation_over_true"], predictive["deviation_over_true_error"]
        rows.append(("predictive deviation over the true one", f"{value:.3f} +- {error:.2g}"))
    elif "kinetic_temperature" in found:
        text = f"{found['kinetic_temperature']:.3f} (stated {stated:g})"
        rows.append(("kinetic temperature", text))
    elif np.isfinite(found.get("configurational_temperature", {}).get("value", np.nan)):
        measured = found["configurational_temperature"]
        text = f"{measured['value']:.3f} +- {measured['standard_error']:.2g} (stated {stated:g})"
        rows.append(("configurational temperature", text))
    mixing = found.get("mixing", {})
    space = next((name for name in ("predictions", "weights") if name in mixing), None)
    if space is not None and mixing[space]["rhat"] is not None:
        rhat, size = mixing[space]["rhat"], mixing[space]["ess_bulk"]
        text = f"{rhat['median']:.3f} (95 % below {rhat['q95']:.3f}), ESS {size['median']:.0f}"
        rows.append((f"R-hat of {space}, median", text))
    return rows


def _numbers(prefix: str, value: Any) -> dict[str, float]:
    """Return the numbers in nested dicts by names joined with slashes."""
    if isinstance(value, dict):
        parts = [_numbers(f"{prefix}/{key}", item) for key, item in value.items()]
        return {name: number for part in parts for name, number in part.items()}
    return {prefix: value} if isinstance(value, (int, float)) else {}


def _send(trainer: L.Trainer, content: dict[str, Any], figures: Path) -> None:
    """Send final metrics and figures to the loggers that take them."""
    flat = {
        f"final/{kind}/{name}": value
        for kind, values in content["metrics"].items()
        for name, value in values.items()
    } | _numbers("diagnostics", content["diagnostics"])
    for logger in trainer.loggers:
        if not isinstance(logger, CSVLog):
            logger.log_metrics(flat, step=trainer.global_step)
        for image in sorted(figures.glob("*.png")):
            _send_image(logger, image, trainer.global_step)
        logger.finalize("success")


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
