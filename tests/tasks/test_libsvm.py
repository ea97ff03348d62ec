"""LIBSVM files: a hand-written one is read as it stands, a wrong line is named."""

from __future__ import annotations

import os
import urllib.error
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tasks.data import libsvm
from tasks.data.download import digest
from tasks.data.libsvm import A9AData, LIBSVMData, read_libsvm

TEXT = """\
-1 3:1 5:-2.5
+1 1:1e-1   # the first feature

1
0.0 # a comment alone has no features
"""


def written(folder: Path, text: str, name: str = "data") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_hand_written_file(tmp_path: Path) -> None:
    x, y = read_libsvm(written(tmp_path, TEXT.replace("0.0", "-1")), 6)
    expected = np.zeros((4, 6))
    expected[0, 2], expected[0, 4], expected[1, 0] = 1, -2.5, 0.1
    np.testing.assert_array_equal(x, expected)
    np.testing.assert_array_equal(y, [0, 1, 1, 0])


def test_labels_may_be_0_and_1_but_not_both_ways(tmp_path: Path) -> None:
    _, y = read_libsvm(written(tmp_path, "0 1:1\n1 1:2\n"), 1)
    np.testing.assert_array_equal(y, [0, 1])
    with pytest.raises(ValueError, match="labels -1 and 0"):
        read_libsvm(written(tmp_path, "0 1:1\n-1 1:2\n"), 1)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("2 1:1", r"line 2: the label is '2'"),
        ("yes 1:1", r"line 2: the label is 'yes'"),
        ("nan 1:1", r"line 2: the label is 'nan'"),
        ("1 0:1", r"line 2: feature 0 is not one of 1 to 6"),
        ("1 7:1", r"line 2: feature 7 is not one of 1 to 6"),
        ("1 2:1 2:3", r"line 2: feature 2 follows feature 2"),
        ("1 3:1 2:3", r"line 2: feature 2 follows feature 3"),
        ("1 3", r"line 2: '3' is not of the form index:value"),
        ("1 a:1", r"line 2: 'a:1' is not of the form"),
        ("1 1:", r"line 2: '1:' is not of the form"),
        ("1 1:inf", r"line 2: '1:inf' is not a finite value"),
    ],
)
def test_a_wrong_line_is_named(line: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, f"1 1:1\n{line}\n")
    with pytest.raises(ValueError, match=message) as error:
        read_libsvm(path, 6)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


def test_missing_and_empty_files_are_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere is missing"):
        read_libsvm(tmp_path / "nowhere", 3)
    with pytest.raises(ValueError, match="holds no examples"):
        read_libsvm(written(tmp_path, "# nothing\n\n"), 3)


@given(
    st.lists(
        st.tuples(
            st.sampled_from((-1, 1)),
            st.dictionaries(st.integers(1, 9), st.floats(-1e6, 1e6), max_size=9),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_what_is_written_is_read(tmp_path_factory: Any, examples: Any) -> None:
    lines = [
        " ".join([str(label), *(f"{i}:{features[i]!r}" for i in sorted(features))])
        for label, features in examples
    ]
    path = written(tmp_path_factory.mktemp("libsvm"), "\n".join(lines))
    x, y = read_libsvm(path, 9)
    for i, (label, features) in enumerate(examples):
        assert y[i] == (label + 1) / 2
        assert [features.get(j + 1, 0.0) for j in range(9)] == x[i].tolist()


def data(root: Path, **kwargs: Any) -> LIBSVMData:
    rows = [f"{'+1' if i % 3 else '-1'} 1:{i} 2:1" for i in range(20)]
    written(root, "\n".join(rows), "train")
    written(root, "-1 1:5\n+1 3:2\n", "test")
    module = LIBSVMData("train", 3, "test", root=str(root), batch_size=4, **kwargs)
    module.prepare_data()
    module.setup()
    return module


def test_splits_share_the_training_file_and_depend_on_the_seed_alone(tmp_path: Path) -> None:
    module = data(tmp_path, num_val=6)
    train, val, test = (module.arrays(name) for name in ("train", "val", "test"))
    together = np.concatenate([train[0][:, 0], val[0][:, 0]])
    assert sorted(together) == list(range(20))
    assert len(val[0]) == 6
    for x, y in (train, val):
        np.testing.assert_array_equal(y, x[:, 0] % 3 > 0)
    np.testing.assert_array_equal(test[0], [[5, 0, 0], [0, 0, 2]])
    again, other = data(tmp_path, num_val=6), data(tmp_path, num_val=6, split_seed=1)
    np.testing.assert_array_equal(again.arrays("val")[0], val[0])
    assert not np.array_equal(other.arrays("val")[0], val[0])
    assert module.train_dataloader().num_data == 14
    (batch,) = module.val_dataloader()
    torch.testing.assert_close(batch[0], torch.tensor(val[0], dtype=torch.float32))


def test_scales_are_those_of_the_training_examples(tmp_path: Path) -> None:
    plain, scaled = data(tmp_path, num_val=6), data(tmp_path, num_val=6, standardise=True)
    train = plain.arrays("train")[0][:, 0]
    mean, sd = train.mean(), np.sqrt(((train - train.mean()) ** 2).sum() / 13)
    for name in ("train", "val", "test"):
        expected = (plain.arrays(name)[0][:, 0] - mean) / sd
        np.testing.assert_allclose(scaled.arrays(name)[0][:, 0], expected, rtol=1e-12)
    np.testing.assert_array_equal(scaled.arrays("train")[0][:, 1:], 0)  # constant there


def test_a_constant_whose_mean_rounds_is_shifted_only(tmp_path: Path) -> None:
    constant = np.array([0.1, 0.1, 0.1])
    assert constant.std() > 0
    train = "".join(f"{sign}1 1:{i} 2:0.1\n" for i, sign in enumerate("+-+"))
    written(tmp_path, train, "train")
    written(tmp_path, "+1 1:1 2:0.2\n", "test")
    module = LIBSVMData("train", 2, "test", str(tmp_path), batch_size=2, standardise=True)
    module.setup()
    np.testing.assert_array_equal(module.arrays("train")[0][:, 1], 0)
    assert module.arrays("test")[0][0, 1] == 0.2 - 0.1


def test_impossible_settings_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="num_val = 20 leaves none of the 20"):
        data(tmp_path, num_val=20)
    with pytest.raises(ValueError, match="num_val must not be negative"):
        data(tmp_path, num_val=-1)
    with pytest.raises(ValueError, match="num_features must be positive"):
        LIBSVMData("train", 0)
    with pytest.raises(RuntimeError, match="setup"):
        LIBSVMData("train", 3).train_dataloader()


def test_a9a_has_123_features_though_its_test_file_ends_before(tmp_path: Path) -> None:
    written(tmp_path, "-1 3:1 123:1\n+1 5:1\n", "libsvm/a9a")
    written(tmp_path, "-1 122:1\n", "libsvm/a9a.t")
    module = A9AData(str(tmp_path), batch_size=2)
    module.setup()
    train, test = np.zeros((2, 123)), np.zeros((1, 123))
    train[0, [2, 122]] = train[1, 4] = test[0, 121] = 1
    for name, x, y in (("train", train, [0, 1]), ("test", test, [0])):
        np.testing.assert_array_equal(module.arrays(name)[0], x)
        np.testing.assert_array_equal(module.arrays(name)[1], y)


@pytest.fixture
def original(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that stands for LIBSVM's site."""
    for name in ("a9a", "a9a.t"):
        written(tmp_path / "site", f"-1 {len(name)}:1\n+1 7:1\n", name)
    monkeypatch.setattr(libsvm, "_URL", f"{(tmp_path / 'site').as_uri()}/{{name}}")
    sums = {n: digest(tmp_path / "site" / n, "sha256:") for n in libsvm.A9A}
    monkeypatch.setattr(libsvm, "A9A", sums)
    return tmp_path / "site"


def test_a9a_is_fetched_once_into_the_root(original: Path, tmp_path: Path) -> None:
    module = A9AData(str(tmp_path / "sets"), batch_size=2)
    module.prepare_data()
    for name in ("a9a", "a9a.t"):
        fetched = tmp_path / "sets" / "libsvm" / name
        assert fetched.read_bytes() == (original / name).read_bytes()
        (original / name).unlink()
    module.prepare_data()  # all there: no network needed
    module.setup()
    assert module.arrays("test")[0].nonzero()[1].tolist() == [4, 6]


def test_another_file_than_a9a_is_refused(original: Path, tmp_path: Path) -> None:
    path = written(tmp_path / "sets", "-1 3:1\n", "libsvm/a9a.t")
    with pytest.raises(ValueError, match=r"a9a\.t is not the file expected") as error:
        A9AData(str(tmp_path / "sets")).prepare_data()
    assert "delete it to fetch it anew" in str(error.value)
    assert path.read_text() == "-1 3:1\n"


def test_without_network_one_line_says_what_to_fetch_and_where_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*_: object, **__: object) -> None:
        raise urllib.error.URLError("no route to host")

    monkeypatch.setattr("urllib.request.urlopen", offline)
    with pytest.raises(FileNotFoundError) as error:
        A9AData(str(tmp_path)).prepare_data()
    message = str(error.value)
    assert "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/a9a cannot" in message
    assert "no route to host" in message
    assert f"put it at {tmp_path / 'libsvm' / 'a9a'}" in message
    assert "\n" not in message


def test_a_user_s_a9a_is_the_one_whose_checksum_is_known() -> None:
    root = os.environ.get("SGMCMC_DATA_ROOT")
    if root is None or not (Path(root) / "libsvm" / "a9a").is_file():
        pytest.skip("needs $SGMCMC_DATA_ROOT/libsvm/a9a")
    module = A9AData()
    module.prepare_data()
    module.setup()
    (train, _), (test, _) = module.arrays("train"), module.arrays("test")
    assert (len(train), np.count_nonzero(train), len(test)) == (32_561, 451_592, 16_281)


def test_the_root_comes_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGMCMC_DATA_ROOT", str(tmp_path))
    assert A9AData().train_file == tmp_path / "libsvm" / "a9a"
    assert A9AData("elsewhere").train_file == Path("elsewhere/libsvm/a9a")
