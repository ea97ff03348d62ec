"""Table 2: its commands are commands, its networks are measured where they were not trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pde
from lightning_sgmcmc import load_posterior
from lightning_sgmcmc.run import cli
from pde.datasets.permeability import PRESSURE
from tasks.experiments.experiment import Cell, Study
from tasks.experiments.hasgld import table2, table2_bounds, table2_shift
from tasks.pde_perm import TABLE_2

ROOT = Path(__file__).resolve().parents[2]
#: All that differ in more than a number.
RUNS = [c for c in table2.cells() if isinstance(c, Cell) and not c.name.endswith(("-32", "-30"))]
GRID = 16


def test_names_are_unique_and_the_paper_s_cells_are_there() -> None:
    names = [cell.name for cell in (*table2.cells(), *table2.SHEET.trial_runs())]
    assert len(set(names)) == len(names)
    rates = sorted({rate for row in TABLE_2.values() for rate in row})
    for start in ("", "random-", "printed-"):
        methods = set(table2.SHEET.labels) - ({"sgld"} if start == "printed-" else set())
        assert {f"{start}{m}-{round(100 * r)}" for m in methods for r in rates} < set(names)
    assert set(table2.SHEET.labels.values()) == set(TABLE_2)
    assert {f"references-{k}-{p}" for k in table2.KINDS for p in table2.TERMS} < set(names)


@pytest.mark.parametrize("cell", RUNS, ids=lambda c: c.name)
def test_cells_are_valid_commands(cell: Cell, parsed: Any) -> None:
    content = parsed(cell)
    model, data = content["model"]["init_args"], content["data"]["init_args"]
    sampler = model["sampler"]["class_path"].rsplit(".", 1)[-1]
    start, *rest = cell.name.split("-")
    from_adam = start not in ("random", "printed")
    assert model["sampler"]["init_args"]["temperature"] == (1e-6 if start == "printed" else 1.0)
    if from_adam:
        assert 0 < model["burn_in_optimizer"]["steps"] < model["burn_in"]
        first = start
    else:
        assert model["burn_in_optimizer"] is None
        first, *rest = rest
    batches = -(-(1300 - data["num_val"]) // data["batch_size"])
    assert model["thinning"] == batches // 2
    for steps in (model["burn_in"], content["trainer"]["max_steps"]):
        assert steps % batches == 0
    assert (model["noise"], data["num_val"]) == ("held_out" if from_adam else 0.01, 100)
    callbacks = content["trainer"]["callbacks"] or []
    if first in table2.SHEET.labels:
        assert sampler == ("SGLD" if first == "sgld" else "HASGLD")
        assert (model["power"], model["conservative"], model["symmetric"]) == (0.0, False, False)
        assert [round(100 * c["init_args"]["rate"]) for c in callbacks] == (
            [int(rest[0])] if rest[0] != "0" else []
        )
        for pruning in (c["init_args"] for c in callbacks):
            # The weights that pruning leaves go on learning before draws are kept.
            assert pruning["start"] < pruning["stop"] < model["burn_in"]
        return
    form, kind, terms = rest
    assert (sampler, data["kind"], data["terms"]) == ("SGHMC", kind, int(terms))
    assert model["net"]["class_path"].endswith("UNet") == (first == "unet")
    assert model["conservative"] == (form != "plain")
    assert (model["power"] > 0) == model["symmetric"] == (form in ("physics", "profile"))
    assert model["noise_by_output"] == (form == "profile")
    assert not callbacks


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a short run of a small U-Net."""
    root = tmp_path_factory.mktemp("table2")
    cell = next(c for c in RUNS if c.name == "unet-physics-additive-64")
    small = {
        "model.net.features": "[4,4,4,4,4,4]",
        "model.net.groups": 2,
        "model.burn_in_optimizer.steps": 20,
        "model.burn_in": 24,
        "model.step_fraction": 0.1,
        "model.thinning": 2,
        "trainer.max_steps": 32,
        "trainer.logger": "false",
        "data.root": root,
        "data.grid": GRID,
        "data.terms": 12,
        "data.num_samples": 80,
        "data.num_test": 10,
        "data.num_val": 20,
    }
    arguments = cell.arguments(ROOT / "configs")
    arguments += [f"--{name}={value}" for name, value in small.items()]
    cli.main(ROOT / "configs", [*arguments, "--out", str(root / cell.name)])
    return root / cell.name


def fields(count: int, seed: int = 5) -> tuple[np.ndarray, np.ndarray]:
    spec = pde.PermeabilityDataSpec(nx=GRID, ny=GRID, terms=12, num_samples=count, seed=seed)
    kappa = np.stack([spec.fields.sample(i) for i in range(count)])
    family = pde.DarcyFamily(spec.grid, PRESSURE, 1.0)
    return kappa, np.stack([family.solve(k).velocity for k in kappa])


def test_errors_and_deviations_are_those_of_the_draws(trained: Path) -> None:
    """Against averages over the draws taken one by one."""
    posterior = load_posterior(trained)
    kappa, velocity = fields(7)
    set_aside = fields(11, seed=6)
    bands = table2_shift.Bands.of(posterior, *set_aside)
    found = table2_shift.measure(posterior, kappa, velocity, bands)
    with torch.no_grad():
        x = torch.from_numpy(kappa).float()
        outputs = np.stack([module(x).double().numpy() for module in posterior])
    weights = posterior.weights.numpy()
    mean = np.tensordot(weights, outputs, 1)
    spread = np.sqrt(np.tensordot(weights, (outputs - mean) ** 2, 1))
    errors = 100 * np.linalg.norm(mean - velocity, axis=1) / np.linalg.norm(velocity, axis=1)
    np.testing.assert_allclose(found["errors"], errors, rtol=1e-4)
    deviations = 100 * np.linalg.norm(spread, axis=1) / np.linalg.norm(mean, axis=1)
    np.testing.assert_allclose(found["deviations_of_weights"], deviations, rtol=1e-3)
    module = posterior.module
    noise = module.sigma * float(module.flow_scale) * kappa.prod((1, 2)) ** (1 / GRID**2)
    z = np.abs(velocity - mean) / np.sqrt(spread**2 + noise[:, None] ** 2)
    flows = np.abs(velocity).max(0) > 0
    assert found["coverage_90"] == pytest.approx((z[:, flows] <= 1.645).mean(), abs=1e-3)
    assert found["deviation_percent"] > found["deviation_of_weights_percent"] > 0
    bounds = found["difficulties"]
    for name, followed in (("conformal_90", 0), ("following_90", 1)):
        law = posterior.predict(torch.from_numpy(set_aside[0]).float())
        units = law.std.numpy()
        if followed:
            units = units * module.difficulty(torch.from_numpy(set_aside[0]), law).numpy()[:, None]
        scores = np.sort(np.abs(set_aside[1] - law.mean.numpy()) / units, 0)
        factor = scores[10] * (np.array(bounds)[:, None] if followed else 1.0)  # ceil(12 * .9) = 11
        held = (
            z * np.sqrt(spread**2 + noise[:, None] ** 2)
            <= factor * posterior.predict(x).std.numpy()
        )
        assert found[name] == pytest.approx(held[:, flows].mean(), abs=2e-3)


def test_other_fields_are_other_fields(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGMCMC_DATA_ROOT", str(tmp_path / "nothing"))
    given = {"run": trained, "grid": GRID, "fields": 6, "calibration": 30}
    content = table2_shift.panel(tmp_path, "additive", **given)
    rows = content["rows"]
    assert list(rows) == list(table2_shift.OTHERS)  # no SPE10 without its file
    assert all(len(row["errors"]) == 6 for row in rows.values())
    assert content["draws"] == 4
    short, long = (rows[f"lengths {v}"]["error_percent"] for v in (".1, .15", ".3, .45"))
    assert short > long  # rougher fields are harder for a network of smooth ones
    results = {"shift-additive": content}
    text = table2.EXPERIMENT.render(results)
    assert f"| additive | p = 128 | {rows['p = 128']['error_percent']:.3g} |" in text
    assert set(table2.figures(results, tmp_path)) == {"shift_additive"}


def test_crops_have_the_level_of_the_training_fields(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = np.random.default_rng(0).lognormal(2.0, 3.0, size=(1, 85, 220, 60))
    (tmp_path / "spe10").mkdir()
    (tmp_path / "spe10" / "spe_perm.dat").write_text("")
    monkeypatch.setenv("SGMCMC_DATA_ROOT", str(tmp_path))
    monkeypatch.setattr(pde, "read_spe10", lambda path: layers)
    smooth, channelised = table2_shift.crops(20, 5, 1.5).values()
    for crops in (smooth, channelised):
        np.testing.assert_allclose(np.log(crops).mean((1, 2)), 1.5, atol=1e-12)
    windows = np.lib.stride_tricks.sliding_window_view(layers[0], (20, 20), axis=(1, 2))
    for crop, part in ((smooth[0], windows[:35]), (channelised[0], windows[35:])):
        ratio = part[..., 0, 0] / part[..., 10, 7]
        place = np.argmin(np.abs(ratio / (crop[0, 0] / crop[10, 7]) - 1))
        window = part[np.unravel_index(place, ratio.shape)]
        np.testing.assert_allclose(window / window[0, 0], crop / crop[0, 0], rtol=1e-9)


def test_bounds_hold_on_every_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGMCMC_DATA_ROOT", str(tmp_path / "nothing"))
    content = table2_bounds.bounds(tmp_path, grid=20, fields=3)
    assert len(content["rows"]) == 2 * len(table2_shift.OTHERS) + 1
    for row in content["rows"].values():
        assert [row[f"{way}_holds"] for way in ("discrete", "fitted", "best")] == [1.0] * 3
        assert 1 < row["best_median"] <= row["fitted_median"]
    rows = content["rows"]
    assert rows["additive, p = 64"]["error_percent"] < rows["lognormal, p = 64"]["error_percent"]
    text = table2.EXPERIMENT.render({"bounds": content})
    assert f"| additive, p = 64 | {rows['additive, p = 64']['error_percent']:.3g} |" in text


def test_a_panel_without_its_run_says_which(tmp_path: Path) -> None:
    study = next(c for c in table2.cells() if c.name == "shift-lognormal")
    assert isinstance(study, Study)
    with pytest.raises(ValueError, match="needs the finished run unet-physics-lognormal-64"):
        study.compute(tmp_path / study.name)
