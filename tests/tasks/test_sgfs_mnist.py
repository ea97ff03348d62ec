"""SGFS's small network on MNIST: its runs are commands with the published settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.experiments import reproduce
from tasks.experiments.experiment import Cell
from tasks.experiments.sgfs import mnist as sgfs_mnist
from tasks.nets.mlp import MLP
from tests.tasks.test_images import root as mnist_files

ROOT = Path(__file__).resolve().parents[2]
files = mnist_files


def test_names_are_those_of_the_table() -> None:
    assert [cell.name for cell in sgfs_mnist.EXPERIMENT.cells()] == list(sgfs_mnist.LABELS)


def test_the_network_has_the_paper_s_940_weights() -> None:
    net = MLP((30,), "sigmoid", inputs=20, outputs=10)
    assert sum(p.numel() for p in net.parameters()) == 940


@pytest.mark.parametrize("cell", sgfs_mnist.EXPERIMENT.cells(), ids=lambda c: c.name)
def test_cells_are_valid_commands(cell: Cell, parsed: Any) -> None:
    content = parsed(cell)
    model, data = content["model"]["init_args"], content["data"]["init_args"]
    assert (model["net"]["init_args"]["hidden"], data["projection_dim"]) == ([30], 20)
    assert model["net"]["init_args"]["activation"] == "sigmoid"
    assert data["batch_size"] == 2000
    sampler = model["sampler"]["init_args"]
    assert sampler["prior"]["init_args"]["variance"] == pytest.approx(1 / 0.001)
    if cell.name.startswith("sgfs"):
        assert sampler["variant"] == {"d": "diagonal", "f": "full"}[cell.name[5]]
        assert sampler["lr"] == pytest.approx(2 / (31 * 5), rel=1e-5)  # gamma 31, alpha 2
        assert model["freeze_preconditioner"] == cell.name.endswith("frozen")
        return
    schedule = model["schedule"]["init_args"]
    scale = 30 if cell.name.endswith("small") else 1
    for step in (0, 9000):  # epsilon_t N / 2 with epsilon_t = 1 / (1000 + t)
        lr = sampler["lr"] * (1 + step / schedule["b"]) ** -schedule["gamma"]
        assert lr * scale == pytest.approx(60_000 / (1000 + step) / 2)


def test_a_small_run_its_row_and_its_curve(files: Path, capsys: Any) -> None:
    small = [
        "--model.net.hidden=[4]",
        "--model.sampler.lr=0.1",
        "--model.burn_in=50",
        "--model.thinning=50",
        "--trainer.max_steps=1200",
        "--trainer.logger=false",
        "--trainer.enable_progress_bar=false",
        "--data.projection_dim=3",
        "--data.batch_size=10",
    ]
    out = files / "out"
    command = ["sgfs_mnist", "--out", str(out), "--data-root", str(files), *small]
    reproduce.main(ROOT, [*command, "--cell", "sgfs-f-frozen"])
    printed = capsys.readouterr().out
    content = json.loads((out / "sgfs-f-frozen" / "results.json").read_text())
    trace = content["task_details"]["trace"]
    assert trace["steps"] == list(range(100, 1201, 50))
    end = content["metrics"]["ensemble"]["error_percent"]
    assert trace["error_percent"][-1] == end
    row = next(
        line for line in printed.splitlines() if line.startswith("| SGFS-f, frozen, lr 0.0129")
    )
    first = dict(zip(trace["steps"], trace["error_percent"], strict=True))[1000]
    assert f"| {first:.2f} | - | {end:.2f} |" in row  # too short for 2,000
    assert f"| {sgfs_mnist.LABELS['sgd']} | - | - | - | - | - | - | - |" in printed
    results = {"sgfs-f-frozen": content, "sgd": None}
    (line,) = sgfs_mnist.figures(results, out)["sgfs_mnist"].axes[0].lines
    assert np.array_equal(line.get_ydata(), trace["error_percent"])
