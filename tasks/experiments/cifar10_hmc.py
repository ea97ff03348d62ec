"""How far cheaper methods are from HMC's predictions on CIFAR-10 (Izmailov et al. 2021).

Cells ``LENGTH-METHOD``: reduced ones run on a CPU, full ones on a GPU. A study ``*-apart`` follows
each, and needs the published probabilities ``cifar10_hmc/reference_first5000.npz`` in the folder of
data sets.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_sgmcmc.metrics import agreement, class_metrics, label_nll
from tasks.data.download import data_root
from tasks.experiments.agreement import probabilities, test_examples
from tasks.experiments.experiment import Cell, Experiment, Study, need
from tasks.experiments.sheet import sheet
from tasks.experiments.tables import Results, Row, Table

SHEET = sheet("cifar10_hmc")
REFERENCE = Path("cifar10_hmc", "reference_first5000.npz")


def cells() -> list[Cell | Study]:
    """Return every run, and after it its distance from HMC."""
    found: list[Cell | Study] = []
    for run in SHEET.runs():
        found += [run, Study(f"{run.name}-apart", partial(apart, run=run.name))]
    return found


def left_out() -> tuple[list[str], str]:
    """Return the full runs where there is no GPU, the reduced ones where there is one."""
    length = "reduced" if torch.cuda.is_available() else "full"
    names = [cell.name for cell in cells() if cell.name.startswith(length)]
    return names, "full runs want a GPU, reduced ones are for a CPU"


def reference() -> Tensor:
    """Return HMC's probabilities [5000, 10] of the first test images.

    Raises:
        FileNotFoundError: If the file is not in the folder of data sets.
    """
    path = data_root() / REFERENCE
    if not path.is_file():
        raise FileNotFoundError(
            f"HMC's predictions are missing: put {REFERENCE} into {data_root()}"
        )
    with np.load(path) as content:
        return torch.from_numpy(content["probabilities"]).double()


def apart(folder: Path, run: str) -> dict[str, Any]:
    """Return the metrics of a run's predictions on HMC's images, and their distance from HMC's.

    Raises:
        ValueError: If the run is not finished.
        FileNotFoundError: If HMC's predictions are not in the folder of data sets.
    """
    need(folder.parent / run)
    expected = reference()
    x, y = test_examples(folder.parent / run)
    found = probabilities(folder.parent / run, x[: len(expected)])
    content = json.loads((folder.parent / run / "results.json").read_text())
    return {
        "metrics": distances(found, expected, y[: len(expected)]),
        "draws": content["num_draws"] * content["num_chains"],
        "minutes": content["wall_seconds"] / 60,
    }


def distances(found: Tensor, expected: Tensor, labels: Tensor) -> dict[str, float]:
    """Return the metrics of probabilities [N, C], and their distance from expected ones."""
    own = class_metrics(found, label_nll(found, labels), labels)
    return own | agreement(torch.stack([expected, found]))


def report(results: Results) -> list[str | Table]:
    """Return a row for each run."""
    rows = [
        Row([passes, label], f"{length}-{method}-apart")
        for length, passes in SHEET.settings["lengths"].items()
        for method, label in SHEET.labels.items()
    ]
    return [SHEET.intro, Table(SHEET.heading, SHEET.made(SHEET.columns), rows)]


EXPERIMENT = Experiment(cells, report, left_out=left_out)
