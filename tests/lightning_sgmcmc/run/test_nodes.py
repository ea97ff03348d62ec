"""Runs whose processes torchrun or SLURM starts on several machines, here on one.

Each process of a run waits in a given step for a file, so that signals meet it there.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from lightning_sgmcmc import load_posterior
from lightning_sgmcmc.run import beats, ranks, shared, values
from lightning_sgmcmc.run.beats import Beats
from lightning_sgmcmc.run.errors import CommandLineError
from lightning_sgmcmc.run.ranks import Ranks
from lightning_sgmcmc.run.shared import SharedFolder
from tests import forked
from tests.test_cli import TOY

ROOT = Path(__file__).resolve().parents[3]
WAIT_AT = 25
SCRIPT = f"""
import os, sys, time
from pathlib import Path
import torch
from lightning_sgmcmc.callbacks import checkpoint
from lightning_sgmcmc.run import cli, ranks
from tests.toy import Toy

def waiting(task, batch):
    while task.chain.steps == {WAIT_AT} and not Path("go").exists():
        Path(f"at{{task.global_rank}}").touch()
        time.sleep(0.05)
    return nll(task, batch)

def counting(*args, **kwargs):
    broadcasts.append(1)
    return broadcast(*args, **kwargs)

broadcasts = []
nll, Toy.nll = Toy.nll, waiting
ranks._SILENT, ranks._SILENT_AFTER_ERROR = 10.0, 3.0
checkpoint._MOST_STEPS = 1  # a signal ends the step that it comes in
broadcast, torch.distributed.broadcast = torch.distributed.broadcast, counting
cli.main(Path(__file__).parent)
Path(f"broadcasts{{os.environ.get('SLURM_PROCID')}}").write_text(str(len(broadcasts)))
"""
#: What one line says of a job, for its first start and for all later ones.
COMMAND = [
    "--task", "toy", "--wandb_project=null", "--checkpoint_every=10",
    "--trainer.enable_progress_bar=false", "--ckpt_path=last",
]  # fmt: skip
TWO_MACHINES = ["--trainer.devices=1", "--trainer.num_nodes=2"]
SCONTROL = '#!/bin/sh\necho "$@" >> "$SCONTROL_LOG"\n'


class Job:
    """Two processes, or two agents of torchrun with a process each, and what they say."""

    def __init__(self, folder: Path) -> None:
        for name in ("go", "at0", "at1"):
            (folder / name).unlink(missing_ok=True)
        self.folder = folder
        self._logs = [folder / "said0", folder / "said1"]
        self.started: list[Any] = []

    def by_slurm(self, arguments: list[str], variables: dict[str, str]) -> None:
        for n, log in zip("01", self._logs, strict=True):
            own = variables | {"SLURM_PROCID": n, "SLURM_NODEID": n, "SLURM_LOCALID": "0"}
            self.started.append(forked.start(self.folder, arguments, own, log))

    def by_torchrun(self, options: list[str], arguments: list[str]) -> None:
        own = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        command = [sys.executable, "-m", "torch.distributed.run", *options, "train.py", *arguments]
        for log in self._logs:
            with log.open("w") as file:
                self.started.append(
                    subprocess.Popen(
                        command,
                        cwd=self.folder,
                        env=_environment() | own,
                        stdout=subprocess.DEVNULL,
                        stderr=file,
                    )
                )

    def wait_for_step(self) -> None:
        """Wait until both processes stand in the given step."""
        while not all((self.folder / f"at{rank}").exists() for rank in (0, 1)):
            assert all(self.status(i) is None for i in (0, 1)), self.said()
            time.sleep(0.05)

    def go(self) -> None:
        (self.folder / "go").touch()

    def status(self, i: int) -> int | None:
        process = self.started[i]
        if isinstance(process, subprocess.Popen):
            return process.poll()
        found: int | None = process.exitcode
        return found

    def ended(self, *which: int, within: float | None = None) -> list[int | None]:
        """Wait for the end of all, or of some, and return their statuses."""
        limit = None if within is None else time.monotonic() + within
        while any(self.status(i) is None for i in which or (0, 1)):
            assert limit is None or time.monotonic() < limit, self.said()
            time.sleep(0.05)
        return [self.status(i) for i in which or (0, 1)]

    def said(self, *which: int) -> list[str]:
        """Return the lines that all, or some, have said."""
        return [line for i in which or (0, 1) for line in self._logs[i].read_text().splitlines()]

    def workers(self) -> dict[int, int]:
        """Return the process of each rank, where torchrun's agents have started them."""
        found = {}
        for agent in self.started:
            (child,) = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
            words = Path(f"/proc/{child}/environ").read_text().split("\0")
            found[int(dict(w.split("=", 1) for w in words if "=" in w)["RANK"])] = int(child)
        return found

    def stop(self) -> None:
        for i, process in enumerate(self.started):
            if self.status(i) is None:
                process.kill()
        self.ended()


def _environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("WANDB_MODE", "SGMCMC_RUN_FOLDER")}
    return kept | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Return what starts a job in a folder of its own, by SLURM's variables or torchrun."""
    (tmp_path / "toy.yaml").write_text(TOY)
    (tmp_path / "train.py").write_text(SCRIPT)
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(SCONTROL)
    scontrol.chmod(0o755)
    jobs = []

    def begin(by: str, strategy: str, restarts: int = 0) -> Job:
        own = [*COMMAND, *TWO_MACHINES, f"--trainer.strategy={strategy}", "--out=run"]
        job = Job(tmp_path)
        jobs.append(job)
        if by == "slurm":
            variables = {
                "PATH": f"{scontrol.parent}:{os.environ['PATH']}",
                "SCONTROL_LOG": str(tmp_path / "scontrol.log"),
            }
            job.by_slurm(own, forked.job(nodes=2, each=1) | variables)
        else:
            options = [
                "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=1",
                f"--rdzv-endpoint=127.0.0.1:{forked.free_port()}", f"--max-restarts={restarts}",
            ]  # fmt: skip
            job.by_torchrun(options, own)
        return job

    yield begin
    for job in jobs:
        job.stop()


@pytest.fixture(scope="module")
def on_one_machine(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return what makes the run of two processes that Lightning starts itself."""

    @cache
    def run(strategy: str) -> Path:
        folder = tmp_path_factory.mktemp(strategy)
        (folder / "toy.yaml").write_text(TOY)
        (folder / "train.py").write_text(SCRIPT)
        (folder / "go").touch()
        options = ["--trainer.devices=2", f"--trainer.strategy={strategy}", "--out=run"]
        command = [sys.executable, "train.py", *COMMAND, *options]
        subprocess.run(command, cwd=folder, env=_environment(), check=True, capture_output=True)
        return folder / "run"

    return run


def check_equal(run: Path, other: Path, chains: int) -> None:
    """Compare two runs: their draws to the bit, their numbers to float64's rounding."""
    names = [
        sorted(str(p.relative_to(f)) for p in f.glob("samples/*/step_*")) for f in (run, other)
    ]
    assert names[0] == names[1]
    assert len(names[0]) == 6 * chains
    for name in names[0]:
        a, b = load_file(run / name), load_file(other / name)
        assert all(a[key].equal(b[key]) for key in a)
    a, b = (json.loads((f / "results.json").read_text()) for f in (run, other))
    for group, found in a["metrics"].items():  # where a run goes on, sums have another order
        assert found == pytest.approx(b["metrics"][group], rel=1e-12)
    assert a["metrics"].keys() == b["metrics"].keys()
    assert a["num_draws"] == b["num_draws"]
    assert len((run / "metrics.csv").read_text().splitlines()) == len(
        (other / "metrics.csv").read_text().splitlines()
    )
    assert len(load_posterior(run)) == 6 * chains


def saved(run: Path) -> list[str]:
    return sorted(p.name for p in (run / "checkpoints").iterdir())


def test_slurm_is_asked_to_start_the_job_again_which_continues(
    start: Callable[..., Job], on_one_machine: Callable[[str], Path], tmp_path: Path
) -> None:
    job = start("slurm", "chains")
    job.wait_for_step()
    os.kill(job.started[1].pid, signal.SIGUSR1)  # one process alone has heard it
    time.sleep(0.2)
    job.go()
    assert job.ended() == [138, 138]
    assert job.said(0)[-2:] == [
        "SLURM starts job 4242 again",
        f"stopped by SIGUSR1 after step {WAIT_AT}, which is saved: continue with "
        "--out run --ckpt_path last",
    ]
    assert (tmp_path / "scontrol.log").read_text() == "requeue 4242\n"
    again = start("slurm", "chains")
    again.go()
    assert again.ended() == [0, 0]
    check_equal(tmp_path / "run", on_one_machine("chains"), 2)
    assert not list(tmp_path.rglob("hpc_ckpt*"))  # of Lightning's own handler


def test_torchrun_starts_a_run_again_that_lost_a_process_and_not_one_that_was_stopped(
    start: Callable[..., Job], on_one_machine: Callable[[str], Path], tmp_path: Path
) -> None:
    stopped = start("torchrun", "ddp", restarts=2)
    stopped.wait_for_step()
    os.kill(stopped.workers()[1], signal.SIGTERM)
    time.sleep(0.2)
    stopped.go()
    assert stopped.ended() == [0, 0]
    said = "\n".join(stopped.said())
    assert f"stopped by SIGTERM after step {WAIT_AT}, which is saved" in said
    assert said.count("Note: there is no run in run yet: it begins") == 1  # no second start
    assert said.count("Note: ") == 1
    # Once more, from the checkpoint of the stop; now a process is killed.
    (tmp_path / "train.py").write_text(SCRIPT.replace(f"== {WAIT_AT}", "== 33"))
    killed = start("torchrun", "ddp", restarts=2)
    killed.wait_for_step()
    os.kill(killed.workers()[0], signal.SIGKILL)
    killed.go()
    assert killed.ended() == [0, 0], "\n".join(killed.said())
    check_equal(tmp_path / "run", on_one_machine("ddp"), 1)
    assert saved(tmp_path / "run") == ["last.ckpt", "previous.ckpt"]


@pytest.mark.parametrize(
    ("by", "strategy", "number", "rank"),
    [
        ("slurm", "ddp", signal.SIGKILL, 0),
        ("slurm", "chains", signal.SIGSTOP, 1),
        ("torchrun", "chains", signal.SIGKILL, 1),
    ],
)
def test_a_lost_process_ends_those_of_other_machines(
    start: Callable[..., Job], by: str, strategy: str, number: signal.Signals, rank: int
) -> None:
    job = start(by, strategy)
    job.wait_for_step()
    processes = job.workers() if by == "torchrun" else {i: p.pid for i, p in enumerate(job.started)}
    os.kill(processes[rank], number)
    job.go()
    if by == "torchrun":
        assert job.ended(within=30) == [1, 1]
    else:
        assert job.ended(1 - rank, within=30) == [1]
    said = [line for line in job.said() if line.endswith("ontinue with --out run --ckpt_path last")]
    assert len(said) == 1
    begins = [f"error: process {rank}"]
    if by == "torchrun":  # which may be quicker, where it has lost the store of its addresses
        begins.append("stopped by SIGTERM")
    assert said[0].startswith(tuple(begins))


def test_slurm_runs_one_chain_on_two_machines(
    start: Callable[..., Job], on_one_machine: Callable[[str], Path], tmp_path: Path
) -> None:
    job = start("slurm", "ddp")
    job.go()
    assert job.ended() == [0, 0]
    for name in ("broadcasts0", "broadcasts1"):  # of 40 steps, none waits for Lightning's own
        assert (tmp_path / name).read_text() == "0"
    check_equal(tmp_path / "run", on_one_machine("ddp"), 1)


class Store:
    """A store in this process, which may stand still."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.still = False

    def clone(self) -> Store:
        return self

    def add(self, key: str, amount: int) -> int:
        while self.still:
            time.sleep(0.001)
        self.counts[key] = self.counts.get(key, 0) + amount
        return self.counts[key]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    made = Store()
    monkeypatch.setattr(beats, "EVERY", 0.002)
    monkeypatch.setattr(beats.torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(
        beats.torch.distributed.distributed_c10d, "_get_default_store", lambda: made
    )
    return made


def looks(process: Beats, number: int = 40) -> str | None:
    """Look until something is found, at a pace at which every process has said something."""
    for _ in range(number):
        time.sleep(0.02)
        found = process.look(still=20, together=3)
        if found is not None:
            return found
    return None


def test_the_first_process_finds_who_is_silent_and_tells_the_others(store: Store) -> None:
    first, second, third = Beats(0, 4), Beats(1, 4), Beats(2, 4)
    assert looks(second, 10) is None
    found = looks(first)  # the fourth has never come
    assert found is not None
    assert found.startswith("process 3 was not heard of")
    assert looks(second) == "process 3 is lost, as process 0 has found"
    for process in (first, second, third):
        process.end(True)


def test_a_process_that_is_done_is_not_missed_and_one_with_an_error_ends_all(store: Store) -> None:
    processes = [Beats(rank, 3) for rank in range(3)]
    assert looks(processes[1], 3) is None
    processes[2].end(True)
    assert looks(processes[0]) is None
    processes[0].end(False)
    assert looks(processes[1], 10) == "process 0 has ended with an error"
    processes[1].end(True)


def test_a_store_that_stands_still_is_seen_by_all_and_not_after_the_first_is_done(
    store: Store,
) -> None:
    one, other = Beats(0, 2), Beats(1, 2)
    assert looks(one, 3) is None
    assert looks(other, 3) is None
    store.still = True
    said = "process 0, or torchrun where the processes found each other, was not heard of"
    assert str(looks(one)).startswith(said)
    assert str(looks(other)).startswith(said)
    store.still = False
    one.end(True)
    time.sleep(0.05)
    store.still = True
    assert looks(Beats(1, 2)) is None
    assert looks(other) is None
    store.still = False
    other.end(True)


def test_after_an_error_the_watch_may_take_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class Trainer:
        world_size = 1

    class SlowBeats:
        def look(self, still: int, together: int) -> str:
            time.sleep(0.3)  # far longer than the looks that are waited for would take
            return "process 1 is lost"

    monkeypatch.setattr(ranks, "_EVERY", 0.01)
    monkeypatch.setattr(ranks, "_SILENT_AFTER_ERROR", 0.02)
    watched = Ranks(Trainer(), "")  # type: ignore[arg-type]
    left: list[str] = []

    def leave(found: str) -> None:
        left.append(found)
        watched._ended = True  # where the true one ends the process

    monkeypatch.setattr(watched, "leave", leave)
    watched._beats = SlowBeats()  # type: ignore[assignment]
    watched._watching.start()
    assert watched.lost() is None
    assert left == ["process 1 is lost"]


def test_a_store_that_outlives_the_processes_is_named_where_they_may_start_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = {}
    for restarts in ("0", "2"):
        for shared_store in ("True", "False"):
            monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", restarts)
            monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", shared_store)
            found[restarts, shared_store] = beats.restarts_meet_old_addresses()
    assert [case for case, named in found.items() if named] == [("2", "True")]


def test_machines_that_do_not_share_the_folder_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
        (folder / "config.yaml").write_text("a")
    os.utime(there / "config.yaml", (0, 0))  # of an earlier start

    class Strategy:
        def broadcast(self, value: Any) -> Any:
            return SharedFolder(here)._seen()

    class Trainer:
        world_size, strategy = 2, Strategy()

    monkeypatch.setattr(shared, "_STALE", -1.0)
    SharedFolder(here).setup(Trainer(), None, "fit")  # type: ignore[arg-type]
    with pytest.raises(CommandLineError, match="take an --out on a file system that all machines"):
        SharedFolder(there).setup(Trainer(), None, "fit")  # type: ignore[arg-type]


def test_several_machines_want_a_launcher() -> None:
    with pytest.raises(ValueError, match="num_nodes=2: torchrun or srun starts the processes"):
        values.check({"trainer": {"num_nodes": 2}})
