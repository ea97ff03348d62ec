"""Signals, lost processes and shared folders: a run stops with a word and continues to the bit."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file

from lightning_sgmcmc.callbacks.requeue import requeue
from lightning_sgmcmc.callbacks.stop import RunStoppedError, StopSignal
from lightning_sgmcmc.run import cli
from lightning_sgmcmc.run.errors import CommandLineError
from lightning_sgmcmc.run.folder import RunFolder
from tests.test_cli import TOY
from tests.toy import Toy

ROOT = Path(__file__).resolve().parents[3]
SETTINGS = ["--wandb_project=null", "--checkpoint_every=10"]

#: As scripts/train.py, but a process may stand still for two seconds only, and a step takes long.
SCRIPT = """
import sys, time
from pathlib import Path
from lightning_sgmcmc.run import cli, ranks
from tests.toy import Toy

def slowly(task, batch):
    time.sleep(0.01)
    return nll(task, batch)

nll, Toy.nll, ranks._STILL = Toy.nll, slowly, 2.0
cli.main(Path(__file__).parent)
"""


@pytest.fixture(autouse=True)
def _in_folder_of_its_own(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "toy.yaml").write_text(TOY)
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    for name in ("WANDB_MODE", "SGMCMC_RUN_FOLDER"):
        monkeypatch.delenv(name, raising=False)


def run(*arguments: str) -> Path:
    return cli.main(Path(), ["--task", "toy", *SETTINGS, *arguments])


def start(*arguments: str) -> subprocess.Popen[str]:
    """Start a command in a session of its own; it returns when the chain moves."""
    process = subprocess.Popen(
        [sys.executable, "train.py", "--task", "toy", *SETTINGS, "--out", "part", *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    log = Path("part/checkpoints/last.ckpt")
    while not log.is_file():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    return process


def ended(process: subprocess.Popen[str], within: float = 30.0) -> tuple[int, str]:
    """Return the status and the last line of a process, of whose session nothing is left."""
    error = process.communicate(timeout=within)[1]
    deadline = time.monotonic() + 10
    while True:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return process.returncode, error.strip().splitlines()[-1]
        assert time.monotonic() < deadline, "a process of the run is left"
        time.sleep(0.1)


def check_that_it_continues(steps: int) -> None:
    """Continue the run, and compare it with one that nothing stopped."""
    whole = run("--out", "whole", f"--trainer.max_steps={steps}")
    cli.main(Path(), ["--out", "part", "--ckpt_path", "last", f"--trainer.max_steps={steps}"])
    names = [
        sorted(f.name for f in (p / "samples/chain0").glob("*")) for p in (whole, Path("part"))
    ]
    assert names[0] == names[1]
    for name in names[0]:
        if name.endswith(".safetensors"):
            a, b = (load_file(p / "samples/chain0" / name) for p in (whole, Path("part")))
            assert all(a[k].equal(b[k]) for k in a)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_saves_and_says_how_to_continue(number: signal.Signals) -> None:
    # A budget that stores every draw, however late the signal comes.
    process = start("--trainer.max_steps=100000", "--model.draw_budget=100000")
    process.send_signal(number)
    status, line = ended(process)
    assert status == 128 + number
    begin = f"stopped by {number.name} after step "
    end = ", which is saved: continue with --out part --ckpt_path last"
    assert line.startswith(begin)
    assert line.endswith(end)
    step = int(line.removeprefix(begin).removesuffix(end))
    check_that_it_continues(step + 20)


@pytest.mark.parametrize(
    ("whom", "number", "status", "said"),
    [
        ("second", signal.SIGTERM, 143, "stopped by SIGTERM after step"),
        ("both", signal.SIGINT, 130, "stopped by SIGINT after step"),
        ("first", signal.SIGKILL, -9, "error: process 0 has ended"),
        ("second", signal.SIGKILL, 1, "error: process 1 was ended by SIGKILL"),
        ("first", signal.SIGSTOP, -9, "error: process 0 stood still for 2 s"),
        ("second", signal.SIGSTOP, 1, "error: process 1 stood still for 2 s"),
    ],
)
def test_all_processes_end_where_one_does(
    whom: str, number: signal.Signals, status: int, said: str
) -> None:
    process = start("--trainer.max_steps=100000", "--trainer.devices=2", "--trainer.strategy=ddp")
    second = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True)
    if whom == "both":
        os.killpg(process.pid, number)
    else:
        os.kill(process.pid if whom == "first" else int(second.stdout.split()[0]), number)
    found, line = ended(process)
    assert found == status
    assert line.startswith(said)
    assert line.endswith("ontinue with --out part --ckpt_path last")


def test_a_signal_outside_a_step_ends_at_once() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopSignal() as stop:
        with pytest.raises(RunStoppedError, match="stopped by SIGTERM") as error:
            signal.raise_signal(signal.SIGTERM)
        assert error.value.status == 143
    with StopSignal() as stop:
        stop.wait_for_step()
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)  # once more, by torchrun below srun
        signal.raise_signal(signal.SIGUSR1)
        assert stop.asked == signal.SIGTERM
        with pytest.raises(RunStoppedError):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("stops", ["when it is imported", "when it is built"])
def test_a_signal_while_the_command_line_is_read_is_no_mistake_in_it(
    stops: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    """jsonargparse catches any ``Exception`` there and takes it for a wrong value."""
    at_import, at_build = ("stop()", "") if "imported" in stops else ("", "stop()")
    (tmp_path / "own.py").write_text(
        "import signal\nfrom tests.toy import ToyData\n"
        f"def stop():\n  signal.raise_signal(signal.SIGTERM)\n{at_import}\n"
        f"class Data(ToyData):\n  def __init__(self):\n    {at_build}\n    super().__init__()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own", raising=False)
    with pytest.raises(SystemExit) as stopped:
        run("--out", "part", "--data=own.Data")
    assert stopped.value.code == 143
    assert capsys.readouterr().err.startswith("stopped by SIGTERM")


def test_a_step_that_takes_too_long_is_cut_off(monkeypatch: Any, capsys: Any) -> None:
    """Where the grace is over, and not where the step has ended before."""
    ended: list[int] = []
    monkeypatch.setattr("lightning_sgmcmc.callbacks.stop._GRACE", 0.2)
    monkeypatch.setattr("lightning_sgmcmc.callbacks.stop.os._exit", ended.append)
    for too_long in (False, True):
        with StopSignal() as stop:
            stop.wait_for_step()
            signal.raise_signal(signal.SIGTERM)
            if not too_long:
                stop.at_once()
            deadline = time.monotonic() + (5 if too_long else 0.5)
            while not ended and time.monotonic() < deadline:
                time.sleep(0.05)
        assert ended == [1] * too_long
    assert "a step did not end within 0 s of the signal to stop" in capsys.readouterr().err


def test_slurm_starts_a_job_again_after_sigusr1_alone(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    """Not after SIGTERM, which scancel sends, and not outside a job; a failure is a warning."""
    log, scontrol = tmp_path / "log", tmp_path / "scontrol"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def asked(number: int, script: str = "") -> tuple[str, str]:
        log.write_text("")
        scontrol.write_text(f'#!/bin/sh\necho "$@" >> {log}\n{script}')
        scontrol.chmod(0o755)
        requeue(number)
        return log.read_text(), capsys.readouterr().err

    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert asked(signal.SIGUSR1) == ("", "")
    monkeypatch.setenv("SLURM_JOB_ID", "4242")
    for number in (signal.SIGTERM, signal.SIGINT):
        assert asked(number) == ("", "")
    assert asked(signal.SIGUSR1) == ("requeue 4242\n", "SLURM starts job 4242 again\n")
    failed = "warning: 'scontrol requeue 4242' failed: "
    for script, why in (("echo no such job >&2; exit 1", "no such job"), ("exit 3", "status 3")):
        assert asked(signal.SIGUSR1, script)[1] == f"{failed}{why}\n"


def test_more_processes_than_the_machine_bears(capsys: Any) -> None:
    with pytest.raises(SystemExit):
        run("--trainer.devices=2000", "--trainer.strategy=ddp", "--out", "run")
    assert "--trainer.devices=2000 asks for as many processes" in capsys.readouterr().err


def test_runs_of_one_second_have_folders_of_their_own() -> None:
    a, b = (RunFolder(None, Path("runs/toy/psgld-seed0-20260101-000000")) for _ in range(2))
    assert a.path != b.path
    assert b.path.name == "psgld-seed0-20260101-000000-2"
    a.release()
    assert not a.path.exists()  # nothing was written
    b.release()
    assert not b.path.exists()


def test_a_system_that_keeps_open_files(monkeypatch: Any) -> None:
    """As Windows does: the folder is free all the same."""

    def unlink(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(f"another process uses {self}")

    folder = RunFolder(None, Path("runs/toy/psgld"))
    with monkeypatch.context() as context:
        context.setattr(Path, "unlink", unlink)
        folder.release()
    assert (folder.path / ".lock").exists()
    RunFolder(folder.path, folder.path).release()


def test_a_live_run_has_its_folder_alone(capsys: Any) -> None:
    process = start("--trainer.max_steps=100000")
    for command in (["--task", "toy", "--out", "part"], ["--finish", "part"]):
        with pytest.raises(SystemExit) as stop:
            cli.main(Path(), command)
        assert stop.value.code == 2
        assert "another process runs in part: wait for its end" in capsys.readouterr().err
    process.kill()
    process.communicate()
    cli.main(Path(), ["--finish", "part"])


@pytest.mark.parametrize("at", [5, 20])
def test_a_start_that_came_to_nothing_is_repeated(monkeypatch: Any, capsys: Any, at: int) -> None:
    """It dies before its first checkpoint, at step 5 without a draw and at step 20 with three."""
    late = ["--checkpoint_every=500"]

    def dying(task: Toy, batch: Any) -> Any:
        if task.chain.steps == at:
            raise RuntimeError("killed")
        return nll(task, batch)

    nll = Toy.nll
    with monkeypatch.context() as context:
        context.setattr(Toy, "nll", dying)
        with pytest.raises(RuntimeError, match="killed"):
            run("--out", "part", *late)
    if at == 5:
        part = run("--out", "part", *late)
    else:
        with pytest.raises(SystemExit):
            run("--out", "part", *late)
        assert "part already holds a run: continue it with --ckpt_path last" in (
            capsys.readouterr().err
        )
        part = cli.main(Path(), ["--out", "part", "--ckpt_path", "last"])
    whole = run("--out", "whole", *late)
    found = [json.loads((p / "results.json").read_text()) for p in (part, whole)]
    assert found[0]["metrics"] == found[1]["metrics"]
    assert yaml.safe_load((part / "config.yaml").read_text())


def test_a_finished_run_without_a_checkpoint_stays(capsys: Any) -> None:
    """As one of --finish that was killed before its first; `last` begins anew where nothing is."""
    part = run("--out", "part")
    shutil.rmtree(part / "checkpoints")
    kept = {path: path.read_bytes() for path in part.rglob("*") if path.is_file()}
    with pytest.raises(SystemExit):
        cli.main(Path(), ["--out", "part", "--ckpt_path", "last"])
    assert (
        "there is no checkpoint part/checkpoints/last.ckpt: nothing to" in capsys.readouterr().err
    )
    assert all(path.read_bytes() == content for path, content in kept.items())


@pytest.mark.parametrize("own", [False, True])
def test_what_lies_in_a_folder_of_no_run_stays(tmp_path: Path, own: bool) -> None:
    """A command refuses a folder whose configuration is no run's, and leaves what lies there."""
    config = "name: toy\ncheckpoint_every: null\n" if own else "mine: 1\n"
    home = tmp_path / "mine"
    home.mkdir()
    (home / "config.yaml").write_text(config)
    for name in ("figures/mine.png", "samples/mine.csv", "checkpoints/mine.pt", "metrics.csv"):
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text("mine")
    folder = RunFolder(str(home), home)
    if own:
        assert folder.to_continue("last") is None
    for begin in (folder.to_start, lambda: folder.to_continue("last")) if not own else ():
        with pytest.raises(CommandLineError, match="is not of a run, which"):
            begin()
    folder.release()
    assert (home / "config.yaml").read_text() == config
    left = {path.name for path in home.iterdir()} - {"config.yaml"}
    assert left == (set() if own else {"figures", "samples", "checkpoints", "metrics.csv"})


def test_processes_that_others_start_need_a_folder(monkeypatch: Any) -> None:
    for name, value in (("RANK", "1"), ("LOCAL_RANK", "1"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    with pytest.raises(CommandLineError, match="need one folder: give it with --out"):
        RunFolder(None, Path("runs/toy/a"))


@pytest.mark.parametrize("saved", [False, True])
def test_steps_that_were_saved_keep_the_options_that_they_were_taken_with(
    tmp_path: Path, saved: bool
) -> None:
    """A command that was refused leaves a run's configuration; one that failed later its own."""
    config, last = tmp_path / "config.yaml", tmp_path / "checkpoints" / "last.ckpt"
    last.parent.mkdir()
    last.write_text("step 50")
    config.write_text("max_steps: 50")
    folder = RunFolder(str(tmp_path), tmp_path)
    config.write_text("max_steps: 80")
    if saved:
        last.unlink()
        last.write_text("step 60")
    folder.leave(SystemExit, SystemExit(2), None)  # type: ignore[arg-type]
    assert config.read_text() == f"max_steps: {80 if saved else 50}"
    assert last.is_file()


def test_a_checkpoint_is_continued_beside_its_draws(tmp_path: Path) -> None:
    path = tmp_path / "a" / "checkpoints" / "last.ckpt"
    for made in (path.parent, tmp_path / "a" / "samples"):
        made.mkdir(parents=True)
    path.touch()
    for out, wrong in (("a", False), ("b", True)):
        folder = RunFolder(str(tmp_path / out), tmp_path)
        if wrong:
            with pytest.raises(CommandLineError, match=f"in its folder, --out {tmp_path / 'a'}"):
                folder.to_continue(str(path))
        else:
            assert folder.to_continue(str(path)) == path
        folder.release()
