"""Australian credit data: the file's form, its scaling, and its errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tasks.data.australian import AustralianData, read_statlog


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
        ("1 " * 14, "14 numbers, not 15"),
        ("1 " * 14 + "2", "the label is '2', not 0 or 1"),
        ("1 " * 13 + "b 1", "not all of it is numbers"),
        ("nan " + "1 " * 14, "a number is not finite"),
    ],
)
def test_a_wrong_line_is_named(line: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, rows=3)
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(ValueError, match=f"line 4: {message}"):
        read_statlog(path)


def test_missing_files_and_impossible_splits_are_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"australian\.dat is missing"):
        AustralianData(str(tmp_path)).setup()
    written(tmp_path)
    with pytest.raises(ValueError, match="num_test = 30 leaves none of the 30"):
        AustralianData(str(tmp_path), num_test=30).setup()
    with pytest.raises(ValueError, match="num_test must not be negative"):
        AustralianData(str(tmp_path), num_test=-1)
