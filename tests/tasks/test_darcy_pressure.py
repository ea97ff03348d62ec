"""darcy_pressure: the eight positions, the networks, and a short run that learns."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import pde
from lightning_sgmcmc import load_posterior
from lightning_sgmcmc.metrics import Normal, Prediction
from lightning_sgmcmc.run import cli
from pde.darcy.five_point import FivePointSolver
from tasks import darcy
from tasks.darcy import FieldSurrogate
from tasks.data.darcy_pressure import DarcyPressureData, all_positions
from tasks.nets.fourier import FourierNet, SpectralConv
from tasks.nets.pressure import PressureNet
from tasks.nets.unet import UNet
from tasks.training_law import TrainingLaw

ROOT = Path(__file__).resolve().parents[2]
SMALL: dict[str, Any] = {"grid": 12, "num_samples": 50, "num_test": 12, "num_val": 6}


def opened(root: Path, **options: Any) -> DarcyPressureData:
    data = DarcyPressureData(root=str(root), **(SMALL | options))
    data.prepare_data()
    data.setup()
    return data


def test_the_positions_are_the_symmetries_of_the_square() -> None:
    """Eight, all unlike, and turning or mirroring one of them gives another."""
    field = np.arange(9.0).reshape(1, 3, 3)
    found = {tuple(f.ravel()) for f in all_positions(field)}
    assert len(found) == 8
    assert {tuple(np.rot90(f).ravel()) for f in all_positions(field)} == found
    assert {tuple(f.T.ravel()) for f in all_positions(field)} == found
    assert {tuple(f[::-1].ravel()) for f in all_positions(field)} == found


@pytest.mark.parametrize("kind", ["fno", "pdebench"])
def test_the_solution_of_a_turned_field_is_the_solution_turned(kind: str) -> None:
    field = np.where(np.random.default_rng(0).standard_normal((1, 14, 14)) > 0, 12.0, 3.0)
    positions = all_positions(field)
    if kind == "fno":
        solve = FivePointSolver(14).solve
    else:
        family = pde.DarcyFamily(pde.Grid(14, 14), dict.fromkeys(pde.grid.SIDES, 0.0), 1.0)

        def solve(kappa: np.ndarray) -> np.ndarray:
            return family.solve(kappa).pressure

    np.testing.assert_allclose(solve(positions), all_positions(solve(field)), rtol=1e-11, atol=0)


def test_training_fields_alone_are_turned(tmp_path: Path) -> None:
    plain, turned = opened(tmp_path, symmetric=False), opened(tmp_path)
    for name, count in (("train", 32), ("val", 6), ("test", 12)):
        kappa, pressure = plain.arrays(name)
        assert (kappa.shape, pressure.shape) == ((count, 12, 12), (count, 144))
        more, pressures = turned.arrays(name)
        np.testing.assert_array_equal(more[:count], kappa)
        np.testing.assert_array_equal(pressures[:count], pressure)
        assert len(more) == (8 * count if name == "train" else count)
    kappa, pressure = turned.arrays("train")
    exact = FivePointSolver(56)  # (12 - 1) * 5 + 1 nodes
    i = 5 * 32 + 3
    fine = pde.fields.two_phase.thresholded_permeability(56, 0, 3)
    where = next(
        k for k, f in enumerate(all_positions(fine[None])) if (f[::5, ::5] == kappa[i]).all()
    )
    solution = exact.solve(all_positions(fine[None])[where])[::5, ::5]
    np.testing.assert_allclose(pressure[i].reshape(12, 12), solution, rtol=1e-10, atol=1e-15)


def test_other_sets_have_other_names() -> None:
    changes: list[dict[str, Any]] = [
        {}, {"kind": "pdebench"}, {"grid": 29}, {"every": 2}, {"num_samples": 999}, {"seed": 1},
        {"kind": "pdebench", "beta": 0.1},
    ]  # fmt: skip
    assert len({DarcyPressureData(**change).path for change in changes}) == len(changes)
    with pytest.raises(ValueError, match="kind must be one of fno, pdebench, got 'x'"):
        DarcyPressureData(kind="x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"beta = 2\.0 goes with kind=pdebench"):
        DarcyPressureData(beta=2.0)
    with pytest.raises(ValueError, match="every = 5 goes with kind=fno"):
        DarcyPressureData(kind="pdebench", every=5)


class Ones(nn.Module):
    def forward(self, z: torch.Tensor) -> torch.Tensor:
        self.seen = z
        return torch.ones_like(z).flatten(1)


def test_pressures_are_inverse_to_a_factor_of_the_field() -> None:
    kappa = torch.rand(7, 4, 4).double() + 0.5
    pressure = torch.rand(7, 16).double()
    pressure[:, :4] = 0.0
    net = PressureNet(Ones()).double()
    net.take_scales(kappa, pressure)
    assert not net(kappa)[:, :4].any()
    z = net.net.seen
    assert float(z.mean()) == pytest.approx(0, abs=1e-12)
    assert float(z.std()) == pytest.approx(1)
    before = net(kappa)
    net.log_mean += np.log(3)
    torch.testing.assert_close(net(3 * kappa), before / 3)
    torch.testing.assert_close(net.net.seen, z)
    geometric = kappa.log().mean((1, 2)).exp()
    size = ((pressure * geometric[:, None]) ** 2).mean().sqrt()
    torch.testing.assert_close(net.sizes(kappa)[:, 0], size / geometric)


@pytest.mark.parametrize(("ny", "nx"), [(9, 8), (8, 11)])
def test_the_spectral_layer_multiplies_modes(ny: int, nx: int) -> None:
    """Against sums over waves, of the modes that it keeps and their conjugates."""
    torch.manual_seed(0)
    layer, m = SpectralConv(2, 3).double(), 3
    x = torch.randn(1, 2, ny, nx).double()
    rows, columns = np.meshgrid(np.arange(ny), np.arange(nx), indexing="ij")
    expected = np.zeros((2, ny, nx))
    for mode in range(-m, m):
        weight = (layer.low if mode >= 0 else layer.high).detach().numpy()
        row = mode if mode >= 0 else mode + m
        for k in range(m):
            wave = np.exp(2j * np.pi * (mode * rows / ny + k * columns / nx))
            amplitude = (x[0].numpy() * wave.conj()).sum((1, 2)) / (ny * nx)
            pair = weight[:, :, row, k, 0] + 1j * weight[:, :, row, k, 1]
            mixed = (pair @ amplitude)[:, None, None] * wave
            expected += (2 - (k == 0)) * mixed.real
    # Of k = 0 the inverse transform takes what is symmetric of the pairs of modes l and -l.
    torch.testing.assert_close(layer(x)[0], torch.from_numpy(expected))


def called(net: nn.Module, field: torch.Tensor, weights: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.func.functional_call(net, weights, (field,))


def test_networks_give_one_number_a_place_and_take_chains() -> None:
    torch.manual_seed(0)
    unet = UNet(features=(4, 4, 4, 4, 4, 4), groups=2, places="cells").double()
    fourier = FourierNet(width=4, modes=3, layers=2, padding=2).double()
    field = torch.randn(2, 1, 17, 18).double()
    for net in (unet, fourier):
        assert net(field).shape == (2, 17 * 18)
        torch.testing.assert_close(net(field)[1:], net(field[1:]))
        weights = {k: torch.stack([v, 2 * v]) for k, v in net.named_parameters()}
        rows = torch.func.vmap(partial(called, net, field))(weights)
        torch.testing.assert_close(rows[0], net(field))
        assert not any(p.is_complex() for p in net.parameters())
    values = unet.net(torch.cat([field, torch.zeros(2, 2, 17, 18).double()], 1))
    assert values.shape == (2, 1, 17, 18)
    with pytest.raises(
        ValueError, match="10 modes need 2 x 10 places in each direction, got 20x19"
    ):
        FourierNet(width=4, modes=10, padding=2).double()(field)
    with pytest.raises(ValueError, match="padding must be at least 0, got -1"):
        FourierNet(padding=-1)
    with pytest.raises(ValueError, match="groups must be positive, got 0"):
        UNet(groups=0)
    with pytest.raises(ValueError, match="places must be one of edges, cells, got 'nodes'"):
        UNet(places="nodes")  # type: ignore[arg-type]


def test_a_short_run_learns_and_says_what_it_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error falls below that of the mean pressure, whose size follows the field."""
    price_of, priced = FieldSurrogate.price, dict[str, Any]()

    def of_three_processes(task: FieldSurrogate, results: dict[str, Any]) -> dict[str, Any] | None:
        with monkeypatch.context() as patch:
            patch.setattr(type(task.trainer), "world_size", 3)
            priced.update(price_of(task, results) or {})
        return price_of(task, results)

    monkeypatch.setattr(FieldSurrogate, "price", of_three_processes)
    out = tmp_path / "run"
    net = {"width": 6, "modes": 3, "layers": 2, "padding": 1}
    arguments = ["--task", "darcy_pressure", "--out", str(out), f"--data.root={tmp_path}"]
    arguments += ["--model.net=tasks.nets.fourier.FourierNet"]
    arguments += [f"--model.net.{k}={v}" for k, v in net.items()]
    arguments += [f"--data.{k}={v}" for k, v in SMALL.items()]
    arguments += ["--model.burn_in_optimizer.steps=150", "--model.burn_in=155"]
    arguments += ["--model.burn_in_optimizer.optimizer.lr=0.01", "--model.thinning=2"]
    arguments += ["--trainer.max_steps=159", "--trainer.logger=false"]
    cli.main(ROOT / "configs", arguments)
    results = json.loads((out / "results.json").read_text())
    ensemble = results["metrics"]["ensemble"]
    data = opened(tmp_path)
    (kappa, pressure), (x, y) = data.arrays("train"), data.arrays("test")
    sizes = [np.exp(-np.log(k).mean((1, 2)))[:, None] for k in (kappa, x)]
    mean = sizes[1] * (pressure / sizes[0]).mean(0)
    baseline = 100 * np.mean(np.linalg.norm(mean - y, axis=1) / np.linalg.norm(y, axis=1))
    assert ensemble["relative_l2_mean_percent"] < 0.8 * baseline
    assert results["num_data"] == 8 * 32
    assert results["paper"]["table"]["FNO"] == 1.08
    figures = {path.name for path in (*out.glob("*.png"), *out.glob("figures/*.png"))}
    assert figures >= {"pressure_median.png", "pressure_worst.png"}
    posterior, fields = load_posterior(out), torch.from_numpy(x).float()
    predicted = posterior.predict(fields).mean.double().numpy()
    law = results["task_details"]["training_law"]
    assert (law["level"], len(law["mean"])) == (1 / 17, len(law["precision"]))
    posterior.module._training_law = TrainingLaw(**(law | {"threshold": 0.0}))
    with pytest.warns(UserWarning, match="12 of 12 fields are outside the law of the training"):
        posterior.predict(fields)
    price = results["price"]
    assert (price["clock"], price["fields_solved"]) == ("processor", 38)
    assert price["training_seconds"] == price["threads"] * results["wall_seconds"]
    assert priced["training_seconds"] == 3 * price["training_seconds"]
    draw, all_draws = price["surrogates"].values()
    assert all_draws["seconds_a_field"] == 2 * draw["seconds_a_field"] > 0
    for one, kind in ((draw, "last"), (all_draws, "ensemble")):
        assert one["error_percent"] == results["metrics"][kind]["relative_l2_mean_percent"]
        assert one["solver_error_percent"] <= one["error_percent"]
    errors = np.linalg.norm(predicted - y, axis=1) / np.linalg.norm(y, axis=1)
    assert 100 * errors.mean() == pytest.approx(ensemble["relative_l2_mean_percent"], rel=1e-3)
    boundary = (y == 0).all(0)
    assert boundary.sum() == 44
    assert not predicted[:, boundary].any()


def test_figures_are_of_the_median_and_the_worst_field_and_leave_out_what_is_zero() -> None:
    """Of errors 40, 10, 50, 20 and 30 percent; nothing is said of a place that is always zero."""
    error = torch.tensor([0.4, 0.1, 0.5, 0.2, 0.3], dtype=torch.float64)
    truth = torch.tensor([[3.0, 4.0, 0.0]], dtype=torch.float64).expand(5, 3)
    mean = truth * (1 + error[:, None])
    spread, noise = error[:, None].expand(5, 3), torch.full((5, 3), 0.09).double()
    prediction = Prediction(Normal, mean, spread, noise, torch.zeros(5))
    field = torch.arange(5.0).view(5, 1, 1)
    kept: Any = SimpleNamespace(
        ensemble=lambda name: prediction,
        held_out={"test": SimpleNamespace(examples=(field, truth.float()))},
    )
    drawn: Any = SimpleNamespace(
        active=torch.tensor([True, True, False]),
        digits=1,
        drawn="flow",
        flow_figure=lambda *parts: parts,
    )
    figures: dict[str, Any] = FieldSurrogate.figures(drawn, kept)
    for name, number, percent in (("flow_median", 4, 30), ("flow_worst", 2, 50)):
        x, (of_truth, of_mean, deviation), title, shown = figures[name]
        assert x.item() == number
        assert f"relative L2 error {percent}.0 %" in title
        np.testing.assert_allclose(of_truth, [3, 4, 0])
        np.testing.assert_allclose(of_mean, mean[number])
        expected = np.hypot(percent / 100, 0.3)
        np.testing.assert_allclose(deviation, [expected, expected, 0], rtol=1e-6)
        assert shown == "predicted deviation"


def test_the_price_is_of_one_network_and_of_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four chains predict five fields in 3 seconds: .15 a field; 2 processes of 6 threads."""
    asked: dict[str, Any] = {}

    def price(data: Any, training: float, surrogates: Any, clock: Any) -> dict[str, Any]:
        asked.update(training=training, surrogates=surrogates)
        return {}

    monkeypatch.setattr(darcy, "seconds", lambda call, clock: 3.0)
    monkeypatch.setattr(darcy, "price", price)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 6)
    task: Any = nn.Module()
    batch = torch.zeros(5, 1), torch.zeros(5, 1)
    task.kept = SimpleNamespace(held_out={"test": SimpleNamespace(first=batch)})
    task.chain = SimpleNamespace(
        device=torch.device("cpu"), num_chains=4, evaluate=lambda method, batch: batch[1]
    )
    task.trainer, task._data = SimpleNamespace(world_size=2), lambda: None
    errors = {"relative_l2_mean_percent": 7.0}
    results = {"metrics": {"last": errors, "ensemble": errors}, "wall_seconds": 10.0}
    FieldSurrogate.price(task, results | {"num_draws": 25, "num_chains": 4})
    assert asked["training"] == 120
    found = {name: one.seconds for name, one in asked["surrogates"].items()}
    assert found == {"one draw": pytest.approx(0.15), "100 draws": pytest.approx(15.0)}
