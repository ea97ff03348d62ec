"""Every wrong value of every field is one line that names it, and status 2; none is a traceback."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightning_sgmcmc.run import cli
from tests.test_cli import TOY

ROOT = Path(__file__).resolve().parents[3]
HUGE = "1000000000000000000"
VALUES = ("word", "", "null", "-1", "0", ".nan", ".inf", "1e308", "gone/file", "/dev/null/x")
#: A huge count is a long computation, not a mistake, but of what a machine is asked for at once.
HUGE_FIELDS = ("trainer.devices", "trainer.num_nodes", "model.burn_in", "model.thinning")
#: Options that name a run's folder.
PATHS = ("out", "finish", "check")
TASKS = ("toy", "a9a", "class_table")


def leaves(config: Any, path: str = "") -> Iterator[str]:
    """Yield the dotted names of a configuration as the command line takes them."""
    if not isinstance(config, dict) or not config:
        yield path
        return
    if "class_path" in config:
        yield path
        config = config.get("init_args") or {}
    for key, value in config.items():
        yield from leaves(value, f"{path}.{key}" if path else key)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: Any) -> Path:
    """Configurations, a table, and a trainer that stops where a run would start."""
    configs = tmp_path / "configs"
    configs.mkdir()
    for path in (ROOT / "configs").glob("*.yaml"):
        (configs / path.name).write_text(path.read_text())
    (configs / "toy.yaml").write_text(TOY)
    rows = "".join(f"{i / 7:.3f},{i % 3},{'yes' if i % 2 else 'no'}\n" for i in range(60))
    (tmp_path / "table.csv").write_text("a,b,kind\n" + rows)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setattr("lightning.Trainer.fit", lambda *a, **k: None)
    monkeypatch.setattr(cli, "_end_wandb", lambda *a, **k: None)
    return configs


def end(configs: Path, arguments: list[str], capsys: Any) -> tuple[int, str]:
    """Return status and stderr of a command; a traceback is an exception here."""
    try:
        cli.main(configs, arguments)
        status = 0
    except SystemExit as stop:
        status = int(stop.code or 0)
    return status, capsys.readouterr().err


def legal(value: str) -> bool:
    """Return whether some field takes a value: none takes NaN, infinity, 1e308 or nothing."""
    return value not in (".nan", ".inf", "1e308", "")


@pytest.mark.parametrize("task", TASKS)
def test_a_wrong_value_is_one_line(folder: Path, capsys: Any, monkeypatch: Any, task: str) -> None:
    base = ["--task", task, "--wandb_project=null", "--trainer.accelerator=cpu"]
    if task == "class_table":
        base += ["--data.file=table.csv", "--data.target=kind"]
    found: dict[str, Any] = {}

    def note(self: Any) -> None:
        text = self.parser.dump(self.config, skip_none=False, skip_validation=True)
        found.update(yaml.safe_load(text))
        original(self)

    original = cli.ChainCLI.before_instantiate_classes
    with monkeypatch.context() as context:
        context.setattr(cli.ChainCLI, "before_instantiate_classes", note)
        assert end(folder, [*base, "--out", "first"], capsys)[0] == 0
    fields = list(leaves(found))
    if task != "toy":  # the rest is the same in every task
        fields = [f for f in fields if f.startswith(("data.", "model.net", "model.noise"))]
    wrong, number = [], 0
    for field in fields:
        for value in (*VALUES, *([HUGE] if field in HUGE_FIELDS else [])):
            number += 1
            out = [] if field in PATHS else ["--out", f"r{number}"]
            try:
                status, said = end(folder, [*base, *out, f"--{field}={value}"], capsys)
            except Exception as error:
                wrong.append(f"{field}={value}: traceback of {error!r}")
                continue
            name = field.rsplit(".", 1)[-1]
            one = re.fullmatch(r"error: .+\n", said) and (name in said or value in said)
            text = found_text(found, field)
            if status == 0 and not legal(value) and not text:
                wrong.append(f"{field}={value}: accepted")
            elif status not in (0, 2) or (status == 2 and not one):
                wrong.append(f"{field}={value}: {status} {said[:200]}")
    assert not wrong, f"{len(wrong)} of {number}:\n" + "\n".join(wrong)


def found_text(config: Any, field: str) -> bool:
    """Return whether a field holds free text: a path or a name, for which .nan is a word."""
    return field in (*PATHS, "name", "wandb_project", "trainer.model_registry") or (
        field.startswith(("data.root", "data.file", "data.test_file", "data.target"))
    )
