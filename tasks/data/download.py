"""Where a user's data lies, and how it gets there."""

from __future__ import annotations

import os
from pathlib import Path

DATA_ROOT = "SGMCMC_DATA_ROOT"


def data_root(given: str | Path | None = None) -> Path:
    """Return the folder of data sets: the given one, else $SGMCMC_DATA_ROOT, else ``./data``."""
    return Path(given or os.environ.get(DATA_ROOT) or "data")
