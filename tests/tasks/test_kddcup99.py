"""KDD Cup 99: hand-written rows become the numbers that the docstring promises."""

from __future__ import annotations

import gzip
import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.data import kddcup99
from tasks.data.kddcup99 import COUNTS, FEATURES, INPUTS, KDDCup99Data, read_kddcup99


def row(label: str, **values: Any) -> str:
    fields = dict.fromkeys(FEATURES, "0")
    fields |= {"protocol_type": "tcp", "service": "http", "flag": "SF"}
    fields |= {name: str(value) for name, value in values.items()}
    return ",".join([*(fields[name] for name in FEATURES), label])


def written(folder: Path, rows: list[str], name: str = "kddcup.data_10_percent.gz") -> Path:
    path = folder / "kddcup99" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(("\n".join(rows) + "\n").encode()))
    return path


ROWS = [
    row("smurf.", protocol_type="icmp", service="ecr_i", src_bytes=1032, count=511),
    row("normal.", duration=5, dst_host_srv_rerror_rate=0.25, num_outbound_cmds=9),
    row("smurf.", protocol_type="icmp", service="ecr_i", src_bytes=693375640),
    row("back.", service="http", flag="REJ", same_srv_rate=0.5),
    row("smurf.", protocol_type="udp", service="domain"),
    row("normal.", protocol_type="icmp"),
]


def test_hand_written_rows(tmp_path: Path) -> None:
    x, y, names = read_kddcup99(written(tmp_path, ROWS))
    assert x.shape == (6, 40)
    assert x.dtype == np.float32
    column = dict(zip(INPUTS, x.T.tolist(), strict=True))
    assert column["src_bytes"] == [1032, 0, float(np.float32(693375640)), 0, 0, 0]
    assert (column["duration"][1], column["dst_host_srv_rerror_rate"][1]) == (5, 0.25)
    assert column["same_srv_rate"] == [0, 0, 0, 0.5, 0, 0]
    # Ranks by frequency: icmp 3, tcp 2, udp 1; http 3, ecr_i 2, domain 1; SF 5, REJ 1.
    assert column["protocol_type"] == [0, 1, 0, 1, 2, 0]
    assert column["service"] == [1, 0, 1, 0, 2, 0]
    assert column["flag"] == [0, 0, 0, 1, 0, 0]
    assert (names, y.tolist()) == (("smurf", "normal", "back"), [0, 1, 0, 2, 0, 1])
    # The constant feature's 9 is nowhere: it is left out.
    assert "num_outbound_cmds" not in INPUTS
    assert 9 not in x


def test_the_discriminative_machine_of_the_paper_has_its_2647_parameters() -> None:
    inputs, hidden, classes = len(INPUTS), 41, 23
    assert inputs * hidden + hidden * classes + hidden + classes == 2647
    assert len(set(FEATURES)) == 41
    assert set(COUNTS) < set(INPUTS)


def test_the_full_set_s_training_rows_are_the_paper_s() -> None:
    """Ahn et al. (2012, section 5.3) count 4,408,587 of 4.9 million."""
    rows = KDDCup99Data(subset="full")._rows(4_898_431)
    counts = {name: len(chosen) for name, chosen in rows.items()}
    assert counts == {"train": 4_408_587, "val": 244_922, "test": 244_922}


@given(
    words=st.lists(st.sampled_from(["a", "b", "c", "dd"]), min_size=1, max_size=25),
    chunk=st.integers(1, 7),
)
def test_ranks_do_not_depend_on_how_the_file_is_cut(
    tmp_path_factory: pytest.TempPathFactory, words: list[str], chunk: int
) -> None:
    """Ranks are an independent count's: the commonest first, ties by alphabet."""
    rows = [row(word, service=word[::-1] + "x", duration=i) for i, word in enumerate(words)]
    path = written(tmp_path_factory.mktemp("kdd"), rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kddcup99, "_CHUNK", chunk)
        x, y, names = read_kddcup99(path)
    order = sorted(set(words), key=lambda word: (-words.count(word), word))
    assert names == tuple(order)
    assert y.tolist() == [order.index(word) for word in words]
    assert x[:, INPUTS.index("service")].tolist() == y.tolist()
    assert x[:, 0].tolist() == list(range(len(words)))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (ROWS[0] + ",1", "line 5: 43 fields, not 41 features and a label"),
        (ROWS[0].partition(",")[2], "line 5: 41 fields, not"),
        (row("smurf.", duration="long"), "line 5: duration is 'long', not a finite number"),
        (row("smurf.", dst_host_count="nan"), "line 5: dst_host_count is 'nan', not a finite"),
        (row("smurf.", dst_bytes=""), "line 5: dst_bytes is '', not a finite number"),
        (row("smurf.", flag=""), "line 5: flag is missing"),
        (row(""), "line 5: label is missing"),
        (row("smurf.", count="5 # note"), "line 5: count is '5 # note', not a finite number"),
    ],
)
@pytest.mark.parametrize("chunk", [3, 100])
def test_a_malformed_row_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str, message: str, chunk: int
) -> None:
    monkeypatch.setattr(kddcup99, "_CHUNK", chunk)
    path = written(tmp_path, [*ROWS[:4], wrong, *ROWS[4:]])
    with pytest.raises(ValueError, match=message):
        read_kddcup99(path)


def test_files_that_are_none(tmp_path: Path) -> None:
    path = written(tmp_path, ROWS)
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(ValueError, match="is damaged"):
        read_kddcup99(path)
    path.write_bytes(b"0,tcp")
    with pytest.raises(ValueError, match="is damaged"):
        read_kddcup99(path)
    path.write_bytes(gzip.compress(b""))
    with pytest.raises(ValueError, match="holds no examples"):
        read_kddcup99(path)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="is missing: put the file there"):
        read_kddcup99(path)


def many(rng: np.random.Generator, count: int) -> list[str]:
    labels = rng.choice(["smurf.", "normal.", "back."], count, p=[0.6, 0.3, 0.1])
    return [
        row(
            label,
            src_bytes=int(size),
            logged_in=int(size) % 2,
            duration=i,
            count=i % 5,
            dst_host_srv_count=i % 7,
            same_srv_rate=i % 3 / 2,
        )
        for i, (label, size) in enumerate(zip(labels, rng.pareto(1, count) * 1000, strict=True))
    ]


def test_the_data_module(tmp_path: Path) -> None:
    rows = many(np.random.default_rng(0), 400)
    written(tmp_path, rows)
    raw, labels, _ = read_kddcup99(written(tmp_path, rows))
    data = KDDCup99Data(root=str(tmp_path), standardise=False, log=False)
    data.setup()
    assert data.class_names == ("smurf", "normal", "back")
    assert data.num_classes == 3
    parts = {name: data.tensors(name) for name in ("train", "val", "test")}
    assert {name: len(y) for name, (_, y) in parts.items()} == {"train": 360, "val": 20, "test": 20}
    # ``duration`` holds the row's number: nothing is lost, doubled or mislabelled.
    seen = np.concatenate([x[:, 0].numpy() for x, _ in parts.values()]).astype(int)
    assert sorted(seen) == list(range(400))
    for x, y in parts.values():
        np.testing.assert_array_equal(y, labels[x[:, 0].long().numpy()])
        np.testing.assert_array_equal(x, raw[x[:, 0].long().numpy()])
    logs = KDDCup99Data(root=str(tmp_path), standardise=False)
    logs.setup()
    expected = parts["train"][0].numpy().astype(float)
    for name in COUNTS:
        expected[:, INPUTS.index(name)] = np.log(1 + expected[:, INPUTS.index(name)])
    np.testing.assert_allclose(logs.tensors("train")[0], expected, rtol=1e-5)
    whole = KDDCup99Data(root=str(tmp_path))
    whole.setup()
    scale = np.where(np.ptp(expected, axis=0) == 0, 1, expected.std(0))
    standard = (expected - expected.mean(0)) / scale
    np.testing.assert_allclose(whole.tensors("train")[0], standard, rtol=1e-4, atol=1e-5)


def test_the_most_populous_classes(tmp_path: Path) -> None:
    rows = many(np.random.default_rng(0), 400)
    written(tmp_path, rows)
    data = KDDCup99Data(root=str(tmp_path), classes=2)
    data.setup()
    assert (data.num_classes, data.class_names) == (2, ("smurf", "normal"))
    counts = sum(
        np.bincount(data.tensors(name)[1], minlength=2) for name in ("train", "val", "test")
    )
    assert counts.tolist() == [sum(name in r for r in rows) for name in ("smurf", "normal")]
    with pytest.raises(ValueError, match="has 3 classes, 4 are asked for"):
        KDDCup99Data(root=str(tmp_path), classes=4).setup()
    with pytest.raises(ValueError, match="classes must be at least 2, got 1"):
        KDDCup99Data(classes=1)
    with pytest.raises(ValueError, match="subset must be 10percent or full, got 'half'"):
        KDDCup99Data(subset="half")  # type: ignore[arg-type]


def test_either_packing_of_the_file_will_do_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, ROWS)
    sums = [f"sha256:{hashlib.sha256(content).hexdigest()}" for content in (b"", path.read_bytes())]
    origin = tmp_path / "origin.gz"
    origin.write_bytes(b"")
    entry = (path.name, origin.as_uri(), tuple(sums))
    monkeypatch.setitem(kddcup99.SETS, "10percent", entry)
    data = KDDCup99Data(root=str(tmp_path))
    data.prepare_data()  # the other packing
    path.unlink()
    data.prepare_data()  # fetched: the published one
    assert path.read_bytes() == b""
    path.write_bytes(b"something else")
    with pytest.raises(ValueError, match="is not the file expected"):
        data.prepare_data()


def test_a_user_s_file() -> None:
    root = os.environ.get("SGMCMC_DATA_ROOT")
    if root is None or not Path(root, "kddcup99", "kddcup.data_10_percent.gz").is_file():
        pytest.skip("needs $SGMCMC_DATA_ROOT/kddcup99/kddcup.data_10_percent.gz")
    KDDCup99Data().prepare_data()
    x, y, names = read_kddcup99(Path(root, "kddcup99", "kddcup.data_10_percent.gz"))
    assert x.shape == (494_021, 40)
    assert (len(names), names[:3]) == (23, ("smurf", "neptune", "normal"))
    assert np.bincount(y)[[0, 1, 2, -1]].tolist() == [280_790, 107_201, 97_278, 2]
    assert np.bincount(x[:, INPUTS.index("flag")].astype(int))[0] == 378_440
