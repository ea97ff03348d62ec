"""What ``sgmcmc predict`` writes is what the draws predict for the rows of a file."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from lightning_sgmcmc import load_posterior
from lightning_sgmcmc.callbacks.report import results
from lightning_sgmcmc.run import cli
from tasks.data.table import read_features
from tasks.predict import _array, main, read_inputs

ROOT = Path(__file__).resolve().parents[2]
FEW = [
    "--model.burn_in_optimizer.steps=20",
    "--model.burn_in=30",
    "--model.thinning=2",
    "--trainer.max_steps=60",
    "--wandb_project=null",
    "--trainer.enable_progress_bar=false",
]
WORDS = ("blue", "red")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run whose target depends on a number far from 0 and a word."""
    folder = tmp_path_factory.mktemp("predict")
    rng = np.random.default_rng(0)
    size, colour = rng.normal(1e6, 2, 80), rng.integers(2, size=80)
    price = (size - 1e6) * np.where(colour, 3, -1) + rng.normal(0, 0.2, 80)
    frame = {"id": np.arange(80), "size": size, "colour": np.array(WORDS)[colour], "price": price}
    pd.DataFrame(frame).to_csv(folder / "my.csv", index=False)
    arguments = ["--task=uci_regression", f"--data.file={folder / 'my.csv'}", "--data.drop=[id]"]
    return cli.main(ROOT / "configs", [*arguments, f"--out={folder / 'run'}", *FEW])


def new_rows(path: Path, count: int = 25, **columns: Any) -> tuple[str, np.ndarray]:
    """Write rows with their columns in another order, and return path and features."""
    size, colour = 1e6 + np.linspace(-4, 4, count), np.arange(count) % 2
    frame = pd.DataFrame({"colour": np.array(WORDS)[colour], "size": size} | columns)
    frame.to_csv(path, index=False)
    return str(path), np.column_stack([size, 1 - colour, colour]).astype(np.float64)


def test_rows_of_a_file_are_predicted_as_by_hand(run: Path, tmp_path: Path) -> None:
    path, x = new_rows(tmp_path / "new.csv", remark="none")
    expected = load_posterior(run).predict(torch.from_numpy(x))
    out = main([str(run), path, "--out", str(tmp_path / "out.csv")], "")
    table = pd.read_csv(out)
    found = {"mean": expected.mean, "epistemic_std": expected.epistemic_std, "std": expected.std}
    found["lower"], found["upper"] = expected.interval(0.9)
    assert list(table) == list(found)
    for name, values in found.items():
        np.testing.assert_allclose(table[name], values[:, 0], rtol=1e-12, err_msg=name)
    half = main([str(run), path, "--interval=.5", "--out", str(tmp_path / "half.csv")], "")
    width = [float(t.upper[0] - t.lower[0]) for t in (table, pd.read_csv(half))]
    z = [NormalDist().inv_cdf((1 + p) / 2) for p in (0.9, 0.5)]
    assert width[0] / width[1] == pytest.approx(z[0] / z[1], rel=1e-9)


def test_rows_outside_the_training_range_are_named(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inputs = json.loads((run / "results.json").read_text())["task_details"]["inputs"]
    low, high = inputs["lowest"][0], inputs["highest"][0]
    path, _ = new_rows(tmp_path / "new.csv", 4, size=[low - 1e-6, low, high, high + 1])
    with caplog.at_level("INFO"):
        read_inputs(run, path)
    assert f"2 of 4 rows of {path} lie outside the range of the training rows, in size" in (
        caplog.text
    )


def test_blocks_are_put_together_in_order(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = new_rows(tmp_path / "new.csv")
    whole = main([str(run), path, f"--out={tmp_path / 'whole.csv'}"], "")
    monkeypatch.setattr("tasks.predict._BLOCK", 4)
    parts = main([str(run), path, f"--out={tmp_path / 'parts.csv'}"], "")
    # Products of matrices of other heights round differently.
    np.testing.assert_allclose(pd.read_csv(whole), pd.read_csv(parts), rtol=1e-5, atol=1e-4)


def test_what_does_not_fit_is_refused_and_nothing_written(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    good, _ = new_rows(Path("good.csv"))
    Path("short.csv").write_text("colour,sizes\nred,3\nred,4\n")
    Path("pink.csv").write_text("colour,size\nred,3\npink,4\n")
    Path("hole.csv").write_text("colour,size\nred,3\nred,\n")
    Path("numbers.csv").write_text("colour,size\n1,3\n2,4\n")
    Path("none.csv").write_text("colour,size\n")
    Path("huge.csv").write_text("colour,size\nred,3\nred,1e45\n")
    for name, message in (
        ("short", "has no column 'size', which the training table has"),
        ("pink", "'pink' is none of the words of the training file, blue, red"),
        ("hole", "line 3, column 'size': the value is missing"),
        ("numbers", "column 'colour' holds numbers, and words in the training file"),
        ("none", "has no rows of data"),
        ("huge", "input 2 holds a value that is too large for the network"),
    ):
        with pytest.raises(ValueError, match=message):
            main([str(run), f"{name}.csv"], "")
        assert not Path(f"{name}-predicted.csv").exists()
    assert main([str(run), good], "") == Path("good-predicted.csv")
    before = Path("good-predicted.csv").read_bytes()
    with pytest.raises(SystemExit):
        main([str(run), good], "")
    assert "good-predicted.csv is there already" in capsys.readouterr().err
    assert Path("good-predicted.csv").read_bytes() == before
    for probability in ("90", "0"):
        with pytest.raises(ValueError, match=r"probability must lie in \(0, 1\), got"):
            main([str(run), good, f"--interval={probability}", "--out=other.csv"], "")
    with pytest.raises(FileNotFoundError, match=r"results\.json is missing: give the folder of a"):
        main([str(tmp_path), good], "")


def test_a_run_without_a_table_takes_an_array(run: Path, tmp_path: Path) -> None:
    """Here the table's run, which does not tell that it is one."""
    other = tmp_path / "run"
    other.mkdir()
    for name in ("samples", "config.yaml"):
        (other / name).symlink_to(run / name)
    results = json.loads((run / "results.json").read_text())
    inputs = results["task_details"].pop("inputs")
    del results["provenance"]["sha256"]
    (other / "results.json").write_text(json.dumps(results))
    path, x = new_rows(tmp_path / "new.csv")
    assert read_features(path, inputs["columns"]).tolist() == x.tolist()
    x[:, 0] = np.linspace(-4, 4, len(x))  # what float32 has the digits for
    np.save(tmp_path / "new.npy", x)
    out = main([str(other), str(tmp_path / "new.npy"), f"--out={tmp_path / 'out.npz'}"], "")
    expected = load_posterior(run).predict(torch.from_numpy(x).float())
    with np.load(out) as found:
        assert sorted(found) == ["epistemic_std", "lower", "mean", "std", "upper"]
        np.testing.assert_allclose(found["mean"], expected.mean, rtol=1e-12)
        np.testing.assert_allclose(found["upper"], expected.interval(0.9)[1], rtol=1e-12)
    np.save(tmp_path / "whole.npy", np.round(x).astype(">i4"))
    rounded = _array(load_posterior(run), tmp_path / "whole.npy")
    assert torch.equal(rounded, torch.tensor(np.round(x)).float())
    for name, wrong, message in (
        ("flat", x[:, 0], r"does not take inputs \[\] of type float64, of which the file has 25: "),
        ("wide", np.hstack([x, x]), r"does not take inputs \[6\] of type float64"),
        ("complex", x + 0j, "holds values of type complex128, and inputs are real numbers"),
        ("words", np.array([["red"] * 3]), "holds values of type <U3, and inputs are real numbers"),
    ):
        np.save(tmp_path / f"{name}.npy", wrong)
        with pytest.raises(ValueError, match=message):
            main([str(other), str(tmp_path / f"{name}.npy")], "")
    np.save(tmp_path / "huge.npy", np.full_like(x, 1e300))
    with pytest.raises(ValueError, match="input 1 holds a value that is too large"):
        main([str(other), str(tmp_path / "huge.npy")], "")
    with pytest.raises(ValueError, match=r"is no \.npy file, and the run is not of a table"):
        main([str(other), path], "")
    with pytest.raises(ValueError, match=r"is not the run of a table: it takes inputs as a \.npy"):
        read_inputs(other, path)


def test_a_folder_that_is_not_there_is_said_before_anything_is_predicted(
    run: Path, tmp_path: Path, capsys: Any
) -> None:
    path, _ = new_rows(tmp_path / "new.csv")
    with pytest.raises(SystemExit):
        main([str(run), path, "--out", str(tmp_path / "typo" / "out.csv")], "")
    assert capsys.readouterr().err.endswith("typo for --out: make it first\n")


def test_a_run_that_diverged_predicts_nothing(tmp_path: Path) -> None:
    results.write(tmp_path, {"provenance": {}, "diverged": "at step 3"})
    with pytest.raises(ValueError, match="diverged: there is nothing to predict with"):
        main([str(tmp_path), "new.csv"], "")
    results.write(tmp_path, {"provenance": {}, "metrics": {}})  # a study's
    with pytest.raises(ValueError, match="is not the run of a task: there is nothing"):
        main([str(tmp_path), "new.csv"], "")
