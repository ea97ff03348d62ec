"""Table 1: its commands are commands, its printed table puts numbers where they belong."""

from __future__ import annotations

import lzma
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.data.pde_source import SPE10_NAMES, PDESourceData
from tasks.experiments import reproduce
from tasks.experiments.experiment import Cell
from tasks.experiments.hasgld import table1
from tasks.pde_source import TABLE_1

ROOT = Path(__file__).resolve().parents[2]
LAYER_CELLS = [
    f"spe10-{layer}-{method}-{rate}"
    for layer in (10, 36, 85)
    for method in ("sgld", "hasgld1", "hasgld2")
    for rate in (0, 50)
]


METHODS = [
    (start, method)
    for start in table1.STARTS
    for method in table1.METHODS
    if (start, method) != ("printed", "sgld")
]


def setting(name: str) -> tuple[float | str, float]:
    """Return the step size of a cell or of a trial, and its fraction of the largest stable step."""
    cells = {cell.name: cell for cell in (*table1.SHEET.runs(), *table1.SHEET.trial_runs())}
    overrides = cells[name].overrides
    return overrides["model.sampler"]["init_args"]["lr"], overrides["model.step_fraction"]


def test_cells_are_the_table_s_and_names_are_unique() -> None:
    names = [cell.name for cell in table1.SHEET.runs()]
    rates = sorted({rate for row in TABLE_1.values() for rate in row})
    expected = [f"{s}-{m}-{round(100 * r)}" for s, m in METHODS for r in rates]
    assert names == expected + LAYER_CELLS
    choices = [cell.name for cell in table1.SHEET.trial_runs()]
    assert len({*names, *choices}) == len(names) + len(choices)
    assert set(table1.METHODS.values()) == set(TABLE_1)


def test_every_chosen_step_was_in_the_grid() -> None:
    names = [cell.name for cell in table1.SHEET.trial_runs()]
    for start, method in METHODS:
        lr, fraction = setting(f"{start}-{method}-0")
        if method != "hasgld2":
            step = f"auto{fraction:g}" if lr == "auto" else f"{lr:g}"
            assert f"{start}-{method}-lr{step}" in names
        else:
            assert lr == setting(f"{start}-hasgld1-0")[0]


@pytest.mark.parametrize(
    "cell",
    [
        c
        for c in table1.SHEET.runs()
        if c.name not in LAYER_CELLS and c.name.endswith(("-0", "-70"))
    ],
    ids=lambda c: c.name,
)
def test_cells_are_valid_commands(cell: Cell, parsed: Any) -> None:
    start, method, rate = cell.name.split("-")
    config = parsed(cell)
    model = config["model"]["init_args"]
    sampler = model["sampler"]
    steps = config["trainer"]["max_steps"]
    assert 0 < model["burn_in"] < steps
    assert sampler["class_path"].rsplit(".", 1)[-1] == ("SGLD" if method == "sgld" else "HASGLD")
    if method != "sgld":
        assert sampler["init_args"]["memory"] == int(method[-1])
        assert sampler["init_args"]["paper_mode"] == (start == "printed")
    assert sampler["init_args"]["temperature"] == (1e-6 if start == "printed" else 1.0)
    lr = {"burnin": 0.02, "random": 0.5, "printed": 0.1}[start]
    assert sampler["init_args"]["lr"] == ("auto" if method == "sgld" else lr)
    optimizer = model["burn_in_optimizer"]
    assert (optimizer is not None) == (start == "burnin")
    assert config["data"]["init_args"]["num_val"] == 0
    callbacks = config["trainer"]["callbacks"] or []
    assert len(callbacks) == (rate != "0")
    if callbacks:
        pruning = callbacks[0]["init_args"]
        assert pruning["rate"] == int(rate) / 100
        # The weights that pruning leaves go on learning before draws are kept.
        end = optimizer["steps"] if optimizer else model["burn_in"]
        assert pruning["start"] < pruning["stop"] < end


@pytest.mark.parametrize("name", LAYER_CELLS[:2] + LAYER_CELLS[-1:])
def test_layers_differ_from_the_embedded_field_in_nothing_else(name: str, parsed: Any) -> None:
    cells = {cell.name: cell for cell in table1.SHEET.runs()}
    _, layer, method, rate = name.split("-")
    config = parsed(cells[name])
    expected = parsed(cells[f"burnin-{method}-{rate}"])
    expected["data"]["init_args"] |= {"field": "spe10", "layer": int(layer)}
    assert config == expected


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the cells that the command starts; nothing is run, and no data are at hand."""
    names: list[str] = []
    monkeypatch.setattr(
        reproduce, "run", lambda root, out, cell, overrides: names.append(cell.name)
    )
    monkeypatch.setenv("SGMCMC_DATA_ROOT", "nowhere")
    return names


def test_layers_are_left_out_with_one_line_where_their_file_is_not(
    started: list[str], tmp_path: Path, capsys: Any
) -> None:
    reproduce.main(ROOT, ["table1", f"--out={tmp_path}", f"--data-root={tmp_path / 'sets'}"])
    assert started == [c.name for c in table1.cells() if c.name not in LAYER_CELLS]
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "18 cells on SPE10 layers are left out" in error
    assert str(tmp_path / "sets" / "spe10") in error
    assert "por_perm_case2a.zip" in error


@pytest.mark.parametrize("name", SPE10_NAMES)
def test_layers_are_run_where_their_file_is(
    name: str, started: list[str], tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "spe10").mkdir()
    (tmp_path / "spe10" / name).touch()
    reproduce.main(ROOT, ["table1", f"--out={tmp_path}", f"--data-root={tmp_path}"])
    assert started == [c.name for c in table1.cells()]
    assert capsys.readouterr().err == ""


def test_what_is_asked_for_is_run(started: list[str], tmp_path: Path, capsys: Any) -> None:
    cells = ["burnin-sgld-0", LAYER_CELLS[3]]
    reproduce.main(ROOT, ["table1", f"--out={tmp_path}", *(f"--cell={name}" for name in cells)])
    assert started == cells
    assert capsys.readouterr().err == ""


def test_choices_need_no_layers(started: list[str], tmp_path: Path, capsys: Any) -> None:
    reproduce.main(ROOT, ["table1", f"--out={tmp_path}", "--choose"])
    assert started == [c.name for c in table1.SHEET.trial_runs()]
    assert capsys.readouterr().err == ""


def test_layer_without_its_file_ends_the_command_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("SGMCMC_DATA_ROOT", "")  # which the command sets
    command = ["table1", "--cell", LAYER_CELLS[0], f"--out={tmp_path}", f"--data-root={tmp_path}"]
    with pytest.raises(SystemExit) as stop:
        reproduce.main(ROOT, [*command, f"--data.root={tmp_path / 'made'}"])
    assert stop.value.code == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    (error,) = errors
    assert f"no SPE10 file at {tmp_path / 'spe10' / 'spe_perm.dat'};" in error
    assert not list(tmp_path.rglob("results.json"))


def test_file_that_is_given_is_preferred_to_the_one_that_lies_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGMCMC_DATA_ROOT", str(tmp_path))
    (tmp_path / "spe10").mkdir()
    for name in reversed(SPE10_NAMES):
        (tmp_path / "spe10" / name).touch()
        assert PDESourceData(field="spe10").spec.spe10_file == str(tmp_path / "spe10" / name)
    assert PDESourceData(field="spe10", spe10_file="mine").spec.spe10_file == "mine"
    assert PDESourceData().spec.spe10_file is None


def test_layers_of_the_real_file_are_what_they_are_called(tmp_path: Path) -> None:
    """The crops are the file's, read here on their own, and smooth or channelised as named.

    The largest twentieth of the steps from cell to cell in y tells the two apart: it begins at 0.7
    decades or less in all of layers 1 to 35, and at one decade or more below.
    """
    root = os.environ.get("SGMCMC_DATA_ROOT")
    path = Path(root or "") / "spe10" / "spe_perm.dat.xz"
    if root is None or not path.exists():
        pytest.skip("needs $SGMCMC_DATA_ROOT/spe10/spe_perm.dat.xz")
    kx = np.array(lzma.decompress(path.read_bytes()).split()[: 85 * 220 * 60], dtype=float)
    steps = {}
    for layer in (10, 36, 85):
        data = PDESourceData(str(tmp_path), field="spe10", layer=layer, num_samples=10)
        data.prepare_data()
        data.setup()
        first = 220 * 60 * (layer - 1)
        expected = kx[first : first + 60 * 60].reshape(60, 60)
        np.testing.assert_array_equal(data.data.permeability, expected)
        jumps = np.abs(np.diff(np.log10(expected), axis=0))
        steps[layer] = float(np.quantile(jumps, 0.95))
    assert {layer: step < 0.7 for layer, step in steps.items()} == {10: True, 36: False, 85: False}


@pytest.mark.parametrize("cell", table1.SHEET.trial_runs(), ids=lambda c: c.name)
def test_choices_are_valid_commands_on_held_out_training_fields(cell: Cell, parsed: Any) -> None:
    config = parsed(cell)
    assert config["data"]["init_args"]["num_val"] == 120
    lr = cell.name.rsplit("-lr", 1)[1]
    model = config["model"]["init_args"]
    if lr.startswith("auto"):
        assert model["sampler"]["init_args"]["lr"] == "auto"
        assert model["step_fraction"] == float(lr.removeprefix("auto"))
    else:
        assert model["sampler"]["init_args"]["lr"] == float(lr)


def result(
    mean: float, median: float, burn_in: float, val: float, coverage: float = 0.0
) -> dict[str, Any]:
    return {
        "metrics": {
            "ensemble": {
                "relative_l2_mean_percent": mean,
                "relative_l2_median_percent": median,
                "coverage_90": coverage,
            },
            "burn_in": {"relative_l2_mean_percent": burn_in},
            "ensemble_val": {"relative_l2_mean_percent": val},
        }
    }


def test_references_know_nothing_or_the_sum_of_the_rates(tmp_path: Path) -> None:
    """Beside projections of the test flows by the training flows' own strengths."""
    options: dict[str, Any] = {"root": str(tmp_path), "num_samples": 60}
    found = table1.references(tmp_path, **options)["errors_percent"]
    data = PDESourceData(**options)
    data.prepare_data()
    data.setup()
    flows, rates = np.asarray(data.data.velocity), np.asarray(data.data.strengths).sum(1)
    train, test = slice(0, 48), slice(48, 60)
    mean = flows[train].mean(0)
    slope = np.polyfit(rates[train], flows[train] - mean, 1)
    fitted = mean + np.outer(rates[test], slope[0]) + slope[1]
    size = np.linalg.norm(flows[test], axis=1)
    for name, predicted in (("mean field", mean), ("sum of the rates", fitted)):
        errors = 100 * np.linalg.norm(flows[test] - predicted, axis=1) / size
        assert found[name]["mean"] == pytest.approx(errors.mean(), rel=1e-5)
        assert found[name]["median"] == pytest.approx(np.median(errors), rel=1e-5)
    assert found["sum of the rates"]["mean"] < 0.8 * found["mean field"]["mean"]


def rows(text: str) -> list[list[str]]:
    table = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_table_holds_the_paper_s_numbers() -> None:
    head, _, *body = rows(table1.EXPERIMENT.render({}))
    assert head[2:] == ["no pruning", "30 %", "50 %", "70 %"]
    paper = [row[1:] for row in body if row[0] == "*paper*"]
    assert paper == [
        ["SGLD", "2.03", "1.38", "1.25", "1.26"],
        ["HASGLD-SA (M=1)", "0.45", "0.37", "0.29", "0.30"],
        ["HASGLD-SA (M=2)", "0.42", "0.34", "0.27", "0.27"],
    ]
    ours = [row for row in body if row[0] != "*paper*"]
    assert all(row[2:] == ["-"] * 4 for row in ours[:-2])
    assert ours[-2] == ["prediction", "error"]  # of the references, which have not run


def test_every_result_stands_in_its_own_cell() -> None:
    """Each cell's result is one number of its own, looked for under its row and column."""
    cells = table1.SHEET.runs()
    results = {
        c.name: result(1 + i, 100 + i, 200 + i, 0.0, (300 + i) / 1000) for i, c in enumerate(cells)
    }
    _, _, *body = rows(table1.EXPERIMENT.render(results))
    found = {}
    for start, label in table1.STARTS.items():
        for method in [m for s, m in METHODS if s == start]:
            built = table1.BUILT[f"{start}-{method}-0"]
            (row,) = (r for r in body if r[:2] == [label, built])
            for rate, entry in zip(("0", "30", "50", "70"), row[2:], strict=True):
                found[f"{start}-{method}-{rate}"] = entry
    coverage = {}
    for layer, label in table1.LAYERS.items():
        for method in table1.METHODS:
            built = table1.BUILT[f"{layer}-{method}-0"]
            (row,) = (r for r in body if r[:2] == [label, built])
            for rate, entry, share in zip(("0", "50"), row[2:4], row[4:], strict=True):
                found[f"{layer}-{method}-{rate}"] = entry
                coverage[f"{layer}-{method}-{rate}"] = share
    expected = {c.name: f"{1 + i} ({100 + i}) [{200 + i}]" for i, c in enumerate(cells)}
    assert found == expected
    assert coverage == {
        c.name: f"{(300 + i) / 10:.1f} %" for i, c in enumerate(cells) if c.name in LAYER_CELLS
    }


def test_layers_are_shown_once_one_is_finished() -> None:
    assert "SPE10" not in table1.EXPERIMENT.render(dict.fromkeys(LAYER_CELLS))
    shown = table1.EXPERIMENT.render({LAYER_CELLS[0]: result(1.0, 2.0, 3.0, 0.0, 0.9)})
    layers = [row for row in rows(shown) if row[0] in table1.LAYERS.values()]
    assert [row[2:] for row in layers] == [["1 (2) [3]", "-", "90.0 %", "-"]] + [["-"] * 4] * 8


def test_choices_are_shown_by_their_validation_error() -> None:
    names = [cell.name for cell in table1.SHEET.trial_runs()]
    results: dict[str, Any] = {
        n: result(1.0, 1.0, 1.0, 10.0 + i) if i % 2 else None for i, n in enumerate(names)
    }
    _, _, *body = rows(table1.EXPERIMENT.choices.render(results))
    assert body == [[n, f"{10 + i}"] for i, n in enumerate(names) if i % 2]
