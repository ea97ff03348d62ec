"""Studies are computed once, whole or not at all; wrong commands are one line."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from lightning_sgmcmc.callbacks.report import results
from lightning_sgmcmc.common.files import DamagedFileError
from tasks.data.download import data_root
from tasks.experiments import reproduce
from tasks.experiments.experiment import Cell, Experiment, Study, need
from tasks.experiments.tables import Column, Results, Row, Table

ROOT = Path(__file__).resolve().parents[2]
Compute = Callable[[Path], dict[str, Any]]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Register a table of two studies; the second fails until ``works`` is set."""
    module = ModuleType("tasks.experiments.toy")
    calls: list[str] = []
    module.calls, module.works = calls, False  # type: ignore[attr-defined]

    def first(folder: Path) -> dict[str, Any]:
        calls.append("first")
        (folder / "array.npz").write_text("")
        return {"value": 2.5, "missing": float("nan")}

    def second(folder: Path) -> dict[str, Any]:
        calls.append("second")
        if not module.works:  # type: ignore[attr-defined]
            raise KeyboardInterrupt
        return {"root": str(data_root())}

    def report(results: Results) -> list[str]:
        return [json.dumps({k: v and sorted(v) for k, v in results.items()})]

    module.EXPERIMENT = Experiment(  # type: ignore[attr-defined]
        lambda: [Study("first", first), Study("second", second)], report
    )
    monkeypatch.setitem(sys.modules, "tasks.experiments.toy", module)
    monkeypatch.setattr(reproduce, "TABLES", {"toy": "toy"})
    monkeypatch.setenv("SGMCMC_DATA_ROOT", "elsewhere")
    return module


def test_a_study_that_was_stopped_is_computed_again_and_a_finished_one_is_not(
    table: Any, tmp_path: Path, capsys: Any
) -> None:
    command = ["toy", f"--out={tmp_path}", f"--data-root={tmp_path / 'sets'}"]
    with pytest.raises(SystemExit) as stop:
        reproduce.main(tmp_path, command)
    assert stop.value.code == 130
    assert not (tmp_path / "second" / "results.json").exists()
    table.works = True
    reproduce.main(tmp_path, command)
    assert table.calls == ["first", "second", "second"]
    content = json.loads((tmp_path / "first" / "results.json").read_text())
    assert content["value"] == 2.5
    assert content["missing"] is None
    assert content["wall_seconds"] >= 0
    assert "commit" in content["provenance"]
    content = json.loads((tmp_path / "second" / "results.json").read_text())
    assert content["root"] == str(tmp_path / "sets")


def test_recorded_results_fill_the_table_only_where_they_are_asked_for(
    table: Any, tmp_path: Path, capsys: Any
) -> None:
    with pytest.raises(SystemExit):  # the first is finished, the second is not
        reproduce.main(tmp_path, ["toy", f"--out={tmp_path / 'runs'}"])
    reproduce.main(tmp_path, ["toy", f"--out={tmp_path / 'runs'}", "--show", "--record"])
    kept = tmp_path / "docs" / "measured" / "toy"
    assert [path.parent.name for path in kept.glob("*/results.json")] == ["first"]
    assert "command" not in (kept / "first" / "results.json").read_text()
    shown = []
    for options in ([], ["--measured"]):
        capsys.readouterr()
        reproduce.main(tmp_path, ["toy", f"--out={tmp_path / 'other'}", "--show", *options])
        shown.append(json.loads(capsys.readouterr().out.splitlines()[0]))
    assert shown[0] == {"first": None, "second": None}
    assert "value" in shown[1]["first"]
    assert shown[1]["second"] is None
    reproduce.main(tmp_path, ["toy", f"--out={tmp_path / 'other'}", "--show", "--record"])
    assert (kept / "first" / "results.json").is_file()  # nothing new, nothing lost


def test_a_cell_that_diverges_is_a_result_and_does_not_stop_the_others(
    table: Any, tmp_path: Path, capsys: Any
) -> None:
    rng = np.random.default_rng(0)
    np.savetxt(
        tmp_path / "rows.csv",
        rng.standard_normal((40, 3)),
        delimiter=",",
        header="a,b,y",
        comments="",
    )
    far = {
        "data.file": str(tmp_path / "rows.csv"),
        "model.burn_in_optimizer": None,
        "model.sampler.lr": 1e6,
        "model.burn_in": 10,
        "model.thinning": 5,
        "trainer.max_steps": 30,
        "wandb_project": None,
    }
    hot = Cell("hot", "../uci_regression.yaml", far)
    columns = [Column("value", "value", cell="first"), Column("of hot", "value")]
    report = [Table(["row"], columns, [Row(["it"], "hot")])]
    cells = [hot, *table.EXPERIMENT.cells()[:1]]
    table.EXPERIMENT = replace(table.EXPERIMENT, cells=lambda: cells, report=report)
    command = ["toy", f"--out={tmp_path / 'runs'}"]
    reproduce.main(ROOT, command)
    assert "| it | 2.50 | diverges |" in capsys.readouterr().out
    content = json.loads((tmp_path / "runs" / "hot" / "results.json").read_text())
    assert set(content) == {"provenance", "diverged"}
    assert "step" in content["diverged"]
    reproduce.main(ROOT, command)  # it is not tried again
    assert "hot: finished" in capsys.readouterr().out


def test_a_run_goes_on_from_any_moment_and_is_not_taken_for_another(
    table: Any, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after a draw and before its first checkpoint it begins anew; finished it stays."""
    rows = np.random.default_rng(0).standard_normal((40, 3))
    np.savetxt(tmp_path / "rows.csv", rows, delimiter=",", header="a,b,y", comments="")
    given = {
        "data.file": str(tmp_path / "rows.csv"),
        "model.burn_in_optimizer": None,
        "model.sampler": {"class_path": "lightning_sgmcmc.SGLD", "init_args": {"lr": 1e-6}},
        "model.burn_in": 10,
        "model.thinning": 5,
        "trainer.max_steps": 30,
        "wandb_project": None,
    }
    cells = [Cell("run", "../uci_regression.yaml", given)]
    table.EXPERIMENT = replace(table.EXPERIMENT, cells=lambda: cells, report=lambda results: [])
    command = ["toy", f"--out={tmp_path / 'runs'}", "--seed_everything=3", "--model.draw_budget=15"]
    monkeypatch.setattr(sys, "argv", ["reproduce.py", *command])
    reproduce.main(ROOT, command)
    folder = tmp_path / "runs" / "run"
    first = json.loads((folder / "results.json").read_text())
    assert first["seed"] == 3
    (folder / "results.json").unlink()
    shutil.rmtree(folder / "checkpoints")
    reproduce.main(ROOT, command)
    again = json.loads((folder / "results.json").read_text())
    assert again["metrics"] == first["metrics"]
    reproduce.main(ROOT, command)
    assert "run: finished" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        reproduce.main(ROOT, [*command[:2], "--seed_everything=4"])
    assert stop.value.code == 2
    made = "run was made with --seed_everything=3 --model.draw_budget=15: give the same, or another"
    assert made in capsys.readouterr().err
    for others in ([], ["--seed_everything=3", "--model.draw_budget=1"]):  # also before its end
        with pytest.raises(SystemExit):
            reproduce.main(ROOT, [*command[:2], *others])
        assert made in capsys.readouterr().err
        (folder / "results.json").unlink(missing_ok=True)
    reproduce.main(ROOT, [*command[:2], *reversed(command[2:])])
    capsys.readouterr()
    changed = [cells[0].but("run", {"model.burn_in": 15, "model.sampler.lr": 2e-6})]
    table.EXPERIMENT = replace(table.EXPERIMENT, cells=lambda: changed)
    for given in (command, [*command[:2], "--show", "--record"]):  # not what was run
        with pytest.raises(SystemExit):
            reproduce.main(ROOT, given)
        said = "run was made with another model.burn_in, model.sampler than run has now: remove"
        assert said in capsys.readouterr().err
    table.EXPERIMENT = replace(table.EXPERIMENT, cells=lambda: cells)
    reproduce.main(ROOT, command)
    assert "run: finished" in capsys.readouterr().out
    results = folder / "results.json"
    results.write_text(results.read_text().replace('"seed": 3', '"seed": 4'))
    with pytest.raises(DamagedFileError, match=r"results\.json is damaged"):
        reproduce.main(ROOT, [*command[:2], "--show"])


def test_a_cell_that_was_refused_leaves_nothing(table: Any, tmp_path: Path) -> None:
    cells = [Cell("run", "../uci_regression.yaml", {"data.dataset": "yacht"})]
    table.EXPERIMENT = replace(table.EXPERIMENT, cells=lambda: cells, report=lambda results: [])
    with pytest.raises(SystemExit):
        reproduce.main(ROOT, ["toy", f"--out={tmp_path / 'runs'}", "--nonsense=1"])
    assert not (tmp_path / "runs" / "run").exists()


def test_figures_are_drawn_from_what_is_finished(table: Any, tmp_path: Path, capsys: Any) -> None:
    from matplotlib.figure import Figure

    seen: list[dict[str, Any]] = []

    def figures(results: dict[str, Any], out: Path) -> dict[str, Figure]:
        seen.append(results)
        assert out == tmp_path
        return {"drawn": Figure()}

    table.EXPERIMENT = replace(table.EXPERIMENT, figures=figures)
    reproduce.main(tmp_path, ["toy", f"--out={tmp_path}", "--show"])
    assert seen == []
    reproduce.main(tmp_path, ["toy", f"--out={tmp_path}", "--cell=first"])
    assert seen[0]["first"]["value"] == 2.5
    assert seen[0]["second"] is None
    assert (tmp_path / "figures" / "drawn.png").stat().st_size > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--choose"], "nothing to choose"),
        (["--cell=third"], "choose among first, second"),
        (["--data.root=there"], "takes no --data.root=there"),
    ],
)
def test_wrong_commands_are_one_line(
    table: Any, tmp_path: Path, capsys: Any, arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as stop:
        reproduce.main(tmp_path, ["toy", f"--out={tmp_path}", *arguments])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert table.calls == []


def test_a_folder_of_cells_belongs_to_one_experiment(
    table: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    """Another experiment with cells of the same names neither reads nor runs them."""
    out = [f"--out={tmp_path}"]
    monkeypatch.setattr(reproduce, "TABLES", {"other": "toy", "toy": "toy"})
    reproduce.main(tmp_path, ["other", *out, "--show"])  # which claims nothing
    reproduce.main(tmp_path, ["toy", *out, "--cell=first"])
    for options in ([], ["--show"], ["--show", "--record"]):
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            reproduce.main(tmp_path, ["other", *out, *options])
        assert stop.value.code == 2
        said = capsys.readouterr()
        assert f"{tmp_path} has the cells of toy: give other another folder" in said.err
        assert said.err.count("\n") == 1
        assert not said.out
    assert table.calls == ["first"]
    reproduce.main(tmp_path, ["toy", *out, "--show"])
    assert json.loads(capsys.readouterr().out)["first"]


def test_an_error_of_a_study_is_one_line(table: Any, tmp_path: Path, capsys: Any) -> None:
    def broken(folder: Path) -> dict[str, Any]:
        raise ValueError("no such column")

    table.EXPERIMENT = replace(table.EXPERIMENT, cells=lambda: [Study("broken", broken)])
    with pytest.raises(SystemExit) as stop:
        reproduce.main(tmp_path, ["toy", f"--out={tmp_path}"])
    assert stop.value.code == 2
    assert "broken: no such column" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--show", "--list"])
def test_an_option_that_nothing_would_follow_is_refused(
    option: str, tmp_path: Path, capsys: Any
) -> None:
    """A typing error above all: the table would be printed without what was asked for."""
    with pytest.raises(SystemExit) as stop:
        reproduce.main(ROOT, ["a9a", f"--out={tmp_path}", option, "--mesured"])
    assert stop.value.code == 2
    assert "--mesured" in capsys.readouterr().err


def test_a_study_of_a_run_that_diverged_has_diverged(
    table: Any, tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "hot").mkdir()
    results.write(tmp_path / "hot", {"provenance": {}, "diverged": "at step 3"})

    def compute(folder: Path) -> dict[str, Any]:
        need(folder.parent / "hot")
        return {}

    cells = [Study("apart", compute), *table.EXPERIMENT.cells()[:1]]
    report = [Table(["row"], [Column("value", "value")], [Row(["it"], "apart")])]
    table.EXPERIMENT = replace(table.EXPERIMENT, cells=lambda: cells, report=report)
    reproduce.main(ROOT, ["toy", f"--out={tmp_path}"])
    assert "| it | diverges |" in capsys.readouterr().out
    assert table.calls == ["first"]


def test_the_table_says_which_runs_were_made_with_other_options(
    table: Any, tmp_path: Path, capsys: Any
) -> None:
    cells = [Cell("quick", "", {}), Cell("whole", "", {})]
    table.EXPERIMENT = replace(table.EXPERIMENT, cells=lambda: cells)
    for cell, made in zip(cells, (["--trainer.max_steps=9"], []), strict=True):
        (tmp_path / cell.name).mkdir()
        results.write(tmp_path / cell.name, {"provenance": {}, "value": 1})
        (tmp_path / cell.name / reproduce.MADE).write_text(json.dumps({"options": made}))
    reproduce.main(ROOT, ["toy", f"--out={tmp_path}", "--show"])
    assert capsys.readouterr().err == "quick was made with --trainer.max_steps=9\n"
