"""Data of pde_perm, and the regressions that its networks stand beside."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pde
from lightning_sgmcmc import load_posterior
from lightning_sgmcmc.metrics import Conformal
from lightning_sgmcmc.run import cli
from pde import discrete_bound, energy_norm
from pde.darcy.rt0 import mass_matrix
from tasks.data.pde_perm import PDEPermData
from tasks.experiments.hasgld import table2
from tasks.experiments.hasgld.table2_references import references
from tasks.nets.conservation import project_flow
from tasks.nets.perm_encoder_decoder import PermEncoderDecoder
from tasks.surrogates import Regression, energy_errors, relative_errors

ROOT = Path(__file__).resolve().parents[2]
SMALL = {"grid": 8, "num_samples": 90, "num_test": 20, "num_val": 15, "terms": 6}
CALIBRATION = 25


def opened(root: Path, **options: object) -> PDEPermData:
    data = PDEPermData(root=str(root), **(SMALL | options))
    data.prepare_data()
    data.setup()
    return data


def test_splits_part_the_samples(tmp_path: Path) -> None:
    data = opened(tmp_path)
    sizes = {name: len(data.arrays(name)[0]) for name in ("train", "val", "test")}
    assert sizes == {"train": 55, "val": 15, "test": 20}
    fields = np.concatenate([data.arrays(name)[0] for name in ("train", "val", "test")])
    np.testing.assert_array_equal(fields, data.data.permeability)
    x, y = next(iter(data.test_dataloader()))
    assert torch.equal(x.double(), torch.from_numpy(fields[-20:]).float().double())
    assert y.shape == (20, data.data.grid.num_edges)
    assert PDEPermData(**(SMALL | {"num_val": 0})).val_dataloader() == []


def test_the_set_is_that_of_the_paper(tmp_path: Path) -> None:
    data = opened(tmp_path)
    grid = data.data.grid
    velocity = np.asarray(data.data.velocity)
    assert np.abs(grid.divergence(velocity) - 1).max() < 1e-12
    assert not velocity[:, grid.boundary_edges("top")].any()
    assert data.spec.mean == 6.0
    assert PDEPermData(kind="lognormal").spec.mean == 0.0


def test_other_sets_have_other_names() -> None:
    changes: list[dict[str, Any]] = [
        {}, {"kind": "lognormal"}, {"mean": 5.0}, {"variance": 1.5}, {"lengths": (0.2, 0.2)},
        {"lengths": (0.3, 0.3)}, {"terms": 32}, {"grid": 49}, {"num_samples": 1499},
        {"num_calibration": 9}, {"seed": 1},
    ]  # fmt: skip
    assert len({PDEPermData(**change).path for change in changes}) == len(changes)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"num_test": 90}, "num_test = 90 leaves no"), ({"num_val": 70}, "num_val = 70 leaves no")],
)
def test_splits_that_leave_nothing_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PDEPermData(**(SMALL | options))


def test_regression_finds_what_is_quadratic() -> None:
    """Exact where the map has the features' form, and the noise's size where it does not."""
    rng = np.random.default_rng(0)
    xi = rng.standard_normal((200, 5))
    features = np.column_stack([np.ones(200), xi, xi[:, 0] ** 2, xi[:, 0] * xi[:, 1]])
    clean = features @ rng.standard_normal((8, 30))
    exact = Regression.fit(xi, clean, quadratic=2)
    fresh = rng.standard_normal((50, 5))
    np.testing.assert_allclose(exact.predict(xi), clean, atol=1e-11)
    assert exact.predict(fresh).shape == (50, 30)
    assert relative_errors(Regression.fit(xi, clean).predict(xi), clean).mean() > 0.05
    noisy = Regression.fit(xi, clean + 0.1 * rng.standard_normal(clean.shape), quadratic=2)
    # The mean of 30 independent variances of 191 degrees of freedom, to five standard errors.
    assert np.mean(noisy.std**2) == pytest.approx(0.01, rel=5 * np.sqrt(2 / (191 * 30)))


def test_regressions_that_cannot_be_fitted_are_refused() -> None:
    xi, velocity = np.ones((10, 4)), np.ones((10, 2))
    with pytest.raises(ValueError, match="quadratic must lie between 0 and 4"):
        Regression.fit(xi, velocity, quadratic=5)
    with pytest.raises(ValueError, match="15 features need more than 15 samples, got 10"):
        Regression.fit(xi, velocity, quadratic=4)


def test_the_energy_error_is_that_of_the_balanced_flow(tmp_path: Path) -> None:
    """Against the mass matrix; what single precision leaves unbalanced is taken out first."""
    data = opened(tmp_path)
    grid, (kappa, velocity) = data.data.grid, data.arrays("test")
    other = np.roll(velocity, 1, axis=0)  # flows through other fields balance too
    unbalanced = other + 1e-7 * np.random.default_rng(0).standard_normal(other.shape)
    sides = {"left": 1.0, "right": 0.0}
    error, grid_bound, bound = energy_errors(grid, kappa, sides, unbalanced, velocity, 1.0)
    for i, (k, gap, u) in enumerate(zip(kappa, other - velocity, velocity, strict=True)):
        A = mass_matrix(grid, k)
        assert error[i] ** 2 == pytest.approx((gap @ A @ gap) / (u @ A @ u), rel=1e-5)
    assert (bound > error).all()
    flows = energy_norm(grid, kappa, velocity)
    found = discrete_bound(grid, kappa, sides, other, 1.0)
    np.testing.assert_allclose(grid_bound, np.minimum(found / flows, bound), rtol=1e-5)


def test_references_are_measured_on_the_test_fields(tmp_path: Path) -> None:
    found = references(tmp_path, "additive", blocks=(4, 8), root=str(tmp_path), **SMALL)
    rows, data = found["rows"], opened(tmp_path)
    everything = np.concatenate([data.coefficients("train"), data.coefficients("val")])
    velocity = np.concatenate([data.arrays("train")[1], data.arrays("val")[1]])
    truth = data.arrays("test")[1]
    mean = relative_errors(velocity.mean(0), truth)
    assert rows["mean field"]["relative_l2_mean_percent"] == pytest.approx(100 * mean.mean())
    ones = np.ones((len(everything), 1))
    weights = np.linalg.pinv(np.concatenate([ones, everything], 1)) @ velocity
    test = np.concatenate([ones[:20], data.coefficients("test")], 1)
    linear = relative_errors(test @ weights, truth)
    row = rows["linear regression"]
    assert row["relative_l2_mean_percent"] == pytest.approx(100 * linear.mean(), rel=1e-6)
    assert row["relative_l2_mean_percent"] < rows["mean field"]["relative_l2_mean_percent"] / 2
    tried = found["errors_held_out_percent"]
    assert tried[str(found["quadratic"])] == min(tried.values())
    for row in rows.values():  # affine combinations of flows that balance
        assert row["imbalance"] < 1e-12
    assert rows["mixed multiscale, 8 x 8 blocks"]["relative_l2_largest_percent"] < 1e-9
    assert rows["mixed multiscale, 4 x 4 blocks"]["relative_l2_mean_percent"] > 0.01
    text = table2.EXPERIMENT.render({"references-additive-64": found})
    assert "| additive | 64 | linear regression | " in text


def test_the_network_has_the_stated_size() -> None:
    """Within 2 % of the paper's 8,252,320 weights."""
    net = PermEncoderDecoder()
    count = sum(p.numel() for p in net.parameters())
    assert count == 8_367_472
    assert abs(count / 8_252_320 - 1) < 0.02
    assert net(torch.rand(2, 1, 50, 50)).shape == (2, 5100)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"nx": 5}, "sides of at least 6"), ({"activation": "gelu"}, "one of relu, silu")],
)
def test_networks_that_cannot_be_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PermEncoderDecoder(**options)


def test_a_short_run_says_what_it_measured(tmp_path: Path) -> None:
    out = tmp_path / "run"
    small = {"coarse": 3, "encoder_channels": "[2,2]", "solver_channels": "[2,2]", "hidden": 8}
    arguments = ["--task", "pde_perm", "--out", str(out), f"--data.root={tmp_path}"]
    given = SMALL | {"num_calibration": CALIBRATION}
    arguments += [f"--data.{k}={v}" for k, v in given.items()]
    arguments += [f"--model.net.init_args.{k}={v}" for k, v in small.items()]
    arguments += ["--model.net.init_args.nx=8", "--model.net.init_args.ny=8"]
    arguments += ["--model.burn_in=14", "--model.burn_in_optimizer.steps=10", "--model.thinning=2"]
    arguments += ["--trainer.max_steps=20", "--trainer.logger=false", "--data.batch_size=16"]
    cli.main(ROOT / "configs", arguments)
    results = json.loads((out / "results.json").read_text())
    ensemble = results["metrics"]["ensemble"]
    assert ensemble["imbalance"] < 1e-5
    for metrics in results["metrics"].values():
        assert 0 < metrics["energy_error_percent"] < metrics["energy_grid_bound_percent"]
        assert metrics["energy_error_percent"] < metrics["energy_bound_percent"]
        for ratio in ("grid_effectivity_median", "effectivity_median"):
            assert 1 < metrics[ratio] < 2
    assert results["task_details"]["field"] == "additive, mean 6, 6 modes"
    assert results["price"]["fields_solved"] == 70 + CALIBRATION
    assert results["task_details"]["test_fields"] == 20
    data = opened(tmp_path, num_calibration=CALIBRATION)
    assert_bands_follow_the_bound(out, data, results["task_details"]["conformal"])
    linear = Regression.fit(data.coefficients("train"), data.arrays("train")[1])
    error = relative_errors(linear.predict(data.coefficients("test")), data.arrays("test")[1])
    regressions = results["task_details"]["regressions_relative_l2_mean_percent"]
    assert regressions["linear"] == pytest.approx(100 * error.mean())
    assert {path.name for path in out.glob("*.png")} | {
        path.name for path in out.glob("figures/*.png")
    } >= {"flow_median.png", "flow_worst.png"}


def assert_bands_follow_the_bound(out: Path, data: PDEPermData, expected: dict) -> None:
    """The documented calls give the bands of ``results.json``, field by field as wide as the bound.

    That of a field is computed here from its mean flow.
    """
    posterior, grid = load_posterior(out), data.data.grid
    module, sides = posterior.module, {"left": 1.0, "right": 0.0}
    (cx, cy), (x, y) = (map(torch.from_numpy, data.arrays(n)) for n in ("calibration", "test"))
    with warnings.catch_warnings(action="ignore"):  # the law of so few fields is not sharp
        of_calibration, law = posterior.predict(cx.float()), posterior.predict(x.float())
    bands = Conformal(of_calibration, cy, module.difficulty(cx, of_calibration))
    lower, upper = bands.interval(law, 0.9, module.difficulty(x, law))
    active = y.abs().amax(0) > 0
    held = ((lower <= y) & (y <= upper))[:, active].double().mean()
    assert expected["coverage_90"] == pytest.approx(float(held), abs=2e-3)
    flow = project_flow(law.mean, grid.nx, grid.ny, 1.0).numpy()
    sizes = np.exp(np.log(x.numpy()).mean((1, 2)) / 2)
    bound = torch.from_numpy(discrete_bound(grid, x.numpy(), sides, flow, 1.0) / sizes)
    widths = ((upper - lower) / law.std)[:, active]
    torch.testing.assert_close(
        widths[1:] / widths[0], (bound[1:] / bound[0])[:, None] + 0 * widths[1:]
    )


def test_own_permeabilities_from_command_to_posterior(tmp_path: Path, monkeypatch: object) -> None:
    fields = np.exp(np.random.default_rng(0).standard_normal((30, 8, 11)))
    np.save(tmp_path / "k.npy", fields)
    (tmp_path / "wells.csv").write_text("x,y,rate,pressure,radius\n1,1,2,,\n9,6,,0,.01\n")
    command = [
        "--task=pde_perm", f"--data.permeability={tmp_path / 'k.npy'}",
        f"--data.wells={tmp_path / 'wells.csv'}", "--data.lx=11", "--data.ly=8",
        "--data.num_samples=30", "--data.num_test=5", "--data.num_val=5",
        "--data.batch_size=8", f"--data.root={tmp_path}",
        "--model.burn_in_optimizer.steps=4", "--model.burn_in=6", "--model.thinning=2",
        "--trainer.max_steps=10", "--wandb_project=null", "--trainer.accelerator=cpu",
        "--model.net.hidden=20", "--model.net.encoder_channels=[4, 2]",
        "--trainer.enable_progress_bar=false",
    ]  # fmt: skip
    with pytest.raises(SystemExit):
        cli.main(ROOT / "configs", [*command, f"--out={tmp_path / 'refused'}"])
    plain = ["--model.conservative=false", "--model.symmetric=false", f"--out={tmp_path / 'run'}"]
    folder = cli.main(ROOT / "configs", [*command, *plain])
    os.environ.pop("SGMCMC_RUN_FOLDER", None)
    results = json.loads((folder / "results.json").read_text())
    assert results["task_details"]["field"] == "own, k.npy"
    assert results["metrics"]["ensemble"]["imbalance_of_truth"] < 1e-5
    data = pde.load(next(tmp_path.glob("own-*.safetensors")), pde.OwnFieldsSpec)
    np.testing.assert_array_equal(data.permeability, fields)
    wells = data.spec.wells
    flow = pde.DarcySolver(data.grid, fields[7], data.spec.side_pressure, wells=wells).solve()
    np.testing.assert_allclose(data.velocity[7], flow.velocity, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"wells": "w.csv"}, "wells goes with own"), ({"source": 2.0}, "source goes with own")],
)
def test_what_goes_with_own_permeabilities_is_refused_alone(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PDEPermData(**options)
