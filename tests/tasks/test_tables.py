"""Repetitions are counted once each, whether they are chains or runs."""

from __future__ import annotations

import pytest

from tasks.experiments.tables import mean_and_spread, repeated


def test_chains_and_runs_are_repetitions() -> None:
    alone = {"task_details": {}, "metrics": {"ensemble": {"error_percent": 1.5}}}
    chains = {
        "task_details": {"chains": {"agreement": 1, "metrics": {"error_percent": [1.0, 2.0]}}},
        "metrics": {"ensemble": {"error_percent": 0.5}},  # of both chains together
    }
    assert repeated([alone, None, chains], "error_percent") == [1.5, 1.0, 2.0]
    assert repeated([None], "error_percent") == []


@pytest.mark.parametrize(
    ("values", "text"),
    [([], "-"), ([1.234], "1.23"), ([1.0, 2.0, 3.0], "2.00 +- 1.00 (3)")],
)
def test_mean_and_spread(values: list[float], text: str) -> None:
    assert mean_and_spread(values, 2) == text
