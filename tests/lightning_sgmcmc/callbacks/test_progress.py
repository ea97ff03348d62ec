"""Progress: one bar in a terminal that printed lines do not spoil, few lines anywhere else."""

from __future__ import annotations

import logging
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lightning_sgmcmc.callbacks import progress
from tests.test_cli import ROOT, TOY

PROGRAM = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from lightning_sgmcmc.run import cli
cli.main(Path("."), ["--task", "toy", "--out", sys.argv[1], "--wandb_project=null",
    "--model.sampler=SGHMC", "--model.sampler.lr=auto", "--model.burn_in=20"])
"""


def run(folder: Path, out: str, **streams: Any) -> None:
    (folder / "toy.yaml").write_text(TOY)
    environment = dict(os.environ) | {"TERM": "xterm", "COLUMNS": "100", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM, out]
    subprocess.run(command, cwd=folder, env=environment, check=True, **streams)


def test_a_log_has_whole_lines_and_few(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log, (tmp_path / "out").open("w") as out:
        run(tmp_path, "run", stdout=out, stderr=log)
    lines = (tmp_path / "log").read_text()
    assert "\r" not in lines
    assert "\x1b" not in lines
    (last,) = re.findall(r"^sampling +40/40 .*$", lines, re.M)
    assert re.search(r"nll \S+  lr \S+  draws 4$", last)
    assert len(re.findall(r"^lr: ", lines, re.M)) == 1
    printed = (tmp_path / "out").read_text().strip().splitlines()
    assert printed[0].startswith("Verdict: ")
    assert printed[-1] == "run"


def test_a_printed_line_leaves_no_dead_bar_in_a_terminal(tmp_path: Path) -> None:
    """Whatever stands on the screen in the end has one bar, below the line of ``lr: auto``."""
    master, slave = pty.openpty()
    run(tmp_path, "run", stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    text = b""
    while True:
        try:
            text += os.read(master, 65536)
        except OSError:  # all is read
            break
    rows = screen(text.decode())
    bars = [i for i, row in enumerate(rows) if "━" in row]
    said = [i for i, row in enumerate(rows) if row.startswith("lr: ")]
    assert len(bars) == len(said) == 1
    assert said[0] < bars[0]
    assert re.match(r"sampling +━+ 40/40 +nll \S+ +lr \S+ +draws 4 ", rows[bars[0]])


def screen(text: str) -> list[str]:
    """Return the rows that a terminal shows, by the codes that rich uses."""
    rows, row, column = [""], 0, 0
    for part in re.split(r"(\x1b\[[0-9;?]*[A-Za-z]|\r|\n)", text):
        if part == "\r":
            column = 0
        elif part == "\n":
            row += 1
            rows += [""] * (row + 1 - len(rows))
        elif re.fullmatch(r"\x1b\[\d*A", part):
            row -= int(part[2:-1] or 1)
        elif part == "\x1b[2K":
            rows[row] = ""
        elif not part.startswith("\x1b"):
            line = rows[row].ljust(column)
            rows[row] = line[:column] + part + line[column + len(part) :]
            column += len(part)
    return [line.rstrip() for line in rows]


def test_lines_of_a_log_come_every_tenth_but_neither_fast_nor_never(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress, "task_of", lambda module: module)
    chain = SimpleNamespace(sampling_now=True, steps=0, lr=0.1, draws=SimpleNamespace(burn_in=0))
    task: Any = SimpleNamespace(
        chain=chain, kept=SimpleNamespace(num_draws=1), progress=lambda: {"error": 0.5}
    )

    def lines(steps: int, seconds: float) -> list[int]:
        bar, trainer = (
            progress.ChainProgress(),
            SimpleNamespace(global_step=0, max_steps=steps, progress_bar_metrics={}),
        )
        bar._started = (now[0], 0)
        bar._shown = now[0]
        for step in range(steps):
            trainer.global_step = step
            bar.on_train_batch_start(trainer, task, None, 0)  # type: ignore[arg-type]
            now[0] += seconds
        trainer.global_step = steps
        bar.on_train_end(trainer, task)  # type: ignore[arg-type]
        said = capsys.readouterr().err
        assert "error 0.5  lr 1.00e-01  draws 1" in said
        return [int(step) for step in re.findall(r"sampling +(\d+)/", said)]

    assert lines(100, 0.01) == [100]
    assert lines(100, 2.0) == [*range(10, 101, 10)]
    assert lines(20, 200.0) == [*range(2, 21, 2)]
    assert lines(30, 400.0)[:5] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(7.4, "7 s"), (99, "99 s"), (150, "2.5 min"), (5400, "90.0 min"), (7200, "2.0 h")],
)
def test_durations(seconds: float, words: str) -> None:
    assert progress.duration(seconds) == words


def test_loggers_write_where_they_did_before() -> None:
    handler = logging.StreamHandler(sys.__stderr__)
    logging.getLogger("lightning.pytorch").addHandler(handler)
    try:
        bar = progress.ChainProgress()
        bar._print_above()
        assert handler.stream is sys.stderr
        bar._stop()
        assert handler.stream is sys.__stderr__
    finally:
        logging.getLogger("lightning.pytorch").removeHandler(handler)
