"""Airfoil and bike sharing: split, columns, Laplace over the last layer, the table."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.linear_model import BayesianRidge  # type: ignore[import-untyped]
from sklearn.model_selection import train_test_split  # type: ignore[import-untyped]

from lightning_sgmcmc import SGLD
from tasks.data.bde import BDEData, split_rows
from tasks.data.download import DATA_ROOT
from tasks.experiments.bde import benchmark as experiment
from tasks.experiments.bde.last_layer import Trained, compute, outputs, scores, variances
from tasks.nets.mlp import MLP
from tasks.uci import UCIRegression

COUNTS = {"airfoil": (1503, 5), "bikesharing": (17_379, 12)}


# Data.


@pytest.mark.parametrize("rows", [10, 11, 1503, 17_379])
def test_the_split_is_that_of_scikit_learn(rows: int) -> None:
    theirs = train_test_split(np.arange(rows), test_size=0.2, random_state=0)
    for ours, expected in zip(split_rows(rows), theirs, strict=True):
        assert ours.tolist() == expected.tolist()


@pytest.mark.parametrize("name", COUNTS)
def test_rows_and_columns_are_those_of_the_files(name: str) -> None:
    root = os.environ.get(DATA_ROOT)
    if root is None or not (Path(root) / "uci_regression" / name).is_dir():
        pytest.skip(f"needs ${DATA_ROOT}/uci_regression/{name}")
    data = BDEData(name, num_val=100)  # type: ignore[arg-type]
    data.prepare_data()  # whose checksum is the one known
    data.setup()
    rows, features = COUNTS[name]
    lines = data._path.read_text().splitlines()
    named = [dict(zip(lines[0].split(","), line.split(","), strict=True)) for line in lines[1:]]
    train, test = split_rows(rows)
    assert len(named) == rows
    assert len(data.columns) == features
    assert not {"instant", "dteday", "casual", "registered", data.column} & set(data.columns)
    for part, chosen in (("train", train[:-100]), ("val", train[-100:]), ("test", test)):
        x, y = data.tensors(part)  # type: ignore[arg-type]
        expected = [[float(named[i][f]) for f in data.columns] for i in chosen[:50]]
        assert x[:50].tolist() == expected
        assert y[:50, 0].tolist() == [float(named[i][data.column]) for i in chosen[:50]]
        assert len(x) == len(chosen)


def test_wrong_files_and_names(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown data set 'yacht': choose among airfoil, bike"):
        BDEData("yacht")  # type: ignore[arg-type]
    data = BDEData("airfoil", root=str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"airfoil\.csv is missing"):
        data.prepare_data()
    data._path.parent.mkdir(parents=True)
    data._path.write_text("a,target\n1,2\n")
    with pytest.raises(ValueError, match="is not the file expected"):
        data.prepare_data()


# Laplace over the last layer.


def test_the_mean_s_variance_is_that_of_bayesian_linear_regression() -> None:
    """With one sigma, H_f^-1 is scikit-learn's posterior covariance of a ridge regression."""
    generator = torch.Generator().manual_seed(0)
    phi = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    there = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    y = phi.sum(1) + 0.5 * torch.randn(40, generator=generator, dtype=torch.float64)
    ridge = BayesianRidge(fit_intercept=False).fit(phi.numpy(), y.numpy())
    sigma, c = ridge.alpha_**-0.5, 2.0
    fill = torch.full((40,), math.log(sigma), dtype=torch.float64)
    seen, new = Trained(phi, y, fill), Trained(there, y[:5], fill[:5])
    # y = c w' phi with c = 2: w = w_ridge / 2, whose prior variance is a fourth of the ridge's.
    found, noise = variances(new, seen, 1 / ridge.lambda_ / c**2, c, 0.3)
    _, std = ridge.predict(there.numpy(), return_std=True)
    np.testing.assert_allclose(found, std**2 - sigma**2, rtol=1e-6)
    g = torch.linalg.inv(2 * 0.09 * phi.T @ phi + torch.eye(3) * ridge.lambda_ * c**2)
    growth = torch.exp(2 * 0.09 * torch.einsum("bi,ij,bj->b", there, g, there))
    torch.testing.assert_close(noise, sigma**2 * growth)


def test_features_give_the_network_s_outputs() -> None:
    """f = c w_f' phi and log sigma = b + s w_g' phi with the trained last layer, floor apart."""
    torch.manual_seed(0)
    net = MLP([4, 3], "tanh", inputs=2, outputs=2)
    task = UCIRegression(
        net, lambda p: SGLD(p, 0.1), noise="input", output_scale=1.5, noise_spread=0.4
    ).double()
    x = torch.randn(6, 2, dtype=torch.float64)
    task.scale_by(x, x[:, :1])
    found = outputs(task, x)
    weights = torch.cat([net.layers[-1].weight, net.layers[-1].bias[:, None]], 1)  # type: ignore[list-item,index]
    f, g = (found.features @ weights.T).T
    torch.testing.assert_close(found.mean, 1.5 * f)
    torch.testing.assert_close(found.log_sigma, task.log_noise + 0.4 * g)


def test_scores_of_a_mixture() -> None:
    """Two Gaussians at 0 and 2 with variance 1: mean 1, variance 2; y = (-1, 1) has deviation 1."""
    y = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    unit = math.sqrt(2)  # the deviation with correction over that without
    means, spread = torch.tensor([[0.0], [2.0]]).double(), torch.ones(2, 1).double()
    found = scores(means / unit, spread / unit**2, torch.tensor([0.5]).double() / unit, y)
    assert found["rmse_standardised"] == pytest.approx(0.5)
    gaussian = -norm.logpdf(0.5, 1.0, math.sqrt(2))
    assert found["nll_gaussian_standardised"] == pytest.approx(gaussian, rel=1e-6)
    two = [norm.pdf(0.5, m, 1.0) for m in (0.0, 2.0)]
    assert found["nll_standardised"] == pytest.approx(-math.log(sum(two) / 2), rel=1e-6)
    assert found["coverage_90"] == 1.0


def test_a_missing_ensemble_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="airfoil-ensemble-3: run that cell first"):
        compute("airfoil", 3, 1.0, tmp_path / "airfoil-laplace-3")


# The experiment.


@pytest.mark.parametrize(
    ("name", "layers", "floor"),
    [
        ("airfoil-swag-4", 3, 0.05),
        ("bikesharing-ours-4", 5, 0.005),
        ("bikesharing-ensemble-4", 5, 0.005),
        ("bikesharing-dropout-4", 5, 0.005),
    ],
)
def test_cells_have_the_network_the_noise_and_the_seed(
    name: str, layers: int, floor: float, parsed: Any
) -> None:
    cells = {cell.name: cell for cell in experiment.cells()}
    assert len(cells) == 2 * 5 * 5
    config = parsed(cells[name])
    assert config["data"]["class_path"] == "tasks.data.bde.BDEData"
    assert config["data"]["init_args"]["name"] == name.partition("-")[0]
    assert config["seed_everything"] == 4
    model = config["model"]["init_args"]
    assert model["net"]["init_args"]["hidden"] == [32] * layers
    ours = cells[f"{config['data']['init_args']['name']}-ours-4"]
    activation = parsed(ours)["model"]["init_args"]["net"]["init_args"]["activation"]
    assert model["net"]["init_args"]["activation"] == activation
    noise = [model[key] for key in ("noise", "noise_floor", "noise_spread", "output_scale")]
    assert noise == ["input", floor, 0.2, 1.0]


def test_floors_are_tried_on_a_fifth_of_the_training_rows(parsed: Any) -> None:
    tried = [c for c in experiment.EXPERIMENT.choices.cells() if c.name.startswith("bikesharing")]
    own = parsed({cell.name: cell for cell in experiment.cells()}["bikesharing-ours-0"])
    own["data"]["init_args"].pop("num_val", None)
    for cell, floor in zip(tried, (0.05, 0.02, 0.005), strict=True):
        config = parsed(cell)
        assert config["data"]["init_args"].pop("num_val") == 2780
        assert config["model"]["init_args"]["noise_floor"] == floor
        config["model"]["init_args"]["noise_floor"] = 0.005
        assert config == own


def test_means_and_standard_errors_of_the_table() -> None:
    def run(rmse: float, nll: float) -> dict[str, Any]:
        ensemble = {
            "rmse_standardised": rmse,
            "nll_gaussian_standardised": nll,
            "nll_standardised": nll - 1,
            "coverage_90": 0.9,
        }
        return {"metrics": {"ensemble": ensemble}, "num_gradients": 15_000, "wall_seconds": 99.6}

    results: dict[str, Any] = {cell.name: None for cell in experiment.cells()}
    results["airfoil-ours-0"], results["airfoil-ours-3"] = run(0.1, -1.0), run(0.2, -1.5)
    results["bikesharing-laplace-1"] = json.loads(json.dumps(run(0.3, -0.5)))
    del results["bikesharing-laplace-1"]["num_gradients"]
    lines = experiment.EXPERIMENT.render(results).splitlines()
    # Standard error of (.1, .2): .0707 / sqrt(2).
    assert (
        "| airfoil | ours, MCLMC | 2 | 0.1500 ± 0.0500 | -1.2500 ± 0.2500 | -2.2500 ± 0.2500 "
        "| 0.900 ± 0.000 | - | 15,000 | 100 |"
    ) in lines
    assert (
        "| bike sharing | Laplace over the last layer of each | 1 | 0.3000 | -0.5000 | -1.5000 "
        "| 0.900 | - | - | 100 |"
    ) in lines
    assert (
        "| airfoil | *published*: bde 1.0.2 | - | 0.1216 | -0.9126 | - | - | - | - | - |" in lines
    )
