"""Forms of delimited text: each is read right, or refused in one line that names the place."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.data import delimited, table_text
from tasks.data.table import Table, read_table

X = np.array([[1.5, -20.0], [0.25, 3e-4], [7.0, 1e6]])
FRAME = pd.DataFrame(X, columns=["a", "b"]).assign(y=[0.5, 2.0, 4.5])


def text_of(frame: pd.DataFrame, **kwargs: Any) -> str:
    """Return what pandas writes."""
    buffer = io.StringIO()
    frame.to_csv(buffer, lineterminator="\n", **kwargs)
    return buffer.getvalue()


PLAIN = text_of(FRAME, index=False)
#: Forms of one table, all of which say the same.
SAME: dict[str, str | bytes] = {
    "plain": PLAIN,
    "no end of the last line": PLAIN.rstrip(),
    "Windows": PLAIN.replace("\n", "\r\n"),
    "old Macintosh": PLAIN.replace("\n", "\r"),
    "byte order mark": b"\xef\xbb\xbf" + PLAIN.encode(),
    "UTF-16, as Excel's Unicode text": PLAIN.replace(",", "\t").encode("utf-16"),
    "UTF-16, the other order": b"\xfe\xff" + PLAIN.encode("utf-16-be"),
    "pandas with its index": text_of(FRAME),
    "pandas with a shuffled index": text_of(FRAME.set_axis([17, 3, 17])),
    "an index that was read back": text_of(FRAME).replace(",a", "Unnamed: 0,a"),
    "pandas with tabs": text_of(FRAME, sep="\t"),
    "pandas, all quoted": text_of(FRAME, index=False, quoting=1),
    "R's write.csv": '"","a","b","y"\n"1",1.5,-20,0.5\n"2",0.25,3e-04,2\n"3",7,1e+06,4.5\n',
    "R's write.table": '"a" "b" "y"\n"1" 1.5 -20 0.5\n"2" 0.25 3e-04 2\n"3" 7 1e+06 4.5\n',
    "R's write.csv2": '"";"a";"b";"y"\n"1";1,5;-20;0,5\n"2";0,25;3e-04;2\n"3";7;1e+06;4,5\n',
    "Excel's decimal commas": "a;b;y\r\n1,5;-20;0,5\r\n0,25;0,0003;2\r\n7;1000000;4,5\r\n",
    "decimal commas between tabs": "a\tb\ty\n1,5\t-20\t0,5\n0,25\t3e-4\t2\n7\t1e6\t4,5\n",
    "trailing empty lines": PLAIN + "\n\n",
    "trailing empty rows": PLAIN + ",,\n,,\n",
    "empty lines between": PLAIN.replace("\n", "\n\n"),
    "leading empty lines": "\n\n" + PLAIN,
    "trailing empty columns": PLAIN.replace("\n", ",,\n"),
    "trailing empty columns in some rows": PLAIN.replace("\n", ",,\n", 2),
    "trailing separators in rows alone": PLAIN.replace("\n", ",\n").replace("y,", "y"),
    "spaces": PLAIN.replace(",", "   "),
    "spaces before and after": "  " + PLAIN.replace(",", "  ").replace("\n", "  \n  "),
    "spaces after commas": PLAIN.replace(",", ", "),
    "spaces around numbers": PLAIN.replace(",", " , "),
    "numbers with signs": PLAIN.replace("1.5", "+1.5").replace("0.25", ".25").replace("7.0", "7."),
}
#: Forms of one table with other names.
NAMED: dict[str, tuple[str, tuple[str, ...]]] = {
    "pandas without names": (text_of(pd.DataFrame(FRAME.to_numpy())), ("0", "1", "2")),
    "no header": (PLAIN.split("\n", 1)[1], ("0", "1", "2")),
    "a first name with new lines": (
        PLAIN.replace("a,", '"a;\n(m\n)",', 1),
        ("a; (m )", "b", "y"),
    ),
    "a name with a new line": (PLAIN.replace("b,", '"b\n(m)",', 1), ("a", "b (m)", "y")),
    "a name with a comma": (PLAIN.replace("b,", '"b, m",', 1), ("a", "b, m", "y")),
    "a name with quotes": (PLAIN.replace("b,", '"b ""x""",', 1), ("a", 'b "x"', "y")),
    "names that are words of others": (PLAIN.replace("a,b", "größe,名", 1), ("größe", "名", "y")),
    "a semicolon in a quoted name": (PLAIN.replace("b,", '"b; c",', 1), ("a", "b; c", "y")),
}
ROW = "1.5,-20.0,0.5\n"
#: What will not do, and what the error says of it.
REFUSED: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "is empty"),
    "empty lines": ("\n \n", "is empty"),
    "a header alone": ("a,b,y\n", "has 0 rows of data: at least 1 are needed"),
    "one column": ("a\n1\n2\n", "has one column: a target and a feature are needed"),
    "another separator": ("a|b\n1|2\n", "has one column"),
    "a workbook": (b"PK\x03\x04", "an Excel workbook: save it as CSV"),
    "gzip": (b"\x1f\x8b\x08", "is compressed: unpack it"),
    "zero bytes": (b"\0" * 100, "is not a text file in UTF-8"),
    "UTF-16 without a mark": (PLAIN.encode("utf-16-le"), "is not a text file in UTF-8"),
    "Latin 1": ("a,grö,y\n1,2,3\n".encode("latin-1"), ", line 1 is not a text file in UTF-8"),
    "Latin 1 below": ((PLAIN + "é,1,2\n").encode("latin-1"), ", line 5 is not a text file in UTF"),
    "half of UTF-16": (PLAIN.encode("utf-16")[:-1], "is not a text file in UTF-8"),
    "a missing value": ("a,y\n1,2\n,4\n", "line 3, column 'a': the value is missing; fill it"),
    "NA": ("a,y\n1,2\nNA,4\n", "line 3, column 'a': the value is missing"),
    "NaN": ("a,y\n1,2\n3,NaN\n", "line 3, column 'y': the value is missing"),
    "null in the first row": ("a,y\nnull,2\n3,4\n", "line 2, column 'a': the value is missing"),
    "a question mark": ("1,2\n?,4\n", "line 2, column '0': the value is missing"),
    "a space": ("a,b,y\n1, ,2\n", "line 2, column 'b': the value is missing"),
    "infinity": ("a,y\n1,2\n-inf,2\n", "line 3, column 'a': -inf is not finite"),
    "too large a number": ("a,y\n1,2\n1e999,2\n", "line 3, column 'a': 1e999 is not finite"),
    "a word among numbers": (
        "a,y\n1,2\n\nred,4\n",
        "line 4, column 'a': 'red' is not a number, but",
    ),
    "a number among words": ("a,y\nred,2\n3,4\n", "'3' is a number, but line 2 has the word 'red'"),
    "a target of words": ("a,y\n1,no\n3,yes\n", "line 2, column 'y': 'no' is not a number; choose"),
    "thousands in quotes": (
        'a,y\n"1,234",2\n"5,678",2\n',
        "line 2, column 'a': '1,234' is not a nu",
    ),
    "thousands with points": ("a;y\n1.234,5;2\n", "line 2, column 'a': '1.234,5' is not a number"),
    "thousands with spaces": ("a,y\n1 234,2\n", "line 2, column 'a': '1 234' is not a number"),
    "thousands with apostrophes": (
        "a,y\n1'234,2\n",
        "line 2, column 'a': \"1'234\" is not a number",
    ),
    "thousands below": ("a,y\n1,2\n1_000,2\n", "line 3, column 'a': '1_000' is not a number"),
    "a comma of either meaning": ("a;y\n1,234;2\n5,678;3\n", "'1,234' in line 2 may be a decimal"),
    "two decimal signs": ("a;y\n1,25;2.5\n", "has '2.5' in line 2 and '1,25' in line 2: write"),
    "money": ("a,y\n$12,2\n", "line 2, column 'a': '$12' is not a number"),
    "percent": ("a,y\n12%,2\n", "line 2, column 'a': '12%' is not a number"),
    "digits of another script": (
        "a,y\n1,2\n\u0661,2\n",
        "line 3, column 'a': '\u0661' is not a number",
    ),
    "a short row": (PLAIN + "1,2\n", "line 5 has 2 fields, not 3: check its separators"),
    "a long row": (PLAIN + "1,2,3,4\n", "line 5 has 4 fields, not 3"),
    "a file cut short": (PLAIN[:-8], "line 4 has 2 fields, not 3"),
    "an open quote": (PLAIN + '"1,2,3\n4,5,6\n', "line 5: the file ends within quotes"),
    "an open quote of a row's name": (
        text_of(FRAME) + '"3,1,2,3\n',
        "line 5: the file ends within",
    ),
    "text after a quote": (
        PLAIN + '"1"2,2,3\n',
        "line 5: ',' expected after '\"'; close every quote",
    ),
    "a long field": (PLAIN + "1" * 200_000 + ",2,3\n", "line 5: a field has more than 131,072"),
    "names that repeat": ("a,a\n1,2\n", "line 1: several columns named 'a'"),
    "no name within": ("a,,y\n1,2,3\n", "line 1: column 2 has no name"),
    "a comment": (
        "# made today\n" + PLAIN,
        "its first line, '# made today', is no row of a table; leave it out",
    ),
    "Excel's first line": (
        "sep=;\n" + PLAIN.replace(",", ";"),
        "its first line, 'sep=;', is no row",
    ),
    "numbers from 0 as names": (
        "0,1,2\n" + ROW * 3,
        "line 1: 0, 1, 2 reads like a header of numbers",
    ),
    "numbers from 1 as names, under an empty field": (
        ",1,2,3\n" + "7," + ROW + "9," + ROW,
        "reads like a header of numbers",
    ),
    "years as names": (
        "2019,2020,2021\n" + "3,4,5\n" * 3,
        "reads like a header of numbers: name the",
    ),
    "wavelengths as names": ("400,410,500\n" + ROW * 12, "if it is a row of data, mend it"),
    "numbers and a word as names": (
        "0,1,kind\n" + "1.5,-2,ash\n2.5,3,birch\n" * 2,
        "line 1: 0, 1, kind reads like a header",
    ),
    "a word in the first row of numbers": ("1,x,2\n3,4,5\n", "line 1: 1, x, 2 reads like a header"),
    "some numbers as names": (
        PLAIN.replace("b,", "2019,", 1),
        "line 1: a, 2019, y reads like a header",
    ),
    "Excel's error": ("a,y\n1,2\n#N/A,3\n", "line 3, column 'a': the value is missing"),
    "a dash": ("1,2\n-,3\n", "line 2, column '0': '-' is not a number"),
    "a dash in the first row": ("1,-\n2,3\n", "line 1: 1, - reads like a header of numbers"),
    "too many words": (
        "a,y\n" + "".join(f"name{i},{i}\n" for i in range(60)),
        "column 'a' holds more than 50 words, such as 'name0': leave it",
    ),
}


def written(folder: Path, content: str | bytes) -> Path:
    path = folder / "my.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def check_same(table: Table) -> None:
    assert table.x.tolist() == X.tolist()
    assert table.y.tolist() == FRAME.y.tolist()


@pytest.mark.parametrize("form", SAME)
@pytest.mark.parametrize("chunk", [10_000, 2])
def test_forms_that_say_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, chunk: int
) -> None:
    """A small chunk lets pandas read what follows it."""
    set_chunk(monkeypatch, chunk)
    table = read_table(written(tmp_path, SAME[form]))
    check_same(table)
    assert (table.features, table.target) == (("a", "b"), "y")


@pytest.mark.parametrize(
    "form",
    [
        "plain",
        "Windows",
        "pandas with its index",
        "pandas with tabs",
        "R's write.csv",
        "spaces",
        "R's write.csv2",
        "Excel's decimal commas",
        "UTF-16, as Excel's Unicode text",
    ],
)
def test_common_forms_are_read_quickly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """pandas reads all but the first chunk: no line is read a second time."""
    set_chunk(monkeypatch, 2)
    found = []

    def spy(*args: Any) -> bool:
        found.append(quickly(*args))
        return found[-1]

    quickly = table_text._read_quickly
    monkeypatch.setattr(table_text, "_read_quickly", spy)
    check_same(read_table(written(tmp_path, SAME[form])))
    assert found == [True]


@pytest.mark.parametrize("form", NAMED)
def test_names(tmp_path: Path, form: str) -> None:
    content, names = NAMED[form]
    table = read_table(written(tmp_path, content))
    check_same(table)
    assert (*table.features, table.target) == names


@pytest.mark.parametrize("form", REFUSED)
@pytest.mark.parametrize("chunk", [10_000, 2])
def test_forms_that_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, chunk: int
) -> None:
    if "names" in form:
        chunk = 10_000  # judged by the rows that follow
    set_chunk(monkeypatch, chunk)
    content, message = REFUSED[form]
    path = written(tmp_path, content)
    with pytest.raises(ValueError, match=r"my\.csv") as error:
        read_table(path)
    assert message in str(error.value)
    assert len(str(error.value)) < 400
    assert "\n" not in str(error.value)


def set_chunk(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    for module in ("delimited", "table_text"):
        monkeypatch.setattr(f"tasks.data.{module}.CHUNK", rows)


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    for path, message in ((tmp_path / "no.csv", "is missing"), (tmp_path, "is a folder")):
        with pytest.raises(FileNotFoundError, match=message):
            read_table(path)


@given(
    st.lists(
        st.tuples(*[st.floats(allow_nan=False, allow_infinity=False)] * 3), min_size=1, max_size=30
    )
)
@settings(max_examples=50, deadline=None)
def test_numbers_are_read_to_the_bit(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[float, ...]]
) -> None:
    content = "a,b,y\n" + "".join(",".join(map(repr, row)) + "\n" for row in rows)
    path = written(tmp_path_factory.mktemp("rows"), content)
    with pytest.MonkeyPatch.context() as patch:
        for chunk in (10_000, 2):
            set_chunk(patch, chunk)
            table = read_table(path)
            found = np.column_stack([table.x, table.y])
            assert found.tobytes() == np.array(rows).tobytes()


def test_pandas_reads_what_follows_the_first_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = 3 * delimited.CHUNK
    x = np.random.default_rng(0).normal(size=(rows, 2))
    frame = pd.DataFrame(x, columns=["a", "y"]).assign(
        kind=np.array(["u", "v", "w"])[:, None].repeat(delimited.CHUNK, 1).ravel()
    )
    path = tmp_path / "my.csv"
    frame.to_csv(path)

    def without_pandas(*args: Any, **kwargs: Any) -> bool:
        return False

    found = [read_table(path, "y")]
    monkeypatch.setattr("tasks.data.table_text._read_quickly", without_pandas)
    found.append(read_table(path, "y"))
    for table in found:
        assert table.features == ("a", "kind=u", "kind=v", "kind=w")
        assert table.x[:, 0].tobytes() == x[:, 0].tobytes()
        assert table.x[:, 1:].argmax(1).tolist() == np.arange(3).repeat(delimited.CHUNK).tolist()
        assert table.place(rows - 1, "a").endswith(f"line {rows + 1}, column 'a'")


def test_words_keep_their_codes_where_pandas_gives_up(tmp_path: Path) -> None:
    """At a comma in quotes, in a word that is new right after the first chunk."""
    words = ["u", "v", "w"] * ((delimited.CHUNK - 1) // 3) + ["x, y", "w", "u"]
    rows = (f'{i},"{word}",{i % 2}\n' for i, word in enumerate(words))
    table = read_table(written(tmp_path, "a,kind,y\n" + "".join(rows)), "y")
    names = ["u", "v", "w", "x, y"]
    assert table.features == ("a", *(f"kind={name}" for name in names))
    assert [names[j] for j in table.x[:, 1:].argmax(1)] == words


@pytest.mark.parametrize(
    ("last", "message"),
    [
        ("1,True", "line 10012, column 'y': 'True' is not a number"),
        ("1,", "column 'y': the value is missing"),
        ("1", "line 10012 has 1 fields, not 2"),
        ("1,2,3", "line 10012 has 3 fields, not 2"),
        ("1,inf", "line 10012, column 'y': inf is not finite"),
        ('1,"2', "line 10012: the file ends within quotes"),
    ],
)
def test_what_pandas_does_not_take_is_named(tmp_path: Path, last: str, message: str) -> None:
    path = written(tmp_path, "a,y\n" + "1.5,2.5\n" * 10_010 + last + "\n")
    with pytest.raises(ValueError, match=r"my\.csv") as error:
        read_table(path)
    assert message in str(error.value)


# Words.


def test_words_become_features_of_0_and_1(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    content = "size,color,y\n1,red,2\n2,dark  blue,3\n3,red,4\n4,Österreich,5\n"
    with caplog.at_level(logging.INFO):
        table = read_table(written(tmp_path, content))
    assert table.features == ("size", "color=dark blue", "color=red", "color=Österreich")
    assert table.x.tolist() == [[1, 0, 1, 0], [2, 1, 0, 0], [3, 0, 1, 0], [4, 0, 0, 1]]
    assert "Note: columns of words in" in caplog.text
    assert "color (3)" in caplog.text


def test_a_test_file_has_the_words_of_the_training_file(tmp_path: Path) -> None:
    first = read_table(written(tmp_path, "c,y\nred,1\nblue,2\ngreen,3\n"))
    second = read_table(written(tmp_path, "c,y\ngreen,1\nblue,2\n"), like=first)
    assert second.features == first.features
    assert second.x.tolist() == [[0, 1, 0], [1, 0, 0]]
    with pytest.raises(ValueError, match=r"'pink' is none of the words .*, blue, green, red; drop"):
        read_table(written(tmp_path, "c,y\ngreen,1\npink,2\n"), like=first)
    numbers = read_table(written(tmp_path, "c,y\n1,1\n2,2\n"))
    with pytest.raises(ValueError, match="'c' holds words, such as 'red', and numbers in the"):
        read_table(written(tmp_path, "c,y\nred,1\npink,2\n"), like=numbers)


def test_words_alone(tmp_path: Path) -> None:
    """A first row whose word stands below again is no header."""
    table = read_table(written(tmp_path, "red,yes\nblue,no\nred,no\nblue,yes\n"), labels=True)
    assert (table.features, table.y.tolist()) == (("0=blue", "0=red"), ["yes", "no", "no", "yes"])
    table = read_table(written(tmp_path, "color,kind\nblue,no\nred,no\n"), labels=True)
    assert (table.features, table.target) == (("color=blue", "color=red"), "kind")


def test_words_of_a_numpy_file(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, c=np.array(["u", "v", "u"]), n=np.array(["1", "2", "3"]), y=[0, 1, 0])
    table = read_table(path, "y")
    assert table.features == ("c=u", "c=v", "n")
    assert table.x.tolist() == [[1, 0, 1], [0, 1, 2], [1, 0, 3]]


@pytest.mark.parametrize("target", ["y", 2, -1, "2", None])
def test_targets_by_name_and_number(tmp_path: Path, target: str | int | None) -> None:
    check_same(read_table(written(tmp_path, PLAIN), target))


@pytest.mark.parametrize("target", ["z", 3, "-4", ""])
def test_unknown_targets_name_the_columns(tmp_path: Path, target: str | int) -> None:
    with pytest.raises(ValueError, match=f"no column '{target}': choose among a, b, y"):
        read_table(written(tmp_path, PLAIN), target)


@pytest.mark.parametrize("cell", ["\u00a02", "2\u2009", "\u30002"])
def test_spaces_of_any_kind_around_a_number(tmp_path: Path, cell: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"a,b,y\n1,{cell},3\n2,3,4\n", encoding="utf-8")
    assert read_table(path).x[0, 1] == 2


@pytest.mark.parametrize("cell", ["1\t2", "1\n2"])
def test_numbers_with_a_break_among_words_are_refused(tmp_path: Path, cell: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f'c,y\nred,1\n"{cell}",2\n')
    with pytest.raises(ValueError, match="line 3, column 'c'"):
        read_table(path)


def test_sodium_is_a_name(tmp_path: Path) -> None:
    """It reads like a missing value, beside names that stand over numbers."""
    path = tmp_path / "t.csv"
    path.write_text("RI,Na,Type\n1.5,13.2,1\n1.6,12.9,2\n")
    assert read_table(path).features == ("RI", "Na")


@pytest.mark.parametrize("price", ["$ 1,000", "€ 1000", "(1000)", "1000 ¥"])
def test_money_is_no_word(tmp_path: Path, price: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f'price,y\n"{price}",1\n"{price}",2\n', encoding="utf-8")
    with pytest.raises(ValueError, match="is not a number"):
        read_table(path)


@pytest.mark.parametrize("name", ["--1", "\u00b2"])
def test_a_target_that_is_no_number_of_a_column_is_unknown(tmp_path: Path, name: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,y\n1,2\n2,3\n")
    with pytest.raises(ValueError, match="has no column"):
        read_table(path, name)
