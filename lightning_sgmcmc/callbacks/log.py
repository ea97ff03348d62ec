"""The log of a run: a CSV file that survives resuming."""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.core.saving import save_hparams_to_yaml
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only

from lightning_sgmcmc.common.files import DamagedFileError, append, require, write_beside

Row = dict[str, str]


class CSVLog(Logger):
    """``metrics.csv`` in the run's folder, one row a step, one column a name.

    Rows are appended with every checkpoint and at most every few seconds between them, so that a
    write costs what the new rows cost. A new name, or a value of a step long past, has the file
    written anew beside and renamed. Rows of the last two steps, which may still get values, stay in
    memory, and in the checkpoint. A run that continues returns to the rows of its checkpoint.

    Args:
        folder: The run's folder.
        every: Seconds between writes.
    """

    def __init__(self, folder: str | Path, every: float = 5.0) -> None:
        super().__init__()
        self.folder, self.every = Path(folder), every
        self._rows: dict[int, Row] = {}  # not in the file yet
        self._names: list[str] = []  # columns of the file
        self._count, self._size, self._last = 0, 0, -1  # rows, bytes and last step of the file
        self._digest = hashlib.sha256()  # of the file
        self._written = time.monotonic()

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / "metrics.csv"

    @property
    def name(self) -> str:
        """Empty, like the version: Lightning then makes ``checkpoints/`` in the run's folder."""
        return ""

    @property
    def version(self) -> str:
        """Empty."""
        return ""

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
        """Write ``hparams.yaml``, unless ``config.yaml`` holds the whole configuration."""
        if not (self.folder / "config.yaml").is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            save_hparams_to_yaml(self.folder / "hparams.yaml", params)

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Add values to the row of a step."""
        step = 0 if step is None else step
        row = self._rows.setdefault(step, {"step": str(step)})
        row |= {name: repr(float(value)) for name, value in metrics.items() if name != "epoch"}
        if time.monotonic() - self._written > self.every:
            self.save()

    @rank_zero_only
    def save(self) -> None:
        """Write the rows that are complete: Lightning counts the step in hand from 0, we from 1."""
        self._write([step for step in self._rows if step < max(self._rows) - 1])

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Write what is left."""
        self._write(list(self._rows))

    def state_dict(self) -> dict[str, Any]:
        """Return what :meth:`load_state_dict` takes, of plain values, after a :meth:`save`."""
        return {
            "names": self._names,
            "count": self._count,
            "sha256": self._digest.hexdigest(),
            "rows": [self._rows[step] for step in sorted(self._rows)],
        }

    @rank_zero_only
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Return to the rows of a checkpoint.

        Raises:
            DamagedFileError: If the file does not hold them.
        """
        if state["count"] and not self.path.is_file():
            rank_zero_info(f"Note: {self.path} is gone, it begins anew")
        else:
            _, text = _counted_on(read_rows(self.path), self.path, state)
            if self.path.is_file():
                write_beside(self.path, text)
            self._take(text, state["names"], state["count"])
        self._rows = {int(row["step"]): dict(row) for row in state["rows"]}

    def _write(self, steps: list[int]) -> None:
        """Write the rows of some steps."""
        if not steps:
            return
        rows = [self._rows[step] for step in sorted(steps)]
        names = sorted({name for row in rows for name in row}.union(self._names) - {"step"})
        if self._count:
            require(self.path)
        else:
            self.folder.mkdir(parents=True, exist_ok=True)
        if self._count and names == self._names and min(steps) > self._last:
            content = _text(names, rows, header=False).encode()
            append(self.path, self._size, content)
            self._digest.update(content)
            self._size += len(content)
            self._count, self._last = self._count + len(rows), max(steps)
        else:
            known = {int(row["step"]): row for row in read_rows(self.path)} if self._count else {}
            for row in rows:
                known[int(row["step"])] = known.get(int(row["step"]), {}) | row
            text = _text(names, [known[step] for step in sorted(known)])
            write_beside(self.path, text)
            self._take(text, names, len(known))
        for step in steps:
            del self._rows[step]
        self._written = time.monotonic()

    def _take(self, text: str, names: list[str], count: int) -> None:
        content = text.encode()
        self._names, self._count, self._size = names, count, len(content)
        self._digest = hashlib.sha256(content)
        self._last = int(text[text.rindex("\n", 0, -1) + 1 :].split(",")[0]) if count else -1


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a log, of the values that they have.

    Raises:
        ValueError: If the file is no such table.
    """
    with path.open(newline="") as file:
        for row in csv.DictReader(file, strict=True):
            if None in row or None in row.values():
                raise ValueError(f"step {row.get('step')} has too many or too few fields")
            yield {name: value for name, value in row.items() if value}


def verify_log(path: Path, state: Mapping[str, Any]) -> None:
    """Verify the rows that a checkpoint counts on, and those that were in memory then.

    Raises:
        DamagedFileError: If the file does not hold them, or is not as it was written.
    """
    if not path.is_file() and not state["count"]:
        return  # the run stopped before it wrote a row
    rows = read_rows(path)
    (counted, _), after = _counted_on(rows, path, state), list(rows)
    names = path.read_text().partition("\n")[0]
    later = {row["step"]: row for row in after}
    if (
        later and any(not later.get(k["step"], {}).items() >= k.items() for k in state["rows"])
    ) or _text(next(csv.reader([names]))[1:], counted + after).encode() != path.read_bytes():
        raise DamagedFileError(f"{path} is damaged, it is not what the run wrote")


def _counted_on(rows: Iterator[Row], path: Path, state: Mapping[str, Any]) -> tuple[list[Row], str]:
    """Take the rows that a checkpoint counts on, and return them and their text.

    Args:
        rows: Of the log.
        path: Of the log.
        state: What the log's :meth:`CSVLog.state_dict` was.

    Raises:
        DamagedFileError: If the log does not hold them.
    """
    if not state["count"]:
        return [], ""
    try:
        counted = list(itertools.islice(rows, state["count"]))
        text = _text(state["names"], counted)
    except (ValueError, csv.Error):  # a byte that is no text, a name that is not known
        text = ""
    if hashlib.sha256(text.encode()).hexdigest() != state["sha256"]:
        raise DamagedFileError(
            f"{path} is damaged, it does not hold the rows that the checkpoint counts on: restore "
            "it from a copy, or move it away to go on without them"
        )
    return counted, text


def _text(names: Iterable[str], rows: Iterable[Row], header: bool = True) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, ["step", *names], lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
