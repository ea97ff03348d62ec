"""What tests of reproduced experiments share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightning_sgmcmc.run import cli
from tasks.data.download import DATA_ROOT
from tasks.experiments.experiment import Cell

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def data_root_of_the_environment() -> Iterator[None]:
    """Undo what ``scripts/reproduce.py --data-root`` does to the environment of its process."""
    before = os.environ.get(DATA_ROOT)
    yield
    os.environ.pop(DATA_ROOT, None)
    if before is not None:
        os.environ[DATA_ROOT] = before


@pytest.fixture
def parsed(capsys: Any) -> Callable[[Cell], dict[str, Any]]:
    """Return what the command line makes of a cell, its whole configuration; nothing is run."""

    def parse(cell: Cell) -> dict[str, Any]:
        with pytest.raises(SystemExit) as stop:
            cli.main(ROOT / "configs", [*cell.arguments(ROOT / "configs"), "--print_config"])
        output = capsys.readouterr()
        assert stop.value.code == 0, output.err
        content: dict[str, Any] = yaml.safe_load(output.out)
        return content

    return parse
