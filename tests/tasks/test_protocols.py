"""Every cell of every experiment runs with what the papers' protocols state, or says why not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from tasks.experiments import reproduce
from tasks.experiments.experiment import Cell, Study
from tasks.experiments.psgld import networks
from tests.tasks.protocols import PROTOCOLS, USUAL, WITHOUT_A_CHAIN, Row
from tests.tasks.resolved import Recorder, differences, of_run, of_study, recording, relevant

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Recorder:
    monkeypatch.setattr(networks, "on_gpu", lambda: False)  # repetitions depend on the machine
    return recording(monkeypatch, tmp_path)


def matches(name: str, patterns: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns.split())


def with_a_chain(name: str) -> list[Cell | Study]:
    """Return the cells of an experiment that have a chain of their own."""
    cells = reproduce.load(name).cells()
    return [
        cell for cell in cells if isinstance(cell, Cell) or not matches(cell.name, WITHOUT_A_CHAIN)
    ]


def protocol(name: str, cell: str) -> dict[str, Any]:
    """Return what the rows that hold for a cell state, the later ones last."""
    stated = dict(USUAL)
    for row in PROTOCOLS[name]:
        if matches(cell, row.cells):
            stated |= row.states
    return stated


@pytest.mark.parametrize("name", reproduce.TABLES)
def test_cells_run_with_what_the_protocol_states(
    name: str, recorder: Recorder, tmp_path: Path
) -> None:
    wrong: list[str] = []
    runs: dict[str, dict[str, Any]] = {}
    for cell in with_a_chain(name):
        if isinstance(cell, Cell):
            key = relevant(cell)
            found = runs[key] if key in runs else runs.setdefault(key, of_run(cell))
        else:
            found = of_study(cell, recorder, tmp_path)
        lines = differences(protocol(name, cell.name), found)
        wrong += [f"{cell.name}: {line}" for line in lines]
    assert not wrong, "\n".join(wrong)


def rows() -> Iterator[tuple[str, Row]]:
    for name, table in PROTOCOLS.items():
        yield from ((name, row) for row in table)


def test_every_row_holds_for_a_cell_and_says_where_it_stands() -> None:
    assert set(PROTOCOLS) == set(reproduce.TABLES)
    names = {name: [cell.name for cell in with_a_chain(name)] for name in PROTOCOLS}
    for name, row in rows():
        assert any(matches(cell, row.cells) for cell in names[name]), (name, row.cells)
        assert row.where
        assert set(row.ours) <= set(row.states), (name, row.cells)


RECORDED = ROOT / "docs" / "measured"
#: Rows whose table says that their run is a part of the protocol's.
SHORTER = {("kdd99", "sgfs-f-frozen")}


@pytest.mark.parametrize("name", sorted(path.name for path in RECORDED.iterdir()))
def test_recorded_runs_were_made_of_what_the_protocol_states(name: str) -> None:
    """Sampler, metric, prior and temperature of a record are those of its cell."""
    for cell in with_a_chain(name):
        record = reproduce.read(RECORDED / name, cell)
        if record is None or isinstance(cell, Study) or "diverged" in record:
            continue
        stated, made = protocol(name, cell.name), record["sampler"]
        inner = stated["options"].get("optimizer")
        optimized = f"Optimized({inner and inner['name']})"
        expected = {"Optimized": optimized}.get(stated["sampler"], stated["sampler"])
        # Earlier records lack the optimizer's arguments.
        said = re.sub(r"^(Optimized\(\w+)\(.*\)\)$", r"\1)", made["name"])
        assert (cell.name, said) == (cell.name, expected)
        for key, value in re.findall(r"(\w+)=(\([^)]*\)|[^,()]+)", made["name"]):
            assert inner[key] == pytest.approx(ast.literal_eval(value)), cell.name
        assert made["prior"] == stated["prior"]
        alike = stated["sampler"] == "Optimized" or "Cyclical" in str(stated["schedule"])
        usual = "equal" if alike else "time"  # of "auto", which earlier records do not state
        assert stated["weights"] in ("auto", record.get("draw_weights", usual)), cell.name
        assert record["temperature"] == pytest.approx(stated["temperature"])
        metric = re.fullmatch(r"(\w+)\((.*)\)", made["preconditioner"])
        assert metric
        assert metric[1] == stated["metric"]["name"]
        for key, value in re.findall(r"(\w+)=([^,()]+)", metric[2]):
            if key in ("alpha", "eps", "floor", "memory", "r", "power", "slots"):
                number = 0.0 if value == "None" else float(value)
                assert number == pytest.approx(stated["metric"][key] or 0.0), cell.name
        if "steps" in stated and (name, cell.name) not in SHORTER:
            kept = (stated["steps"] - stated["burn_in"]) // stated["thinning"]
            ends = [record.get("num_steps", stated["steps"]), record["num_draws"]]
            cyclical = "Cyclical" in str(stated["schedule"])
            assert ends == [stated["steps"], ends[1] if cyclical else kept], cell.name
        if stated["schedule"] == "ConstantStep()" and stated["lr"] != "auto":
            assert made["lr"] == pytest.approx(stated["lr"], rel=1e-3)
