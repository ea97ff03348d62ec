"""Table 1: its commands are commands, its printed table puts numbers where they belong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from lightning_sgmcmc import cli
from tasks.experiments import table1
from tasks.experiments.cell import Cell
from tasks.pde_source import TABLE_1

ROOT = Path(__file__).resolve().parents[2]


def parsed(cell: Cell, capsys: Any) -> dict[str, Any]:
    config = ROOT / "configs" / "papers" / cell.config
    with pytest.raises(SystemExit) as stop:
        cli.main(ROOT / "configs", ["--config", str(config), *cell.overrides, "--print_config"])
    output = capsys.readouterr()
    assert stop.value.code == 0, output.err
    content: dict[str, Any] = yaml.safe_load(output.out)
    return content


def test_cells_are_the_table_s_and_names_are_unique() -> None:
    names = [cell.name for cell in table1.cells()]
    methods = [(start, method) for start in table1.STEP for method in table1.STEP[start]]
    rates = sorted({rate for row in TABLE_1.values() for rate in row})
    expected = [f"{s}-{m}-{round(100 * r)}" for s, m in methods for r in rates]
    assert names == expected
    choices = [cell.name for cell in table1.choices()]
    assert len({*names, *choices}) == len(names) + len(choices)
    assert set(table1.METHODS.values()) == set(TABLE_1)


def test_every_chosen_step_was_in_the_grid() -> None:
    for (start, method), steps in table1.GRID.items():
        step = table1.STEP[start][method]
        fraction = f"{step}:{table1.FRACTION[start]}" if step == "auto" else step
        assert fraction in steps


@pytest.mark.parametrize(
    "cell", [c for c in table1.cells() if c.name.endswith(("-0", "-70"))], ids=lambda c: c.name
)
def test_cells_are_valid_commands(cell: Cell, capsys: Any) -> None:
    start, method, rate = cell.name.split("-")
    config = parsed(cell, capsys)
    model = config["model"]["init_args"]
    sampler = model["sampler"]
    steps = config["trainer"]["max_steps"]
    assert 0 < model["burn_in"] < steps
    assert sampler["class_path"].rsplit(".", 1)[-1] == ("SGLD" if method == "sgld" else "HASGLD")
    if method != "sgld":
        assert sampler["init_args"]["memory"] == int(method[-1])
        assert sampler["init_args"]["paper_mode"] == (start == "printed")
    assert sampler["init_args"]["temperature"] == (1e-6 if start == "printed" else 1.0)
    lr = table1.STEP[start][method]
    assert sampler["init_args"]["lr"] == (lr if lr == "auto" else float(lr))
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


@pytest.mark.parametrize("cell", table1.choices(), ids=lambda c: c.name)
def test_choices_are_valid_commands_on_held_out_training_fields(cell: Cell, capsys: Any) -> None:
    config = parsed(cell, capsys)
    assert config["data"]["init_args"]["num_val"] == 120
    lr = cell.name.rsplit("-lr", 1)[1]
    model = config["model"]["init_args"]
    if lr.startswith("auto"):
        assert model["sampler"]["init_args"]["lr"] == "auto"
        assert model["step_fraction"] == float(lr.removeprefix("auto"))
    else:
        assert model["sampler"]["init_args"]["lr"] == float(lr)


def result(mean: float, median: float, burn_in: float, val: float) -> dict[str, Any]:
    return {
        "metrics": {
            "ensemble": {"relative_l2_mean_percent": mean, "relative_l2_median_percent": median},
            "burn_in": {"relative_l2_mean_percent": burn_in},
            "ensemble_val": {"relative_l2_mean_percent": val},
        }
    }


def rows(text: str) -> list[list[str]]:
    table = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_table_holds_the_paper_s_numbers() -> None:
    head, _, *body = rows(table1.render({}, chosen_from=False))
    assert head[2:] == ["no pruning", "30 %", "50 %", "70 %"]
    paper = [row[1:] for row in body if row[0] == "*paper*"]
    assert paper == [
        ["SGLD", "2.03", "1.38", "1.25", "1.26"],
        ["HASGLD-SA (M=1)", "0.45", "0.37", "0.29", "0.30"],
        ["HASGLD-SA (M=2)", "0.42", "0.34", "0.27", "0.27"],
    ]
    assert all(row[2:] == ["-"] * 4 for row in body if row[0] != "*paper*")


def test_every_result_stands_in_its_own_cell() -> None:
    """Each cell's result is one number of its own, looked for under its row and column."""
    cells = table1.cells()
    results = {c.name: result(1 + i, 100 + i, 200 + i, 0.0) for i, c in enumerate(cells)}
    _, _, *body = rows(table1.render(results, chosen_from=False))
    found = {}
    for start, label in table1.STARTS.items():
        for method in table1.STEP[start]:
            (row,) = (r for r in body if r[:2] == [label, table1.METHODS[method]])
            for rate, entry in zip(("0", "30", "50", "70"), row[2:], strict=True):
                found[f"{start}-{method}-{rate}"] = entry
    expected = {c.name: f"{1 + i} ({100 + i}) [{200 + i}]" for i, c in enumerate(cells)}
    assert found == expected


def test_choices_are_shown_by_their_validation_error() -> None:
    names = [cell.name for cell in table1.choices()]
    results: dict[str, Any] = {
        n: result(1.0, 1.0, 1.0, 10.0 + i) if i % 2 else None for i, n in enumerate(names)
    }
    _, _, *body = rows(table1.render(results, chosen_from=True))
    assert body == [[n, f"{10 + i}" if i % 2 else "-"] for i, n in enumerate(names)]
