"""pde_source: the net's size, the noise's shape, the splits, and a whole short run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import pde
from lightning_sgmcmc import SGLD, load_posterior
from lightning_sgmcmc.metrics import Conformal, relative_l2_error
from lightning_sgmcmc.run import cli
from tasks.data.pde_source import PDESourceData
from tasks.nets.encoder_decoder import EncoderDecoder
from tasks.pde_source import PDESource
from tests.device import trainer_settings
from tests.toy import ToyData, trainer

ROOT = Path(__file__).resolve().parents[2]
Split = Any  # "train", "val" or "test"


@pytest.fixture(scope="module")
def root(tmp_path_factory: Any) -> Path:
    """A folder for data sets, each of which is solved once."""
    folder: Path = tmp_path_factory.mktemp("sets")
    return folder


def opened(root: Path, **kwargs: Any) -> PDESourceData:
    data = PDESourceData(root=str(root), **({"num_samples": 20, "batch_size": 8} | kwargs))
    data.prepare_data()
    data.setup()
    return data


def test_net_has_the_stated_number_of_weights() -> None:
    net = EncoderDecoder()
    dense = 900 * 100 + 100, 128 * 36 * 200 + 200, 200 * 7320 + 7320
    convolutions = 64 * 9 + 64, 128 * 64 * 9 + 128
    assert sum(p.numel() for p in net.parameters()) == sum(dense) + sum(convolutions) == 2_557_716
    assert net.decoder.out_features == pde.Grid(60, 60).num_edges == 7320


def test_scales_are_units() -> None:
    """f in other units, u in other units: the same weights."""
    torch.manual_seed(0)
    task = PDESource(EncoderDecoder(), lambda params: SGLD(params, lr=1e-6))
    x = torch.randn(2, 60, 60)
    before = task(x)
    task.input_scale.fill_(4.0)
    task.output_scale.fill_(0.5)
    torch.testing.assert_close(task(4 * x), 0.5 * before)


def test_a_grid_of_any_size_is_taken() -> None:
    """Odd sides too: the last cells are pooled alone."""
    net = EncoderDecoder()
    net.take_grid(13, 7)
    assert net(torch.randn(2, 1, 7, 13)).shape == (2, pde.Grid(13, 7).num_edges)
    assert (
        EncoderDecoder(nx=13, ny=7)(torch.randn(2, 1, 7, 13)).shape[1] == net.decoder.out_features
    )
    with pytest.raises(ValueError, match="nx must be positive"):
        net.take_grid(0, 7)


def set_up(data: PDESourceData) -> PDESource:
    """Return a task that has taken its scales from a data set."""
    module = PDESource(EncoderDecoder(), lambda params: SGLD(params, lr=1e-6), noise=0.1)
    run = L.Trainer(
        **trainer_settings(), logger=False, enable_checkpointing=False, max_steps=1,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    run.datamodule = data  # type: ignore[attr-defined]
    module.trainer = run
    module.setup("fit")
    return module


def assert_noise_of_the_flow(module: PDESource, data: PDESourceData) -> torch.Tensor:
    """Check n(x) sqrt(D) = ||u(x)|| for every sample, and return ||u(x)||."""
    x = torch.from_numpy(data.data.source()).float()
    size = torch.from_numpy(np.linalg.norm(data.data.velocity, axis=1)).float()
    root = data.data.grid.num_edges**0.5
    torch.testing.assert_close(module.noise_shape(x)[:, 0] * root, size, rtol=1e-5, atol=0)
    return size


@pytest.mark.parametrize("num_samples", [20, 33])
def test_noise_shape_is_the_size_of_the_true_flow(root: Path, num_samples: int) -> None:
    """For every sample, training or not, to single precision: n(x) sqrt(D) = ||u(x)||."""
    data = opened(root, num_samples=num_samples)
    module = set_up(data)
    assert module.paper() is not None
    size = assert_noise_of_the_flow(module, data)
    assert size.max() / size.min() > 1.1  # so that it is more than one number
    still = np.flatnonzero((data.data.velocity == 0).all(0))  # the closed boundary's edges
    assert module.active.logical_not().nonzero().squeeze(1).tolist() == still.tolist()
    assert len(still) == 4 * 60


def own_files(folder: Path) -> list[str]:
    """An own field of odd sides, three wells, and the arguments that name them."""
    rng = np.random.default_rng(0)
    np.save(folder / "k.npy", np.exp(rng.standard_normal((9, 14))))
    (folder / "wells.csv").write_text(
        "x,y,rate,spread,pressure,radius\n10,10,3,1,,\n130,80,2,.5,,\n70,40,,,0,.1\n"
    )
    return [
        f"--data.permeability={folder / 'k.npy'}", f"--data.wells={folder / 'wells.csv'}",
        "--data.lx=140", "--data.ly=90", "--data.side_pressure={left: 1.0}",
    ]  # fmt: skip


def test_own_wells_have_noise_of_the_size_of_their_flow(tmp_path: Path) -> None:
    """Rates that vary beside a side's pressure, which drives flow without any."""
    own_files(tmp_path)
    data = opened(
        tmp_path, permeability=str(tmp_path / "k.npy"), wells=str(tmp_path / "wells.csv"),
        lx=140.0, ly=90.0, side_pressure={"left": 1.0},
    )  # fmt: skip
    module = set_up(data)
    assert module.paper() is None  # whose errors are of another problem
    assert_noise_of_the_flow(module, data)
    edges = data.data.grid.num_edges
    assert module(torch.from_numpy(data.data.source()).float()).shape == (20, edges)
    assert data.least_squares_error().max() < 1e-10
    other = PDESourceData(
        root=str(tmp_path), num_samples=20, permeability=str(tmp_path / "k.npy"), lx=14.0, ly=9.0
    )
    assert other.path != data.path
    with pytest.raises(ValueError, match=r"field spe10 and permeability .*: give one"):
        PDESourceData(root=str(tmp_path), field="spe10", permeability=str(tmp_path / "k.npy"))


@pytest.mark.parametrize("balancer_first", [True, False])
def test_a_balancing_well_is_no_measure_of_a_rate(tmp_path: Path, balancer_first: bool) -> None:
    """Its cell has the rate of the only other well too, of the other sign, on another area."""
    grid = pde.Grid.of_spacing([1, 1, 2, 4, 8, 16, 16, 16], [1, 1, 2, 4, 8, 16])
    kappa = np.exp(np.random.default_rng(0).standard_normal(grid.shape))
    pde.write_vtk(tmp_path / "k.vtr", grid, kappa)
    rated, balancer = ".5,.5,3,1", "60,30,,"
    if balancer_first:
        rated, balancer = "60,30,3,1", ".5,.5,,"
    (tmp_path / "wells.csv").write_text(f"x,y,rate,spread\n{rated}\n{balancer}\n")
    data = opened(
        tmp_path, permeability=str(tmp_path / "k.vtr"), wells=str(tmp_path / "wells.csv"),
        side_flux={"left": -0.05},
    )  # fmt: skip
    assert_noise_of_the_flow(set_up(data), data)


def test_own_field_from_command_to_posterior(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.delenv("SGMCMC_RUN_FOLDER", raising=False)
    given = own_files(tmp_path)
    kappa = np.load(tmp_path / "k.npy")
    np.save(tmp_path / "k.npy", np.stack([kappa, 2 * kappa]))  # along x and along y
    folder = short_run(tmp_path, tmp_path / "run", *given)
    os.environ.pop("SGMCMC_RUN_FOLDER", None)
    results = json.loads((folder / "results.json").read_text())
    assert results["task_details"]["field"] == "from a file"
    names = {path.stem for path in (folder / "figures").iterdir()}
    assert {"flow_median", "flow_worst", "trace"} <= names
    mean = load_posterior(folder).predict(torch.zeros(2, 9, 14)).mean
    assert mean.shape == (2, pde.Grid(14, 9).num_edges)


def test_cells_without_flow_have_no_permeability(tmp_path: Path) -> None:
    """Neither in the contrast nor in a figure, where a file of them has placeholders."""
    own_files(tmp_path)
    kappa, active = 1e-13 * np.load(tmp_path / "k.npy"), np.ones((9, 14))
    active[6:8, 2:9] = 0
    kappa[active == 0] = 0.0
    np.save(tmp_path / "k.npy", kappa)
    np.save(tmp_path / "a.npy", active)
    data = opened(
        tmp_path, permeability=str(tmp_path / "k.npy"), wells=str(tmp_path / "wells.csv"),
        lx=140.0, ly=90.0, side_pressure={"left": 1.0}, active=str(tmp_path / "a.npy"),
    )  # fmt: skip
    module = set_up(data)
    inside = kappa[active > 0]
    expected = np.log10(inside.max() / inside.min())
    assert module.log10_contrast() == pytest.approx(expected)
    edges = [data.data.velocity[0]] * 3
    figure = module.flow_figure(data.data.source()[0], edges, "title", "spread")
    drawn = np.ma.filled(figure.axes[0].collections[0].get_array().astype(float), np.nan)
    np.testing.assert_array_equal(np.isnan(drawn.reshape(9, 14)), active == 0)


def test_other_files_of_the_same_names_are_another_set(tmp_path: Path) -> None:
    """Nothing of a set that was solved for other values is taken or replaced."""
    own_files(tmp_path)
    active, paths = np.ones((9, 14)), []
    np.save(tmp_path / "a.npy", active)

    def path() -> Path:
        return PDESourceData(
            permeability=str(tmp_path / "k.npy"), wells=str(tmp_path / "wells.csv"), lx=140.0,
            ly=90.0, side_pressure={"left": 1.0}, active=str(tmp_path / "a.npy"),
        ).path  # fmt: skip

    paths += [path(), path()]
    active[6:8, 2:9] = 0
    np.save(tmp_path / "a.npy", active)
    paths.append(path())
    np.save(tmp_path / "k.npy", 2 * np.load(tmp_path / "k.npy"))
    paths.append(path())
    assert paths[0] == paths[1]
    assert len(set(paths)) == 3


def test_other_data_are_refused(tmp_path: Path) -> None:
    module = PDESource(nn.Linear(3, 1), lambda p: SGLD(p, lr=1e-3), burn_in=1, thinning=1)
    with pytest.raises(TypeError, match="PDESource needs PDESourceData, got ToyData"):
        trainer(tmp_path, 3).fit(module, datamodule=ToyData())


def test_least_squares_is_exact(root: Path) -> None:
    error = opened(root).least_squares_error()
    assert error.shape == (4,)
    assert error.max() < 1e-10


def test_calibration_pairs_are_further_ones(root: Path) -> None:
    """All other splits are what they are without them."""
    data, plain = opened(root, num_calibration=6), opened(root)
    names: list[Split] = ["train", "val", "test"]
    for name in names:
        for x, y in zip(data.arrays(name), plain.arrays(name), strict=True):
            assert np.array_equal(x, y)
    extra = data.extra_dataloaders()["calibration"].dataset.tensors
    assert np.array_equal(extra[1].numpy(), data.data.velocity[20:].astype(np.float32))
    assert len(extra[0]) == 6
    assert plain.extra_dataloaders() == {}
    with pytest.raises(ValueError, match="num_calibration must not be negative, got -1"):
        opened(root, num_calibration=-1)


@pytest.mark.parametrize(("num_samples", "num_val"), [(20, 0), (20, 5), (33, 7)])
def test_splits_are_80_to_20_and_disjoint(root: Path, num_samples: int, num_val: int) -> None:
    data = opened(root, num_samples=num_samples, num_val=num_val)
    number = np.arange(num_samples)
    train, val, test = (number[data.split(name)].tolist() for name in ("train", "val", "test"))
    assert train + val + test == number.tolist()
    assert len(test) == num_samples // 5
    assert len(val) == num_val
    whole = opened(root, num_samples=num_samples)
    assert number[whole.split("test")].tolist() == test  # validation comes out of training
    names: list[Split] = ["train", "val", "test"]
    pairs = {name: data.arrays(name) for name in names}
    assert np.array_equal(np.concatenate([pairs[n][1] for n in names]), data.data.velocity)
    batch = next(iter(data.test_dataloader()))
    assert np.array_equal(batch[0].numpy(), pairs["test"][0].astype(np.float32))
    assert len(data.train_dataloader().tensors[0]) == num_samples - num_val - num_samples // 5


def test_file_that_was_cut_is_one_clear_error(tmp_path: Path) -> None:
    path = opened(tmp_path).path
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    data = PDESourceData(root=str(tmp_path), num_samples=20)
    for step in (data.prepare_data, data.setup):
        with pytest.raises(pde.FileContentError, match="cut short or not a data set") as error:
            step()
        assert str(path) in str(error.value)
    assert path.stat().st_size == len(whole) // 2  # it is the user's to delete


def short_run(root: Path, out: Path, *arguments: str) -> Path:
    return cli.main(
        ROOT / "configs",
        [
            "--task=pde_source", "--model.burn_in_optimizer.steps=10", "--model.burn_in=12",
            "--model.thinning=2", "--trainer.max_steps=20", "--data.num_samples=60",
            "--data.num_calibration=30", "--data.batch_size=16",
            f"--data.root={root}", f"--out={out}", "--wandb_project=null",
            "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", *arguments,
        ],
    )  # fmt: skip


def test_cut_file_ends_the_command_with_status_2(
    root: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.delenv("SGMCMC_RUN_FOLDER", raising=False)
    path = opened(tmp_path, num_samples=60, num_calibration=30).path
    path.write_bytes(path.read_bytes()[:100_000])
    with pytest.raises(SystemExit) as stop:
        short_run(tmp_path, tmp_path / "run")
    assert stop.value.code == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert f"{path} is cut short" in errors[0]


def test_a_short_run_from_command_to_posterior(
    root: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    """What results.json says of the ensemble is what its draws on disk say."""
    monkeypatch.delenv("SGMCMC_RUN_FOLDER", raising=False)
    folder = short_run(root, tmp_path / "run")
    os.environ.pop("SGMCMC_RUN_FOLDER", None)
    results = json.loads((folder / "results.json").read_text())
    assert results["num_draws"] == 4
    assert results["num_parameters"] == 1_796_820

    data = opened(root, num_samples=60, num_calibration=30)
    x, y = (torch.from_numpy(a).float() for a in data.arrays("test"))
    posterior = load_posterior(folder)
    assert len(posterior) == 4
    prediction = posterior.predict(x)
    mean = prediction.mean
    error = 100 * relative_l2_error(mean, y.double())
    ensemble = results["metrics"]["ensemble"]
    rounding = 5e-5  # percent: of sums of 200 float32 products, 5e-7 of the predictions
    assert ensemble["relative_l2_mean_percent"] == pytest.approx(float(error.mean()), abs=rounding)
    assert ensemble["relative_l2_max_percent"] == pytest.approx(float(error.max()), abs=rounding)

    constants = folder / "samples" / "chain0" / "constants.safetensors"
    former = {new: old for old, new in PDESource.former_names.items()}
    earlier = {former.get(k, k): v for k, v in load_file(constants).items()}
    save_file(earlier | {former[None]: torch.zeros(2)}, constants)
    index = constants.with_name("index.json")
    content = json.loads(index.read_text()) | {"schema": 1}
    del content["constants"], content["sha256"]
    index.write_text(json.dumps(content))
    assert torch.equal(load_posterior(folder).predict(x).mean, mean)  # an earlier run

    module = posterior.module
    assert isinstance(module, PDESource)
    sigma = results["task_details"]["noise_scale"]
    assert module.sigma == pytest.approx(sigma, rel=1e-6)
    n = np.linalg.norm(y.numpy(), axis=1, keepdims=True) / np.sqrt(7320)
    active = np.abs(y.numpy()).max(0) > 0
    of_weights = prediction.epistemic_std.numpy()
    width = 2 * 1.6448536 * np.sqrt(of_weights[:, active] ** 2 + (sigma * n) ** 2).mean()
    assert ensemble["width_90"] == pytest.approx(width, rel=1e-4)
    cx, cy = (torch.from_numpy(a).float() for a in data.arrays("calibration"))
    bands = Conformal(posterior.predict(cx), cy)
    lower, upper = bands.interval(prediction, 0.9)
    held = ((y >= lower) & (y <= upper))[:, active].double().mean()
    conformal = results["task_details"]["conformal"]
    assert conformal["coverage_90"] == pytest.approx(float(held), abs=1e-3)
    width = float((upper - lower)[:, active].mean())
    assert conformal["width_90"] == pytest.approx(width, rel=1e-4)
    for percent in (50, 90, 95):
        lower, upper = prediction.interval(percent / 100)
        least, most = (  # a flow at a band's edge is in or out by the rounding of a prediction
            float(((lower + e <= y) & (y <= upper - e))[:, active].double().mean())
            for e in (1e-6 * y.abs().amax(), -1e-6 * y.abs().amax())
        )
        assert least <= ensemble[f"coverage_{percent}"] <= most
        assert most - least < 1e-3

    assert results["task_details"]["linear_least_squares"]["relative_l2_mean_percent"] < 1e-8
    figures = {path.stem for path in (folder / "figures").glob("*.png")}
    assert {"flow_median", "flow_worst"} <= figures
