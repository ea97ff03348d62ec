"""Text files as programs write them: each is read as it is meant, or refused in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tasks.data.class_table import read_rows
from tasks.data.table import read_table, refuse_unresolved
from tasks.data.uci import UCIData

ROWS = [(1.5, -2.0, "ash"), (0.25, 3.0, "birch"), (-4.0, 0.5, "ash"), (8.0, 1.0, "birch")]


def lines(separator: str = ",", header: str = "a,b,kind", form: str = "{0},{1},{2}") -> str:
    body = [form.format(*row) for row in ROWS]
    return "\n".join([header, *body, ""]).replace(",", separator)


def numbered(header: str, form: str = '"{i}",{0},{1},"{2}"') -> str:
    body = [form.format(*row, i=i) for i, row in enumerate(ROWS, 1)]
    return "\n".join([header, *body, ""])


READ = {
    "commas": lines(),
    "spaces": lines(" "),
    "tabs": lines("\t"),
    "semicolons": lines(";"),
    "decimal commas": lines(";").replace(".", ","),
    "byte order mark": "\ufeff" + lines(),
    "Windows": lines().replace("\n", "\r\n"),
    "empty lines": lines().replace("\n", "\n\n"),
    "a separator ends each line": lines(form="{0},{1},{2},", header="a,b,kind,"),
    "pandas to_csv": numbered(",a,b,kind", "{i},{0},{1},{2}"),
    "R write.csv": numbered('"","a","b","kind"'),
    "R write.table": numbered('"a" "b" "kind"', '"{i}" {0} {1} "{2}"'),
    "quoted": numbered('"a","b","kind"', '"{0}","{1}","{2}"'),
}


@pytest.mark.parametrize("form", READ)
def test_forms_that_are_read(tmp_path: Path, form: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(READ[form].encode())
    x, y, names = read_rows(path, "kind")
    assert names == ("a", "b")
    assert np.array_equal(x, [row[:2] for row in ROWS])
    assert y.tolist() == [row[2] for row in ROWS]


REFUSED = {
    "empty": ("", "is empty"),
    "header alone": ("a,b,kind\n", "has 0 rows of data"),
    "UTF-16": (lines().encode("utf-16"), "is not a text file in UTF-8"),
    "ragged": (lines() + "1,2\n", "line 6 has 2 fields, not 3"),
    "missing": (lines().replace("0.25", "NA"), "line 3, column 'a': the value is missing"),
    "nothing": (lines().replace("0.25", ""), "line 3, column 'a': the value is missing"),
    "question mark": (lines().replace("0.25", "?"), "line 3, column 'a': the value is missing"),
    "infinite": (lines().replace("0.25", "inf"), "line 3, column 'a': inf is not finite"),
    "huge": (lines().replace("0.25", "1e308"), "line 3, column 'a': 1e308 is larger than 1e.15"),
    "word": (lines().replace("0.25", "tall"), "line 3, column 'a': 'tall' is not a number"),
    "repeated name": (lines(header="a,a,kind"), "has several columns named 'a'"),
    "header of numbers": (lines(header="0,1,kind"), "line 1 reads like a header with numbers"),
    "quoted line break": (lines(header='a,"b\nc",kind'), "line 1: unexpected end of data; a field"),
    "long field": (lines() + "1,2," + "x" * 140_000 + "\n", "line 6: field larger than"),
    "thousands": (lines(";").replace("0.25", "1,000.5"), "line 3, column 'a': '1,000.5' is not"),
}


@pytest.mark.parametrize("form", REFUSED)
def test_forms_that_are_refused(tmp_path: Path, form: str) -> None:
    content, message = REFUSED[form]
    path = tmp_path / "t.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=rf"t\.csv,? {message}"):
        read_rows(path, "kind")


def test_rows_without_a_header_keep_their_first_line(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(lines().partition("\n")[2])
    assert len(read_table(path).rows) == 4


def test_a_cut_archive(tmp_path: Path) -> None:
    np.savez(tmp_path / "whole.npz", x=np.zeros((9, 2)), y=np.arange(9))
    whole = (tmp_path / "whole.npz").read_bytes()
    (tmp_path / "t.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"t\.npz is not a NumPy file of numbers"):
        read_rows(tmp_path / "t.npz", None)


def test_a_column_that_single_precision_does_not_resolve(tmp_path: Path) -> None:
    """Unix seconds: float32 keeps them to 64 s."""
    rng = np.random.default_rng(0)
    seconds = 1.7e9 + 600 * rng.random(60)
    rows = [f"{s:.3f},{v:.4f}" for s, v in zip(seconds, rng.normal(size=60), strict=True)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["time,y", *rows]))
    data = UCIData(file=str(path))
    with pytest.raises(ValueError, match=r"'time': single precision rounds its values by 6\d"):
        data.setup()
    refuse_unresolved(path, ["time"], (seconds - seconds.mean())[:, None])
    refuse_unresolved(path, ["constant"], np.full((5, 1), 1.7e9 + 1))
