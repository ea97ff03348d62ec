"""The sets of classes that come with scikit-learn: the task ``class_table`` as it stands.

Cells ``SET-SPLIT`` are runs of ``configs/class_table.yaml``; ``SET-sklearn-SPLIT`` is what
scikit-learn's logistic regression and its network of as many units find on the same rows, with
their own defaults.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lightning_sgmcmc.metrics import class_metrics, label_nll
from tasks.data.class_table import SETS, ClassTableData
from tasks.experiments.experiment import Cell, Experiment, Study
from tasks.experiments.sheet import sheet
from tasks.experiments.tables import (
    Result,
    Results,
    Row,
    Table,
    at,
    mean_and_error,
    median_and_range,
)

SHEET = sheet("class_tables")
SPLITS = range(SHEET.settings["splits"])


def cells() -> list[Cell | Study]:
    """Return a run and a study of each set and split, all sets' first splits first."""
    found: list[Cell | Study] = []
    for split in SPLITS:
        for name in SETS:
            changes = {"data.name": name, "data.split_seed": split}
            found.append(Cell(f"{name}-{split}", SHEET.config, changes))
            found.append(Study(f"{name}-sklearn-{split}", partial(compute, name, split)))
    return found


def compute(name: str, split: int, folder: Path) -> dict[str, Any]:
    """Return the metrics of scikit-learn's classifiers on the rows of a run, by method.

    Args:
        name: Of the set.
        split: The run's ``data.split_seed``.
        folder: Where arrays would go.
    """
    data = ClassTableData(name=name, split_seed=split, num_val=0.1)
    data.setup()
    (x, y), (x_test, labels) = data.tensors("train"), data.tensors("test")
    linear, network = import_module("sklearn.linear_model"), import_module("sklearn.neural_network")
    methods = {
        "logistic": linear.LogisticRegression(max_iter=10_000),
        "network": network.MLPClassifier((50,), max_iter=2_000, random_state=split),
    }
    found: dict[str, Any] = {}
    for method, classifier in methods.items():
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an optimizer that has not converged
            classifier.fit(x.numpy(), y.numpy())
        p = torch.zeros(len(labels), data.num_classes, dtype=torch.float64)
        p[:, classifier.classes_] = torch.from_numpy(
            classifier.predict_proba(x_test.numpy())
        ).double()
        metrics = class_metrics(p, label_nll(p, labels), labels)
        found[method] = metrics | {"seconds": time.perf_counter() - start}
    return {"metrics": found}


def summary(runs: list[Result], method: str) -> Result:
    """Return what the table shows of all splits of a set."""
    place = "ensemble" if method == "ours" else method
    found: Result = {"splits": len(runs)}
    for column, name in SHEET.settings["metrics"].items():
        digits = 2 if column == "error" else 3
        found[column] = mean_and_error([at(run, f"metrics.{place}.{name}") for run in runs], digits)
    ours = method == "ours"
    seconds = [at(run, "wall_seconds" if ours else f"metrics.{method}.seconds") for run in runs]
    found["seconds"] = f"{float(f'{np.mean(seconds):.2g}'):g}" if runs else "-"
    if ours and runs:
        for column, place in SHEET.settings["diagnostics"].items():
            found[column] = median_and_range([at(run, place) for run in runs])
        found["unalarmed"] = str(sum(not at(run, "diagnostics.alarms") for run in runs))
    return found


def report(results: Results) -> Iterator[str | Table]:
    """Yield a table with a row for each set and method."""
    rows = []
    for name in SETS:
        for method, label in SHEET.labels.items():
            word = "" if method == "ours" else "-sklearn"
            runs = [r for s in SPLITS if (r := results.get(f"{name}{word}-{s}")) is not None]
            rows.append(Row([name, label], record=summary(runs, method)))
    yield SHEET.intro
    yield Table(SHEET.heading, SHEET.made(SHEET.columns), rows)


EXPERIMENT = Experiment(cells, report)
