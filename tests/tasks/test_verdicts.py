"""The table of how chains of known law were judged."""

from __future__ import annotations

from typing import Any

from tasks.experiments.verdicts import table


def _chain(sampler: str, right: bool, wrong: bool, alarms: int, **rest: Any) -> dict[str, Any]:
    return {"sampler": sampler, "right": right, "wrong": wrong, "alarms": alarms, **rest}


def test_misjudged_chains_and_remedies_are_counted() -> None:
    cured = {"alarms": 0, "right": False, "wrong": False, "cost": 3.0}
    deceived = {"alarms": 0, "right": False, "wrong": True, "cost": 9.0}
    accused = {"alarms": 2, "right": True, "wrong": False, "cost": 300.0}
    record = {
        "seed0": {
            "a": _chain("SGLD", True, False, 0),
            "b": _chain("SGLD", True, False, 1, remedied=cured),
            "c": _chain("SGLD", False, True, 0),
            "d": _chain("HMC", False, True, 2, remedied=deceived),
        },
        "seed1": {
            "a": _chain("SGLD", False, False, 1, remedied=accused),
            "b": _chain("SGLD", True, False, 0),
        },
    }
    assert table(record).splitlines()[2:] == [
        "| HMC | 0 | 0 | 1 | 0 | 1 | 1 | 0 | 9 |",
        "| SGLD | 3 | 1 | 1 | 1 | 2 | 1 | 1 | 152 |",
        "| all | 3 | 1 | 2 | 1 | 3 | 2 | 1 | 9 |",
    ]
