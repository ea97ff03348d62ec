"""The test error along a run, of the current networks and of the draws so far."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
from torch import Tensor

from lightning_sgmcmc.callbacks.run import record, task_of

NETWORK, ENSEMBLE = "curve/network_error_percent", "curve/ensemble_error_percent"


class LearningCurve(L.Callback):
    """Write the classification error on the test set to ``metrics.csv`` every so many steps.

    ``curve/network_error_percent`` is the error of the network whose weights the chain holds at
    that step; ``curve/ensemble_error_percent`` that of the ensemble of the chain's draws before it,
    which a chain without draws lacks. Of several chains each is the mean over the chains: their
    ensembles stay apart. Without a test set it is the validation set's.

    Args:
        every: Steps between two measurements, positive.

    Raises:
        ValueError: If ``every`` is not positive.
    """

    def __init__(self, every: int) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every}")
        self.every = every

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        """Measure, if it is time."""
        if trainer.global_step % self.every:
            return
        keep = task_of(pl_module).kept
        name = next((n for n in ("test", "val") if n in keep.held_out), None)
        if name is None:
            return
        values = {NETWORK: keep.measure_network(name)["error_percent"]}
        if keep.num_draws:
            means = keep.chain_means(name)
            labels = keep.held_out[name].examples[1]
            chains = keep.ensemble(name).mean[None] if means is None else means
            values[ENSEMBLE] = float(np.mean([_error(p, labels) for p in chains]))
        record(trainer, values)


def _error(probabilities: Tensor, labels: Tensor) -> float:
    return 100 * float((probabilities.argmax(1) != labels).double().mean())


def read_curve(run: Path, name: str) -> list[tuple[int, float]]:
    """Return steps and errors of a run's folder, none if it has no such curve.

    Args:
        run: The run's folder.
        name: ``NETWORK`` or ``ENSEMBLE``.
    """
    path = run / "metrics.csv"
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return [
            (int(row["step"]), float(row[name])) for row in csv.DictReader(file) if row.get(name)
        ]
