"""What a run survives: kills at any moment, full disks, damaged files, and company in its folder.

Every trial runs ``train.py --task class_table`` on a small table with one of several samplers, does
harm to it, continues it with ``--out RUN --ckpt_path last`` until it ends, and compares everything
that it left with a run that was left alone: each draw's file, ``metrics.csv``, the names of the
figures, and ``results.json`` but for the clock and the provenance.

- ``kills``: SIGKILL at a random moment, each third one after the last step.
- ``disks``: the size of files is limited, so that a write fails halfway (``RLIMIT_FSIZE``).
- ``damage``: one byte of a file is changed, or the file is cut; ``--check`` has to name it, and
  continuing has to heal it or to refuse it.
- ``pairs``: two commands are started at once, in one named folder and in folders of their own.
- ``signals``: TERM, INT, KILL and STOP are sent to the first process of a chain over two, to the
  second, and to both; all have to be gone within 30 seconds, with a status that is not 0 and one
  line. (Where both stand still nobody is left to end them.)

    python scripts/bench/robustness.py [--kills 200] [--disks 20] [--damage 200] [--pairs 20]

The trials are forked from one process that has imported everything, so that they take a second.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import track

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import tasks.classification  # noqa: E402
import tasks.data.class_table  # noqa: E402, F401
from lightning_sgmcmc.callbacks.report import results  # noqa: E402
from lightning_sgmcmc.run import cli  # noqa: E402

CONFIGS = ROOT / "configs"
STEPS = 300
COMMON = [
    "--task=class_table",
    "--data.file=table.csv",
    "--data.target=kind",
    "--wandb_project=null",
    "--trainer.enable_progress_bar=false",
    "--checkpoint_every=40",
    "--model.burn_in_optimizer.steps=60",
    "--model.burn_in=100",
    "--model.thinning=10",
    f"--trainer.max_steps={STEPS}",
]
KINDS = {
    "four chains": [],
    "one chain": ["--model.num_chains=1"],
    "PSGLD": ["--model.num_chains=1", "--model.sampler=PSGLD", "--model.sampler.lr=1e-4"],
    "three chains, every step": ["--model.num_chains=3", "--model.thinning=1"],
}


SIGNALS = [
    (number, whom)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGSTOP)
    for whom in ("first", "second", "both")
    if (number, whom) != (signal.SIGSTOP, "both")
]
WITHIN = 30.0  # seconds


@dataclass(frozen=True)
class End:
    """How a command ended."""

    status: int
    said: str

    @property
    def in_one_line(self) -> bool:
        """Whether it ended well, or by one line that says why not."""
        return self.status == 0 or (self.status > 0 and "Traceback" not in self.said)


class Command:
    """A command line, run in a child of this process."""

    def __init__(self, arguments: list[str], bytes_a_file: int | None = None) -> None:
        (self._ready, tell), (self._said, say) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os._exit(self._run(arguments, bytes_a_file, tell, say))
            finally:
                os._exit(1)  # nothing of the trials' process goes on here
        os.close(tell)
        os.close(say)

    @staticmethod
    def _run(arguments: list[str], bytes_a_file: int | None, tell: int, say: int) -> int:
        os.dup2(say, 1)
        os.dup2(say, 2)
        status, build = 0, results.build

        def telling(*of_run: Any) -> dict[str, Any]:
            os.write(tell, b"!")
            return build(*of_run)

        setattr(results, "build", telling)  # noqa: B010
        if bytes_a_file is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_a_file, bytes_a_file))
        try:
            cli.main(CONFIGS, arguments)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
            status = 1
        sys.stdout.flush()
        sys.stderr.flush()
        return status

    def kill(self, after: float, late: bool) -> None:
        """Kill it after some seconds, counted from the last step on if ``late``."""
        if late:
            os.read(self._ready, 1)
        deadline = time.monotonic() + after
        while time.monotonic() < deadline and not os.waitid(
            os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT
        ):
            time.sleep(0.002)
        os.kill(self.pid, signal.SIGKILL)

    def end(self) -> End:
        """Wait for its end."""
        os.close(self._ready)
        with open(self._said) as said:
            text = said.read()
        return End(os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]), text)


def content(run: Path) -> dict[str, Any]:
    """Return everything that a run left, but the clock and where it came from."""
    summary = json.loads((run / "results.json").read_text())
    del summary["provenance"], summary["wall_seconds"]
    files = [*(run / "samples").rglob("*.*"), run / "metrics.csv"]
    return {
        "results": summary,
        "figures": sorted(p.name for p in (run / "figures").iterdir()),
        **{str(p.relative_to(run)): p.read_bytes() for p in files},
    }


class Trials:
    """Trials in a folder of their own, and what was found wrong.

    Attributes:
        rng: Chooses what harm is done, and when.
        wrong: What was found.
        slowest: Seconds from a signal to the end of all processes, at most.
    """

    def __init__(self) -> None:
        self.rng = np.random.default_rng()
        self.wrong: list[str] = []
        self.slowest = 0.0
        self._whole: dict[str, dict[str, Any]] = {}
        self._seconds: dict[str, float] = {}

    def whole(self, kind: str) -> dict[str, Any]:
        """Return what an undisturbed run of a kind leaves."""
        if kind not in self._whole:
            began = time.monotonic()
            end = Command([*COMMON, *KINDS[kind], f"--out={self.folder(kind)}"]).end()
            assert end.status == 0, end.said
            self._seconds[kind] = time.monotonic() - began
            self._whole[kind] = content(self.folder(kind))
        return self._whole[kind]

    @staticmethod
    def folder(kind: str) -> Path:
        """Return the folder of the undisturbed run of a kind."""
        return Path("whole") / kind.replace(" ", "-").replace(",", "")

    def kind(self) -> str:
        """Return a kind of run, by chance, of which an undisturbed one exists."""
        kind = str(self.rng.choice(list(KINDS)))
        self.whole(kind)
        return kind

    def continue_and_compare(self, kind: str, run: Path, what: str) -> None:
        """Continue a run to its end, and note where it differs from the undisturbed one."""
        started = (run / "config.yaml").is_file()
        arguments = ["--ckpt_path=last"] if started else [*COMMON, *KINDS[kind]]
        end = Command([*arguments, f"--out={run}"]).end()
        if end.status != 0:
            self.wrong.append(f"{what}: it does not continue: {end.said.strip()[-300:]}")
            return
        found, expected = content(run), self.whole(kind)
        names = [n for n in expected | found if found.get(n) != expected.get(n)]
        if names:
            self.wrong.append(f"{what}: different: {', '.join(names[:4])}")
        shutil.rmtree(run)

    def kills(self, number: int) -> None:
        """Kill a run one to four times."""
        kind, run = self.kind(), Path("runs") / f"killed-{number}"
        for _ in range(int(self.rng.integers(1, 5))):
            started = (run / "config.yaml").is_file()
            arguments = ["--ckpt_path=last"] if started else [*COMMON, *KINDS[kind]]
            command = Command([*arguments, f"--out={run}"])
            late = bool(self.rng.random() < 1 / 3)
            command.kill(self.rng.random() * self._seconds[kind] / (2 if late else 1), late)
            end = command.end()
            if end.status not in (0, -signal.SIGKILL):
                self.wrong.append(f"kill {number} of {kind}: {end.said.strip()[-300:]}")
        self.continue_and_compare(kind, run, f"kill {number} of {kind}")

    def disks(self, number: int) -> None:
        """Let a write fail halfway."""
        kind, run = self.kind(), Path("runs") / f"full-{number}"
        sizes = [p.stat().st_size for p in self.folder(kind).rglob("*.*") if p.is_file()]
        limit = int(self.rng.choice(sizes) * self.rng.random()) + 1
        end = Command([*COMMON, *KINDS[kind], f"--out={run}"], limit).end()
        if not end.in_one_line:
            self.wrong.append(f"disk {number} of {kind}: {end.said.strip()[-300:]}")
        self.continue_and_compare(kind, run, f"disk {number} of {kind}, {limit} bytes a file")

    def damage(self, number: int) -> None:
        """Change a byte of a file, or cut the file."""
        kind, run = self.kind(), Path("runs") / f"damaged-{number}"
        shutil.copytree(self.folder(kind), run)
        kept = ("checkpoints/*", "samples/*/*", "results.json", "config.yaml", "metrics.csv")
        files = sorted(p for pattern in kept for p in run.glob(pattern) if p.is_file())
        path = files[self.rng.integers(len(files))]
        data = bytearray(path.read_bytes())
        if self.rng.random() < 0.5:
            data = data[: int(len(data) * self.rng.random())]
        else:
            data[self.rng.integers(len(data))] ^= 1 << int(self.rng.integers(8))
        path.write_bytes(data)
        what = f"damage {number} of {kind} in {path.relative_to(run)}"
        found = Command([f"--check={run}"]).end()
        if found.status != 2 or path.name not in found.said or not found.in_one_line:
            self.wrong.append(f"{what}: not named: {found.said.strip()[-200:]}")
        end = Command(["--ckpt_path=last", f"--out={run}"]).end()
        healed = end.status == 0 and content(run) == self.whole(kind)
        if not healed and not (end.status == 2 and end.in_one_line):
            self.wrong.append(f"{what}: neither healed nor refused: {end.said.strip()[-200:]}")
        shutil.rmtree(run)

    def pairs(self, number: int) -> None:
        """Start two different runs at once, in one folder or in none that is named."""
        kinds = [self.kind(), self.kind()]
        one = number % 2 == 0
        out = [f"--out=runs/pair-{number}"] if one else []
        name = [f"--name=pair{number}"]
        commands = [Command([*COMMON, *KINDS[kind], *name, *out]) for kind in kinds]
        ends = [command.end() for command in commands]
        statuses = sorted(end.status for end in ends)
        if statuses != ([0, 2] if one else [0, 0]):
            self.wrong.append(f"pair {number}: statuses {statuses}: {[e.said for e in ends]}")
            return
        runs = [Path(f"runs/pair-{number}")] if one else list(Path(f"runs/pair{number}").iterdir())
        for kind, end in zip(kinds, ends, strict=True):
            draws = {k: v for k, v in self.whole(kind).items() if isinstance(v, bytes)}
            if end.status == 0 and not any(draws.items() <= content(run).items() for run in runs):
                self.wrong.append(f"pair {number}: the runs are mixed")

    def signals(self, number: int) -> None:
        """Send a signal to one process of two, or to both."""
        sent, whom = SIGNALS[number % len(SIGNALS)]
        run = Path("runs") / f"signal-{number}"
        two = ["--trainer.devices=2", "--trainer.strategy=ddp", "--trainer.max_steps=10000000"]
        arguments = [*COMMON, *KINDS["one chain"], *two, f"--out={run}"]
        with tempfile.TemporaryFile("w+") as said:
            program = [sys.executable, str(ROOT / "scripts" / "train.py")]
            process = subprocess.Popen(
                [*program, *arguments], stdout=said, stderr=said, start_new_session=True
            )
            while not (run / "checkpoints" / "last.ckpt").is_file():
                assert process.poll() is None, "the run has ended by itself"
                time.sleep(0.1)
            second = next(p for p in processes_of(process.pid) if p != process.pid)
            if whom == "both":
                os.killpg(process.pid, sent)
            else:
                os.kill(process.pid if whom == "first" else second, sent)
            began = time.monotonic()
            while processes_of(process.pid) and time.monotonic() < began + 2 * WITHIN:
                process.poll()  # else its entry stays
                time.sleep(0.02)
            took = time.monotonic() - began
            said.seek(0)
            lines = said.read().splitlines()
        self.slowest = max(self.slowest, took)
        what = f"signal {number}, {sent.name} to {whom}"
        if took > WITHIN:
            os.killpg(process.pid, signal.SIGKILL)
            self.wrong.append(f"{what}: not gone after {took:.0f} s")
        elif process.returncode == 0 or any("Traceback" in line for line in lines):
            self.wrong.append(f"{what}: status {process.returncode}: {lines[-3:]}")


def processes_of(group: int) -> list[int]:
    """Return the Python processes of a group that run, the first one first."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            state, _, its_group = path.read_text().rpartition(")")[2].split()[:3]
            command = path.with_name("cmdline").read_bytes()
            if int(its_group) == group and state != "Z" and b"train.py" in command:
                found.append(int(path.parent.name))
    return sorted(found)


def write_table(path: Path) -> None:
    """Write a table of two classes, which overlap."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 4))
    y = x[:, 0] + 0.5 * rng.normal(size=300) > 0
    rows = [
        ",".join(f"{v:.5f}" for v in row) + f",{'yes' if k else 'no'}"
        for row, k in zip(x, y, strict=True)
    ]
    path.write_text("\n".join(["a,b,c,d,kind", *rows, ""]))


def main() -> None:
    """Run the trials, print what was found, and end with status 1 where something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    counts = {"kills": 200, "disks": 20, "damage": 200, "pairs": 20, "signals": 22}
    for name, count in counts.items():
        parser.add_argument(f"--{name}", type=int, default=count)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="file of the record")
    options = parser.parse_args()
    torch.set_num_threads(1)
    record: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        write_table(Path("table.csv"))
        trials = Trials()
        for name in counts:
            trials.rng, trials.wrong = np.random.default_rng([options.seed, *name.encode()]), []
            trial: Callable[[int], None] = getattr(trials, name)
            began = time.monotonic()
            for number in track(range(getattr(options, name)), name):
                trial(number)
            record[name] = {
                "trials": getattr(options, name),
                "wrong": trials.wrong,
                "seconds": round(time.monotonic() - began),
            }
            if name == "signals":
                record[name]["slowest"] = round(trials.slowest, 1)
            print(f"{name}: {getattr(options, name)} trials, {len(trials.wrong)} wrong")
            print("".join(f"  {line}\n" for line in trials.wrong), end="")
    if options.out is not None:
        options.out.write_text(json.dumps(record, indent=2) + "\n")
    raise SystemExit(any(entry["wrong"] for entry in record.values()))


if __name__ == "__main__":
    main()
