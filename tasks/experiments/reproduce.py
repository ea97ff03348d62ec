"""Run the cells of a published table one by one, and print ours beside the paper's."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from lightning_sgmcmc import cli
from tasks.experiments import table1
from tasks.experiments.cell import Cell

TABLES: dict[str, ModuleType] = {"table1": table1}


def main(root: Path, arguments: list[str] | None = None) -> None:
    """Run the command line of ``scripts/reproduce.py``.

    Args:
        root: The repository's root, where ``configs`` lies.
        arguments: The command line; None takes ``sys.argv``.
    """
    parser = argparse.ArgumentParser(
        description="Reproduce a published table. Cells that are finished are not run again, and "
        "one that was stopped continues from its last checkpoint. Other options, such as "
        "--data.field=spe10, override every cell's configuration.",
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
    # Anything else is an override for every cell, for instance --data.field=spe10.
    options, overrides = parser.parse_known_args(arguments)
    table = TABLES[options.table]
    cells: list[Cell] = table.choices() if options.choose else table.cells()
    names = [cell.name for cell in cells]
    unknown = sorted(set(options.cell or []) - set(names))
    if unknown:
        cli.fail(f"unknown cell {', '.join(unknown)}: choose among {', '.join(names)}")
    if options.list:
        print("\n".join(names))
        return
    out: Path = options.out or Path("runs") / options.table
    if not options.show:
        for cell in cells:
            if not options.cell or cell.name in options.cell:
                run(root, out, cell, overrides)
    text = table.render({cell.name: read(out, cell) for cell in cells}, options.choose)
    print(text)


def run(root: Path, out: Path, cell: Cell, overrides: list[str]) -> None:
    """Run a cell, continue it if it was stopped, and do nothing if it is finished."""
    folder = out / cell.name
    if (folder / "results.json").is_file():
        print(f"{cell.name}: finished")
        return
    if (folder / "checkpoints" / "last.ckpt").is_file():
        arguments = ["--out", str(folder), "--ckpt_path", "last"]
    else:
        if (folder / "config.yaml").is_file():  # stopped before its first checkpoint
            (folder / "config.yaml").unlink()
        config = root / "configs" / "papers" / cell.config
        arguments = ["--config", str(config), *cell.overrides, *overrides, "--out", str(folder)]
    print(f"{cell.name}: running", file=sys.stderr, flush=True)
    cli.main(root / "configs", arguments)


def read(out: Path, cell: Cell) -> dict[str, Any] | None:
    """Return a finished cell's results."""
    path = out / cell.name / "results.json"
    if not path.is_file():
        return None
    content: dict[str, Any] = json.loads(path.read_text())
    return content
