"""Who leads a task, by differences that are paired by seed."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tasks.experiments import leaderboard
from tasks.experiments.experiment import Cell
from tasks.experiments.leaderboard import behind, leads, standard_error


def results(**nlls: list[float]) -> dict[str, Any]:
    """Return results of seeds 0, 1, ... on ``yacht`` by method."""
    return {
        f"yacht-{method}-{seed}": {
            "metrics": {"ensemble": dict.fromkeys(["nll", "rmse", "crps", "coverage_90"], nll)},
            "wall_seconds": 60.0,
        }
        for method, values in nlls.items()
        for seed, nll in enumerate(values)
    }


def test_differences_are_paired_by_seed() -> None:
    """Seeds differ by 10, methods by .1 on each of them: the difference has no error."""
    found = behind(results(sghmc=[0.0, 10.0, 20.0], swag=[0.1, 10.1, 20.1]), "yacht")
    assert found["sghmc"] == pytest.approx([0, 0, 0])
    assert found["swag"] == pytest.approx([0.1, 0.1, 0.1])
    assert standard_error(found["swag"]) == pytest.approx(0)


def test_the_lowest_mean_leads_and_what_is_within_one_standard_error() -> None:
    """Differences 0, 0, 3 have mean 1 and error 1; 1, 1, 1.3 are clearly above; 0, 0, 2.9 lead."""
    there = results(
        sghmc=[0.0] * 3, swag=[0.0, 0.0, 3.0], ensemble=[1.0, 1.0, 1.3], dropout=[0.0, 0.1, 2.7]
    )
    assert behind(there, "yacht")["swag"].mean() == pytest.approx(1)
    assert standard_error(behind(there, "yacht")["swag"]) == pytest.approx(1)
    assert leads(there, "yacht") == ["sghmc", "swag"]
    assert leads(there, "energy") == []


def test_methods_are_compared_on_the_seeds_that_all_have() -> None:
    """By its own three seeds SGHMC would be worse, by the two common ones it leads."""
    found = behind(results(sghmc=[1.0, 1.0, 9.0], ensemble=[2.0, 2.0]), "yacht")
    assert found["sghmc"] == pytest.approx([0, 0])
    assert found["ensemble"] == pytest.approx([1, 1])
    assert math.isnan(standard_error(behind(results(sghmc=[1.0], swag=[3.0]), "yacht")["swag"]))


def test_the_table_counts_the_tasks_that_a_method_leads() -> None:
    text = leaderboard.EXPERIMENT.render(results(sghmc=[1.0, 2.0], ensemble=[1.5, 2.5]))
    lines = text.splitlines()
    assert "| yacht | SGHMC | 1 | 1.000 | 0.000 |" in leaderboard.EXPERIMENT.render(
        results(sghmc=[1])
    )
    assert "| SGHMC | - | - | - | **0.000 ± 0.000** | - | - | - | - | 1 |" in lines
    assert "| deep ensemble | - | - | - | 0.500 ± 0.000 | - | - | - | - | 0 |" in lines
    assert any(
        line.startswith("| yacht | SGHMC | 2 | 1.500 ± 0.500 | 0.000 ± 0.000 |") for line in lines
    )


def test_a_seed_is_that_of_the_chains_and_of_the_split() -> None:
    runs = [cell for cell in leaderboard.cells() if isinstance(cell, Cell)]
    seeds = {cell.name: cell.overrides for cell in runs}
    assert [seeds[f"digits-swag-{i}"]["seed_everything"] for i in range(3)] == [0, 1, 2]
    assert [seeds[f"digits-swag-{i}"]["data"]["init_args"]["split_seed"] for i in range(3)] == [
        0,
        1,
        2,
    ]
    assert seeds["yacht-dropout-2"]["data.split"] == 2
