"""Constants and outliers of a table are named, and what standardising would lose is refused."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch

from tasks.data.class_table import ClassTableData
from tasks.data.uci import UCIData, standard_split

ROWS = 200
rng = np.random.default_rng(0)
X = rng.normal(5, 2, (ROWS, 2))
#: Of split 0.
TRAINING = np.random.RandomState(1).permutation(ROWS)[: ROWS - ROWS // 10]


def table(folder: Path, a: np.ndarray, target: np.ndarray | None = None) -> str:
    """Write columns a, b, y; b is what it always is."""
    y = np.arange(ROWS) % 2 if target is None else target
    rows = (f"{float(p)!r},{float(q)!r},{r}" for p, q, r in zip(a, X[:, 1], y, strict=True))
    path = folder / "my.csv"
    path.write_text("\n".join(["a,b,y", *rows]) + "\n")
    return str(path)


def spoilt(value: float, row: int = 7) -> np.ndarray:
    a = X[:, 0].copy()
    a[row] = value
    return a


def both(path: str) -> tuple[UCIData, ClassTableData]:
    """Return the data of both tasks, all rows for training in the second."""
    return UCIData(file=path), ClassTableData(path, num_test=0)


@pytest.mark.parametrize("value", [1e308, -1e200, 1e30, 1e12])
def test_a_value_that_leaves_nothing_of_the_others_is_refused(tmp_path: Path, value: float) -> None:
    row = int(np.random.RandomState(1).permutation(ROWS)[0])  # a training row of split 0
    for data in both(table(tmp_path, spoilt(value, row))):
        with pytest.raises(
            ValueError, match=rf"my\.csv, line {row + 2}, column 'a': .*leaves noth"
        ):
            data.setup()
    with pytest.raises(ValueError, match=rf"my\.csv, line {row + 2}, column 'y': .*leaves nothing"):
        UCIData(file=table(tmp_path, X[:, 0], spoilt(value, row))).setup()


@pytest.mark.parametrize("unit", [1e200, 1e-200])
def test_a_column_whose_unit_is_beyond_float64_is_refused(tmp_path: Path, unit: float) -> None:
    for data in both(table(tmp_path, X[:, 0] * unit)):
        with pytest.raises(ValueError, match=r"column 'a': .* change the column's unit"):
            data.setup()


@pytest.mark.parametrize("value", [1e3, -1e6])
def test_an_outlier_is_named(
    tmp_path: Path, value: float, caplog: pytest.LogCaptureFixture
) -> None:
    row = int(np.random.RandomState(1).permutation(ROWS)[0])
    for data in both(table(tmp_path, spoilt(value, row))):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            data.setup()
        note = (
            f"variance, check them: {value:g} ({tmp_path / 'my.csv'}, line {row + 2}, column 'a')"
        )
        assert note in caplog.text


@pytest.mark.parametrize("heavy", ["normal", "lognormal", "counts", "rare", "three"])
def test_what_is_no_outlier_is_not(
    tmp_path: Path, heavy: str, caplog: pytest.LogCaptureFixture
) -> None:
    columns = {
        "normal": X[:, 0],
        "lognormal": np.exp(X[:, 0] / 2),
        "counts": rng.poisson(0.5, ROWS).astype(float),
        "rare": (np.arange(ROWS) < 2).astype(float),
        "three": np.where(np.isin(np.arange(ROWS), TRAINING[:3]), 1e3, X[:, 0]),  # a third each
    }
    for data in both(table(tmp_path, columns[heavy])):
        with caplog.at_level(logging.INFO):
            data.setup()
    assert "check them" not in caplog.text
    assert "constant" not in caplog.text


def test_constants_are_named_and_become_0(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = table(tmp_path, np.full(ROWS, 0.1))
    for data in both(path):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            data.setup()
        assert "Note: constant over the training rows, and so of no use: a\n" in caplog.text
    assert not data.tensors("train")[0][:, 0].any()


def test_what_is_said_is_of_the_training_rows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A constant that another row breaks is one; a value of another row is no outlier."""
    trains = np.isin(np.arange(ROWS), TRAINING)
    with caplog.at_level(logging.INFO):
        UCIData(file=table(tmp_path, np.where(trains, 0.1, X[:, 0]))).setup()
    assert "Note: constant over the training rows, and so of no use: a\n" in caplog.text
    caplog.clear()
    row = int(np.flatnonzero(~trains)[0])
    with caplog.at_level(logging.INFO):
        UCIData(file=table(tmp_path, spoilt(1e3, row))).setup()
    assert "check them" not in caplog.text


@pytest.mark.parametrize("shift", [1.7e9, -4e12])
def test_what_float32_does_not_resolve_is_kept(tmp_path: Path, shift: float) -> None:
    """Unix seconds, and more: after standardising only the rounding of float64 is left."""
    seconds = np.round(X[:, 0] * 600, 3)
    for kind in (0, 1):
        found = []
        for s in (0.0, shift):
            data = both(table(tmp_path, seconds + s))[kind]
            data.setup()
            x = data.tensors("train")[0]
            if kind == 0:
                assert x.dtype == torch.float64
                x = (x - x.mean(0)) / x.std(0)
            else:
                assert x.dtype == torch.float32
            found.append(x.double())
        tolerance = 2 * abs(shift) * 2**-52 / seconds.std() + 2**-22
        torch.testing.assert_close(found[1], found[0], rtol=0, atol=tolerance)


@pytest.mark.parametrize("value", [1e40, 1e308])
def test_a_held_out_row_may_not_overflow_once_it_is_standardised(
    tmp_path: Path, value: float
) -> None:
    """Else a whole run would end with predictions that are not finite."""
    row = int(standard_split(ROWS, 0)[1][0])
    with pytest.raises(ValueError, match=rf"line {row + 2}, column 'a': .* is too large"):
        UCIData(file=table(tmp_path, spoilt(value, row))).setup()
