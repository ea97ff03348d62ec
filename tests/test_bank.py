"""Verdicts on chains whose predictive law is known; ``scripts/bench/bank.py`` has them all."""

from __future__ import annotations

import pytest

from lightning_sgmcmc import SGHMC
from tests.bank import BANK, Recipe, network, remedied, run

TRIALS = {trial.name: trial for trial in BANK}


def test_the_bank_has_every_kind() -> None:
    assert len(BANK) >= 30
    assert {trial.sampler for trial in BANK} == {
        "SGLD", "PSGLD", "SGHMC", "SGNHT", "SGFS", "NaturalLangevin", "HASGLD", "HAMCMC", "MCLMC",
        "SMILE", "HMC",
    }  # fmt: skip


@pytest.mark.parametrize(
    "name", ["linear, SGHMC", "linear, HMC", "linear, MCLMC", "logistic, SGNHT", "classes, SGHMC"]
)
def test_right_chains_pass(name: str) -> None:
    """At once, or once it has run as much longer as it takes to know how wide predictions are.

    A machine's rounding decides how long that is: the steepest place that a chain has come across
    where burn-in ends sets its step.
    """
    outcome = TRIALS[name].run()
    assert not outcome.wrong
    assert [alarm for alarm in outcome.alarms if "is known to" not in alarm] == []
    if outcome.alarms:
        outcome = remedied(TRIALS[name], outcome, budget=20)[-1]
        assert not outcome.wrong
        assert outcome.alarms == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("logistic, SGHMC, noise", "times too wide"),
        ("linear, SGHMC, noise", "times too wide"),
        ("linear, SGHMC, some noise", "times too wide"),
        ("network, MCLMC, large step", "the step is too large; multiply the step size"),
        ("classes, MCLMC, large step", "times the largest stable one"),
        ("linear, SMILE, reshuffled", "the thermostat takes the heat of the minibatches"),
        ("linear, SGLD, stuck", "the chain still moves"),
        ("linear, SGLD, not mixed", "not mixed"),
        ("features, SGHMC, some noise", "of leading direction 1"),
    ],
)
def test_wrong_chains_do_not(name: str, words: str) -> None:
    outcome = TRIALS[name].run()
    assert outcome.wrong
    assert any(words in text for text in outcome.alarms)


def test_following_the_remedy_ends_the_alarm() -> None:
    trial = TRIALS["linear, SGLD, large step"]
    outcome = trial.run()
    assert outcome.wrong
    last = remedied(trial, outcome, budget=50)[-1]
    assert last.alarms == []
    assert not last.wrong


def test_a_step_that_minibatches_bound_is_not_to_be_raised() -> None:
    """The bound would hold for the larger one too, and the same chain run again."""
    recipe = Recipe(
        SGHMC, batch=3, optimizer_steps=100, burn_in=200, draws=30, thinning=1, chains=2, bound=0.05
    )
    found = run(network(), recipe).diagnostics
    assert found["stability"]["fraction"] < 0.01
    assert "R-hat of the predictions" in found["alarms"][0]
    assert found["remedy"] == {"lr": 1.0, "steps": 4, "whole_data": True, "momentum": False}
