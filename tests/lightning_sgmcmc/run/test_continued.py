"""Settings that a checkpoint has, and those that its version of the package did not know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lightning_sgmcmc.run import continued

OLD = {
    "model": {
        "class_path": "Task",
        "init_args": {"sampler": {"class_path": "SGLD", "init_args": {"lr": 0.1}}, "starts": None},
    },
    "data": {"options": {}},
    "trainer": {"max_steps": 10},
}


@pytest.fixture(autouse=True)
def _checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    content = {
        "sgmcmc_settings": json.dumps(OLD), "sgmcmc_changes": "[]", "global_step": 7
    }  # fmt: skip
    monkeypatch.setattr(continued, "read_checkpoint", lambda path: content)


def _with(**new: Any) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads(json.dumps(OLD))
    for name, value in new.items():
        *parents, last = name.split("__")
        inner = settings
        for parent in parents:
            inner = inner[parent]
        inner[last] = value
    return settings


def test_an_option_of_a_later_version_is_no_change() -> None:
    settings = _with(model__init_args__noise_spread=1.0, trainer__later=None)
    assert continued.changes(Path(), settings) == []


@pytest.mark.parametrize(
    "changed",
    [
        {"model__init_args__starts": {"class_path": "Perturbed", "init_args": {"scale": 2}}},
        {"data__options": {"given": 1}},
        {"model__init_args__sampler": {"class_path": "SGHMC", "init_args": {"lr": 0.1}}},
        {"model__init_args__sampler": {"class_path": "SGLD", "init_args": {"lr": 0.2}}},
    ],
)
def test_what_was_empty_or_had_another_value_is_one(changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="cannot change where a run is continued"):
        continued.changes(Path(), _with(**changed))


def test_fewer_steps_than_were_taken_are_refused() -> None:
    """The checkpoint is of step 7; -1 is no limit."""
    with pytest.raises(ValueError, match=r"taken 7 steps, and trainer\.max_steps = 6 is fewer"):
        continued.changes(Path(), _with(trainer__max_steps=6))
    for most in (7, -1, 10):
        continued.changes(Path(), _with(trainer__max_steps=most))
