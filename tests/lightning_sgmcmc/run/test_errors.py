"""A mistake is one line and a status; a defect keeps its traceback and says where to report it."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning.pytorch.callbacks import EarlyStopping

from lightning_sgmcmc import GaussianPrior
from lightning_sgmcmc.callbacks import ChainDivergedError
from lightning_sgmcmc.run.errors import CommandLineError, Guard
from lightning_sgmcmc.run.yaml_check import check_yaml

OWN = """
def refuse():
    raise ValueError("rows must be sorted")

def stumble():
    return {}["size"]
"""


def missing_file() -> None:
    Path("gone/table.csv").read_text()


def diverge() -> None:
    raise ChainDivergedError("the chain diverged at step 7")


def refuse_command() -> None:
    raise CommandLineError("take --out")


def monitor() -> None:
    EarlyStopping("val/nl")._validate_condition_metric({"val/nll": torch.tensor(1.0)})


def full_disk() -> None:
    raise OSError(28, "No space left on device", "run/last.ckpt")


@pytest.mark.parametrize(
    ("act", "status", "line"),
    [
        (missing_file, 2, "gone/table.csv: no such file or directory"),
        (full_disk, 2, "run/last.ckpt: no space left on device"),
        (refuse_command, 2, "take --out"),
        (diverge, 3, "the chain diverged at step 7"),
        (
            lambda: GaussianPrior(variance=-1.0),
            2,
            "the prior's variance must be positive, got -1.0",
        ),
        (
            monitor,
            2,
            "Early stopping conditioned on metric `val/nl` which is not available. Pass in or "
            "modify your `EarlyStopping` callback to use any of the following: `val/nll`",
        ),
    ],
)
def test_a_mistake_is_one_line(capsys: Any, act: Callable[[], Any], status: int, line: str) -> None:
    with pytest.raises(SystemExit) as stop, Guard():
        act()
    assert stop.value.code == status
    assert capsys.readouterr().err == f"error: {line}\n"


@pytest.mark.parametrize("act", ["math.sqrt(-1)", "torch.zeros(2) @ torch.zeros(3)", "{}['size']"])
def test_a_defect_keeps_its_traceback(act: str) -> None:
    """Code of ours that calls a library with what we made: no sentence of ours foresaw it."""
    ours: dict[str, Any] = {"__name__": "lightning_sgmcmc.x", "math": math, "torch": torch}
    exec(f"def call(guard):\n    with guard:\n        {act}\n", ours)
    guard = Guard()
    guard.folder = Path("run")
    with pytest.raises((ValueError, RuntimeError, KeyError)) as error:
        ours["call"](guard)
    assert "defect of the program" in error.value.__notes__[-1]
    assert "run/config.yaml" in error.value.__notes__[-1]


def test_a_users_own_module(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    """Its ``raise`` is a sentence; what it did not foresee is a traceback to its line."""
    (tmp_path / "own_rows.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    import own_rows  # type: ignore[import-not-found]

    with pytest.raises(SystemExit), Guard():
        own_rows.refuse()
    assert capsys.readouterr().err == "error: rows must be sorted\n"
    with pytest.raises(KeyError) as error, Guard():
        own_rows.stumble()
    assert error.value.__notes__[-1].endswith(f"{tmp_path / 'own_rows.py'}, line 6")
    del sys.modules["own_rows"]


def test_yaml_that_says_a_thing_twice(tmp_path: Path) -> None:
    path = tmp_path / "task.yaml"
    path.write_text("model:\n  burn_in: 1\n  thinning: 2\n  burn_in: 3\n")
    with pytest.raises(ValueError, match=r"task\.yaml, line 2: 'burn_in' stands twice"):
        check_yaml(path)


def test_a_table_is_no_configuration(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("a,b,y\n" + "1,2,3\n" * 100)
    with pytest.raises(ValueError, match=r"table\.csv is no configuration, which gives values"):
        check_yaml(path)


def test_what_is_no_yaml_is_named(tmp_path: Path) -> None:
    path = tmp_path / "task.yaml"
    path.write_text("model: [${args}]\n")
    with pytest.raises(yaml.YAMLError, match=r'task\.yaml", line 1, column 10'):
        check_yaml(path)


def test_a_bomb_of_anchors_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "bomb.yaml"
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    path.write_text("\n".join(lines))
    began = time.process_time()
    with pytest.raises(ValueError, match="its anchors expand to more than 100000 values"):
        check_yaml(path)
    assert time.process_time() - began < 5
