"""Table 1 of natural Langevin dynamics: its commands, its network's start, training metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lightning_sgmcmc import load_posterior
from lightning_sgmcmc.baselines import Dropout
from lightning_sgmcmc.chain import starts
from lightning_sgmcmc.priors import FlatPrior
from lightning_sgmcmc.run import cli
from tasks.classification import Classification
from tasks.data.mnist import MNISTData
from tasks.experiments import reproduce
from tasks.experiments.experiment import Cell
from tasks.experiments.nld import mnist as nld
from tasks.nets.fan_in_mlp import FanInMLP
from tests.tasks.test_images import root as mnist_files

ROOT = Path(__file__).resolve().parents[2]
files = mnist_files
CELLS, CHOICES = nld.SHEET.runs(), nld.SHEET.trial_runs()
EMPTY: dict[str, Any] = dict.fromkeys(cell.name for cell in CELLS)


def step(cell: Cell) -> float:
    lr: float = cell.overrides["model.sampler"]["init_args"]["lr"]
    return lr


def test_names_are_unique_and_the_grid_is_the_paper_s() -> None:
    names = [cell.name for cell in (*CELLS, *CHOICES)]
    assert len(set(names)) == len(names)
    assert len(CHOICES) == 4 * 4 * 3 + 2 * 4 + 5
    tried = {(cell.name.split("-")[0], step(cell)) for cell in CHOICES}
    assert {(c.name, step(c)) for c in CELLS if "-" not in c.name} < tried
    accurate = {(c.name.split("-")[0], step(c)) for c in CELLS if c.name.endswith("accurate")}
    assert accurate == {("sgd", 1), ("euclidean", 1), ("dop", 0.01), ("qdop", 0.01)} < tried
    assert {"euclidean", "qdop-frozen", "sgd", "dropout"} < set(names)


@pytest.mark.parametrize("cell", CELLS, ids=lambda c: c.name)
def test_networks_and_data(cell: Cell, parsed: Any) -> None:
    content = parsed(cell)
    model, data = content["model"]["init_args"], content["data"]["init_args"]
    assert model["net"]["init_args"]["hidden"] == [400, 400]
    assert (data["num_val"], data["val_from"], data["scale"]) == (10_000, "last", "unit")
    assert data["measure_train"] == 10_000
    assert model["net"]["init_args"].get("dropout", 0) == 0.5 * (cell.name == "dropout")
    smooth = model["net"]["class_path"].endswith("SmoothMLP")
    assert smooth == (cell.name == "qdop-smooth")


def test_weights_start_with_variance_one_over_fan_in() -> None:
    """Variances of 80,000 and 40,000 numbers, to 5 standard errors; other chains start alike."""
    torch.manual_seed(0)
    module = Classification(FanInMLP((200, 200)), lambda p: nld_sampler(p))
    assert isinstance(module.net, FanInMLP)
    module.net.take_sizes(400, 10)
    found = starts(
        module, [n for n, _ in module.named_parameters()], "reinitialise", 0, [0, 1], FlatPrior()
    )
    for start in found:
        for layer, inputs in ((0, 400), (2, 200), (4, 200)):
            w = start[f"net.layers.{layer}.weight"]
            error = 5 * (2 / w.numel()) ** 0.5
            assert float(w.square().mean()) * inputs == pytest.approx(1, abs=error)
            assert not start[f"net.layers.{layer}.bias"].any()
    assert not torch.equal(*(start["net.layers.2.weight"] for start in found))


def nld_sampler(params: Any) -> Any:
    from lightning_sgmcmc import SGLD

    return SGLD(params, 0.1)


def test_dropout_stands_before_every_hidden_activation() -> None:
    kinds = [type(part) for part in FanInMLP((8, 8), inputs=3, dropout=0.5).layers]
    assert kinds == [nn.Linear, Dropout, nn.ReLU, nn.Linear, Dropout, nn.ReLU, nn.Linear]


def test_masks_of_evaluation() -> None:
    """A weight's output is 0 or 1 / (1 - p): without ``monte_carlo`` evaluation has neither."""
    for monte_carlo in (False, True):
        torch.manual_seed(0)
        net = FanInMLP((400,), inputs=3, outputs=1, dropout=0.25, monte_carlo=monte_carlo).eval()
        with torch.no_grad():
            net.layers[0].weight.fill_(1 / 3)  # type: ignore[union-attr,operator]
            net.layers[-1].weight.fill_(1 / 400)  # type: ignore[union-attr,operator]
            found = net(torch.ones(200, 3))
        assert found.mean() == pytest.approx(1, abs=0.01)
        # Of 400 units that are 0 or 4/3, the mean has the variance p / (1 - p) / 400.
        assert float(found.std()) == pytest.approx(monte_carlo * (1 / 3 / 400) ** 0.5, rel=0.2)


def test_a_small_run_measures_training_examples(files: Path) -> None:
    """Ensemble and posterior-mean network, recomputed from the draws on disk."""
    cell = next(c for c in CELLS if c.name == "qdop-frozen")
    small = [
        "--model.net.hidden=[6]",
        "--model.sampler.lr=0.000001",
        "--model.burn_in=20",
        "--model.thinning=5",
        "--model.draw_budget=100",
        "--trainer.max_steps=60",
        "--trainer.logger=false",
        "--trainer.enable_progress_bar=false",
        f"--data.root={files}",
        "--data.num_val=10",
        "--data.measure_train=12",
        "--data.batch_size=10",
    ]
    out = files / "qdop-frozen"
    cli.main(ROOT / "configs", [*cell.arguments(ROOT / "configs"), *small, "--out", str(out)])
    content = json.loads((out / "results.json").read_text())
    found = content["task_details"]["train"]
    data = MNISTData(str(files), flatten=True, num_val=10, val_from="last")
    data.setup()
    x, y = (t[:12] for t in data.tensors("train"))
    posterior = load_posterior(out)
    with torch.no_grad():
        p = torch.stack([module(x).softmax(1) for module in posterior]).double()
    assert len(p) == 8
    mean = torch.tensordot(posterior.weights.double(), p, 1)
    nll = -mean[torch.arange(12), y].log().mean()
    assert found["ensemble"]["nll"] == pytest.approx(float(nll), rel=1e-5)
    error = 100 * float((mean.argmax(1) != y).double().mean())
    assert found["ensemble"]["error_percent"] == pytest.approx(error)
    with torch.no_grad():
        logits = posterior.mean_network()(x)
    nll = torch.nn.functional.cross_entropy(logits, y)
    assert found["posterior_mean"]["nll"] == pytest.approx(float(nll), rel=1e-5)
    assert found["posterior_mean"]["nll"] != found["ensemble"]["nll"]
    assert "out_of_distribution" not in content["task_details"]
    text = nld.EXPERIMENT.render(EMPTY | {"qdop-frozen": content})
    train, test = found["posterior_mean"], content["metrics"]["posterior_mean"]
    numbers = [train["nll"], 100 - train["error_percent"], test["nll"], 100 - test["error_percent"]]
    values = " | ".join(f"{n:.{d}f}" for n, d in zip(numbers, (4, 2, 4, 2), strict=True))
    assert f"| PostMean, QDOP: {nld.SHEET.built()['qdop-frozen']} | {values} |" in text
    assert f"| Ensemble, DOP: {nld.SHEET.built()['dop']} | - | - | - | - |" in text


def test_several_chains_have_a_row_each_and_one_together() -> None:
    def of(nll: Any, error: Any) -> dict[str, Any]:
        return {"nll": nll, "error_percent": error}

    run = {
        "num_chains": 3,
        "metrics": {"ensemble": of(0.057, 1.73), "posterior_mean": of(23.0, 73.0)},
        "task_details": {
            "train": {"ensemble": of(0.021, 0.19), "posterior_mean": of(23.0, 73.0)},
            "chains": {"metrics": of([0.06, 0.062, 0.058], [1.85, 1.7, 1.85])},
        },
    }
    text = nld.EXPERIMENT.render(EMPTY | {"qdop-chains": run})
    label = f"| Ensemble, QDOP: {nld.SHEET.built()['qdop-chains']}"
    assert f"{label}, each chain |  |  | 0.0600 +- 0.0020 (3) | 98.20 +- 0.09 (3) |" in text
    assert f"{label}, 3 together | 0.0210 | 99.81 | 0.0570 | 98.27 |" in text
    assert "23.0" not in text  # the mean of networks with different starts is not one
    assert "PostMean, QDOP, several" not in text


def test_iterates_of_sgd_predict_in_three_ways() -> None:
    errors = {"last": 1.9, "ensemble": 1.8, "posterior_mean": 1.7}
    found = {part: {"nll": error / 10, "error_percent": error} for part, error in errors.items()}
    run = {"num_chains": 1, "metrics": found, "task_details": {"train": found}}
    text = nld.EXPERIMENT.render(EMPTY | {"sgd-averaged": run})
    built = nld.SHEET.built()["sgd-averaged"]
    for words, error in (
        ("last iterate", 1.9),
        ("mean prediction of iterates", 1.8),
        ("mean weights of iterates", 1.7),
    ):
        numbers = f"{error / 10:.4f} | {100 - error:.2f}"
        assert f"| SGD, {words}: {built} | {numbers} | {numbers} |" in text
    assert "sgd-averaged" not in text.split("Configurational")[1]  # no chain of a target


def test_recorded_trials_have_a_fifth_of_the_length() -> None:
    recorded = {cell.name: reproduce.read(ROOT / "docs/measured/nld", cell) for cell in CHOICES}
    ended = {name: run for name, run in recorded.items() if run and "metrics" in run}
    assert len(ended) > 20
    for cell in CHOICES:
        assert cell.overrides["trainer.max_steps"] == 10_000
        assert cell.overrides["model.schedule"]["init_args"]["every"] == 2_000
        if cell.name in ended:
            draws = 1 if cell.name.startswith(nld.POINTS) else 95
            draws = 80 if cell.name.startswith("qdop-smooth") else draws
            assert (ended[cell.name]["num_gradients"], ended[cell.name]["num_draws"]) == (
                10_000,
                draws,
            )


def test_the_most_accurate_of_the_grid() -> None:
    def run(error: float) -> dict[str, Any]:
        return {"metrics": {"ensemble_val": {"error_percent": error, "nll": 0.1}}}

    text = nld.EXPERIMENT.choices.render(
        {"sgd-short-lr0.1": run(2.0), "sgd-short-lr1": run(1.5), "qdop-short-lr0.1-variance1": None}
    )
    assert "Most accurate: sgd-short-lr1." in text
    assert "| SGD | 0.1 | flat | 98.00 | 0.1000 |" in text


def test_more_training_examples_than_there_are(files: Path) -> None:
    data = MNISTData(str(files), measure_train=41)
    data.setup()
    with pytest.raises(ValueError, match="measure_train = 41, but there are 40 training"):
        data.extra_dataloaders()
    with pytest.raises(ValueError, match="must not be negative, got -1"):
        MNISTData(measure_train=-1)
