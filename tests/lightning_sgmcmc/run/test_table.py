"""The last table: verdict first, in words, and a remedy that can be pasted."""

from __future__ import annotations

import copy
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from lightning_sgmcmc.callbacks.report import remedy, table

CONFIG = {
    "model": {
        "init_args": {
            "sampler": {"init_args": {"lr": "auto"}},
            "step_fraction": 0.1,
            "burn_in": 100,
            "burn_in_optimizer": None,
        }
    },
    "data": {"class_path": "mine.MyData", "init_args": {"sampling": "auto"}},
    "trainer": {"max_steps": 1000},
}


def content(alarms: list[str], change: dict[str, Any] | None = None) -> dict[str, Any]:
    nothing = {"lr": 1.0, "steps": 1.0, "whole_data": False, "momentum": False}
    found = {"alarms": alarms, "notes": [], "step_size": 0.01}
    return {
        "diagnostics": found | {"remedy": None if change is None else nothing | change},
        "num_draws": 20,
        "num_steps": 1000,
        "num_chains": 4,
        "temperature": 1.0,
        "wall_seconds": 90.0,
        "sampler": {"label": "SGLD, no metric"},
    }


@pytest.mark.parametrize(
    ("change", "own", "expected"),
    [
        (
            {"steps": 2.5},
            ["--task", "toy", "--out", "mine"],
            "sgmcmc train --out mine --ckpt_path last --trainer.max_steps=2500",
        ),
        (
            {"lr": 0.123456, "steps": 2.0},
            ["--task", "toy", "--trainer.max_steps", "1000", "--model.step_fraction=0.1"],
            "sgmcmc train --task toy --model.step_fraction=0.01235 --model.burn_in=200 "
            "--trainer.max_steps=2000",
        ),
        (
            {"whole_data": True},
            ["--task=toy", "--out=mine", "--data.file=my file.csv"],
            "sgmcmc train --task=toy '--data.file=my file.csv' --data.sampling=full "
            "--model.burn_in=100 --trainer.max_steps=1000 --out mine-2",
        ),
        (
            {"lr": 0.5},
            ["--out", "mine", "--ckpt_path", "last"],
            "sgmcmc train --config mine/config.yaml --model.step_fraction=0.05 "
            "--model.burn_in=100 --trainer.max_steps=1000 --out mine-2",
        ),
        ({}, ["--task", "toy"], None),
        (None, ["--task", "toy"], None),
    ],
)
def test_a_remedy_is_the_run_s_own_command_with_what_changes(
    change: dict[str, Any] | None, own: list[str], expected: str | None
) -> None:
    found = content(["wrong"], change)
    assert remedy.command(Path("mine"), CONFIG, found, own) == expected


def test_a_chain_gets_momentum_in_its_own_configuration() -> None:
    """The command line of SGLD may state what SGHMC lacks."""
    found = content(["wrong"], {"lr": 2.0, "momentum": True})
    own = ["--task", "toy", "--model.sampler=SGLD", "--model.sampler.increments=moment-matched"]
    assert remedy.command(Path("mine"), CONFIG, found, own) == (
        "sgmcmc train --config mine/config.yaml --model.sampler=SGHMC "
        "--model.sampler.momentum=0.99 --model.step_fraction=0.2 --model.burn_in=100 "
        "--trainer.max_steps=1000 --out mine-2"
    )


@pytest.mark.parametrize(("factor", "step"), [(1.0, "0.005"), (2.0, "0.02")])
def test_a_chain_that_gets_momentum_keeps_its_metric_and_a_given_step(
    factor: float, step: str
) -> None:
    """Of which another class takes over neither: it would lack a step, and have no metric."""
    config = copy.deepcopy(CONFIG)
    metric = {"class_path": "lightning_sgmcmc.PriorMetric", "init_args": {"floor": 0.5}}
    config["model"]["init_args"]["sampler"]["init_args"] = {"lr": 0.005, "preconditioner": metric}
    found = content(["wrong"], {"lr": factor, "momentum": True})
    said = remedy.command(Path("mine"), config, found, ["--task", "toy"])
    assert said is not None
    options = dict(word[2:].split("=", 1) for word in shlex.split(said) if "=" in word)
    assert options["model.sampler.lr"] == step
    assert json.loads(options["model.sampler.preconditioner"]) == metric


def test_a_fraction_that_the_run_has_chosen_is_multiplied() -> None:
    config, found = copy.deepcopy(CONFIG), content(["wrong"], {"lr": 0.5})
    config["model"]["init_args"]["step_fraction"] = "auto"
    found["diagnostics"]["stability"] = {"step_fraction": 0.25}
    assert remedy.command(Path("mine"), config, found, ["--task", "toy"]) == (
        "sgmcmc train --task toy --model.step_fraction=0.125 --model.burn_in=100 "
        "--trainer.max_steps=1000"
    )


def test_a_fraction_near_the_largest_step_is_halved_at_least() -> None:
    """Three quarters of .98 would be little less than the largest stable step."""
    config, found = copy.deepcopy(CONFIG), content(["wrong"], {"lr": 0.75})
    config["model"]["init_args"]["step_fraction"] = 0.98
    said = remedy.command(Path("mine"), config, found, ["--task", "toy"])
    assert said is not None
    assert "--model.step_fraction=0.5 " in said


def test_a_step_that_is_adapted_to_the_energy_changes_by_its_bound() -> None:
    """The mean square of the energy's change grows as dt^6, lr^3: .002 / 8 is .00025."""
    config = copy.deepcopy(CONFIG)
    config["model"]["init_args"]["sampler"]["init_args"]["target_energy_variance"] = 2e-3
    found = content(["wrong"], {"lr": 0.5})
    assert remedy.command(Path("mine"), config, found, ["--task", "toy"]) == (
        "sgmcmc train --task toy --model.sampler.target_energy_variance=0.00025 "
        "--model.burn_in=100 --trainer.max_steps=1000"
    )


def test_a_schedule_begins_at_the_changed_first_step_again() -> None:
    config, found = copy.deepcopy(CONFIG), content(["wrong"], {"lr": 0.5})
    model = config["model"]["init_args"]
    model["sampler"]["init_args"]["lr"] = 0.01
    model["schedule"] = {"class_path": "lightning_sgmcmc.PolynomialDecay"}
    found["diagnostics"]["step_size"] = 1e-5
    found["sampler"]["step"] = {"first": 0.01, "last": 1e-5}
    said = remedy.command(Path("mine"), config, found, ["--task", "toy"])
    assert said is not None
    assert "--model.sampler.lr=0.005 " in said


@pytest.mark.parametrize(
    ("trainer", "lifts"),
    [
        ({"max_steps": 9000, "max_time": "00:01:00:00"}, " --trainer.max_time=null"),
        ({"max_steps": -1, "max_epochs": 5}, " --trainer.max_epochs=-1"),
        ({"max_steps": 1000, "max_time": "00:01:00:00"}, ""),
    ],
)
def test_a_longer_run_counts_from_the_steps_taken_and_lifts_what_ended_it(
    trainer: dict[str, Any], lifts: str
) -> None:
    """Time or epochs ended the run after 1,000 steps, and would end a longer one there again."""
    said = remedy.command(
        Path("mine"), CONFIG | {"trainer": trainer}, content(["wrong"], {"steps": 2.0}), []
    )
    assert said == (f"sgmcmc train --out mine --ckpt_path last{lifts} --trainer.max_steps=2000")


@pytest.mark.parametrize("data", [None, {"class_path": "mine.MyData"}])
def test_no_command_sets_an_option_that_the_data_lack(data: dict[str, Any] | None) -> None:
    config = CONFIG | {"data": data}
    whole, longer = content(["wrong"], {"whole_data": True}), content(["wrong"], {"steps": 2.0})
    assert remedy.command(Path("mine"), config, whole, ["--task", "toy"]) is None
    assert remedy.command(Path("mine"), config, longer, ["--task", "toy"]) is not None


def test_the_verdict_stands_first() -> None:
    said = table.text(content(["it is hot: lower lr"]), [("nll", "0.5")], "sgmcmc train --x=1")
    assert said.splitlines() == [
        "  Verdict: not yet a sample of the target",
        "  - it is hot: lower lr",
        "  Remedy:",
        "    sgmcmc train --x=1",
        "",
        "  chain       SGLD, no metric",
        "  nll         0.5",
        "  draws kept  20 of each of 4 chains",
        "  time        90 s",
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "a sample of the posterior"),
        ({"num_draws": 0}, "no draw was kept"),
        ({"temperature": 0.0}, "T = 0: not a sample of a posterior"),
    ],
)
def test_verdicts(change: dict[str, Any], words: str) -> None:
    assert table.verdict(content([]) | change) == words


def test_a_target_that_is_not_the_posterior_is_not_called_so() -> None:
    found = content([])
    found["diagnostics"]["notes"] = ["temperature is 0.5"]
    assert table.verdict(found) == "the draws are a sample of the target"
    assert "  Note: temperature is 0.5" in table.text(found, [], None)


TEMPERATURE = {"value": 1.25, "standard_error": 0.0625}
PREDICTIVE = {"deviation_over_true": 1.03, "deviation_over_true_error": 0.0123}
RHAT = {"rhat": {"median": 1.004, "q95": 1.012}, "ess_bulk": {"median": 400.4}}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (
            {
                "predictive": PREDICTIVE,
                "kinetic_temperature": 1.5,
                "configurational_temperature": TEMPERATURE,
            },
            [("predictive deviation over the true one", "1.030 +- 0.012")],
        ),
        (
            {"kinetic_temperature": 1.5, "configurational_temperature": TEMPERATURE},
            [("kinetic temperature", "1.500 (stated 0.5)")],
        ),
        (
            {"configurational_temperature": TEMPERATURE},
            [("configurational temperature", "1.250 +- 0.062 (stated 0.5)")],
        ),
        (
            {"mixing": {"weights": {"rhat": None}, "predictions": RHAT}},
            [("R-hat of predictions, median", "1.004 (95 % below 1.012), ESS 400")],
        ),
        (
            {"mixing": {"weights": RHAT}},
            [("R-hat of weights, median", "1.004 (95 % below 1.012), ESS 400")],
        ),
        ({"mixing": {"predictions": {"rhat": None}}}, []),
    ],
)
def test_one_row_says_how_wide_the_draws_are_and_one_how_they_mix(
    found: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    """Of the predictions, which are judged, where they were measured."""
    whole = content([]) | {"temperature": 0.5, "diagnostics": found}
    assert table.rows(whole, []) == [
        ("chain", "SGLD, no metric"),
        ("draws kept", "20 of each of 4 chains"),
        *expected,
        ("time", "90 s"),
    ]
