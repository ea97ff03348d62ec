"""The subcommands of ``sgmcmc``. What one needs is imported only when it is asked for."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from lightning_sgmcmc import __version__
from lightning_sgmcmc.run import help as run_help
from lightning_sgmcmc.run.errors import Guard
from tasks.home import CONFIGS, HOME

USAGE = """\
usage: sgmcmc COMMAND ...

Samples the posterior of neural networks by stochastic-gradient MCMC.

commands:
  train       run a task                      sgmcmc train --task pde_source
  tune        search for its parameters       sgmcmc tune pde_source --trials 30
  predict     predict other inputs            sgmcmc predict RUN_FOLDER FILE
  check       look for damage in its files    sgmcmc check RUN_FOLDER
  generate    make a data set of Darcy flows  sgmcmc generate permeability --out FILE
  reproduce   run a published experiment      sgmcmc reproduce table1 --list

'sgmcmc COMMAND --help' says more of each; 'sgmcmc --version' which one this is.
"""


CHECK = """\
usage: sgmcmc check RUN_FOLDER

Reads all files of a run: draws, traces, checkpoints, results. Names what is
damaged or missing, a line each, and ends with status 2 if anything is.
"""


def main(arguments: list[str]) -> int:
    """Run a subcommand and return its exit status.

    Args:
        arguments: The command line without the program's name.
    """
    if not arguments:
        return refuse(f"no command: give one of {', '.join(COMMANDS)}, or --help")
    command, *rest = arguments
    if command in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    if command == "--version":
        print(f"sgmcmc {__version__}")
        return 0
    if command not in COMMANDS:
        return refuse(f"no command {command!r}: choose one of {', '.join(COMMANDS)}")
    with Guard():
        return COMMANDS[command](rest)


def train(arguments: list[str]) -> int:
    """Run a task. The short help and a wrong task's name need no torch, which takes seconds."""
    if {"-h", "--help"} & set(arguments):
        print(run_help.text(CONFIGS), end="")
        return 0
    if not arguments:
        return refuse("nothing to run: give --task NAME; 'sgmcmc train --help' lists the tasks")
    unknown = run_help.unknown_task(CONFIGS, arguments)
    if unknown is not None:
        return refuse(unknown)
    whole = ["--help" if argument == "--help.all" else argument for argument in arguments]
    _imported("lightning_sgmcmc.run.cli").main(CONFIGS, whole)
    return 0


def tune(arguments: list[str]) -> int:
    """Search for the parameters of a task."""
    if find_spec("optuna") is None:
        return refuse("tune needs Optuna: pip install 'lightning-sgmcmc[tune]'")
    _imported("lightning_sgmcmc.run.tune").main(CONFIGS, arguments)
    return 0


def predict(arguments: list[str]) -> int:
    """Predict other inputs by the draws of a run."""
    _imported("tasks.predict").main(arguments, "sgmcmc predict")
    return 0


def check(arguments: list[str]) -> int:
    """Look for damage in the files of a run."""
    if {"-h", "--help"} & set(arguments):
        print(CHECK, end="")
        return 0
    if len(arguments) != 1 or arguments[0].startswith("-"):
        return refuse("give the folder of one run: sgmcmc check RUN_FOLDER")
    return train(["--check", *arguments])


def generate(arguments: list[str]) -> int:
    """Make a data set of Darcy flows."""
    status: int = _imported("pde.datasets.command").main(arguments, "sgmcmc generate")
    return status


def reproduce(arguments: list[str]) -> int:
    """Run a published experiment."""
    if "--record" in arguments and not (HOME / "docs").is_dir():
        return refuse("--record keeps results in docs/measured of a checkout; this is none")
    _imported("tasks.experiments.reproduce").main(HOME, arguments, "sgmcmc reproduce")
    return 0


def _imported(name: str) -> Any:
    """Import a module. Ctrl-C ends the process at once: packages swallow it while they load."""
    usual = signal.getsignal(signal.SIGINT)
    mine = threading.current_thread() is threading.main_thread()
    if usual is not signal.default_int_handler or not mine:
        return import_module(name)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return import_module(name)
    finally:
        signal.signal(signal.SIGINT, usual)


def refuse(message: str) -> int:
    """Print what is wrong and return the exit status for it."""
    print(f"error: {message}", file=sys.stderr)
    return 2


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": train,
    "tune": tune,
    "predict": predict,
    "check": check,
    "generate": generate,
    "reproduce": reproduce,
}
