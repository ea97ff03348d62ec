"""The contract that every reproduced experiment keeps."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from lightning_sgmcmc import HASGLD, SGFS, SGHMC, SGLD, GaussianPrior, RMSProp
from tasks.experiments import reproduce
from tasks.experiments.experiment import Best, Cell, Choices, Experiment, Study
from tasks.experiments.labels import label, of_sampler
from tasks.experiments.overrides import arguments, changed, gaussian, ours, sampler, schedule
from tasks.experiments.sheet import FOLDER, Sheet, expanded
from tasks.experiments.tables import Column, Row, Table, at, paper_row

ROOT = Path(__file__).resolve().parents[2]
RECORDED = sorted(path.name for path in (ROOT / "docs" / "measured").iterdir())
WITH_CHOICES = [name for name in reproduce.TABLES if reproduce.load(name).choices]


def recorded(name: str, choose: bool = False) -> dict[str, Any]:
    """Return the results in docs/measured, None of cells that have none."""
    experiment = reproduce.load(name)
    chosen = experiment.choices if choose else None
    cells = chosen.cells() if chosen else experiment.cells()
    return {cell.name: reproduce.read(ROOT / "docs" / "measured" / name, cell) for cell in cells}


def tables(experiment: Experiment, results: dict[str, Any]) -> list[Table]:
    return [part for part in experiment.parts(results) if isinstance(part, Table)]


@pytest.mark.parametrize("name", reproduce.TABLES)
def test_cells_have_names_of_their_own(name: str) -> None:
    experiment = reproduce.load(name)
    cells = experiment.cells()
    assert all(isinstance(cell, (Cell, Study)) for cell in cells)
    assert len({cell.name for cell in cells}) == len(cells)
    left, why = experiment.left_out()
    assert set(left) < {cell.name for cell in cells}
    assert bool(left) == bool(why)


@pytest.mark.parametrize("name", reproduce.TABLES)
def test_a_run_states_its_sampler_completely_or_leaves_it_to_its_file(name: str) -> None:
    """No argument of a sampler depends on the class that the configuration file names."""
    experiment = reproduce.load(name)
    cells = [*experiment.cells(), *(experiment.choices.cells() if experiment.choices else [])]
    for cell in cells:
        if isinstance(cell, Cell) and name not in ("uci", "class_tables"):  # the tasks as they are
            stated = cell.overrides["model.sampler"]
            assert {"lr", "prior"} <= set(stated["init_args"]), cell.name
            assert not any(key.startswith("model.sampler.") for key in cell.overrides)


@pytest.mark.parametrize("name", reproduce.TABLES)
def test_unfinished_experiments_have_a_report_without_numbers_of_ours(name: str) -> None:
    """Every row of ours has a hyphen in each column, every published number stands already."""
    experiment = reproduce.load(name)
    results: dict[str, Any] = {cell.name: None for cell in experiment.cells()}
    assert isinstance(experiment.render(results), str)
    for table in tables(experiment, results):
        assert len(table.heading) + len(table.columns) == table.render(results).splitlines()[
            1
        ].count("---")
        for row in table.rows:
            assert set(row.published) <= {column.title for column in table.columns}
    if experiment.choices:
        count = len(experiment.choices.cells())
        text = experiment.choices.render(results)
        assert f"{count} of the {count} runs have no record." in text


PUBLISHED = {
    "a9a": "14.85",
    "bde": "-0.9126",
    "fno_darcy": "1.08",
    "kdd99": "6.6",
    "nld": "98.61",
    "psgld_cnn": "0.45",
    "psgld_mnist": "1.14",
    "table1": "0.45",
    "table2": "0.78",
    "uci": "5.67",
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_numbers_stand_beside_ours(name: str) -> None:
    experiment = reproduce.load(name)
    results: dict[str, Any] = {cell.name: None for cell in experiment.cells()}
    rows = [row for table in tables(experiment, results) for row in table.rows if row.published]
    assert rows
    assert f"| {PUBLISHED[name]} |" in experiment.render(results)


#: A column of published numbers alone, and one that a run of a single chain leaves empty.
KNOWN = {"paper", "together: error, NLL"}


@pytest.mark.parametrize("name", RECORDED)
def test_columns_find_their_numbers_in_recorded_results(name: str) -> None:
    """A place that no finished row has is a wrong one; a group of cells may not have been run.

    Columns that are functions of the record raise an error where it lacks what they need.
    """
    experiment, results = reproduce.load(name), recorded(name)
    finished = [name for name, result in results.items() if result]
    assert finished
    for table in tables(experiment, results):
        rows = [row for row in table.rows if row.record is not None or row.cell is not None]
        for column in table.columns if rows else []:
            entries = [row.entry(column, results) for row in rows]
            if isinstance(column.at, str) and column.at not in {n.split("-")[0] for n in results}:
                missing = column.title not in KNOWN and set(entries) <= {"", "-"}
                assert not missing, (name, column.title)


@pytest.mark.parametrize("name", [name for name in WITH_CHOICES if name in RECORDED])
def test_choices_find_their_numbers_in_recorded_results(name: str) -> None:
    choices, results = reproduce.load(name).choices, recorded(name, choose=True)
    assert choices is not None
    if any(results.values()):
        for column in choices.columns:
            assert any(column.text(run) not in ("", "-") for run in results.values() if run)


#: The figures of recorded experiments, of those that have any.
FIGURES = {
    "a9a": ["a9a"],
    "australian": ["australian"],
    "hasgld_gaussian": ["hasgld-gaussian"],
    "kdd99_posterior": ["kdd99-posterior-marginals", "kdd99-posterior-errors"],
    "leaderboard": ["leaderboard"],
    "mnist79": ["mnist79-marginals", "mnist79-errors"],
    "psgld_gaussian": ["psgld-gaussian"],
    "psgld_mnist": ["temperature"],
    "sgfs_mnist": ["sgfs_mnist"],
    "spike_slab": ["spike-slab"],
    "table2": ["modes", "shift_additive", "shift_lognormal"],
    "theory": ["theory"],
}
#: Those of arrays that only a run leaves.
OF_A_RUN = {
    "kdd99-posterior-marginals": "moments.npz",
    "mnist79-marginals": "moments.npz",
    "spike-slab": "curves.npz",
}


@pytest.mark.parametrize("name", RECORDED)
def test_figures_need_no_file_that_is_not_kept(name: str, tmp_path: Path) -> None:
    """``--show --measured`` leaves out a figure whose arrays are not there, and says so."""
    from matplotlib.figure import Figure

    figures = reproduce.load(name).figures(recorded(name), tmp_path)
    assert list(figures) == FIGURES.get(name, [])
    for title, figure in figures.items():
        if title in OF_A_RUN:
            assert isinstance(figure, str)
            assert OF_A_RUN[title] in figure
        else:
            assert isinstance(figure, Figure)
            assert figure.axes


def test_overrides_become_a_command_line() -> None:
    overrides = sampler("SGLD", 0.1, gaussian(2.0)) | {"model.burn_in_optimizer": None, "name": "a"}
    first, *rest = arguments(overrides)
    name, _, value = first.partition("=")
    assert name == "--model.sampler"
    assert json.loads(value) == overrides["model.sampler"]
    assert rest == ["--model.burn_in_optimizer=null", "--name=a"]


def test_changes_reach_into_components_and_leave_the_original() -> None:
    overrides = sampler("SGLD", 0.1, gaussian(2.0))
    found = changed(overrides, {"model.sampler.prior.variance": 3.0, "model.burn_in": 7})
    assert found == sampler("SGLD", 0.1, gaussian(3.0)) | {"model.burn_in": 7}
    assert overrides == sampler("SGLD", 0.1, gaussian(2.0))
    several = {"trainer.callbacks": [{"class_path": "a", "init_args": {"rate": 1}}]}
    found = changed(several, {"trainer.callbacks.0.rate": 2})
    assert found == {"trainer.callbacks": [{"class_path": "a", "init_args": {"rate": 2}}]}


def test_names_with_braces_are_all_their_choices() -> None:
    assert expanded(["a-{b,c}-{1,2}", "d"]) == ["a-b-1", "a-b-2", "a-c-1", "a-c-2", "d"]


def test_rules_hold_for_runs_whose_names_have_their_words() -> None:
    """Later rules change earlier ones; numbers of names come last."""
    rules: dict[str, dict[str, Any]] = {
        "*": {"x": 1, "y": {"z": 1}},
        "a": {"x": 2},
        "b-a": {"x": 3, "y.z": 2},
    }
    made = Sheet(
        config="c.yaml",
        cells=["a", "b", "a-b", "ab"],
        rules=rules,
        numbers={"n": "y.z"},
        trials=["a-n0.5"],
        held_out={"v": 4, "y.z": 3},
    )
    assert [cell.overrides for cell in made.runs()] == [
        {"x": 2, "y": {"z": 1}},
        {"x": 1, "y": {"z": 1}},
        {"x": 3, "y": {"z": 2}},
        {"x": 1, "y": {"z": 1}},
    ]
    (trial,) = made.trial_runs()
    assert trial.overrides == {"x": 2, "y": {"z": 0.5}, "v": 4}


def test_labels_state_what_is_built() -> None:
    assert label(sampler("SGLD", 0.1, gaussian(1.0))) == "SGLD, lr 0.1, prior N(0, 1)"
    metric = {"class_path": "lightning_sgmcmc.RMSProp", "init_args": {"eps": 0.01}}
    drawn = sampler("SGLD", 0.1, gaussian(1.0), preconditioner=metric)
    assert label(drawn) == "SGLD, RMSProp metric (eps = 0.01), frozen, lr 0.1, prior N(0, 1)"
    assert ", adapting, " in label(drawn | {"model.freeze_preconditioner": False})
    drawn = sampler("HASGLD", 0.1, gaussian(1.0), memory=2, slots=1)
    assert label(drawn) == "HASGLD, M = 2, slots = 1, frozen, lr 0.1, prior N(0, 1)"
    drawn = sampler("HASGLD", 0.1, gaussian(1.0), memory=1, paper_mode=True, temperature=1e-6)
    assert label(drawn).startswith("HASGLD, M = 1, as printed (normalised steps), lr 0.1, ")
    assert label(drawn).endswith(", T = 1e-06")
    drawn = sampler("SGFS", 0.1, gaussian(1.0), variant="diagonal", count_prior=True)
    assert label(drawn) == "SGFS-d, prior counted, frozen, lr 0.1, prior N(0, 1)"
    drawn = sampler("NaturalLangevin", 0.1, gaussian(1.0), labels="model")
    assert label(drawn) == "NaturalLangevin, labels sampled, frozen, lr 0.1, prior N(0, 1)"
    assert "labels" not in label(sampler("NaturalLangevin", 0.1, gaussian(1.0), labels="data"))
    flat = ours("FlatPrior")
    halved = sampler("baselines.Optimized", 0.1, flat) | schedule("BlockDecay", every=100)
    assert label(halved) == "SGD, lr 0.1 halved every 100 steps, no prior"
    auto = sampler("SGLD", "auto", ours("FanInGaussianPrior", variance=2.0))
    assert label(auto | {"model.step_fraction": 0.02}) == (
        "SGLD, lr 0.02 of the largest stable, prior N(0, 2 / fan-in)"
    )


def test_entries_of_a_table() -> None:
    columns = [
        Column("a", "x.{part}.y", scale=100.0, digits=1),
        Column("b", lambda record: record["z"], "{:.0f} of {:.0f}", cell="{}-2"),
    ]
    rows = [
        paper_row(["*paper*"], columns, (None, 1.5)),
        Row(["ours"], "run", part="last"),
        Row(["direct"], record={"x": {"ensemble": {"y": [0.25, 0.35]}}, "z": None}),
    ]
    results: dict[str, Any] = {"run": {"x": {"last": {"y": 0.5}}}, "run-2": {"z": (3, 4)}}
    assert Table(["m"], columns, rows).render(results).splitlines()[2:] == [
        "| *paper* |  | 1.50 |",
        "| ours | 50.0 | 3 of 4 |",
        "| direct | 30.0 +- 7.1 (2) |  |",
    ]
    assert Table(["m"], columns, rows[1:2]).render({}).endswith("| ours | - | - |")
    assert at({"a": {"b": None}}, "a.b.c") is None


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_rule_and_every_number_of_a_file_holds_for_a_run(path: Path) -> None:
    content = yaml.safe_load(path.read_text())
    names = [
        set(name.split("-"))
        for name in expanded([*content.get("cells", []), *content.get("trials", [])])
    ]
    for rule in content.get("rules", {}):
        assert rule == "*" or any(set(rule.split("-")) <= words for words in names), rule
    words = set[str]().union(*names)
    for key in content.get("numbers", {}):
        assert any(re.fullmatch(f"{key}[0-9.]+", word) for word in words), key


@pytest.mark.parametrize(
    ("better", "best"), [("lower", "a at 1e-05, b at 2"), ("higher", "a at 3, b at 2")]
)
def test_the_best_of_each_method_is_named(better: Any, best: str) -> None:
    column = Column("n", "value", better=better)
    names = ("a-1e-05", "a-3", "a-4", "b-2")
    choices = Choices(
        lambda: [Cell(name, "", {}) for name in names], [column], best=Best("Best: {}.", column)
    )
    values = zip(names, (1.0, 5.0, None, 2.0), strict=True)
    results = {name: value and {"value": value} for name, value in values}
    text = choices.render(results)  # type: ignore[arg-type]
    ended = "| b-2 | 2.00 |\n\n1 of the 4 runs has no record."
    assert text.endswith(f"{ended}\n\nBest: {best}.")
    assert "a-4" not in text
    assert "Best" not in choices.render({})


def test_labels_of_samplers_state_what_they_are() -> None:
    theta = [torch.zeros(2)]
    assert of_sampler(SGLD(theta, 0.1, temperature=0.5)) == "SGLD, T = 0.5"
    averaged = HASGLD(theta, 0.1, memory=5, r=1e-3, slots=1)
    metric = "AveragedLBFGS metric (M = 5, slots = 1, r = 0.001)"
    assert of_sampler(averaged) == f"HASGLD, {metric}, frozen"
    assert of_sampler(averaged, freeze=False) == f"HASGLD, {metric}, adapting"
    printed = of_sampler(HASGLD(theta, 0.1, paper_mode=True))
    assert printed.startswith("HASGLD, as printed (normalised steps), ")
    assert printed.endswith(", adapting")
    prior = GaussianPrior(2.0)
    scoring = SGFS(theta, 0.1, variant="diagonal", count_prior=True, prior=prior)
    assert of_sampler(scoring) == "SGFS-d, prior counted, frozen"
    moving = SGHMC(theta, 0.1, momentum=0.9, preconditioner=RMSProp())
    assert (
        of_sampler(moving) == "SGHMC, mu = 0.9, RMSProp metric (alpha = 0.99, eps = 1e-05), frozen"
    )
