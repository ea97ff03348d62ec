"""Tables of classes: labels are numbered as promised, and a wrong value is named."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lightning_sgmcmc import load_posterior
from lightning_sgmcmc.run import cli
from tasks import predict
from tasks.data.class_table import ClassTableData
from tasks.data.table import read_features, read_table
from tasks.home import CONFIGS
from tasks.predict import read_inputs

ROOT = Path(__file__).resolve().parents[2]
X = np.random.default_rng(0).normal(5, 3, (60, 3))


def csv(path: Path, x: Any, y: Any, header: str = "") -> str:
    lines = [
        ",".join([*map(repr, row), str(label)]) for row, label in zip(x.tolist(), y, strict=True)
    ]
    path.write_text(header + "\n".join(lines) + "\n")
    return str(path)


def made(*args: Any, **kwargs: Any) -> ClassTableData:
    data = ClassTableData(*args, **kwargs)
    data.setup()
    return data


def by_first_feature(data: ClassTableData) -> dict[float, int]:
    """Return every row's label under its first feature, which names the row."""
    parts = [data.tensors(name) for name in data._splits]  # type: ignore[arg-type]
    return {v.item(): int(c) for x, y in parts for v, c in zip(x[:, 0], y, strict=True)}


def expected(y: Any) -> dict[float, int]:
    return dict(zip(X[:, 0].astype(np.float32).tolist(), np.asarray(y).tolist(), strict=True))


def test_labels_from_0_stay_as_they_are(tmp_path: Path) -> None:
    y = np.arange(60) * 7 % 4
    data = made(csv(tmp_path / "a.csv", X, y), standardise=False, num_val=0.25)
    assert {name: len(pair[1]) for name, pair in data._splits.items()} == {
        "train": 39,
        "val": 15,
        "test": 6,
    }
    assert by_first_feature(data) == expected(y)
    assert (data.num_classes, data.class_names) == (4, ("0", "1", "2", "3"))


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ([1, 2, 3], ("1", "2", "3")),
        ([0, 2, 5], ("0", "2", "5")),
        ([-1, 0.5, 1234567], ("-1", "0.5", "1234567")),
        (["+", "-", "15%"], ("+", "-", "15%")),
    ],
)
def test_other_labels_are_numbered_in_order_and_said(
    tmp_path: Path, values: list[Any], names: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    codes = np.random.default_rng(1).permutation(np.arange(60) % 3)
    with caplog.at_level(logging.INFO):
        data = made(csv(tmp_path / "a.csv", X, np.array(values)[codes]), standardise=False)
    assert by_first_feature(data) == expected(codes)
    assert (data.num_classes, data.class_names) == (3, names)
    assert f"0 = {names[0]}, 1 = {names[1]}, 2 = {names[2]}" in caplog.text


def test_a_given_number_of_classes_keeps_labels_and_checks_them(tmp_path: Path) -> None:
    y = np.arange(60) % 3 * 2
    path = csv(tmp_path / "a.csv", X, y)
    data = made(path, standardise=False, num_classes=6)
    assert by_first_feature(data) == expected(y)
    assert data.num_classes == 6
    with pytest.raises(ValueError, match=r"example 2 has label 4.*integers from 0 to 3"):
        made(path, num_classes=4)
    with pytest.raises(ValueError, match="num_classes must be at least 2, got 1"):
        ClassTableData(path, num_classes=1)


def test_a_test_file_shares_scale_and_numbering(tmp_path: Path) -> None:
    train = csv(tmp_path / "a.csv", X, np.arange(60) % 2 * 10 + 10, "a,b,c,y\n")
    test = csv(tmp_path / "b.csv", X[:4] + 1, [20, 10, 20, 20], "a,b,c,y\n")
    data = made(train, test_file=test)
    assert len(data.tensors("train")[0]) == 60
    x, y = data.tensors("test")
    assert y.tolist() == [1, 0, 1, 1]
    np.testing.assert_allclose(x, (X[:4] + 1 - X.mean(0)) / X.std(0), rtol=1e-4, atol=1e-5)
    other = csv(tmp_path / "c.csv", X[:4], [5, 10, 20, 20], "a,b,c,y\n")
    with pytest.warns(UserWarning, match=r"no training example of class 0 \(5\): 1 in test"):
        assert made(train, test_file=other).num_classes == 3
    moved = np.column_stack([X[:4, 1], np.zeros(4), X[:4, [2, 0]]])
    swapped = csv(tmp_path / "d.csv", moved, [20, 10, 20, 20], "b,more,c,a,y\n")
    found = made(train, test_file=swapped).tensors("test")[0]
    np.testing.assert_allclose(found, (X[:4] - X.mean(0)) / X.std(0), rtol=1e-4, atol=1e-5)
    short = csv(tmp_path / "e.csv", X[:4, :2], [20, 10, 20, 20], "c,a,y\n")
    with pytest.raises(ValueError, match=r"e\.csv has no column 'b', .* and needs a, b"):
        made(train, test_file=short)
    with pytest.raises(ValueError, match=r"test_file is given: drop num_test = 0\.1"):
        ClassTableData(train, test_file=test, num_test=0.1)


def test_words_of_one_file_are_numbered_with_numbers_of_the_other(tmp_path: Path) -> None:
    train = csv(tmp_path / "a.csv", X, ["2", "10", "none of them"] * 20)
    test = csv(tmp_path / "b.csv", X[:3], [10, 2, 10])
    data = made(train, test_file=test)
    assert data.class_names == ("10", "2", "none of them")
    assert data.tensors("test")[1].tolist() == [0, 1, 0]


def test_labels_of_more_digits_than_a_number_has_stay_apart(tmp_path: Path) -> None:
    labels = [f"76561198000000{i:03d}" for i in (1, 2, 14, 30)]
    assert len({float(label) for label in labels}) < 4
    rows = "".join(f"{i},{labels[i % 4]}\n" for i in range(12))
    (tmp_path / "a.csv").write_text("x,kind\n" + rows)
    data = made(str(tmp_path / "a.csv"), "kind")
    assert data.class_names == tuple(labels)
    assert data.num_classes == 4


def test_words_where_numbers_are_expected(tmp_path: Path) -> None:
    path = csv(tmp_path / "a.csv", X, ["red", "green"] * 30, "a,b,c,kind\n")
    with pytest.raises(ValueError, match=r"num_classes = 2 .*a\.csv are words, such as 'red'"):
        made(path, num_classes=2)
    with pytest.raises(ValueError, match=r"no column 'kin': choose among a, b, c, kind"):
        made(path, target="kin")
    with pytest.raises(ValueError, match=r"a\.csv has 60 different values in 60 rows: choose"):
        made(path, target="a")


def test_numpy_files_say_what_the_text_file_says(tmp_path: Path) -> None:
    y = np.arange(60) % 3
    path = tmp_path / "a"
    names = ("a", "b", "c")
    text = csv(path.with_suffix(".csv"), X, y, "a,b,c,y\n")
    np.save(path.with_suffix(".npy"), np.column_stack([y, X]))
    np.savez(tmp_path / "xy.npz", x=X, y=y)
    np.savez(tmp_path / "columns.npz", **dict(zip(names, X.T, strict=True)), label=y)
    words = np.array(["no", "un", "yes"])[y]
    np.savez(tmp_path / "words.npz", x=X.astype(str), y=words)
    np.savez(tmp_path / "word.npz", **dict(zip(names, X.T, strict=True)), label=words)
    csv(tmp_path / "words.csv", X, words, "a,b,c,y\n")
    csv(tmp_path / "bare.csv", X, words)
    reference = by_first_feature(made(text, standardise=False))
    cases = [("a.npy", 0), ("xy.npz", None), ("xy.npz", "y"), ("columns.npz", "label")]
    worded = [("words.npz", None), ("word.npz", "label"), ("words.csv", "y"), ("bare.csv", 3)]
    for name, target in [*cases, *worded]:
        data = made(str(tmp_path / name), target=target, standardise=False)
        assert by_first_feature(data) == reference, name
        if (name, target) in worded:
            assert data.class_names == ("no", "un", "yes"), name
    assert read_table(tmp_path / "columns.npz", "label").features == names
    np.savez(tmp_path / "x.npz", x=X)  # as rows to predict come
    like = read_table(tmp_path / "xy.npz")
    assert np.array_equal(read_features(tmp_path / "x.npz", like.columns), like.x)
    assert read_table(text).features == names


def holed(value: Any, row: int, column: int, dtype: Any = float) -> Any:
    x = X.astype(dtype)
    x[row, column] = value
    return x


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": holed(np.nan, 7, 2), "y": np.zeros(60)}, "row 7, column '2': nan is missing, not"),
        ({"x": holed("high", 7, 2, "U8"), "y": np.zeros(60)}, "row 7, column '2': 'high' is not a"),
        ({"x": X, "y": holed(np.inf, 9, 0)[:, 0]}, "row 9, column 'y': inf is missing"),
        (
            {"x": X[:, :0], "y": np.zeros(60)},
            r"or columns \[N\], got x \[60, 0\]",
        ),
        ({"x": X[:0], "y": np.zeros(0)}, r"or columns \[N\], got x \[0, 3\]"),
        ({}, r"or columns \[N\], got "),
        (
            {"x": X, "y": np.zeros(59)},
            r"or columns \[N\], got x \[60, 3\], y \[59\]",
        ),
        ({"x": X, "z": np.zeros(60)}, r"or columns \[N\], got x \[60, 3\], z \[60\]"),
        ({"a": X[:, 0], "b": X[1:, 0]}, r"or columns \[N\], got a \[60\], b \[59\]"),
        ({"a": X[:, 0], "b": holed(np.nan, 3, 0)[:, 0]}, "row 3, column 'b': nan is missing"),
        ({"x": X.astype(complex), "y": np.zeros(60)}, "column '0' holds complex128, not numbers"),
        ({"x": X.astype(object), "y": np.zeros(60)}, "is not a NumPy file of numbers"),
    ],
)
def test_numpy_files_that_will_not_do(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(ValueError, match=rf"a\.npz.*{message}"):
        made(str(tmp_path / "a.npz"))


def test_other_files_that_will_not_do(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((3, 2, 2)))
    with pytest.raises(ValueError, match=r"needs to be \[rows, columns\], got \[3, 2, 2\]"):
        made(str(tmp_path / "a.npy"))
    np.savez_compressed(tmp_path / "b.npz", x=X, y=np.arange(60) % 3)
    whole = (tmp_path / "b.npz").read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 3] ^= 1
    for content in (b"no archive", b"", whole[:-9], whole[: len(whole) // 2], bytes(flipped)):
        (tmp_path / "b.npz").write_bytes(content)
        with pytest.raises(ValueError, match=r"b\.npz is not a NumPy file"):
            made(str(tmp_path / "b.npz"))
    with pytest.raises(FileNotFoundError, match=r"c\.npy is missing"):
        made(str(tmp_path / "c.npy"))
    for label in ("1", "one"):
        path = csv(tmp_path / "d.csv", X, [label, "?"] * 30, "a,b,c,y\n")
        with pytest.raises(ValueError, match=r"d\.csv, line 3, column 'y': the value is missing"):
            made(path)


def test_words_of_features_are_those_of_the_training_file(tmp_path: Path) -> None:
    y = np.arange(60) % 2
    colors = np.array(["red", "blue", "green"])[np.arange(60) % 3]

    def colored(name: str, colors: Any) -> str:
        rows = [f"{a},{c},{k}" for a, c, k in zip(X[:, 0], colors, y, strict=False)]
        (tmp_path / name).write_text("\n".join(["a,color,kind", *rows]) + "\n")
        return str(tmp_path / name)

    train, test = colored("a.csv", colors), colored("b.csv", ["green"] * 4)
    data = made(train, test_file=test, standardise=False)
    assert data.tensors("test")[0][:, 1:].tolist() == [[0, 1, 0]] * 4  # blue, green, red
    standard = made(train, test_file=test).tensors("train")[0]
    np.testing.assert_allclose(standard.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(standard.std(0, correction=0), 1, rtol=1e-6)
    other = colored("c.csv", ["green", "pink"])
    with pytest.raises(ValueError, match=r"c\.csv, column 'color': 'pink' is none of the words"):
        made(train, test_file=other)


def test_a_target_that_holds_no_classes(tmp_path: Path) -> None:
    for y, number in ((X[:, 0], 60), (np.ones(60), 1)):
        path = csv(tmp_path / "a.csv", X, y.tolist())
        with pytest.raises(ValueError, match=f"has {number} different values in 60 rows: choose"):
            made(path)


def test_the_task_finds_the_classes_of_a_csv_file(tmp_path: Path) -> None:
    """Three clouds 8 standard deviations apart: Bayes' rule errs on 1e-4, p is close to 0 or 1."""
    kinds = np.array(["ash", "birch", "cedar"])
    rng = np.random.default_rng(2)
    y = rng.integers(3, size=300)
    x = rng.normal(size=(300, 2)) + 8 * np.array([[0, 0], [1, 0], [0, 1]])[y]
    path = csv(tmp_path / "trees.csv", x, kinds[y], "height,girth,kind\n")
    steps = {
        "trainer.max_steps": 700,
        "model.burn_in": 400,
        "model.burn_in_optimizer.steps": 300,
        "model.num_chains": 2,
        "trainer.logger": "false",
        "trainer.enable_progress_bar": "false",
    }
    folder = cli.main(
        ROOT / "configs",
        ["--task", "class_table", f"--data.file={path}", "--data.target=kind"]
        + ["--data.num_test=100", "--out", str(tmp_path / "run")]
        + [f"--{name}={value}" for name, value in steps.items()],
    )
    results = json.loads((folder / "results.json").read_text())
    assert results["task_details"]["class_names"] == kinds.tolist()
    assert results["metrics"]["ensemble"]["error_percent"] <= 1
    assert results["metrics"]["ensemble"]["nll"] < 0.05
    found = load_posterior(folder).predict(read_inputs(folder, path)).mean
    assert float((found.argmax(-1).numpy() != y).mean()) <= 0.01
    check_predict(folder, tmp_path, x, found.numpy(), kinds)


def check_predict(folder: Path, place: Path, x: Any, p: Any, kinds: Any) -> None:
    """Hold what the command writes for rows with columns of other places against p."""
    lines = [f"{girth!r},oak,{height!r}" for height, girth in x.tolist()]
    (place / "new.csv").write_text("\n".join(["girth,near,height", *lines]) + "\n")
    out = predict.main([str(folder), str(place / "new.csv"), f"--out={place / 'out.csv'}"], "")
    table = pd.read_csv(out)
    assert list(table) == ["class", *(f"p_{kind}" for kind in kinds)]
    np.testing.assert_allclose(table.iloc[:, 1:], p, rtol=1e-12)
    assert table["class"].tolist() == kinds[p.argmax(-1)].tolist()


def test_rows_are_scaled_by_the_numbers_that_a_run_tells(tmp_path: Path) -> None:
    """Words are features of their own, by name; a run predicts other rows of its table by these."""
    words = np.where(np.arange(60) % 3, "red", "blue")
    lines = [
        f"{a!r},{w},{i % 2}" for i, (a, w) in enumerate(zip(X[:, 0].tolist(), words, strict=True))
    ]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["size,colour,kind", *lines]) + "\n")
    data = made(str(path), num_test=0.25)
    assert data.inputs["columns"] == {"size": None, "colour": ("blue", "red")}
    raw = np.column_stack([X[:, 0], words == "blue", words == "red"]).astype(np.float64)
    scaled = (raw - np.array(data.inputs["mean"])) / np.array(data.inputs["scale"])
    train = data.tensors("train")[0].double()
    np.testing.assert_allclose(train.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(train.std(0, correction=0), 1, rtol=1e-6)
    seen = {tuple(row) for row in scaled.astype(np.float32).tolist()}
    assert {tuple(row) for row in train.float().tolist()} < seen
    raw_inputs = made(str(path), standardise=False).inputs
    assert raw_inputs == data.inputs | {"mean": [0, 0, 0], "scale": [1, 1, 1]}


def test_columns_that_are_dropped(tmp_path: Path) -> None:
    y = np.arange(60) % 2
    train = csv(tmp_path / "a.csv", np.column_stack([X, np.arange(60.0)]), y, "a,b,c,id,y\n")
    test = csv(tmp_path / "b.csv", X[:4], y[:4], "a,b,c,y\n")
    data = made(train, drop=["id", "b"], test_file=test)
    assert list(data.inputs["columns"]) == ["a", "c"]
    scaled = ((X - X.mean(0)) / X.std(0))[:4, [0, 2]]
    np.testing.assert_allclose(data.tensors("test")[0], scaled, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="no column 'no' to drop: choose among a, b, c, id, y"):
        made(train, drop=["no"])
    with pytest.raises(ValueError, match="no column 'y': choose among a, b, c, id"):
        made(train, target="y", drop=["y"])


def test_numbers_of_one_file_are_the_words_of_the_other(tmp_path: Path) -> None:
    """Words among them make all labels of a file words, "1.0" too."""
    words = ["1.0", "2.0", "x"] * 20
    train = csv(tmp_path / "a.csv", X, words)
    test = csv(tmp_path / "b.csv", X[:4], [1, 2, 1, 2])
    data = made(train, test_file=test)
    assert data.class_names == ("1", "2", "x")
    assert data.tensors("test")[1].tolist() == [0, 1, 0, 1]


def test_large_whole_numbers_of_a_numpy_file_stay_apart(tmp_path: Path) -> None:
    y = np.array([5, 2**60, 2**60 + 1] * 20)
    np.savez(tmp_path / "a.npz", x=X, y=y)
    data = made(str(tmp_path / "a.npz"), num_test=0)
    assert data.class_names == tuple(sorted({str(v) for v in y.tolist()}))
    assert data.tensors("train")[1].bincount().tolist() == [20, 20, 20]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": np.array([], str), "y": np.array([], str)}, "column 'a' has no rows"),
        ({"a": np.arange(2.0), "y": np.array([b"\xc3(", b"b"])}, "column 'y' holds bytes that are"),
    ],
)
def test_numpy_columns_that_are_no_words(
    tmp_path: Path, columns: dict[str, Any], message: str
) -> None:
    np.savez(tmp_path / "a.npz", **columns)
    with pytest.raises(ValueError, match=message):
        read_table(tmp_path / "a.npz", "y", labels=True)


def test_one_column_to_drop_is_a_list_too(tmp_path: Path, capsys: Any) -> None:
    table = csv(tmp_path / "a.csv", X, np.arange(60) % 3, "a,b,c,y\n")
    with pytest.raises(SystemExit):
        cli.main(CONFIGS, ["--task=class_table", f"--data.file={table}", "--data.drop=a"])
    said = "error: data.drop: expected a list such as [1, 2] or [a, b], got a\n"
    assert capsys.readouterr().err == said
