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
#: Fields of free text: paths and names, for which .nan is a word.
TEXTS = (
    *PATHS,
    *("name", "wandb_project", "trainer.model_registry"),
    *("data.root", "data.file", "data.test_file", "data.target", "data.spe10_file"),
)
TASKS = ("toy", "a9a", "class_table", "mnist", "pde_source", "pde_perm", "darcy_pressure")
#: What is right, of VALUES: whatever else is accepted is a mistake that was not seen. A seed is any
#: whole number, a held-out set may be empty, and Lightning takes -1 and 0 for no bound and for
#: nothing.
RIGHT = {
    "0": """
        data.mean data.measure_train data.num_calibration data.num_test data.num_val model.burn_in
        model.draw_budget
        model.noise_floor model.sampler.alpha model.sampler.chain model.sampler.floor
        model.sampler.gamma_probes model.sampler.prior.mean model.sampler.temperature
        trainer.fast_dev_run trainer.gradient_clip_val trainer.limit_predict_batches
        trainer.limit_test_batches trainer.limit_val_batches trainer.max_epochs trainer.min_epochs
        trainer.min_steps trainer.num_sanity_val_steps trainer.overfit_batches
        trainer.reload_dataloaders_every_n_epochs data.source
    """,
    "-1": """
        data.mean model.sampler.prior.mean trainer.max_epochs trainer.max_steps trainer.min_epochs
        trainer.min_steps trainer.num_sanity_val_steps
    """,
}


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


def right(field: str, value: str) -> bool:
    """Return whether a field takes a value."""
    if field in TEXTS:
        return True
    if field.endswith("seed") or field == "seed_everything":
        return value in ("0", "-1")
    # A null that is no mistake is refused where the class does not take it; a test holds that.
    return value == "null" or field in RIGHT.get(value, "").split()


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
    if task == "toy":  # whose data are a test's own
        fields = [f for f in fields if not f.startswith("data.")]
    else:  # the rest is the same in every task
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
            if status == 0 and not right(field, value):
                wrong.append(f"{field}={value}: accepted")
            elif status not in (0, 2) or (status == 2 and not one):
                wrong.append(f"{field}={value}: {status} {said[:200]}")
    assert not wrong, f"{len(wrong)} of {number}:\n" + "\n".join(wrong)
