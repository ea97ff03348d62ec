"""What is trained beside or computed after a run: students of distillation, and MC dropout.

``distilled`` and ``mc_dropout`` return the content of a ``results.json`` with one repetition for
each run collected.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from lightning_sgmcmc import load_posterior
from lightning_sgmcmc.baselines import mc_dropout_predictions
from tasks.data.mnist import MNISTData
from tasks.experiments.experiment import need
from tasks.experiments.overrides import Component, component, ours

MASKS = 100
#: Adam's step, of students.
LR = 1e-4


def student(hidden: list[int]) -> Component:
    """Return the callback that trains a network with the teacher's hidden layers on its draws."""
    net = component(
        "tasks.nets.fan_in_mlp.FanInMLP", inputs=784, hidden=hidden, activation="relu", outputs=10
    )
    adam = component("torch.optim.Adam", lr=LR)
    settings: dict[str, Any] = {"noise_std": 0.1, "prior_precision": 0.1}
    return ours("callbacks.Distillation", student=net, optimizer=adam, **settings)


def distilled(folder: Path, name: str, seeds: int) -> dict[str, Any]:
    """Collect the students of the runs ``NAME-seed0`` and so on, beside ``folder``.

    Raises:
        ValueError: If one of the runs is not finished.
    """
    runs = _runs(folder, name, seeds)
    metrics = [json.loads((run / "student.json").read_text())["metrics"]["test"] for run in runs]
    return _content(runs, metrics)


def mc_dropout(folder: Path, name: str, seeds: int) -> dict[str, Any]:
    """Predict MNIST's test set by each run's last network under 100 draws of its masks.

    Raises:
        ValueError: If one of the runs is not finished.
    """
    runs = _runs(folder, name, seeds)
    metrics = []
    for run in runs:
        data = MNISTData(flatten=True, scale="126")
        data.prepare_data()
        data.setup()
        batch = data.tensors("test")
        (network,) = load_posterior(run)
        prediction = mc_dropout_predictions(network, batch, MASKS)
        metrics.append(network.metrics(prediction, batch))
    return _content(runs, metrics)


def _runs(folder: Path, name: str, seeds: int) -> list[Path]:
    runs = [folder.parent / f"{name}-seed{seed}" for seed in range(seeds)]
    for run in runs:
        need(run)
    return runs


def _content(runs: list[Path], metrics: list[dict[str, float]]) -> dict[str, Any]:
    """Return one result of all runs: each is a repetition, as a chain is elsewhere."""
    results = [json.loads((run / "results.json").read_text()) for run in runs]
    kept = ("num_data", "num_parameters", "num_gradients", "temperature", "provenance")
    each = {name: [row[name] for row in metrics] for name in metrics[0]}
    return {name: results[0][name] for name in kept} | {
        "wall_seconds": sum(result["wall_seconds"] for result in results),
        "num_draws": 1,
        "num_chains": len(runs),
        "metrics": {"ensemble": {name: float(np.mean(values)) for name, values in each.items()}},
        "task_details": {"chains": {"metrics": each}},
        "diagnostics": {},
    }
