"""What standardising a table meets: constants, and single values that set a column's scale."""

from __future__ import annotations

from typing import Any

import numpy as np
from lightning.pytorch.utilities import rank_zero_info
from numpy.typing import NDArray

from tasks.data.delimited import shown
from tasks.data.table import Table

#: Quartile ranges from the median beyond which a value that makes half of the variance is named.
_FAR = 20
#: Standardised quartile range below which a column is a constant to any network.
_NOTHING = 1e-6


def examine(table: Table, train: NDArray[np.float64]) -> None:
    """Say which features are constant over the training rows, and which have outliers.

    Args:
        table: The whole table.
        train: Columns over the training rows: features [n, D], or with the target [n, D + 1].

    Raises:
        ValueError: If a value is so large that standardising leaves nothing of the others; its
            line and column are named. Or if a column's variance is 0 or infinite in float64.
    """
    names = (*table.features, table.target)
    constant: list[str] = []
    outliers: list[str] = []
    for j, values in enumerate(train.T):
        low, lower, median, upper, high = np.quantile(values, (0, 0.25, 0.5, 0.75, 1))
        if low == high:
            _refuse_beyond(table, j, low, 1.0)
            constant.append(names[j])
            continue
        furthest = low if median - low > high - median else high
        spread, distance = upper - lower, abs(furthest - median)
        with np.errstate(over="ignore", invalid="ignore"):
            deviation = ((values - median) / distance).std() * distance  # its square may be beyond
            scale = values.std()
        if 0 < spread < _NOTHING * deviation:
            raise ValueError(
                f"{_where(table, j, furthest)}: {furthest:g} leaves nothing of the other values "
                "once the column is standardised; correct it, drop the row, or take logarithms"
            )
        if not 0 < scale < np.inf:
            raise ValueError(
                f"column {names[j]!r}: values as {furthest:g} are too large or too small to be "
                "standardised; change the column's unit"
            )
        _refuse_beyond(table, j, values.mean(), scale)
        share = np.square((furthest - values.mean()) / scale) / len(values)
        if 0 < _FAR * spread < distance and share > 0.5:
            outliers.append(f"{furthest:g} ({_where(table, j, furthest)})")
    if constant:
        rank_zero_info(
            f"Note: constant over the training rows, and so of no use: {shown(constant)}"
        )
    if outliers:
        rank_zero_info(
            "Note: single values make most of their column's variance, check them: "
            f"{'; '.join(outliers[:3])}{f'; ... ({len(outliers)} in all)' * (len(outliers) > 3)}"
        )


def _column(table: Table, j: int) -> NDArray[Any]:
    return table.x[:, j] if j < table.x.shape[1] else table.y


def _refuse_beyond(table: Table, j: int, mean: float, scale: float) -> None:
    """Refuse a value, also of a held-out row, that float32 does not hold once standardised."""
    values = _column(table, j)
    if values.dtype.kind != "f":
        return
    with np.errstate(over="ignore", divide="ignore"):
        wrong = np.abs(values / scale - mean / scale) > np.finfo(np.float32).max
    if wrong.any():
        value = values[wrong.argmax()]
        raise ValueError(
            f"{_where(table, j, value)}: {value:g} is too large for the network once the column is "
            "standardised by the training rows; correct it, or drop the row"
        )


def _where(table: Table, column: int, value: float) -> str:
    name = (*table.features, table.target)[column]
    values = _column(table, column)
    return table.place(int(np.argmax(values == value)), name)
