"""W&B: what a run leaves there, read back with W&B's own reader, and one run for one folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wandb
import yaml
from wandb.wandb_agent import Agent

from lightning_sgmcmc.run import cli, wandb_run
from lightning_sgmcmc.run.wandb_run import WandbRun, wandb_has_key
from tests.test_cli import ROOT, TOY


@pytest.fixture
def home(tmp_path: Path, monkeypatch: Any) -> Iterator[Path]:
    """A home without W&B's key, where W&B also keeps what it writes for itself."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "NETRC"):
        monkeypatch.setenv(name, "")  # so that what a test leaves there is taken back
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_SILENT", "true")
    yield tmp_path
    wandb.teardown()  # it reads the environment once a process


@pytest.fixture
def configs(home: Path, monkeypatch: Any) -> Path:
    folder = home / "configs"
    folder.mkdir()
    (folder / "toy.yaml").write_text(TOY)
    monkeypatch.chdir(home)
    for name in ("SGMCMC_RUN_FOLDER", "WANDB_RUN_ID", "WANDB_RUN_GROUP"):
        monkeypatch.delenv(name, raising=False)
    return folder


def records(file: Path) -> list[dict[str, Any]]:
    """Return what W&B's own command reads of an offline run."""
    program = shutil.which("wandb", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("the command wandb is not installed")
    done = subprocess.run(
        [program, "leet", "inspect", "--json", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    if "No such command" in done.stderr:
        pytest.skip("this wandb has no reader of offline runs")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def of(found: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [record[kind] for record in found if record["type"] == kind]


def test_an_offline_run_holds_all_that_it_was_and_came_to(configs: Path) -> None:
    settings = ["--seed_everything=3", "--model.sampler.lr=2e-3", "--model.burn_in=15"]
    folder = cli.main(configs, ["--task", "toy", "--out", "tracked", *settings])
    (file,) = (folder / "wandb").glob("offline-run-*/*.wandb")
    found = records(file)
    begun, *later = of(found, "run")
    config = begun["config"]["update"]
    assert config["model.sampler"] == "lightning_sgmcmc.PSGLD"
    assert config["model.sampler.prior.variance"] == 4
    assert (config["model.sampler.lr"], config["model.burn_in"]) == (2e-3, 15)
    assert (config["seed_everything"], config["trainer.max_steps"]) == (3, 40)
    assert begun["run_group"] == "toy-PSGLD"
    assert later[-1]["tags"] == ["toy", "PSGLD", "alarm"]
    results = json.loads((folder / "results.json").read_text())
    summary: dict[str, Any] = {}
    for record in of(found, "summary"):
        summary |= record["update"]
    assert summary["final/ensemble/nll"] == pytest.approx(results["metrics"]["ensemble"]["nll"])
    assert summary["verdict"] == "not yet a sample of the target"
    assert summary["alarms"] == len(results["diagnostics"]["alarms"])
    assert [alert["text"] for alert in of(found, "alert")] == [summary["alarm"]]
    history = [record["item"] for record in of(found, "history")]
    assert not any(name.startswith(("final/", "diagnostics/")) for row in history for name in row)
    assert [row["draws"] for row in history if "val/ensemble_nll" in row] == [1, 2, 3, 4, 5]
    artifact = next(a for a in of(found, "artifact") if a["type"] == "run")
    held = {entry["path"] for entry in artifact["manifest"]["contents"]}
    assert held == {"results.json", "config.yaml", "metrics.csv", "figures/trace.png",
                    "figures/learning_curve.png"}  # fmt: skip
    table = next((folder / "wandb").glob("offline-run-*/files/media/table/*.json"))
    rows = json.loads(table.read_text())
    assert "val/ensemble_nll" in rows["columns"]
    assert len(rows["data"]) == 5


def test_a_run_that_wandb_cannot_take_ends_with_its_results(
    configs: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    (tmp_path / "taken").write_text("no folder")
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "taken" / "below"))
    with pytest.warns(UserWarning, match="WandbRun has not taken the results, which are in track"):
        folder = cli.main(configs, ["--task", "toy", "--out", "tracked"])
    assert "Verdict: not yet a sample" in capsys.readouterr().out
    assert json.loads((folder / "results.json").read_text())["num_draws"] > 0
    assert wandb.run is None  # so that the next run in this process is its own


def test_a_run_below_another_directory_is_in_its_own_folder(
    configs: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    """W&B's process, which serves all runs of this one, keeps the directory it began in."""
    for place in ("first", "second"):
        (tmp_path / place).mkdir()
        monkeypatch.chdir(tmp_path / place)
        cli.main(configs, ["--task", "toy", "--out", "tracked"])
        (file,) = (tmp_path / place).glob("tracked/wandb/offline-run-*/*.wandb")
        assert of(records(file), "run")


def test_a_continued_chain_is_the_same_run(configs: Path) -> None:
    run = ["--task", "toy", "--out", "tracked", "--checkpoint_every=10"]
    folder = cli.main(configs, [*run, "--trainer.max_steps=20"])
    identity = (folder / "wandb" / "run-id").read_text().strip()
    cli.main(configs, ["--out", "tracked", "--ckpt_path", "last", "--trainer.max_steps=40"])
    files = list((folder / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 2
    assert {file.stem for file in files} == {f"run-{identity}"}
    assert {of(records(file), "run")[0]["run_id"] for file in files} == {identity}


def test_the_id_of_an_agent_comes_first(configs: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("WANDB_RUN_ID", "agents01")
    folder = cli.main(configs, ["--task", "toy", "--out", "tracked"])
    assert list((folder / "wandb").glob("offline-run-*-agents01"))


def test_an_agent_runs_the_shipped_sweep(home: Path, monkeypatch: Any) -> None:
    """W&B's own agent builds the command; only the server that hands out runs is missing."""
    sweep = yaml.safe_load((ROOT / "configs" / "sweeps" / "pde_source.yaml").read_text())
    short = ["--data.num_samples=60", "--data.num_val=20", "--model.burn_in=20",
             "--model.burn_in_optimizer.steps=10", "--model.thinning=2",
             "--trainer.max_steps=40"]  # fmt: skip
    for name in ("WANDB_RUN_ID", "WANDB_SWEEP_PARAM_PATH", "WANDB_RUN_GROUP"):
        monkeypatch.setenv(name, "")  # so that what the agent leaves there is taken back
        monkeypatch.delenv(name)
    programs = Path(sys.executable).parent
    for name, value in {
        "WANDB_MODE": "offline",
        "WANDB_SWEEP_ID": "abc",
        "WANDB_DIR": str(home),
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(home)
    chosen = {"model.step_fraction": 0.05, "model.sampler.momentum": 0.98, "seed_everything": 2}
    agent = Agent(api=None, queue=None)
    agent._sweep_command = [*sweep["command"][:-1], *short, "${args}"]
    args = {name: {"value": value} for name, value in chosen.items()}
    agent._command_run({"type": "run", "run_id": "swept", "program": None, "args": args})
    assert agent._run_processes["swept"].wait() == 0
    (file,) = home.glob("runs/pde_source/*/wandb/offline-run-*-swept/*.wandb")
    found = records(file)
    begun = of(found, "run")[0]
    assert begun["sweep_id"] == "abc"
    assert chosen.items() <= begun["config"]["update"].items()
    followed = [r["item"] for r in of(found, "history") if sweep["metric"]["name"] in r["item"]]
    assert len(followed) == 10  # at every draw, so that hyperband can fire


def test_a_chain_that_fails_leaves_the_process_to_the_next_run(configs: Path) -> None:
    hot = ["--model.sampler=lightning_sgmcmc.SGLD", "--model.sampler.lr=5.0"]
    with pytest.raises(SystemExit):
        cli.main(configs, ["--task", "toy", "--out", "hot", *hot])
    assert wandb.run is None
    (file,) = Path("hot/wandb").glob("offline-run-*/*.wandb")
    assert of(records(file), "exit")[0]["exit_code"] == 1


def test_key_in_the_environment(home: Path, monkeypatch: Any) -> None:
    assert not wandb_has_key()
    monkeypatch.setenv("WANDB_API_KEY", "")
    assert not wandb_has_key()
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    assert wandb_has_key()


@pytest.mark.parametrize(
    ("content", "has_key"),
    [
        ("machine api.wandb.ai login user password secret\n", True),
        ("machine example.org login user password secret\n", False),
        ("machine api.wandb.ai login\n", False),
        ("no netrc at all\n", False),
    ],
    ids=["ours", "other", "cut", "nonsense"],
)
def test_key_in_netrc(home: Path, content: str, has_key: bool) -> None:
    file = home / ".netrc"
    file.write_text(content)
    file.chmod(0o600)
    assert wandb_has_key() is has_key


def test_a_key_is_that_of_the_own_server(home: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org:8443")
    for host, has_key in (("api.wandb.ai", False), ("wandb.example.org", True)):
        (home / ".netrc").write_text(f"machine {host} login user password secret\n")
        (home / ".netrc").chmod(0o600)
        assert wandb_has_key() is has_key


@pytest.mark.parametrize(
    ("key", "mode", "why"),
    [("", None, "no API key"), ("0" * 40, "offline", "WANDB_MODE=offline")],
)
def test_an_offline_run_says_why_and_how_it_is_sent(
    key: str, mode: str | None, why: str, home: Path, monkeypatch: Any, caplog: Any
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", key)
    if mode is not None:
        monkeypatch.setenv("WANDB_MODE", mode)
    with caplog.at_level("INFO"):
        assert wandb_run._is_offline(Path("my runs"))
    assert caplog.messages == [
        f"W&B: {why}, logging offline; send the run later with "
        "`wandb sync 'my runs/wandb'/offline-run-*`"
    ]


def test_wandb_is_offline_without_a_key(home: Path, caplog: Any) -> None:
    with caplog.at_level("INFO"):
        logger = WandbRun(home / "run", "name", "project", {})
    assert "wandb sync" in caplog.text
    run = logger.experiment
    assert run.settings._offline
    assert Path(run.dir).is_relative_to(home / "run")
    logger.log_metrics({"a": 1.0}, step=1)
    run.finish()
    assert list((home / "run" / "wandb").glob("offline-run-*/*.wandb"))


def test_wandb_mode_wins(home: Path, monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    with caplog.at_level("INFO"):
        logger = WandbRun(home / "run", "name", "project", {})
    assert "wandb sync" not in caplog.text
    assert logger.experiment.settings.mode == "disabled"
    logger.experiment.finish()
    assert os.environ["WANDB_MODE"] == "disabled"
    assert not list(home.rglob("*.wandb"))
