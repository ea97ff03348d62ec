"""What tests of reproduced experiments share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightning_sgmcmc import cli
from tasks.experiments.cell import Cell

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def parsed(capsys: Any) -> Callable[[Cell], dict[str, Any]]:
    """Return what the command line makes of a cell, its whole configuration; nothing is run."""

    def parse(cell: Cell) -> dict[str, Any]:
        config = ROOT / "configs" / "papers" / cell.config
        with pytest.raises(SystemExit) as stop:
            cli.main(ROOT / "configs", ["--config", str(config), *cell.overrides, "--print_config"])
        output = capsys.readouterr()
        assert stop.value.code == 0, output.err
        content: dict[str, Any] = yaml.safe_load(output.out)
        return content

    return parse
