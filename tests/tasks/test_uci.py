"""Regression on tables: reading them, the standard splits, units, and a run from the shell."""

from __future__ import annotations

import json
import math
import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from torch import Tensor

from lightning_sgmcmc import SGHMC, GaussianPrior, load_posterior
from lightning_sgmcmc.run import cli
from tasks.data.table import read_table
from tasks.data.uci import SETS, UCIData, standard_split
from tasks.experiments.uci import benchmark as experiment
from tasks.nets.mlp import MLP
from tasks.uci import PUBLISHED, UCIRegression
from tests.device import DEVICE, trainer_settings
from tests.toy import NotSummedUp

ROOT = Path(__file__).resolve().parents[2]
NOISE = 0.3


def values(rows: int = 400) -> np.ndarray:
    """Return rows of (x0, x1, constant, y) with y = 2 x0 - x1 + N(0, .3^2)."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(rows, 2))
    y = 2 * x[:, 0] - x[:, 1] + NOISE * generator.normal(size=rows)
    return np.column_stack([x, np.full(rows, 7.0), y])


def write(path: Path, table: np.ndarray, header: str = "a,b,c,price") -> Path:
    lines = [header, *(",".join(repr(float(v)) for v in row) for row in table)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def csv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("table") / "my.csv", values())


# Splits.


def test_splits_part_the_rows_and_differ() -> None:
    seen = set()
    for split in range(20):
        train, test = standard_split(308, split)
        assert len(train) == 277
        assert sorted([*train, *test]) == list(range(308))
        seen.add(tuple(test))
    assert len(seen) == 20


@pytest.mark.parametrize("name", sorted(SETS))
def test_splits_are_the_published_ones(name: str) -> None:
    root = os.environ.get("SGMCMC_DATA_ROOT")
    folder = Path(root or ".") / "uci_regression" / name
    if root is None or not (folder / "index_test_0.txt").is_file():
        pytest.skip("needs $SGMCMC_DATA_ROOT/uci_regression with the sets' index files")
    rows = len(read_table(folder / "data.txt").y)
    for split in range(20):
        for kind, ours in zip(("train", "test"), standard_split(rows, split), strict=True):
            theirs = np.loadtxt(folder / f"index_{kind}_{split}.txt").astype(int)
            assert ours.tolist() == theirs.tolist()
    UCIData(name=name).prepare_data()  # and the file is the one whose checksum is known


def test_validation_rows_are_training_rows(csv: Path) -> None:
    parts = {}
    for num_val in (0, 50):
        data = UCIData(file=str(csv), num_val=num_val)
        data.setup()
        parts[num_val] = {n: data.tensors(n)[1] for n in ("train", "val", "test")}  # type: ignore[arg-type]
    assert len(parts[50]["val"]) == 50
    together = torch.cat([parts[50]["train"], parts[50]["val"]])
    assert torch.equal(together, parts[0]["train"])
    assert torch.equal(parts[50]["test"], parts[0]["test"])
    assert len(parts[0]["test"]) == 40


def test_small_tables_go_whole_into_every_step(csv: Path) -> None:
    for size, sampling in ((2000, "full"), (360, "full"), (100, "auto")):
        data = UCIData(file=str(csv), batch_size=size)
        data.setup()
        stream = data.train_dataloader()
        assert (stream.sampling, stream.batch_size) == (sampling, min(size, 360))


# The task.


def fitted(csv: Path, tmp_path: Path, steps: int = 30, **kwargs: Any) -> UCIRegression:
    """Run a few steps of an exact-gradient chain from a fixed start."""
    torch.manual_seed(0)
    sampler = partial(SGHMC, lr=1e-3, momentum=0.9, prior=GaussianPrior(1.0), seed=3)
    module = UCIRegression(MLP([8], "tanh"), sampler, burn_in=steps // 2, draw_budget=0, **kwargs)
    L.Trainer(
        max_steps=steps,
        default_root_dir=str(tmp_path),
        **trainer_settings(),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        callbacks=[NotSummedUp()],
        limit_val_batches=0,
    ).fit(module, datamodule=UCIData(file=str(csv)))
    return module.eval()


def test_nll_is_the_density_in_the_table_s_units(csv: Path, tmp_path: Path) -> None:
    module = fitted(csv, tmp_path)
    data = UCIData(file=str(csv))
    data.setup()
    x, y = (t.to(DEVICE) for t in data.tensors("test"))
    train_x, train_y = (t.to(DEVICE) for t in data.tensors("train"))
    with torch.no_grad():
        scale = train_x.std(0).where(train_x.std(0) > 0, torch.ones(3))
        standard = ((x - train_x.mean(0)) / scale).float()
        mean = train_y.mean() + train_y.std() * module.net(standard).double()
        law = torch.distributions.Normal(mean, module.sigma * train_y.std())
        torch.testing.assert_close(module(x), mean)
        expected = -law.log_prob(y).sum(1)
        found = module.nll((x, y)).double()
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def predictions(module: UCIRegression, x: Tensor) -> Tensor:
    with torch.no_grad():
        return module(x)


def test_a_change_of_units_changes_nothing_else(csv: Path, tmp_path: Path) -> None:
    """x -> (4 x0 + 8, x1 / 2), y -> 16 y - 32: the same chain, its predictions in new units."""
    other = values() * [4.0, 0.5, 1.0, 16.0] + [8.0, 0.0, 0.0, -32.0]
    converted = write(tmp_path / "other.csv", other)
    first, second = fitted(csv, tmp_path / "1"), fitted(converted, tmp_path / "2")
    x = torch.from_numpy(values()[:50, :3]).float()
    x_other = torch.from_numpy(other[:50, :3]).float()
    torch.testing.assert_close(
        predictions(second, x_other), 16 * predictions(first, x) - 32, rtol=1e-3, atol=0.02
    )
    assert second.sigma == pytest.approx(first.sigma, rel=1e-4)
    y, y_other = (torch.from_numpy(t[:50, 3:]).float() for t in (values(), other))
    with torch.no_grad():
        shift = second.nll((x_other, y_other)) - first.nll((x, y))
    torch.testing.assert_close(shift, torch.full((50,), math.log(16)), rtol=1e-3, atol=2e-3)


def test_far_from_zero_the_chain_is_the_same(csv: Path, tmp_path: Path) -> None:
    """Unix seconds as a feature, and a target far from zero: float32 would keep neither."""
    shift = np.array([1.7e9, 0.0, 0.0, -3e8])
    moved = write(tmp_path / "moved.csv", values() + shift)
    first, second = fitted(csv, tmp_path / "1"), fitted(moved, tmp_path / "2")
    x = torch.from_numpy(values()[:50, :3])
    found = predictions(second, x + torch.from_numpy(shift[:3])) - shift[3]
    torch.testing.assert_close(found, predictions(first, x), rtol=1e-3, atol=1e-3)
    y = torch.from_numpy(values()[:50, 3:])
    with torch.no_grad():
        here, there = first.nll((x, y)), second.nll((x + torch.from_numpy(shift[:3]), y + shift[3]))
    assert here.dtype == there.dtype == torch.float32
    torch.testing.assert_close(there, here, rtol=1e-3, atol=1e-3)


def run(arguments: list[str], out: Path) -> Path:
    command = ["--task", "uci_regression", *arguments, f"--out={out}", "--wandb_project=null"]
    return cli.main(ROOT / "configs", [*command, "--trainer.enable_progress_bar=false"])


@pytest.mark.parametrize("change", [lambda d: (3, 1), lambda d: (3, d + 1), lambda d: (d,)])
def test_features_of_another_number_are_refused(csv: Path, tmp_path: Path, change: Any) -> None:
    """One column would fill all the features."""
    module = fitted(csv, tmp_path, 4)
    width = module.x_mean.shape[-1]
    assert width > 1
    with pytest.raises(ValueError, match=rf"x must be \[B, {width}\], the table's features"):
        module.law(torch.zeros(change(width)))


def test_a_run_from_the_shell_finds_the_noise(csv: Path, tmp_path: Path, capsys: Any) -> None:
    """Two short chains; sigma of 360 rows has a relative standard error of .04."""
    short = ["--model.num_chains=2", "--model.burn_in_optimizer.steps=500", "--model.burn_in=1000"]
    short += ["--model.thinning=10", "--model.draw_budget=200"]
    options = [f"--data.file={csv}", "--data.target=price", "--trainer.max_steps=3000", *short]
    folder = run(options, tmp_path / "run")
    output = capsys.readouterr().out
    assert output.splitlines()[-1] == str(folder)
    results = json.loads((folder / "results.json").read_text())
    details, ensemble = results["task_details"], results["metrics"]["ensemble"]
    assert details["target"] == "price"
    assert details["rows"] == {"train": 360, "val": 0, "test": 40}
    assert details["noise_scale"] == pytest.approx(NOISE, rel=0.2)
    assert NOISE * 0.7 < ensemble["rmse"] < NOISE * 1.6
    best = -0.5 - math.log(NOISE * math.sqrt(2 * math.pi))
    assert best - 0.6 < ensemble["log_likelihood"] < best + 0.35  # 40 rows: sd .11
    assert ensemble["nll"] == pytest.approx(-ensemble["log_likelihood"])
    assert 0.9 < results["diagnostics"]["configurational_temperature"]["value"] < 1.15
    assert (folder / "figures" / "predictions.png").stat().st_size > 0
    posterior = load_posterior(folder)  # knows the number of features from the draws alone
    data = UCIData(file=str(csv), target="price")
    data.setup()
    x, y = data.tensors("test")
    prediction = posterior.predict(x)  # in the table's units, by all draws of both chains
    rmse = float((prediction.mean - y).square().mean().sqrt())
    assert rmse == pytest.approx(ensemble["rmse"], rel=1e-4)
    for percent in (50, 90, 95):
        lower, upper = prediction.interval(percent / 100)
        held = float(((lower <= y) & (y <= upper)).double().mean())
        assert ensemble[f"coverage_{percent}"] == pytest.approx(held, abs=1e-9)
    assert ensemble["log_likelihood"] == pytest.approx(
        float(prediction.log_density(y).mean()), rel=1e-4
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "say which data"),
        (["--data.name=iris"], "unknown data set 'iris': choose among bostonHousing"),
        (
            ["--data.file=CSV", "--data.target=cost"],
            "no column 'cost': choose among a, b, c, price",
        ),
        (["--data.file=missing.csv"], "the table missing.csv is missing"),
        (["--data.file=CSV", "--data.split=20"], "split must lie between 0 and 19, got 20"),
        (["--data.file=CSV", "--data.num_val=359"], "leaves too few of the 360 training rows"),
        (["--data.file=SHORT"], "has 12 rows of data: at least 20 are needed"),
        (["--data.file=CSV", "--data.target=c"], "'c' of CSV is the same in all training rows"),
    ],
)
def test_wrong_commands_are_one_line(
    csv: Path, tmp_path: Path, capsys: Any, arguments: list[str], message: str
) -> None:
    short = write(tmp_path / "short.csv", values(12))
    named = [a.replace("CSV", str(csv)).replace("SHORT", str(short)) for a in arguments]
    with pytest.raises(SystemExit) as stop:
        run(named, tmp_path / "run")
    error = capsys.readouterr().err.strip()
    assert stop.value.code == 2
    assert message.replace("CSV", str(csv)) in error.splitlines()[-1]
    assert "Traceback" not in error
    assert not (tmp_path / "run" / "results.json").exists()


def test_a_net_keeps_the_inputs_that_it_has() -> None:
    net = MLP([4], inputs=3)
    weight = net.layers[0].weight
    net.take_sizes(3, 1)
    assert net.layers[0].weight is weight
    with pytest.raises(ValueError, match="takes 3 inputs, the data have 5"):
        net.take_sizes(5, 1)
    late = MLP([4, 6], "tanh")
    late.take_sizes(3, 1)
    assert late(torch.zeros(2, 3)).shape == (2, 1)
    assert bool((late.layers[0].weight.abs() <= 3**-0.5).all())  # torch's own bounds


# The benchmark.

TRIALS = list(experiment.CHOICES.cells())


@pytest.mark.parametrize("cell", experiment.cells()[5::80] + TRIALS[::7])
def test_cells_are_valid_commands(cell: Any, parsed: Any) -> None:
    config = parsed(cell)
    data, model = config["data"]["init_args"], config["model"]["init_args"]
    words = cell.name.split("-")
    stated = dict(re.findall(r"-([a-z]+)([0-9.]+)", cell.name))
    assert data["name"] == words[0]
    width, steps = (200, 7_000) if "wide" in words else (50, 20_000)
    assert model["net"]["init_args"]["hidden"] == [int(stated.get("units", width))]
    assert config["trainer"]["max_steps"] == int(stated.get("steps", steps))
    if data["num_val"]:
        assert model["sampler"]["class_path"].endswith(f".{words[2].upper()}")
        assert (data["num_val"], model["thinning"]) == (int(stated["val"]), int(stated["every"]))
        sampler = model["sampler"]["init_args"]
        if words[2] == "sghmc":
            assert (sampler["momentum"], model["step_fraction"]) == (
                float(stated["m"]),
                float(stated["f"]),
            )
        else:
            assert sampler["target_energy_variance"] == float(stated.get("e", 1e-4))
        assert model["output_scale"] == float(stated.get("scale", 22))
        assert model["burn_in"] == int(stated.get("burn", 4000))
    else:
        assert data["split"] == int(words[-1])


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_configuration_is_one_of_the_trials(name: str, parsed: Any) -> None:
    (own,) = (cell for cell in experiment.cells() if cell.name == f"{name}-0")
    expected = parsed(own)
    expected["data"]["init_args"]["num_val"] = None
    tried = []
    for cell in TRIALS:
        if cell.name.startswith(f"{name}-"):
            tried.append(parsed(cell))
            assert tried[-1]["data"]["init_args"]["num_val"] > 0
            tried[-1]["data"]["init_args"]["num_val"] = None
    assert expected in tried


def test_names_of_cells() -> None:
    names = [cell.name for cell in TRIALS]
    assert len(set(names)) == len(names)
    assert len(experiment.cells()) == 40 * len(PUBLISHED)


def test_tables_of_the_benchmark() -> None:
    def result(rmse: float, density: float, coverage: float, temperature: float) -> dict[str, Any]:
        ensemble = {"rmse": rmse, "log_likelihood": density, "coverage_90": coverage}
        return {
            "metrics": {"ensemble": ensemble, "ensemble_val": ensemble},
            "diagnostics": {
                "kinetic_temperature": temperature,
                "configurational_temperature": {"value": temperature / 2},
                "predictive": {"temperature": temperature + 1, "temperature_error": 0.03},
                "mixing": {"predictions": {"rhat": {"median": 1 + temperature}}},
                "alarms": ["too hot"] if temperature > 1 else [],
            },
        }

    results: dict[str, Any] = {c.name: None for c in experiment.cells()}
    results["yacht-0"] = result(1, -2, 0.9, 0.97)
    results["yacht-7"] = result(2, -3, 0.8, 1.04)
    lines = experiment.EXPERIMENT.render(results).splitlines()
    # Standard error of (1, 2): .7071 / sqrt(2).
    assert (
        "| yacht | ours, 50 units | 2 | 1.50 ± 0.50 | -2.50 ± 0.50 | 85.0 % | "
        "0.50 (0.48 to 0.52) | 2.00 (1.97 to 2.04) | 2.00 (1.97 to 2.04) | 1 |"
    ) in lines
    assert lines.count("|  | ours, 200 units | 0 | - | - | - | - | - | - | - |") == len(PUBLISHED)
    assert "| energy | ours, 50 units | 0 | - | - | - | - | - | - | - |" in lines
    results["yacht-9"] = short = result(3, -4, 0.7, 1.0)  # one that says nothing of mixing
    short["diagnostics"]["mixing"]["predictions"]["rhat"]["median"] = None
    short["diagnostics"]["predictive"]["temperature"] = None
    text = experiment.EXPERIMENT.render(results)
    assert "| 0.50 (0.48 to 0.52) | 2.00 (1.97 to 2.04) | 2.00 (1.97 to 2.04) |" in text
    assert "| yacht | ours, 50 units | 3 | 2.00 ±" in text
    alone = experiment.EXPERIMENT.render(dict.fromkeys(results) | {"yacht-9": short})
    row = "| yacht | ours, 50 units | 1 | 3.00 | -4.00 | 70.0 % | 0.50 (0.50 to 0.50) |  |  | 1 |"
    assert row in alone
    assert "|  | PBP | 20 | 5.67 | -3.16 | - | - | - | - | - |" in lines
    name = next(cell.name for cell in TRIALS if cell.name.endswith("m0.99-f0.05-scale7"))
    assert name.startswith("yacht-")
    text = experiment.EXPERIMENT.choices.render({name: result(1, -2, 0.9, 0.98)})
    stated = "steps 10000, steps a draw 20, momentum 0.99, step 0.05, output scale 7"
    assert f"| SGHMC | {stated} | yacht | -2.00 | 90 % | 0.49 | 0.98 | 1.98 ± 0.03 | 1.98 |" in text
    assert "| concrete |" not in text  # no run of it has ended
