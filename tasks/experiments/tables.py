"""Repetitions of a run with other seeds: chains of one computation, or runs of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def repeated(runs: Sequence[dict[str, Any] | None], metric: str) -> list[float]:
    """Return a metric of the ensemble of every repetition.

    Args:
        runs: The content of ``results.json`` of runs that differ in the seed alone, None where one
            is not finished. Each chain of a run of several counts as a repetition: its own
            ensemble's metric stands under ``task_details.chains.metrics``.
        metric: Name of the metric, such as ``error_percent``.
    """
    values: list[float] = []
    for run in runs:
        if run is None:
            continue
        chains = run["task_details"].get("chains")
        values += chains["metrics"][metric] if chains else [run["metrics"]["ensemble"][metric]]
    return values


def mean_and_spread(values: Sequence[float], digits: int) -> str:
    """Return ``mean +- standard deviation (number)``, the mean alone of one, ``-`` of none.

    Args:
        values: One number a repetition.
        digits: Digits after the point.
    """
    if not values:
        return "-"
    mean = f"{np.mean(values):.{digits}f}"
    if len(values) == 1:
        return mean
    return f"{mean} +- {np.std(values, ddof=1):.{digits}f} ({len(values)})"
