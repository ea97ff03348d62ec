"""The CSV log, which a continued run does not spoil."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from lightning_sgmcmc.run.loggers import CSVLog


def read(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_one_row_a_step_one_column_a_name(tmp_path: Path) -> None:
    log = CSVLog(tmp_path)
    log.log_metrics({"b": 0.1, "epoch": 3.0}, step=20)
    log.log_metrics({"a": 1.0}, step=3)
    log.log_metrics({"a, with comma": 1 / 3}, step=20)
    log.finalize("success")
    rows = read(tmp_path)
    assert list(rows[0]) == ["step", "a", "a, with comma", "b"]
    assert [row["step"] for row in rows] == ["3", "20"]
    assert (rows[0]["a"], rows[0]["b"]) == ("1.0", "")
    assert (float(rows[1]["a, with comma"]), float(rows[1]["b"])) == (1 / 3, 0.1)


def test_later_values_of_a_step_replace_earlier_ones(tmp_path: Path) -> None:
    log = CSVLog(tmp_path)
    log.log_metrics({"a": 1.0, "b": 2.0}, step=5)
    log.log_metrics({"a": 3.0}, step=5)
    log.save()
    assert read(tmp_path) == [{"step": "5", "a": "3.0", "b": "2.0"}]


def test_continued_run_drops_the_rows_after_its_checkpoint(tmp_path: Path) -> None:
    first = CSVLog(tmp_path)
    for step in (10, 20, 30, 40):
        first.log_metrics({"a": float(step), "old": 1.0}, step=step)
    first.save()
    second = CSVLog(tmp_path)
    second.rewind(20)
    second.log_metrics({"a": -30.0}, step=30)
    second.log_metrics({"a": -20.0}, step=20)  # later rows of the same run drop nothing more
    second.log_metrics({"a": -40.0}, step=40)
    second.save()
    assert [(row["step"], row["a"], row["old"]) for row in read(tmp_path)] == [
        ("10", "10.0", "1.0"),
        ("20", "-20.0", "1.0"),
        ("30", "-30.0", ""),
        ("40", "-40.0", ""),
    ]


def test_opening_does_not_change_the_file(tmp_path: Path) -> None:
    log = CSVLog(tmp_path)
    log.log_metrics({"a": 1.0}, step=1)
    log.save()
    before = (tmp_path / "metrics.csv").read_bytes()
    CSVLog(tmp_path).finalize("success")
    assert (tmp_path / "metrics.csv").read_bytes() == before


def test_a_write_that_fails_leaves_the_old_file_whole(tmp_path: Path, monkeypatch: Any) -> None:
    log = CSVLog(tmp_path)
    log.log_metrics({"a": 1.0}, step=1)
    log.save()
    before = (tmp_path / "metrics.csv").read_bytes()
    log.log_metrics({"a": 2.0}, step=2)
    write = Path.write_bytes

    def half(self: Path, content: bytes) -> int:
        write(self, content[: len(content) // 2])
        raise OSError("no space left")

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(OSError, match="no space"):
        log.save()
    assert (tmp_path / "metrics.csv").read_bytes() == before
    monkeypatch.undo()
    log.save()
    assert [row["step"] for row in read(tmp_path)] == ["1", "2"]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.csv"]


def test_values_are_written_at_intervals(tmp_path: Path) -> None:
    patient, eager = CSVLog(tmp_path / "patient", every=1e6), CSVLog(tmp_path / "eager", every=-1)
    for log in (patient, eager):
        log.log_metrics({"a": 1.0}, step=1)
    assert not patient.path.exists()
    assert eager.path.is_file()
