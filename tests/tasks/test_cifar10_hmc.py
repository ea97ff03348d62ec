"""How far predictions are from HMC's on CIFAR-10."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightning_sgmcmc.run import cli
from tasks.data.cifar10 import CIFAR10Data
from tasks.data.class_table import ClassTableData
from tasks.experiments import cifar10_hmc
from tasks.experiments.cifar10_hmc import apart, distances, reference

ROOT = Path(__file__).resolve().parents[2]


def test_distances_by_hand() -> None:
    """Three images: one is classified otherwise, and one of HMC's classes is right."""
    expected = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]], dtype=torch.float64)
    found = torch.tensor([[0.7, 0.3], [0.6, 0.4], [0.6, 0.4]], dtype=torch.float64)
    measured = distances(found, expected, torch.tensor([0, 0, 1]))
    assert measured["agreement"] == pytest.approx(2 / 3)
    assert measured["total_variation"] == pytest.approx((0.2 + 0.4 + 0) / 3)
    assert measured["error_percent"] == pytest.approx(100 / 3)
    assert measured["nll"] == pytest.approx(-np.log(0.7 * 0.6 * 0.4) / 3)


def test_a_run_is_measured_on_the_images_of_hmc(tmp_path: Path, monkeypatch: Any) -> None:
    """The reference has the first 30 of 50 test examples; the run's own numbers are of all."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((100, 2))
    y = (x[:, 0] + 0.5 * rng.standard_normal(100) > 0).astype(int)
    table = tmp_path / "table.csv"
    rows = [f"{a:.6f},{b:.6f},{c}" for (a, b), c in zip(x, y, strict=True)]
    table.write_text("\n".join(["a,b,kind", *rows]) + "\n")
    cli.main(
        ROOT / "configs",
        [
            "--task=class_table",
            f"--data.file={table}",
            "--data.num_test=0.5",
            "--model.num_chains=2",
            "--model.burn_in_optimizer.steps=50",
            "--model.burn_in=60",
            "--model.thinning=10",
            "--trainer.max_steps=100",
            "--wandb_project=null",
            f"--out={tmp_path / 'run'}",
        ],
    )
    folder = tmp_path / "data" / "cifar10_hmc"
    folder.mkdir(parents=True)
    half = np.full((30, 2), 0.5, np.float32)
    np.savez(folder / "reference_first5000.npz", probabilities=half)
    monkeypatch.setenv("SGMCMC_DATA_ROOT", str(tmp_path / "data"))
    found = apart(tmp_path / "run-apart", "run")
    content = json.loads((tmp_path / "run" / "results.json").read_text())
    assert found["draws"] == 8
    assert found["minutes"] == content["wall_seconds"] / 60
    data = ClassTableData(str(table), num_val=0.1, num_test=0.5)
    data.setup()
    inputs, labels = data.tensors("test")
    assert len(labels) == 50
    mean = cifar10_hmc.probabilities(tmp_path / "run", inputs)[:30]
    wrong = (mean.argmax(1) != labels[:30]).double().mean()
    assert found["metrics"]["error_percent"] == pytest.approx(100 * float(wrong))
    spread = (mean - 0.5).abs().sum(1).mean() / 2
    assert found["metrics"]["total_variation"] == pytest.approx(float(spread), rel=1e-6)


def test_without_hmc_s_predictions_the_error_says_what_to_put_where(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("SGMCMC_DATA_ROOT", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"put cifar10_hmc/reference_first5000\.npz into"):
        reference()
    with pytest.raises(ValueError, match="needs the finished run none"):
        apart(tmp_path / "none-apart", "none")


def test_the_reference_is_hmc_s() -> None:
    """Error and NLL of its first 5,000 images, as measured when the file was made."""
    root = os.environ.get("SGMCMC_DATA_ROOT")
    if root is None or not (Path(root) / cifar10_hmc.REFERENCE).is_file():
        pytest.skip(f"needs $SGMCMC_DATA_ROOT/{cifar10_hmc.REFERENCE}")
    probabilities = reference()
    assert probabilities.shape == (5000, 10)
    assert probabilities.sum(1) == pytest.approx(np.ones(5000), abs=1e-5)
    _, (_, labels) = CIFAR10Data().images()
    own = distances(probabilities, probabilities, torch.tensor(labels[:5000]).long())
    assert own["error_percent"] == pytest.approx(8.48)
    assert own["nll"] == pytest.approx(0.2819, abs=5e-5)


def test_a_gpu_runs_full_cells_and_a_cpu_reduced_ones(monkeypatch: Any) -> None:
    for available, length in ((True, "reduced"), (False, "full")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda found=available: found)
        names, _ = cifar10_hmc.left_out()
        assert len(names) == 10
        assert all(name.startswith(length) for name in names)
