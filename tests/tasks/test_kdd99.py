"""SGFS's discriminative RBM on KDD Cup 99: its runs are commands with the published settings."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from lightning_sgmcmc import SGFS, SGLD, Target
from lightning_sgmcmc.chain.schedules import PolynomialDecay
from lightning_sgmcmc.target import PerExample
from tasks.data.kddcup99 import FEATURES, SYMBOLS, KDDCup99Data
from tasks.experiments import reproduce
from tasks.experiments.experiment import Cell
from tasks.experiments.sgfs import kdd99
from tasks.nets.drbm import DiscriminativeRBM

ROOT = Path(__file__).resolve().parents[2]
CELLS = {cell.name: cell for cell in kdd99.SHEET.runs()}
CHOICES = kdd99.SHEET.trial_runs()
#: Training rows of the 10 % file, and of the full one, which the paper has.
N, N_PAPER = 444_619, 4_408_587


def test_names_are_unique_and_those_of_the_table() -> None:
    names = [cell.name for cell in (*kdd99.SHEET.runs(), *CHOICES)]
    assert len(set(names)) == len(names)
    assert list(kdd99.SHEET.built()) == list(CELLS)
    assert len(set(kdd99.SHEET.built().values())) == len(CELLS)
    assert set(kdd99.SHEET.published) < set(CELLS)


def test_as_many_settings_are_tried_as_in_the_paper() -> None:
    names = [cell.name.replace("-prior", "") for cell in CHOICES]
    tried = [name.split("-lr")[0].split("-alpha")[0] for name in names]
    assert {kind: tried.count(kind) for kind in set(tried)} == {
        "sgd": 18,
        "sgld": 18,
        "sgfs-d": 6,
        "sgfs-d-lambda1": 3,
        "sgfs-f": 6,
    }


def test_a_setting_is_tried_for_a_tenth_of_the_rows_length(parsed: Any) -> None:
    for cell in (CHOICES[0], CHOICES[-1]):
        content = parsed(cell)
        assert content["trainer"]["max_steps"] == 10_000
        assert content["model"]["init_args"]["burn_in"] == 5_000


def test_the_number_of_training_rows() -> None:
    assert len(KDDCup99Data()._rows(494_021)["train"]) == N
    assert len(KDDCup99Data(subset="full")._rows(4_898_431)["train"]) == N_PAPER


@pytest.mark.parametrize("cell", CELLS.values(), ids=lambda c: c.name)
def test_cells_are_valid_commands(cell: Cell, parsed: Any) -> None:
    content = parsed(cell)
    model, data = content["model"]["init_args"], content["data"]["init_args"]
    assert (data["batch_size"], data["num_val"], data["num_test"]) == (500, 0.05, 0.05)
    assert content["trainer"]["max_steps"] == 100_000
    name, settings = (
        model["sampler"]["class_path"].rsplit(".", 1)[-1],
        model["sampler"]["init_args"],
    )
    weaker = cell.name.endswith("-lambda1")
    assert settings["prior"]["init_args"]["variance"] == (1.0 if weaker else 0.1)
    base = cell.name.removesuffix("-lambda1")
    if cell.name.startswith("sgfs"):
        assert name == "SGFS"
        assert settings["variant"] == {"d": "diagonal", "f": "full"}[cell.name[5]]
        # The paper's epsilon is 4 / alpha^2; lr / N = (2 / (gamma (1 + alpha^2))) / N.
        gamma = (N + 500) / 500
        alpha = {"chosen": 2.0, "best": 1.0}.get(base.split("-")[-1], 8.95)
        assert settings["lr"] == pytest.approx(2 / gamma / (1 + alpha**2), rel=1e-3)
        assert model["freeze_preconditioner"] == base.endswith(
            ("frozen", "prior", "chosen", "best")
        )
        assert settings["count_prior"] == base.endswith(("prior", "chosen", "best"))
        return
    assert name == {"sgd": "Optimized", "sgld": "SGLD"}[cell.name.split("-")[0]]
    rows = N_PAPER if "same" in base or weaker else N
    sampler = SGLD([nn.Parameter(torch.zeros(1))], settings["lr"], num_data=rows)
    schedule = PolynomialDecay(sampler, **model["schedule"]["init_args"])
    for step in (0, 10_000, 99_999):
        epsilon = 0.1 * (1e5 + step) ** -0.9
        found = settings["lr"] * schedule.lr_lambdas[0](step)
        assert found == pytest.approx(epsilon * rows / 2, rel=1e-3)


def test_the_largest_step_of_sgfs_is_not_exceeded() -> None:
    for cell in CHOICES:
        if cell.name.startswith("sgfs"):
            lr = cell.overrides["model.sampler"]["init_args"]["lr"]
            alpha = float(cell.name.rsplit("-alpha")[1])
            assert lr == pytest.approx(SGFS.step_size(alpha, N, 500), rel=1e-3)
            assert lr < SGFS.step_size(0.0, N, 500)


def test_per_example_gradients_of_the_machine_in_closed_form() -> None:
    """With r = p - e_y and s = sigma(z): g_d = r, g_U = s r', g_c = s r, g_W = (s r) x'."""
    torch.manual_seed(0)
    net = DiscriminativeRBM(features=5, hidden=3, classes=4).double()
    for parameter in net.parameters():
        parameter.data.normal_()
    x, y = torch.randn(7, 5).double(), torch.randint(0, 4, (7,))
    names, params = zip(*net.named_parameters(), strict=True)

    def nll(batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return functional.cross_entropy(net(batch[0]), batch[1], reduction="none")

    target = Target(nll, list(params), 7)
    target.per_example = PerExample(net, names, list(params), nll)
    target.use((x, y))
    with target.recording():
        torch.autograd.backward(target.mean_nll((x, y)))
    found = dict(zip(names, next(iter(target.per_example.gradients(range(4)))), strict=True))
    s = torch.sigmoid((x @ net.W.T + net.c)[:, :, None] + net.U).detach()
    r = net(x).softmax(1).detach() - functional.one_hot(y, 4)
    expected = {"d": r, "U": s * r[:, None], "c": (s @ r[..., None])[..., 0]}
    expected["W"] = expected["c"][:, :, None] * x[:, None]
    for name, value in expected.items():
        torch.testing.assert_close(found[name][0], value)


def row(rng: np.random.Generator) -> str:
    fields = dict.fromkeys(FEATURES, "0")
    kind = int(rng.integers(3))
    fields |= {name: ("tcp", "udp", "SF")[int(rng.integers(3))] for name in SYMBOLS}
    for name in fields:
        if name not in SYMBOLS:  # no feature is constant
            fields[name] = f"{rng.random():.2f}"
    fields["count"] = str(int(rng.integers(5, 10) * 100**kind))
    return ",".join([*fields.values(), ("normal.", "smurf.", "neptune.")[kind]])


def test_small_runs_and_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "kddcup99" / "kddcup.data_10_percent.gz"
    path.parent.mkdir()
    path.write_bytes(gzip.compress(("\n".join(row(rng) for _ in range(400)) + "\n").encode()))
    monkeypatch.setattr(KDDCup99Data, "prepare_data", lambda self: None)
    small = [
        "--model.net.classes=3",
        "--model.net.hidden=4",
        "--model.burn_in=100",
        "--model.thinning=50",
        "--trainer.max_steps=300",
        "--trainer.logger=false",
        "--trainer.enable_progress_bar=false",
        "--data.batch_size=40",
    ]
    arguments = ["kdd99", "--out", str(tmp_path / "out"), "--data-root", str(tmp_path)]
    for name, lr in (("sgfs-d", 0.003), ("sgfs-f-frozen", 0.003), ("sgd", 0.3)):
        command = [*arguments, "--cell", name, f"--model.sampler.lr={lr}", *small]
        reproduce.main(ROOT, command)
    printed = capsys.readouterr().out
    for name in ("sgfs-d", "sgfs-f-frozen", "sgd"):
        content = json.loads((tmp_path / "out" / name / "results.json").read_text())
        rate = 100 * content["metrics"]["ensemble"]["error_percent"]
        if name == "sgd":
            assert rate < 2500  # three classes that the size of `count` tells apart
        assert content["num_data"] == 360
        adapts = any("adapt" in note for note in content["diagnostics"]["notes"])
        assert adapts == (name == "sgfs-d")
        paper = kdd99.SHEET.published.get(name, {"paper": ""})["paper"]
        assert f"| {kdd99.SHEET.built()[name]} | 300 | {rate:.1f} | {paper} |" in printed
    assert f"| {kdd99.SHEET.built()['sgld']} | - | - | 6.6 | - | - | - |" in printed
    first, second = (cell.name for cell in CHOICES[:2])
    tried = {first: content, second: None}
    rate = 100 * content["metrics"]["ensemble_val"]["error_percent"]
    text = kdd99.EXPERIMENT.choices.render(tried)
    assert f"| {first} | {rate:.1f} | " in text
    assert f"| {second} |" not in text  # it has not ended
