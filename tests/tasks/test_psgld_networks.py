"""pSGLD's networks: cells are commands, tables put numbers where they belong, small runs run."""

from __future__ import annotations

import gzip
import hashlib
import json
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from lightning_sgmcmc import SGLD, load_posterior
from tasks.data.mnist import IDXFiles, MNISTData
from tasks.experiments import reproduce
from tasks.experiments.experiment import Cell, Study
from tasks.experiments.learning_curve import ENSEMBLE, NETWORK, read_curve
from tasks.experiments.psgld import cifar10 as psgld_cifar
from tasks.experiments.psgld import figures as psgld_figures
from tasks.experiments.psgld import mnist as psgld_mnist
from tasks.experiments.psgld import mnist_cnn as psgld_cnn
from tasks.experiments.psgld.methods import Protocol
from tasks.experiments.psgld.networks import Method
from tasks.nets.fan_in_mlp import FanInMLP
from tests.device import DEVICE

ROOT = Path(__file__).resolve().parents[2]
TABLES = {"mnist": psgld_mnist, "cnn": psgld_cnn, "cifar": psgld_cifar}


def choices_of(table: Any) -> list[Any]:
    return table.EXPERIMENT.choices.cells() if table.EXPERIMENT.choices else []


def run_of(table: Any, name: str) -> Cell:
    cell = next(c for c in [*table.EXPERIMENT.cells(), *choices_of(table)] if c.name == name)
    assert isinstance(cell, Cell)
    return cell


def each_kind() -> list[Any]:
    """Return the cells that differ in more than width and length, and a trial."""
    found = []
    for name, table in TABLES.items():
        runs = [c for c in table.EXPERIMENT.cells() if isinstance(c, Cell)]
        chosen = [c for c in runs if c.name.startswith("reduced-")]
        if name == "mnist":
            chosen += [run_of(table, "temperature-sghmc-0.01"), run_of(table, "trial-dropout-0.1")]
        elif name == "cnn":
            chosen = [c for c in chosen if c.name.endswith(("-psgld", "spectral", "sghmc"))]
            chosen += [run_of(table, "appendix-sgd"), run_of(table, "trial-rmsprop-0.002")]
        else:
            chosen = [c for c in chosen if c.name.endswith(("-psgld", "-sgld"))]
        found += [pytest.param(table, c, id=f"{name}-{c.name}") for c in chosen]
    return found


@pytest.mark.parametrize(("table", "cell"), each_kind())
def test_cells_are_valid_commands(table: Any, cell: Cell, parsed: Any) -> None:
    content = parsed(cell)
    model, trainer = content["model"]["init_args"], content["trainer"]
    assert 0 <= model["burn_in"] < trainer["max_steps"]
    burn_in_optimizer = model["burn_in_optimizer"]
    assert (burn_in_optimizer is not None) == ("sghmc" in cell.name)
    if burn_in_optimizer:
        assert 0 < burn_in_optimizer["steps"] < model["burn_in"]
    due = (trainer["max_steps"] - model["burn_in"]) // model["thinning"]
    sampler = model["sampler"]["class_path"].rsplit(".", 1)[-1]
    last = sampler == "Optimized" and not cell.name.endswith("averaged")
    assert due == 1 if last else 20 <= due <= 100
    assert [c["class_path"].rsplit(".", 1)[-1] for c in trainer["callbacks"]] == [
        "LearningCurve",
        *(["Distillation"] if "distilled" in cell.name else []),
    ]
    passes = trainer["max_steps"] // trainer["callbacks"][0]["init_args"]["every"]
    assert passes == {psgld_mnist: 20, psgld_cnn: 4, psgld_cifar: 5}[table] or (
        cell.name == "appendix-sgd" and passes == 100
    )


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_one_name_is_one_command(table: Any) -> None:
    names = [c.name for c in table.EXPERIMENT.cells()]
    assert len(set(names)) == len(names)
    commands = {c.name: c for c in table.EXPERIMENT.cells() if isinstance(c, Cell)}
    networks = table.NETWORKS
    for c in choices_of(table):  # what both lists have is run once
        assert commands.setdefault(c.name, c) == c
    assert {
        f"{column}-{method}" for column in networks.columns for method in networks.methods
    } <= set(names) | {name.removesuffix("-seed0") for name in names}


def test_the_chosen_step_is_all_that_differs_from_the_published_cell() -> None:
    published, chosen = (
        run_of(psgld_cnn, f"text-psgld-{kind}") for kind in ("published", "chosen")
    )
    assert published.overrides["model.sampler"]["init_args"]["lr"] == 0.001
    assert chosen == published.but(chosen.name, {"model.sampler.lr": 0.0003})
    assert 0.0003 in psgld_cnn.NETWORKS.sheet.settings["grid"]["psgld-published"]


@pytest.mark.parametrize(
    ("table", "name", "examples", "steps", "every"),
    [
        (psgld_mnist, "400-psgld-published-100", 60_000, 60_000, 12_000),
        (psgld_mnist, "1200-psgld-published-1", 60_000, 60_000, 12_000),
        (psgld_mnist, "800-sgld-published", 60_000, 60_000, 12_000),
        (psgld_cnn, "text-psgld-published", 60_000, 12_000, 6_000),
        (psgld_cnn, "appendix-sgld-published", 60_000, 60_000, 12_000),
        (psgld_cifar, "full-psgld-published", 50_000, 50_000, 10_000),
    ],
)
def test_published_cells_are_the_paper_s(
    table: Any, name: str, examples: int, steps: int, every: int, parsed: Any
) -> None:
    content = parsed(run_of(table, name))
    model = content["model"]["init_args"]
    sampler = model["sampler"]["init_args"]
    assert sampler["temperature"] == 1 / examples
    assert content["trainer"]["max_steps"] == steps
    assert model["schedule"]["init_args"] == {"every": every, "factor": 0.5}
    assert (model["burn_in"], model["thinning"]) == (300, 300)
    assert sampler["prior"]["init_args"]["variance"] == (100.0 if name.endswith("100") else 1.0)
    adapting = "psgld-" in name
    assert model["freeze_preconditioner"] is not adapting
    step = {psgld_mnist: (5e-4, 0.5)}.get(table, (1e-3, 0.1))
    assert sampler["lr"] == step[0 if adapting else 1]
    if adapting:
        C = sampler["preconditioner"]["init_args"]
        assert (C["alpha"], C["eps"], C["start_at_gradient"]) == (0.99, 1e-5, True)
    if table is psgld_mnist:
        width = int(name.split("-")[0])
        assert model["net"]["init_args"]["hidden"] == [width, width]
        assert content["data"]["init_args"]["scale"] == "126"


def test_noise_of_the_published_code() -> None:
    """Of 200,000 numbers the deviation is within 1 % (6 standard errors) of sqrt(2 lr) / N."""
    N, lr = 60_000, 0.5
    weights = torch.nn.Parameter(torch.zeros(200_000))
    weights.grad = torch.zeros_like(weights)
    SGLD([weights], lr, num_data=N, temperature=1 / N).step()
    assert float(weights.detach().std()) == pytest.approx((2 * lr) ** 0.5 / N, rel=0.01)


def test_posterior_and_other_forms(parsed: Any) -> None:
    model = parsed(run_of(psgld_mnist, "400-psgld-1"))["model"]["init_args"]
    assert model["sampler"]["init_args"]["temperature"] == 1.0
    assert model["freeze_preconditioner"] is True
    assert model["burn_in"] == 12_000
    assert model["schedule"]["class_path"].endswith("ConstantStep")
    content = parsed(run_of(psgld_mnist, "400-deep-ensemble"))
    model = content["model"]["init_args"]
    assert (model["num_chains"], model["burn_in"]) == (5, 59_999)
    assert content["data"]["init_args"]["scale"] == "126"
    assert model["sampler"]["init_args"]["prior"]["init_args"]["variance"] == 1.0
    hamiltonian = parsed(run_of(psgld_mnist, "temperature-sghmc-0.001"))["model"]["init_args"]
    assert hamiltonian["step_fraction"] == 0.005
    assert hamiltonian["sampler"]["init_args"]["temperature"] == 0.001
    cold = parsed(run_of(psgld_mnist, "temperature-psgld-1-2e-05"))
    assert cold["model"]["init_args"]["sampler"]["init_args"]["temperature"] == 1 / 50_000
    assert cold["data"]["init_args"]["num_val"] == 10_000
    content = parsed(run_of(psgld_mnist, "800-dropout-seed2"))
    assert (content["seed_everything"], content["model"]["init_args"]["num_chains"]) == (2, 1)
    content = parsed(run_of(psgld_mnist, "800-distilled-seed0"))
    student = content["trainer"]["callbacks"][1]["init_args"]
    assert student["student"]["init_args"]["hidden"] == [800, 800]
    assert student["optimizer"]["init_args"]["lr"] == 1e-4


def test_what_runs_depends_on_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for table in TABLES.values():
        every = {c.name for c in table.EXPERIMENT.cells()}
        short = {n for n in every if n.startswith(("reduced", "temperature"))}
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        names, why = table.EXPERIMENT.left_out()
        assert set(names) == every - short
        assert "--cell" in why
        assert f"{len(names)} cells" in why
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        names, why = table.EXPERIMENT.left_out()
        assert set(names) == {n for n in every if n.startswith("reduced")}
        assert table.EXPERIMENT.cells()[0].overrides["model.num_chains"] == 10


def made_up(errors: list[float], steps: int = 60_000, **more: Any) -> dict[str, Any]:
    metrics = {"error_percent": 9.0, "nll": 0.5, "ece": 0.25}
    each = {name: [value] * len(errors) for name, value in metrics.items()}
    each["error_percent"] = errors
    return {
        "metrics": {"ensemble": metrics, "ensemble_val": metrics | {"nll": 0.75}},
        "task_details": {"chains": {"metrics": each}} if len(errors) > 1 else {},
        "num_gradients": steps,
        "num_data": 60_000,
        "num_parameters": 1234,
        "num_chains": len(errors),
        "num_draws": 7,
        "temperature": 0.0,
        "wall_seconds": 90.0,
        "provenance": {"device": "abacus"},
        "diagnostics": {},
        "sampler": {},
    } | more


def test_costs_count_the_weights_of_the_networks() -> None:
    for column in psgld_mnist.NETWORKS.columns.values():
        sizes = [784, *column.changes["model.net.hidden"], 10]
        layers = pairwise(sizes)
        assert column.weights == sum((inputs + 1) * units for inputs, units in layers)


def row(text: str, start: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {start} |")]
    return [entry.strip() for entry in line.strip("|").split("|")]


def test_numbers_stand_where_they_belong() -> None:
    results: dict[str, Any] = {c.name: None for c in psgld_mnist.cells()}
    empty = psgld_mnist.EXPERIMENT.render(results)
    assert row(empty, "*paper*, SGLD")[1:] == ["1.64", "1.41", "1.40", ""]
    assert row(empty, "SGD, dropout")[1:] == ["-"] * 4
    assert "what was built" not in empty
    results["800-sgd"] = made_up([1.0, 2.0, 3.0], wall_seconds=3600.0)
    alone = {"metrics": {"ensemble": {"error_percent": 4.0, "nll": 1.0, "ece": 0.0}}}
    results["400-dropout-seed0"] = made_up([4.0], **alone)
    results["400-dropout-seed2"] = made_up([6.0])  # 9.0 of the ensemble
    results["reduced-distilled-seed0"] = made_up([8.0])  # a teacher
    results["1200-deep-ensemble"] = made_up([1.0, 2.0])
    masked = made_up([3.0, 5.0])
    del masked["sampler"]  # of networks of runs of their own, which nothing averages
    results["400-mc-dropout"] = masked
    results["1200-distilled"] = masked
    of_mean = {"posterior_mean": {"error_percent": 2.5, "nll": 0.125}}
    results["400-sgd-averaged"] = made_up([4.0], metrics=alone["metrics"] | of_mean)
    results["400-rmsprop"] = made_up([4.0], metrics=alone["metrics"] | of_mean, num_draws=1)
    results["1200-sgd-averaged"] = made_up([4.0, 4.0], metrics=alone["metrics"] | of_mean)
    results["800-psgld-100"] = {"diverged": "chain 0 diverged"}
    diagnostics = {"configurational_temperature": {"value": 1.2345}}
    results["reduced-psgld-1"] = made_up(
        [5.0, 6.0], 12_000, temperature=1.0, diagnostics=diagnostics
    )
    text = psgld_mnist.EXPERIMENT.render(results)
    head = text.split("What each entry is")[0]
    # 20 minutes a repetition, times the ratios of weights and epochs.
    sgd = ["- (7 min)", "2.00 +- 1.00 (3)", "- (38 min)", "- (1 min)"]
    assert row(head, "SGD")[1:] == sgd
    assert row(head, "pSGLD, sigma^2 = 100, posterior (T = 1)")[1:] == ["-", "diverges", "-", "-"]
    assert row(head, "SGD, dropout")[1:2] == ["6.50 +- 3.54 (2)"]
    assert row(head, "deep ensemble of 5 (Adam)")[3] == "9.00"
    assert row(head, "distilled pSGLD, sigma^2 = 1, published code")[3] == "4.00 +- 1.41 (2)"
    minutes = [90 / 60 / 2 * 5 * weights / 478_410 for weights in (478_410, 1_276_810, 2_395_210)]
    costs = [f"- ({cost:.0f} min)" for cost in minutes]
    assert row(head, "pSGLD, sigma^2 = 1, posterior (T = 1)")[1:4] == costs
    lines = head.splitlines()
    place = lines.index("| *paper*, SGD | 1.72 | 1.47 | 1.47 |  |")
    assert lines[place + 1].startswith("| SGD |")
    tail = text.split("What each entry is")[1]
    assert row(tail, "800-800 | SGD")[2:] == [
        "SGD, lr 0.5 halved every 12,000 steps, prior N(0, 1)",
        "1,234", "100", "3", "7", "", "0.5000 +- 0.0000 (3)", "0.2500 +- 0.0000 (3)",
        "9.00, 0.5000", "", "60.0", "abacus",
    ]  # fmt: skip
    psgld = row(tail, "400-400, 20 epochs | pSGLD, sigma^2 = 1, posterior (T = 1)")
    assert psgld[4:8] == ["20", "2", "7", "1, 1.23"]
    dropout = row(tail, "400-400 | SGD, dropout")
    assert (dropout[5], dropout[8]) == ("2", "0.7500 +- 0.3536 (2)")
    assert dropout[10:13] == ["", "", "3.0"]  # of runs of their own there is no mean prediction
    assert row(tail, "400-400 | SGD, MC dropout, 100 masks")[10] == ""
    assert row(tail, "400-400 | SGD, mean over iterates")[10:12] == ["", "2.50, 0.1250"]
    assert row(tail, "400-400 | RMSprop")[11] == ""  # one draw
    assert row(tail, "1200-1200 | SGD, mean over iterates")[11] == ""  # two chains
    student = row(tail, "1200-1200 | distilled pSGLD, sigma^2 = 1, published code")
    assert student[2].startswith("student by Adam, lr 0.0001, of SGLD, RMSProp metric, adapting,")
    assert row(tail, "1200-1200 | deep ensemble of 5 (Adam)")[5] == "1 of 2 networks"


def test_temperatures_and_trials(tmp_path: Path) -> None:
    results: dict[str, Any] = {c.name: None for c in psgld_mnist.EXPERIMENT.choices.cells()}
    for T, nll in ((1.0, 0.3), (0.01, 0.2)):
        values = {"error_percent": 1.5, "nll": nll}
        metrics = {"ensemble": values, "ensemble_val": values | {"nll": nll + 0.5}}
        result = made_up([1.0, 1.0], temperature=T, metrics=metrics)
        results[f"temperature-sghmc-{T:g}"] = result
    results["trial-sgld-0.1"] = made_up([1.0], metrics={"ensemble_val": metrics["ensemble"]})
    results["trial-sgld-0.5"] = made_up([1.0])
    text = psgld_mnist.EXPERIMENT.render(results)
    label = "| SGHMC, frozen RMSProp, after Adam | "
    first, second = (line for line in text.splitlines() if line.startswith(label))
    assert first.endswith("| 0.01 | -0.7000 | -0.2000 | 1.50 | 1.50 | 2 |")
    assert second.endswith("| 1 | -0.8000 | -0.3000 | 1.50 | 1.50 | 2 |")
    trials = psgld_mnist.EXPERIMENT.choices.render(results)
    assert "| SGLD, posterior (T = 1) | 0.5 | 0.7500 | 9.00 |" in trials
    assert "| SGHMC, frozen RMSProp, after Adam | T = 0.01 | 0.7000 | 1.50 |" in trials
    assert "Bayes by Backprop" not in trials
    assert "sgld at 0.1," in trials
    assert "temperature-sghmc at 0.01." in trials
    figures = psgld_mnist.EXPERIMENT.figures(results, tmp_path)
    assert set(figures) == {"temperature"}
    test_line, held_out = figures["temperature"].axes[0].get_lines()[:2]
    np.testing.assert_allclose(test_line.get_xydata(), [(0.01, -0.2), (1.0, -0.3)])
    np.testing.assert_allclose(held_out.get_xydata(), [(0.01, -0.7), (1.0, -0.8)])


SMALL = Protocol(epochs=13, decay=5, repetitions=2, num_data=400)
TEST = 150


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a folder of small runs on digits that are noisy stripes."""
    root = tmp_path_factory.mktemp("psgld")
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(MNISTData, "files", write_digits(root))
    monkeypatch.setenv("SGMCMC_DATA_ROOT", str(root))
    out = root / "runs"
    for method in ("psgld-published-1", "distilled", "dropout"):
        cell = psgld_mnist.cells_of("reduced", method, SMALL)[0]
        more = ["--model.net.hidden=[16,16]", "--trainer.accelerator=cpu"]
        more += ["--trainer.enable_progress_bar=false"]
        if method == "dropout":
            more += ["--model.net.dropout=1e-12"]
        if method == "distilled":
            more += ["--trainer.callbacks.student.hidden=[16,16]"]
            more += ["--trainer.callbacks.optimizer.lr=1e-2", "--model.sampler.lr=5e-3"]
            more += ["--model.sampler.temperature=1e-6"]  # 1/N is hot where N is small
        reproduce.run(ROOT, out, cell, more)
    for method in ("distilled", "mc-dropout"):
        study = next(c for c in psgld_mnist.cells() if c.name == f"reduced-{method}")
        reproduce.run(ROOT, out, study, [])
    yield out
    monkeypatch.undo()


def write_digits(root: Path) -> IDXFiles:
    rng = np.random.default_rng(0)
    (root / "MNIST" / "raw").mkdir(parents=True)
    checksums = {}
    for part, number in (("train", SMALL.num_data), ("t10k", TEST)):
        labels = rng.integers(0, 10, number).astype(np.uint8)
        images = rng.integers(0, 40, (number, 28, 28))
        images[np.arange(number), 2 * labels + 4] += 200
        for kind, array in (("images-idx3", images.astype(np.uint8)), ("labels-idx1", labels)):
            head = struct.pack(f">{array.ndim}I", *array.shape)
            content = gzip.compress(b"\0\0\x08" + bytes([array.ndim]) + head + array.tobytes())
            name = f"{part}-{kind}-ubyte.gz"
            (root / "MNIST" / "raw" / name).write_bytes(content)
            checksums[name] = f"md5:{hashlib.md5(content).hexdigest()}"
    return IDXFiles("MNIST", "file:///nowhere/", checksums)


def results_of(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / "results.json").read_text())
    return content


def held_out() -> tuple[torch.Tensor, torch.Tensor]:
    data = MNISTData(flatten=True, scale="126")
    data.setup()
    return data.tensors("test")


def test_curves_are_those_of_networks_and_of_ensembles(runs: Path) -> None:
    run = runs / "reduced-psgld-published-1"
    content = results_of(run)
    networks, ensembles = (read_curve(run, name) for name in (NETWORK, ENSEMBLE))
    assert [step for step, _ in networks] == [4 * k for k in range(1, 14)]
    assert networks[-1][1] == pytest.approx(content["metrics"]["last"]["error_percent"])
    # No draw is due at the last step, so that the ensemble of those before is that of all.
    each = content["task_details"]["chains"]["metrics"]["error_percent"]
    assert len(each) == 2
    assert ensembles[-1][1] == pytest.approx(np.mean(each))
    assert read_curve(runs / "reduced-dropout-seed0", ENSEMBLE) == []
    name = "reduced-dropout-seed0"
    results = {"reduced-psgld-published-1": content, name: results_of(runs / name)}
    drawn = psgld_mnist.EXPERIMENT.figures(results, runs)
    assert set(drawn) == {"curves_reduced", "weights_reduced"}
    first = drawn["curves_reduced"].axes[0].get_lines()[0].get_xydata()
    np.testing.assert_allclose(first, [(step / 4, error) for step, error in ensembles])


def test_weights_are_the_last_iteration_s(runs: Path) -> None:
    run = runs / "reduced-dropout-seed0"
    (network,) = load_posterior(run)
    matrices = [p.detach().flatten() for p in network.parameters() if p.dim() == 2]
    found = psgld_figures.last_weights(run / "checkpoints" / "last.ckpt")
    np.testing.assert_array_equal(found, torch.cat(matrices).numpy())
    chains = runs / "reduced-psgld-published-1" / "checkpoints" / "last.ckpt"
    of_one_chain = psgld_figures.last_weights(chains)
    assert of_one_chain.shape == found.shape


def test_mc_dropout_without_a_drop_is_the_network(runs: Path) -> None:
    found, network = (results_of(runs / f"reduced-{n}") for n in ("mc-dropout", "dropout-seed0"))
    for name, value in network["metrics"]["ensemble"].items():
        assert found["metrics"]["ensemble"][name] == pytest.approx(value, abs=1e-5)
    assert found["num_chains"] == 1
    assert found["wall_seconds"] == network["wall_seconds"]


def test_the_student_is_measured(runs: Path) -> None:
    student = FanInMLP((16, 16), inputs=784, outputs=10)
    student.load_state_dict(load_file(runs / "reduced-distilled-seed0" / "student.safetensors"))
    x, y = (t.to(DEVICE) for t in held_out())
    with torch.no_grad():
        logits = student(x)
    error = 100 * float((logits.argmax(1) != y).double().mean())
    nll = float(torch.nn.functional.cross_entropy(logits, y))
    content = results_of(runs / "reduced-distilled")
    each = content["task_details"]["chains"]["metrics"]
    assert each["error_percent"] == [pytest.approx(error)]
    assert each["nll"] == [pytest.approx(nll, rel=1e-4)]
    assert error < 60  # by chance: 90
    teacher = results_of(runs / "reduced-distilled-seed0")["metrics"]["ensemble"]
    assert teacher["nll"] != pytest.approx(nll, rel=1e-3)
    results = {"reduced-distilled": content, "reduced-distilled-seed0": None}
    assert f"| {error:.2f} |" in psgld_mnist.EXPERIMENT.render(results)


def test_a_collection_without_its_run_says_which(tmp_path: Path) -> None:
    for method, needed in (("distilled", "distilled"), ("mc-dropout", "dropout")):
        study = next(c for c in psgld_mnist.cells() if c.name == f"400-{method}")
        assert isinstance(study, Study)
        with pytest.raises(ValueError, match=f"needs the finished run 400-{needed}-seed0"):
            study.compute(tmp_path / study.name)


def test_rows_without_a_curve_have_none(tmp_path: Path) -> None:
    results: dict[str, Any] = {"full-sgd": made_up([1.0])}
    assert psgld_figures.curve(results, tmp_path, "full", "sgd", Method("SGD")) == []
    assert psgld_cifar.EXPERIMENT.figures(results, tmp_path) == {}  # a folder without metrics.csv
