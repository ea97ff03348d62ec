"""Processes with SLURM's variables, forked from one that has imported everything."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
from functools import cache
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

_PRELOADED = ["lightning_sgmcmc.run.cli", "lightning_sgmcmc.run.ranks", "tests.toy", __name__]


@cache
def _context() -> ForkServerContext:
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(_PRELOADED)
    return found


def start(folder: Path, arguments: list[str], variables: dict[str, str], said: Path) -> BaseProcess:
    """Start ``folder/train.py`` with arguments, in that folder; what it says goes into a file."""
    process = _context().Process(target=_run, args=(folder, arguments, variables, said))
    process.start()
    return process


def free_port() -> str:
    """Return a port on which nothing listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def job(nodes: int, each: int) -> dict[str, str]:
    """Return what SLURM tells all processes of a job, whose machines are all this one."""
    return {
        "SLURM_NTASKS": str(nodes * each), "SLURM_NTASKS_PER_NODE": str(each),
        "SLURM_NNODES": str(nodes), "SLURM_JOB_ID": "4242", "SLURM_JOB_NAME": "train",
        "SLURM_NODELIST": "localhost", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(),
    }  # fmt: skip


def _run(folder: Path, arguments: list[str], variables: dict[str, str], said: Path) -> None:
    from lightning.pytorch.utilities import rank_zero_only

    os.chdir(folder)
    os.environ.update(variables)
    for name in ("WANDB_MODE", "SGMCMC_RUN_FOLDER"):
        os.environ.pop(name, None)
    # As it would be set where Lightning is imported with these variables.
    rank_zero_only.rank = int(variables["SLURM_PROCID"])
    with said.open("w") as file, open(os.devnull, "w") as nothing:
        os.dup2(file.fileno(), 2)
        os.dup2(nothing.fileno(), 1)
        sys.argv = ["train.py", *arguments]
        path = folder / "train.py"
        exec(compile(path.read_text(), path, "exec"), {"__name__": "__main__", "__file__": path})
