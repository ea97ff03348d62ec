"""Time a step with the memory that steps free kept, and as glibc gives it back by default.

Every round starts a process of each kind in turn, since what an allocator keeps cannot be undone.
A process is `sgmcmc train --task uci_regression` on a synthetic table of 1,200 rows and 5 features,
up to its 200th step; a step is one between two of Lightning's batch ends, the median of the last
100. The table gives the median over the rounds of the ratio of these times, by default to kept, and
the pages that the system handed out in the last 100 steps.

    python scripts/bench/memory.py [--rounds 5] [--threads 1] [--record FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import lightning as L
import numpy as np
import torch
from steps import hardware

from lightning_sgmcmc.callbacks import KeepFreedMemory
from lightning_sgmcmc.run import cli
from tasks.experiments.costs import Cell, publish, spread
from tasks.home import CONFIGS

STEPS, LAST = 200, 100
KINDS = {
    "4 chains, 50 SiLU": [],
    "4 chains, 200 SiLU": ["--model.net.hidden=[200]"],
    "6 chains, 3 x 32 tanh, noise by a network": [
        "--model.num_chains=6",
        "--model.net.hidden=[32,32,32]",
        "--model.net.activation=tanh",
        "--model.noise=input",
        "--model.noise_net=tasks.nets.mlp.MLP",
        "--model.noise_net.hidden=[16]",
        "--model.noise_net.activation=silu",
    ],
}


class Clock(L.Callback):
    """Times steps, and says what they took before the run would end."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.pages = 0

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        """Note the time; leave after the last step."""
        self.ends.append(time.perf_counter())
        pages = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        if len(self.ends) == STEPS - LAST:
            self.pages = pages
        if len(self.ends) == STEPS:
            seconds = float(np.median(np.diff(self.ends[-LAST:])))
            print(json.dumps([seconds, pages - self.pages]), flush=True)
            os._exit(0)


class NothingKept(KeepFreedMemory):
    """Takes its place, and leaves the allocator as it is."""

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Do nothing."""


def one_run(kind: str, kept: bool) -> None:
    """Run a kind in this folder, and print seconds a step and pages."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((1_200, 5))
    y = np.sin(x[:, 0]) * x[:, 1] + x[:, 2] + 0.1 * generator.standard_normal(len(x))
    lines = [",".join(map(str, (*row, target))) for row, target in zip(x, y, strict=True)]
    Path("table.csv").write_text("\n".join(["a,b,c,d,e,y", *lines]) + "\n")
    given = ["--task", "uci_regression", "--data.file=table.csv", "--data.target=y", "--out=run"]
    cli.main(CONFIGS, given + KINDS[kind], [Clock(), *([] if kept else [NothingKept()])])


def measured(kind: str, kept: bool) -> tuple[float, int]:
    """Return seconds a step and pages of a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, str(Path(__file__).resolve()), "--kind", kind]
            + ["--kept"] * kept
            + ["--threads", str(torch.get_num_threads())],
            cwd=folder,
            env=os.environ | {"WANDB_MODE": "disabled"},
            capture_output=True,
            text=True,
        )
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise RuntimeError(done.stderr)
    seconds, pages = json.loads(lines[-1])
    return seconds, pages


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--record", type=Path, help="where to keep the numbers")
    parser.add_argument("--kind", help=argparse.SUPPRESS)
    parser.add_argument("--kept", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.kind:
        one_run(args.kind, args.kept)
        return
    rows: list[list[Cell]] = []
    for kind in KINDS:
        found: dict[bool, list[tuple[float, int]]] = {False: [], True: []}
        for _ in range(args.rounds):
            for kept, runs in found.items():
                runs.append(measured(kind, kept))
        seconds = {kept: [s for s, _ in runs] for kept, runs in found.items()}
        both = [1e3 * statistics.median(seconds[kept]) for kept in (False, True)]
        pages = [statistics.median(p for _, p in found[kept]) / LAST for kept in (False, True)]
        rows.append([kind, spread(seconds[False], seconds[True]), *both, *pages])
    said = f"{hardware(torch.device('cpu'))}; {args.rounds} rounds."
    heading = ["network", "time given back / kept", "ms, given back", "ms, kept"]
    publish(said, [*heading, "pages a step, given back", "pages a step, kept"], rows, args.record)


if __name__ == "__main__":
    main()
