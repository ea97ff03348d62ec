"""Run the cells of a published experiment one by one, and print ours beside the paper's."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import yaml

from lightning_sgmcmc.callbacks import ChainDivergedError
from lightning_sgmcmc.callbacks.report import results
from lightning_sgmcmc.common.files import write_beside
from lightning_sgmcmc.run import cli, errors
from lightning_sgmcmc.samplers import NonFiniteGradientError
from tasks.data.download import DATA_ROOT
from tasks.experiments.experiment import Cell, Cells, Experiment, Study
from tasks.experiments.tables import DIVERGED, ran

#: Where each experiment is; the module is imported only when it is asked for.
TABLES = {
    "a9a": "psgld.a9a",
    "australian": "psgld.australian",
    "bde": "bde.benchmark",
    "cifar10_hmc": "cifar10_hmc",
    "class_tables": "class_tables",
    "fno_darcy": "operators.fno_darcy",
    "hasgld_gaussian": "hasgld.gaussian",
    "kdd99": "sgfs.kdd99",
    "kdd99_posterior": "sgfs.kdd99_posterior",
    "leaderboard": "leaderboard",
    "mnist79": "sgfs.mnist79",
    "nld": "nld.mnist",
    "psgld_cifar": "psgld.cifar10",
    "psgld_cnn": "psgld.mnist_cnn",
    "psgld_gaussian": "psgld.gaussian",
    "psgld_mnist": "psgld.mnist",
    "sgfs_mnist": "sgfs.mnist",
    "spike_slab": "hasgld.spike_slab",
    "table1": "hasgld.table1",
    "table2": "hasgld.table2",
    "theory": "theory.report",
    "uci": "uci.benchmark",
}

#: The file in a folder of cells that names their experiment.
OWNER = "experiment.txt"
#: File in a run's folder with what it was made of: its cell's settings, and the options given.
MADE = "made.json"


def main(root: Path, arguments: list[str] | None = None, program: str | None = None) -> None:
    """Run the command line of ``scripts/reproduce.py``.

    Args:
        root: The repository's root, where ``configs`` lies.
        arguments: The command line; None takes ``sys.argv``.
        program: What the help calls it; None takes ``sys.argv[0]``.
    """
    options, overrides = _parser(program).parse_known_args(arguments)
    experiment = load(options.table)
    cells = _cells(experiment, options, overrides)
    if options.list:
        print("\n".join(cell.name for cell in cells))
        return
    if options.data_root is not None:
        os.environ[DATA_ROOT] = str(options.data_root)
    out: Path = options.out or Path("runs") / options.table
    claim(out, options.table, make=not options.show)
    if not options.show:
        for cell in _chosen(experiment, cells, options):
            run(root, out, cell, overrides)
    finished = {cell.name: read(out, cell) for cell in cells}
    ended = [cell for cell in cells if finished[cell.name] is not None]
    for cell in ended:
        _refuse_changed(root, out, cell)
        if made := _made_with(out / cell.name):
            print(f"{cell.name} was made with {' '.join(made)}", file=sys.stderr)
    kept = root / "docs" / "measured" / options.table
    if options.record:
        record(kept, out, ended)
    if options.measured:
        finished = {cell.name: finished[cell.name] or read(kept, cell) for cell in cells}
        if not any(finished.values()):
            print(f"nothing is recorded: no cell has a results.json in {kept}", file=sys.stderr)
    if options.choose and experiment.choices:
        print(experiment.choices.render(finished))
        return
    print(experiment.render(finished))
    known = ran(finished)
    figures = experiment.figures(known, out) if any(known.values()) else {}
    for name, figure in figures.items():
        if isinstance(figure, str):
            print(f"{name} is not drawn: {figure}", file=sys.stderr)
            continue
        (out / "figures").mkdir(parents=True, exist_ok=True)
        figure.savefig(out / "figures" / f"{name}.png", dpi=130)
        print(out / "figures" / f"{name}.png")


def load(name: str) -> Experiment:
    """Return an experiment by its name on the command line."""
    experiment = import_module(f"tasks.experiments.{TABLES[name]}").EXPERIMENT
    assert isinstance(experiment, Experiment)
    return experiment


def claim(out: Path, name: str, *, make: bool) -> None:
    """Check that a folder of cells is this experiment's, for names of cells are not its alone.

    Args:
        out: The folder.
        name: The experiment.
        make: Whether to make the folder, and to write the experiment's name into it.
    """
    file = out / OWNER
    if make and not file.is_file():
        out.mkdir(parents=True, exist_ok=True)
        write_beside(file, f"{name}\n")
    owner = file.read_text().strip() if file.is_file() else name
    if owner != name:
        errors.fail(f"{out} has the cells of {owner}: give {name} another folder with --out")


def _parser(program: str | None) -> argparse.ArgumentParser:
    parser = errors.OneLineParser(
        prog=program,
        description="Reproduce a published experiment. Cells that are finished are not run again, "
        "and a run that was stopped continues from its last checkpoint. Other options, such as "
        "--data.seed=1, override the configuration of every cell that is a run.",
        allow_abbrev=False,
    )
    parser.add_argument("table", choices=sorted(TABLES))
    parser.add_argument("--cell", action="append", help="run this cell only; may be repeated")
    parser.add_argument("--list", action="store_true", help="print the names of the cells")
    parser.add_argument(
        "--choose",
        action="store_true",
        help="run the grid that the protocol was chosen from, on a validation split",
    )
    parser.add_argument("--out", type=Path, help="folder of the cells (default: runs/TABLE)")
    parser.add_argument("--show", action="store_true", help="print the table without running")
    parser.add_argument(
        "--record",
        action="store_true",
        help="keep the results of finished cells in docs/measured/TABLE, beside those kept before",
    )
    parser.add_argument(
        "--measured",
        action="store_true",
        help="fill the table with the results in docs/measured/TABLE where --out has none",
    )
    parser.add_argument(
        "--data-root", type=Path, help=f"folder of data sets (default: ${DATA_ROOT} or ./data)"
    )
    return parser


def _cells(experiment: Experiment, options: argparse.Namespace, overrides: list[str]) -> Cells:
    """Return the cells that the command line asks for, having checked it against them."""
    if options.choose and experiment.choices is None:
        errors.fail(f"{options.table} has nothing to choose: run it without --choose")
    choices = experiment.choices if options.choose else None
    cells = choices.cells() if choices else experiment.cells()
    names = [cell.name for cell in cells]
    unknown = sorted(set(options.cell or []) - set(names))
    if unknown:
        errors.fail(f"unknown cell {', '.join(unknown)}: choose among {', '.join(names)}")
    if overrides and (options.list or options.show):
        errors.fail(f"nothing is run: --list and --show take no {' '.join(overrides)}")
    if overrides and not any(isinstance(cell, Cell) for cell in cells):
        errors.fail(f"{options.table} is not a run of a task and takes no {' '.join(overrides)}")
    return cells


def _chosen(experiment: Experiment, cells: Cells, options: argparse.Namespace) -> Cells:
    """Return the cells to run, having said which are left out."""
    if options.cell:
        return [cell for cell in cells if cell.name in options.cell]
    names, why = ([], "") if options.choose else experiment.left_out()
    if names:
        print(why, file=sys.stderr, flush=True)
    return [cell for cell in cells if cell.name not in names]


def run(root: Path, out: Path, cell: Cell | Study, overrides: list[str]) -> None:
    """Run a cell, continue it if it was stopped, and do nothing if it is finished.

    A cell whose chain diverges is finished: that is its result.
    """
    folder = out / cell.name
    _refuse_changed(root, out, cell)
    _refuse_other(folder, overrides)
    if (folder / "results.json").is_file():
        print(f"{cell.name}: finished")
        return
    print(f"{cell.name}: running", file=sys.stderr, flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(cell, Study):
        _compute(folder, cell)
        return
    made = {"cell": _settings(root, cell), "options": overrides}
    write_beside(folder / MADE, json.dumps(made, indent=2) + "\n")
    if (folder / "config.yaml").is_file():  # begins anew where there is no checkpoint yet
        arguments = ["--out", str(folder), "--ckpt_path", "last", *overrides]
    else:
        arguments = [*cell.arguments(root / "configs"), *overrides, "--out", str(folder)]
    try:
        cli.main(root / "configs", arguments)
    except SystemExit as stop:
        if not isinstance(stop.__context__, (ChainDivergedError, NonFiniteGradientError)):
            if not (folder / "config.yaml").is_file():  # refused before it began
                (folder / MADE).unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    folder.rmdir()
            raise
        said = {DIVERGED: errors.one_line(str(stop.__context__))}
        results.write(folder, {"provenance": results.provenance(torch.device("cpu"))} | said)


def _refuse_other(folder: Path, overrides: list[str]) -> None:
    """End with one line if a run was begun with other overrides."""
    made = _made_with(folder)
    if made is not None and sorted(made) != sorted(overrides):
        errors.fail(
            f"{folder} was made with {' '.join(made) or 'no further option'}: give the same, or "
            "another --out"
        )


def _made_with(folder: Path) -> list[str] | None:
    """Return the options that a run's configuration was overridden by; None of no run."""
    path = folder / MADE
    made: list[str] | None = json.loads(path.read_text())["options"] if path.is_file() else None
    return made


def _settings(root: Path, cell: Cell) -> dict[str, Any]:
    """Return what a cell sets, its configuration file's content by the word ``config``."""
    config = cell.config
    if isinstance(config, str):
        config = yaml.safe_load((root / "configs" / "papers" / config).read_text())
    settings: dict[str, Any] = json.loads(json.dumps({"config": config} | dict(cell.overrides)))
    return settings


def _refuse_changed(root: Path, out: Path, cell: Cell | Study) -> None:
    """End with one line if a run was made of other settings than its cell has now."""
    folder = out / cell.name
    if isinstance(cell, Study) or not (folder / "config.yaml").is_file():
        return
    if not (folder / MADE).is_file():
        errors.fail(f"{folder} was made by an earlier version: remove it, or give another --out")
    made, now = json.loads((folder / MADE).read_text())["cell"], _settings(root, cell)
    others = [name for name in sorted(made.keys() | now.keys()) if made.get(name) != now.get(name)]
    if others:
        errors.fail(
            f"{folder} was made with another {', '.join(others)} than {cell.name} has now: remove "
            "it, or give another --out"
        )


def _compute(folder: Path, study: Study) -> None:
    began = time.monotonic()
    try:
        content = study.compute(folder)
    except KeyboardInterrupt:
        print("interrupted: the same command begins this cell again", file=sys.stderr)
        raise SystemExit(130) from None
    except ChainDivergedError as error:  # a run that it takes from
        content = {DIVERGED: str(error)}
    except (ValueError, FileNotFoundError) as error:
        errors.fail(f"{study.name}: {error}")
    made = {"provenance": results.provenance(torch.device("cpu"))}
    results.write(folder, made | {"wall_seconds": time.monotonic() - began} | content)


def record(kept: Path, out: Path, cells: Cells) -> None:
    """Copy the results of finished cells, without the command, which names a machine's folders."""
    for cell in cells:
        content = read(out, cell)
        if content is not None:
            content["provenance"].pop("command", None)
            (kept / cell.name).mkdir(parents=True, exist_ok=True)
            results.write(kept / cell.name, content)


def read(out: Path, cell: Cell | Study) -> dict[str, Any] | None:
    """Return a finished cell's results."""
    path = out / cell.name / "results.json"
    if not path.is_file():
        return None
    return results.read(path)
