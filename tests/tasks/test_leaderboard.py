"""Who leads a task, by differences that are paired by seed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_sgmcmc.posterior import DrawStore
from lightning_sgmcmc.run import cli
from tasks.data.class_table import ClassTableData
from tasks.experiments import leaderboard
from tasks.experiments.agreement import compare
from tasks.experiments.experiment import Cell
from tasks.experiments.leaderboard import behind, leads, standard_error

ROOT = Path(__file__).resolve().parents[2]


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
    """Differences 0, 0, 3 have mean 1 and error 1; those of the others have errors below it."""
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


def test_the_table_counts_the_chains_without_an_alarm() -> None:
    """Iterates of an optimizer, at temperature 0, have no verdict to count."""
    found = results(sghmc=[1.0, 2.0, 3.0], swag=[1.0])
    for seed, alarms in enumerate([[], ["R-hat"], []]):
        found[f"yacht-sghmc-{seed}"] |= {"temperature": 1.0, "diagnostics": {"alarms": alarms}}
    found["yacht-swag-0"] |= {"temperature": 0.0, "diagnostics": {"alarms": []}}
    lines = leaderboard.EXPERIMENT.render(found).splitlines()
    head = next(line for line in lines if line.startswith("| task")).split(" | ")
    counts = {
        line.split(" | ")[1]: line.split(" | ")[head.index("without an alarm")]
        for line in lines
        if line.startswith("| yacht")
    }
    assert counts["SGHMC"] == "2"
    assert counts["SWAG"] == "-"


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


def test_distances_from_the_reference_are_those_of_the_draws_on_disk(tmp_path: Path) -> None:
    """Two linear classifiers of Adam, whose probabilities are computed from their files here."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(80, 2))
    table = tmp_path / "table.csv"
    np.savetxt(table, np.column_stack([x, x[:, 0] > 0.3 * generator.normal(size=80)]), "%.8g", ",")
    adam = json.dumps({"class_path": "torch.optim.Adam"})
    for name, steps in (("a", 5), ("b", 60)):
        cli.main(
            ROOT / "configs",
            [
                "--task=class_table",
                f"--data.file={table}",
                "--data.num_test=0.5",
                "--model.net.hidden=[]",
                "--model.sampler=lightning_sgmcmc.baselines.Optimized",
                "--model.sampler.lr=0.1",
                f"--model.sampler.optimizer={adam}",
                "--model.burn_in_optimizer=null",
                "--model.num_chains=2",
                f"--trainer.max_steps={steps}",
                f"--model.burn_in={steps - 1}",
                "--model.thinning=1",
                f"--out={tmp_path / name}",
            ],
        )
    found = compare(tmp_path / "apart", "a", ["a", "b"])["metrics"]
    assert found["a"] == {"agreement": 1.0, "total_variation": 0.0}

    data = ClassTableData(str(table), num_val=0.1, num_test=0.5)
    data.setup()
    features = data.tensors("test")[0].double()
    means = []
    for name in ("a", "b"):
        each = []
        for chain in range(2):
            store = DrawStore.open(tmp_path / name / "samples", chain)
            draw = store.load(store.draws[0])
            weight, bias = draw["net.layers.0.weight"].double(), draw["net.layers.0.bias"].double()
            each.append((features @ weight.T + bias).softmax(1))
        means.append((each[0] + each[1]) / 2)
    apart = (means[0] - means[1]).abs().sum(1).mean() / 2
    assert apart > 0.05
    assert found["b"]["total_variation"] == pytest.approx(float(apart), rel=1e-4)
    same = (means[0].argmax(1) == means[1].argmax(1)).double().mean()
    assert found["b"]["agreement"] == pytest.approx(float(same))
    with pytest.raises(ValueError, match="needs the finished run c: run that cell first"):
        compare(tmp_path / "apart", "a", ["c"])
