"""The logger that every run has: a CSV that survives resuming."""

from __future__ import annotations

import csv
import io
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

from lightning_sgmcmc.common.files import write_beside


class CSVLog(Logger):
    """``metrics.csv`` in the run's folder, one row a step, one column a name.

    The file is rewritten beside and renamed, with every checkpoint and at most every few seconds
    between them. A run that continues drops the rows after its checkpoint (:meth:`rewind`).

    Args:
        folder: The run's folder.
        every: Seconds between writes.
    """

    def __init__(self, folder: str | Path, every: float = 5.0) -> None:
        super().__init__()
        self.folder, self.every = Path(folder), every
        self._rows: dict[int, dict[str, str]] = {}
        self._written, self._begun = time.monotonic(), False
        if self.path.is_file():
            with self.path.open(newline="") as file:
                rows = list(csv.DictReader(file))
            self._rows = {int(r["step"]): {k: v for k, v in r.items() if v} for r in rows}

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / "metrics.csv"

    @property
    def name(self) -> str:
        """The name of the logger."""
        return "csv"

    @property
    def version(self) -> str:
        """The run's name."""
        return self.folder.name

    @property
    def log_dir(self) -> str:
        """The run's folder."""
        return str(self.folder)

    @property
    def save_dir(self) -> str:
        """The run's folder."""
        return str(self.folder)

    @rank_zero_only
    def log_hyperparams(
        self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any
    ) -> None:
        """Keep nothing: ``config.yaml`` holds the whole configuration."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Add values to the row of a step."""
        step = 0 if step is None else step
        row = self._rows.setdefault(step, {"step": str(step)})
        row |= {name: repr(float(value)) for name, value in metrics.items() if name != "epoch"}
        if time.monotonic() - self._written > self.every:
            self.save()

    def rewind(self, step: int) -> None:
        """Forget the rows after a step."""
        self._rows = {k: row for k, row in self._rows.items() if k <= step}

    @rank_zero_only
    def save(self) -> None:
        """Write the file."""
        if not self._rows:
            return
        names = sorted({name for row in self._rows.values() for name in row} - {"step"})
        text = io.StringIO()
        writer = csv.DictWriter(text, ["step", *names], lineterminator="\n")
        writer.writeheader()
        writer.writerows(self._rows[step] for step in sorted(self._rows))
        if not self._begun:
            self.folder.mkdir(parents=True, exist_ok=True)
        self._begun = True
        write_beside(self.path, text.getvalue())
        self._written = time.monotonic()

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Write what is left."""
        self.save()
