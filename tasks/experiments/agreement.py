"""How far the predictive probabilities of runs are from those of a reference run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.cli import instantiate_class
from torch import Tensor

from lightning_sgmcmc import load_posterior
from lightning_sgmcmc.metrics import agreement
from lightning_sgmcmc.run.config_file import read_config
from tasks.experiments.experiment import need


def compare(folder: Path, reference: str, runs: Sequence[str]) -> dict[str, Any]:
    """Return ``agreement`` and ``total_variation`` of each run with the reference.

    Those are :func:`~lightning_sgmcmc.metrics.agreement`'s, of the means over the draws on disk, on
    the reference's test examples.

    Args:
        folder: Of this computation, beside those of the runs.
        reference: Name of the reference's folder.
        runs: Names of the others.

    Raises:
        ValueError: If one of the runs is not finished.
    """
    for name in (reference, *runs):
        need(folder.parent / name)
    x, _ = test_examples(folder.parent / reference)
    expected = probabilities(folder.parent / reference, x)
    found = {run: probabilities(folder.parent / run, x) for run in runs}
    return {"metrics": {k: agreement(torch.stack([expected, p])) for k, p in found.items()}}


def test_examples(run: Path) -> tuple[Tensor, Tensor]:
    """Return inputs and labels of a run's test examples."""
    data = instantiate_class((), read_config(run / "config.yaml")["data"])
    data.setup()
    x, y = data.tensors("test")
    return x, y


def probabilities(run: Path, x: Tensor) -> Tensor:
    """Return mean probabilities [N, C] of a run's draws for inputs x; C = 2 of one probability."""
    mean = load_posterior(run).predict(x).mean.double()
    return torch.stack([1 - mean, mean], 1) if mean.ndim == 1 else mean
