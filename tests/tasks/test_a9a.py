"""The a9a experiment: its runs are commands, its numbers are those of the draws on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

from lightning_sgmcmc import load_posterior
from lightning_sgmcmc.run import cli
from tasks.data import libsvm
from tasks.data.download import digest
from tasks.data.libsvm import A9AData
from tasks.experiments.experiment import Cell, Study
from tasks.experiments.psgld import a9a
from tasks.laplace import Laplace, laplace

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a data root with small synthetic files in a9a's format."""
    generator = np.random.default_rng(0)
    w = generator.standard_normal(123)
    folder = tmp_path / "data" / "libsvm"
    folder.mkdir(parents=True)
    for name, count in (("a9a", 200), ("a9a.t", 80)):
        lines = []
        for _ in range(count):
            features = np.sort(generator.choice(122, 14, replace=False)) + 1
            label = 1 if generator.random() < expit(w[features - 1].sum()) else -1
            lines.append(" ".join([f"{label:+d}", *(f"{i}:1" for i in features)]))
        (folder / name).write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(libsvm, "A9A", {n: digest(folder / n, "sha256:") for n in libsvm.A9A})
    monkeypatch.setenv("SGMCMC_DATA_ROOT", str(tmp_path / "data"))
    return tmp_path


def test_a_small_run_of_the_paper_s_configuration(root: Path) -> None:
    """Everything that it says of draws and chains is recomputed from the files it wrote."""
    out = root / "run"
    overrides = [
        "--model.num_chains=2",
        "--model.burn_in=40",
        "--model.thinning=20",
        "--trainer.max_steps=200",
        "--trainer.log_every_n_steps=50",
        "--trainer.enable_progress_bar=false",
        "--model.intercept=true",
        f"--out={out}",
    ]
    config = ROOT / "configs" / "papers" / a9a.SHEET.config
    cli.main(ROOT / "configs", ["--config", str(config), *overrides])
    results = json.loads((out / "results.json").read_text())
    assert results["num_data"] == 200
    assert results["num_parameters"] == 124
    assert results["paper"]["table"]["pSGLD"] == 14.85

    data = A9AData()
    data.setup()
    (x, y), (test_x, test_y) = data.arrays("train"), data.arrays("test")
    x, test_x = (np.concatenate([v, np.ones((len(v), 1))], 1) for v in (x, test_x))
    draws = [
        np.concatenate([module.net.weight.detach()[0], module.net.bias.detach()])
        for module in load_posterior(out)
    ]
    p = expit(np.array(draws) @ test_x.T).reshape(2, 8, -1)
    details = results["task_details"]
    wrong = (p >= 0.5) != (test_y > 0.5)
    assert details["draw_error_percent"]["mean"] == pytest.approx(100 * wrong.mean(), abs=1e-4)
    quantiles = details["draw_error_percent"]["quantiles"]
    assert quantiles["0.25"] == pytest.approx(100 * np.quantile(wrong.mean(-1), 0.25), abs=1e-4)
    chains = 100 * ((p.mean(1) >= 0.5) != (test_y > 0.5)).mean(1)
    np.testing.assert_allclose(details["chain_error_percent"], chains, atol=1e-4)
    together = p.mean((0, 1))
    expected = laplace(x, y, 10.0).predict(test_x)
    gap = np.abs(together - expected).mean()
    assert details["laplace"]["test"]["gap"] == pytest.approx(gap, rel=1e-4)
    nll = -np.log(np.where(test_y > 0.5, expected, 1 - expected)).mean()
    assert details["laplace"]["test"]["nll"] == pytest.approx(nll, rel=1e-9)
    assert results["metrics"]["ensemble"]["brier"] == pytest.approx(
        ((together - test_y) ** 2).mean(), rel=1e-4
    )


def test_references_predict_alike(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a tight prior the posterior is nearly the Gaussian that Laplace takes it for."""
    monkeypatch.setattr(a9a, "PRIOR_VARIANCE", 0.05)
    found = {hmc: a9a.reference(hmc, False, root) for hmc in (False, True)}
    assert found[False]["gap"] < 0.01  # 4,000 draws against quadrature
    assert found[True]["gap"] < 0.01
    assert found[True]["acceptance"] > 0.6
    assert found[True]["divergences"] == 0
    assert found[True]["max_rhat"] < 1.02  # 8 chains of 500 all but independent draws
    assert found[True]["min_ess"] > 2000


def test_errors_of_draws_chains_and_all_together() -> None:
    x, y = np.array([[1.0], [-1.0], [2.0]]), np.array([1.0, 1.0, 0.0])
    logit = np.array([[[1.0], [-3.0]], [[2.0], [2.0]]])  # two chains of two draws
    values = a9a.errors(logit, x, y, Laplace(np.zeros(1), np.array([[0.25]])))
    p = expit(np.einsum("kdi,ni->kdn", logit, x))
    together = p.mean((0, 1))
    # Draw by draw: 1 and 2 predict (1, 0, 1), so two are wrong; -3 predicts (0, 1, 0): one.
    np.testing.assert_allclose(values["draw_error_percent"]["mean"], 100 * (2 + 1 + 2 + 2) / 12)
    np.testing.assert_allclose(values["chain_error_percent"], [100 / 3, 200 / 3])
    assert values["error_percent"] == pytest.approx(200 / 3)
    assert values["gap"] == pytest.approx(np.abs(together - 0.5).mean())
    nll = -np.log([together[0], together[1], 1 - together[2]]).mean()
    assert values["nll"] == pytest.approx(nll)


def test_standard_deviations_are_those_of_all_draws_over_laplace_s() -> None:
    generator = np.random.default_rng(0)
    draws, x = generator.standard_normal((2, 50, 3)), generator.standard_normal((5, 3))
    draws[0] += 1  # chains that disagree spread too
    root = generator.standard_normal((3, 3))
    values = a9a.errors(draws, x, np.ones(5), Laplace(np.zeros(3), root @ root.T))
    together = draws.reshape(-1, 3)
    logit_ratios = (together @ x.T).std(0, ddof=1) / np.linalg.norm(x @ root, axis=1)
    assert values["logit_sd"] == pytest.approx(np.median(logit_ratios))
    weight_ratios = together.std(0, ddof=1) / np.linalg.norm(root, axis=1)
    assert values["weight_sd"] == pytest.approx(np.median(weight_ratios))


def test_cells_have_names_of_their_own_and_every_chosen_step_was_tried(capsys: Any) -> None:
    cells = a9a.cells()
    assert {c.name for c in cells} == {*a9a.REFERENCES, *a9a.LABELS}
    assert len({c.name for c in [*cells, *a9a.choices()]}) == len(cells) + len(a9a.choices())
    for method, step in a9a.STEP.items():
        assert step in a9a.GRID[method]
    published = [c for c in cells if isinstance(c, Cell)]
    assert all(isinstance(c, Study) for c in cells if c not in published)
    for c in published:
        with pytest.raises(SystemExit) as stop:
            cli.main(ROOT / "configs", [*c.arguments(ROOT / "configs"), "--print_config"])
        assert stop.value.code == 0
        output = capsys.readouterr().out
        assert "lr: 0.05" in output
        assert ("PSGLD" in output) == ("freeze_preconditioner: false" in output)


def finished(number: int) -> dict[str, Any]:
    quantiles = dict.fromkeys(("0", "0.025", "0.5", "0.975", "1"), 15.0 + number)
    return {
        "error_percent": 10.0 + number,
        "nll": 0.1 + number,
        "gap": 0.2 + number,
        "ess": 100.0 + number,
        "logit_sd": 1.0 + number,
        "weight_sd": 3.0 + number,
        "draw_error_percent": {"mean": 20.0 + number, "sd": 1.0, "quantiles": quantiles},
        "chain_error_percent": [14.0 + number, 14.0 + number],
    }


def test_the_table_puts_every_result_in_its_row_and_the_paper_s_beside() -> None:
    names = [c.name for c in a9a.cells()]
    results: dict[str, Any] = {name: finished(i) for i, name in enumerate(names)}
    results["sgld"] = None
    results["hmc"] |= {"acceptance": 0.8, "divergences": 3, "min_ess": 1234.0, "max_rhat": 1.02}
    results["hmc"]["draw_error_percent"]["at_most_published"] = 0.25
    text = a9a.EXPERIMENT.render(results)
    assert "HMC: acceptance 0.80, 3 divergences, smallest ESS 1,234, R-hat at most 1.020;" in text
    assert "25.0 % of draws have 14.85 % or less" in text
    for name, value in A9AData.paper["table"].items():
        assert f"| *paper*: {name} |  | {value:.2f} |  |  |  |  |  |  |" in text
    for i, name in enumerate(names):
        label = a9a.LABELS.get(name) or a9a.REFERENCES[name][1]
        (line,) = (row for row in text.splitlines() if row.startswith(f"| {label} |"))
        if name == "sgld":
            assert set(line.removeprefix(f"| {label} |").replace("|", "").split()) == {"-"}
        else:
            assert f"{14 + i:.2f} ± 0.00 | {20 + i:.2f} ({15 + i:.2f} to {15 + i:.2f})" in line
            numbers = f"{0.1 + i:.4f} | {0.2 + i:.4f} | {1 + i}.00 | {3 + i}.00 | {100 + i}"
            assert line.endswith(f"| {numbers} |")


def test_the_choices_show_distance_nll_and_error() -> None:
    names = [c.name for c in a9a.choices()]
    results: dict[str, Any] = {n: finished(i) if i else None for i, n in enumerate(names)}
    lines = a9a.EXPERIMENT.choices.render(results).splitlines()
    assert not any(line.startswith(f"| {names[0]} |") for line in lines)  # it has not ended
    assert f"| {names[2]} | 2.2000 | 2.1000 | 12.00 |" in lines


def test_the_choices_name_the_step_with_the_smallest_distance_of_each_method() -> None:
    names = [c.name for c in a9a.choices()]
    results: dict[str, Any] = {n: finished(i) for i, n in enumerate(reversed(names))}
    closest = ", ".join(f"{m} at {steps[-1]:g}" for m, steps in a9a.GRID.items())
    assert a9a.EXPERIMENT.choices.render(results).splitlines()[-1] == f"Closest: {closest}."
    results = {"sghmc-lr0.001": finished(1), "sghmc-lr0.003": finished(0), "sgfs-lr0.001": None}
    assert a9a.EXPERIMENT.choices.render(results).endswith("\nClosest: sghmc at 0.003.")


def test_the_figure_has_a_circle_for_every_run(tmp_path: Path) -> None:
    names = [c.name for c in a9a.cells()]
    results: dict[str, Any] = {name: finished(i) for i, name in enumerate(names)}
    (axes,) = a9a.figures(results, tmp_path)["a9a"].axes
    circles = [line for line in axes.lines if line.get_marker() == "o"]
    assert [list(line.get_xdata()) for line in circles] == [
        [14.0 + names.index(n)] * 2 for n in [*a9a.REFERENCES, *a9a.LABELS]
    ]
