"""Australian credit data: the file's form, scaling and errors; the experiment's arithmetic."""

from __future__ import annotations

import json
import os
import urllib.error
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_sgmcmc.run import cli
from tasks.data import australian as source
from tasks.data.australian import AustralianData, read_statlog
from tasks.data.download import digest
from tasks.experiments import reproduce
from tasks.experiments.psgld import australian

ROOT = Path(__file__).resolve().parents[2]


def written(root: Path, rows: int = 30, seed: int = 0) -> Path:
    """Write a file in the Statlog format whose first feature counts the lines."""
    generator = np.random.default_rng(seed)
    x = generator.integers(0, 50, (rows, 14)) / 4
    x[:, 0] = np.arange(rows)
    y = generator.integers(0, 2, rows)
    lines = [
        " ".join([*(f"{v:g}" for v in row), str(label)]) for row, label in zip(x, y, strict=True)
    ]
    path = root / "australian" / "australian.dat"
    path.parent.mkdir(parents=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def test_features_and_labels_are_those_of_the_file(tmp_path: Path) -> None:
    path = written(tmp_path)
    x, y = read_statlog(path)
    content = np.loadtxt(path)
    np.testing.assert_array_equal(x, content[:, :14])
    np.testing.assert_array_equal(y, content[:, 14])


def test_training_features_are_standardised_and_the_others_alike(tmp_path: Path) -> None:
    content = np.loadtxt(written(tmp_path))
    data = AustralianData(str(tmp_path), num_test=8, num_val=5)
    data.setup()
    parts = [data.arrays(name) for name in ("train", "val", "test")]
    assert [len(y) for _, y in parts] == [17, 5, 8]
    train = parts[0][0]
    np.testing.assert_allclose(train.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose((train**2).sum(0) / 16, 1, rtol=1e-12)
    x, y = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.argsort(x[:, 0])  # the line numbers, scaled
    np.testing.assert_array_equal(y[order], content[:, 14])
    # All parts went through one affine map of each feature.
    slope, offset = np.polyfit(content[:, 5], x[order][:, 5], 1)
    np.testing.assert_allclose(slope * content[:, 5] + offset, x[order][:, 5], atol=1e-10)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 " * 14, " has 14 fields, not 15"),
        ("1 " * 14 + "2", ", column '14': the label is 2, not 0 or 1"),
        ("1 " * 13 + "b 1", ", column '13': 'b' is not a number"),
        ("inf " + "1 " * 14, ", column '0': inf is not finite"),
    ],
)
def test_a_wrong_line_is_named(line: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, rows=3)
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(ValueError, match=f"line 4{message}"):
        read_statlog(path)


def test_the_file_is_fetched_once_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = written(tmp_path / "archive")
    content = original.read_bytes()
    monkeypatch.setattr(source, "_URL", original.as_uri())
    monkeypatch.setattr(source, "CHECKSUM", digest(original, "sha256:"))
    data = AustralianData(str(tmp_path / "sets"))
    data.prepare_data()
    original.unlink()
    data.prepare_data()  # is there: no network needed
    assert data.path.read_bytes() == content
    data.setup()
    assert len(data.arrays("train")[1]) == 30
    data.path.write_bytes(content[:-5])
    with pytest.raises(ValueError, match="delete it to fetch it anew"):
        data.prepare_data()


def test_without_network_one_line_says_what_to_fetch_and_where_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """From the command line too, of a task and of the experiment."""

    def offline(*_: object, **__: object) -> None:
        raise urllib.error.URLError("no route to host")

    monkeypatch.setattr("urllib.request.urlopen", offline)
    root = tmp_path / "sets"
    task = ["--task=australian", f"--data.root={root}", f"--out={tmp_path / 'run'}"]
    with pytest.raises(SystemExit):
        cli.main(ROOT / "configs", task)
    table = ["australian", f"--data-root={root}", f"--out={tmp_path / 'table'}"]
    monkeypatch.setenv("SGMCMC_DATA_ROOT", "")  # which the command sets
    last = [capsys.readouterr().err.strip().splitlines()[-1]]
    with pytest.raises(SystemExit):
        reproduce.main(ROOT, table)
    last.append(capsys.readouterr().err.strip().splitlines()[-1])
    for line in last:
        assert "statlog/australian/australian.dat cannot be fetched (no route to host)" in line
        assert f"put it at {root / 'australian' / 'australian.dat'}" in line


def test_a_user_s_file_is_the_one_whose_checksum_is_known() -> None:
    root = os.environ.get("SGMCMC_DATA_ROOT")
    if root is None or not (Path(root) / "australian" / "australian.dat").is_file():
        pytest.skip("needs $SGMCMC_DATA_ROOT/australian/australian.dat")
    x, y = australian.examples()
    assert (x.shape, y.sum()) == ((690, 15), 307)


def test_missing_files_and_impossible_splits_are_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"australian\.dat is missing"):
        AustralianData(str(tmp_path)).setup()
    written(tmp_path)
    with pytest.raises(ValueError, match="num_test = 30 leaves none of the 30"):
        AustralianData(str(tmp_path), num_test=30).setup()
    with pytest.raises(ValueError, match="num_test must not be negative"):
        AustralianData(str(tmp_path), num_test=-1)


def test_runs_are_compared_with_the_posterior_s_moments() -> None:
    """Two runs with known means and covariances, against N((1, -1), diag(4, 9))."""
    z = np.random.default_rng(0).standard_normal((4000, 2))
    z = (z - z.mean(0)) @ np.linalg.inv(np.linalg.cholesky(np.cov(z.T))).T  # exactly N(0, I)'s
    mean, covariance = np.array([1.0, -1.0]), np.diag([4.0, 9.0])
    runs = np.stack([mean + z * [2, 3] + [1.0, 0.0], mean + z * [4, 3] + [0.0, -6.0]])
    values = australian.compare(runs, mean, covariance)
    assert values["mean_error"] == pytest.approx((0.5 + 0 + 0 + 2) / 4)
    assert values["sd_ratio"] == pytest.approx((1 + 1 + 2 + 1) / 4)
    assert values["sd_error"] == pytest.approx(1 / 4)
    assert values["covariance_error"] == pytest.approx((16 / 4 - 1) / 8)  # one of eight is off
    assert values["worth"] == pytest.approx(1 / ((0.25 + 4) / 4))
    assert values["min_ess"] == pytest.approx(4000, rel=0.3)  # of 4,000 independent draws


def test_a_step_injects_the_paper_s_epsilon_as_variance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Algorithm 1 adds N(0, epsilon G): 750 moves of SGLD, whose drift is 1e-3 of them.

    Their variance lies within 5 of its standard errors, sqrt(2/750), but for 6e-7.
    """
    monkeypatch.setattr(australian, "BURN_IN", 0)
    generator = np.random.default_rng(0)
    x, y = generator.standard_normal((30, 15)), generator.integers(0, 2, 30).astype(float)
    moves = australian.chains("sgld", x, y, 1e-8, steps=1)
    assert moves.shape == (50, 1, 15)
    assert moves.var() / 1e-8 == pytest.approx(1, abs=5 * (2 / 750) ** 0.5)


def test_a_study_reads_the_truth_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "data")
    monkeypatch.setattr(source, "CHECKSUM", digest(path, "sha256:"))
    monkeypatch.setenv("SGMCMC_DATA_ROOT", str(tmp_path / "data"))
    monkeypatch.setattr(australian, "BURN_IN", 20)
    monkeypatch.setattr(australian.chains, "__defaults__", (60,))
    (tmp_path / "truth").mkdir()
    far = {"mean": [1e6] * 15, "covariance": np.eye(15).tolist()}
    (tmp_path / "truth" / "results.json").write_text(json.dumps(far))
    (row,) = australian.study("psgld-frozen", tmp_path / "psgld-frozen", (1e-4,))["rows"]
    assert row["epsilon"] == 1e-4
    assert row["mean_error"] == pytest.approx(1e6, rel=1e-4)


def result(offset: float) -> dict[str, Any]:
    columns = ("min_ess", "mean_error", "sd_error", "sd_ratio", "covariance_error", "worth")
    return {
        "rows": [
            {"epsilon": e} | {c: offset + i + 1 for i, c in enumerate(columns)}
            for e in australian.EPSILONS
        ]
    }


def test_the_table_and_the_figure_show_every_method_and_step(tmp_path: Path) -> None:
    results: dict[str, Any] = {n: result(10 * i) for i, n in enumerate(australian.METHODS)}
    results["psgld-frozen"] = None
    text = australian.EXPERIMENT.render(results)
    rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 2 * len(australian.EPSILONS) + 1
    assert "| SGLD | 1e-07 | 1.0 | 2.00 | 3.00 | 4.00 | 5.00 | 6 |" in rows
    assert rows[-1] == f"| {australian.LABELS['psgld-frozen']} | - | - | - | - | - | - | - |"
    assert sum("not in the paper" in row for row in rows) == 4
    panels = australian.figures(results, tmp_path)["australian"].axes
    drawn = [
        [list(line.get_ydata()) for line in axes.lines if len(line.get_xdata()) > 2]
        for axes in panels
    ]
    count = len(australian.EPSILONS)
    for ys, number in zip(drawn, (1, 2, 4, 2), strict=True):
        assert ys == [[number] * count, [10 + number] * count]
