"""The end of a run: results, figures and the table, made of what the run kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
from lightning.pytorch.loggers import WandbLogger

from lightning_sgmcmc.callbacks import ChainCheckpoint
from lightning_sgmcmc.module import SGMCMCModule
from lightning_sgmcmc.run import results
from lightning_sgmcmc.run.figures import draw_all
from lightning_sgmcmc.run.loggers import CSVLog


def finish(
    trainer: L.Trainer,
    module: SGMCMCModule,
    folder: Path,
    name: str,
    checkpoints: ChainCheckpoint,
) -> None:
    """Write results and figures, send them to the loggers and print the table.

    Args:
        trainer: The run's trainer, whose fit has ended.
        module: The task, with what was kept of its draws.
        folder: Of the run.
        name: Of the task.
        checkpoints: Of the run, which know its duration and what changed on the way.

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
    for title, figure in draw_all(folder, module, content).items():
        figure.savefig(figures / f"{title}.png", dpi=130)
    _send(trainer, content, figures)
    rows = [("chain", content["sampler"]["label"])]
    rows += module.summary(content) if content["metrics"] else []
    chains = content["num_chains"]
    of_each = f" of each of {chains} chains" if chains > 1 else ""
    rows.append(("draws kept", f"{content['num_draws']}{of_each}"))
    rows += _diagnostic_rows(content["diagnostics"], module.chain.sampler.temperature)
    rows.append(("time", f"{seconds / 60:.1f} min"))
    width = max(len(row) for row, _ in rows)
    print()
    for row, value in rows:
        print(f"  {row:<{width}}  {value}")
    for note in content["diagnostics"]["notes"] + content["diagnostics"]["alarms"]:
        print(f"  Note: {note}")
    print()
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
        images = sorted(figures.glob("*.png"))
        if hasattr(logger, "log_image"):
            for image in images:
                logger.log_image(f"figures/{image.stem}", [str(image)])
        logger.finalize("success")
        if isinstance(logger, WandbLogger):
            logger.experiment.finish()
