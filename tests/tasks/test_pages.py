"""The pages print their records, and every experiment can be shown from what is kept."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tasks.experiments import reproduce
from tasks.experiments.pages import filled, pages, recorded

ROOT = Path(__file__).resolve().parents[2]
PAGES = pages(ROOT)
KEPT = {path.name for path in (ROOT / "docs" / "measured").iterdir()}
MARKERS = {
    (name, int(number))
    for page in PAGES
    for name, number in re.findall(r"<!-- table (\w+) (\d+) -->", page.read_text())
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_print_the_recorded_results(page: Path) -> None:
    """``python scripts/write_tables.py`` has nothing to change."""
    text = page.read_text()
    assert filled(text, ROOT) == text
    assert text.count("<!-- table ") == text.count("<!-- end -->")


@pytest.mark.parametrize("name", sorted(KEPT))
def test_every_recorded_table_with_a_number_stands_on_a_page(name: str) -> None:
    for number, table in enumerate(recorded(ROOT, name), 1):
        ours = [line for line in table.splitlines()[2:] if "*paper*" not in line]
        if re.search(r"\| *[-0-9(][^|]*[0-9]", "\n".join(ours)):
            assert (name, number) in MARKERS


def test_another_number_on_a_page_is_found() -> None:
    page = (ROOT / "docs" / "nld.md").read_text()
    other = page.replace("| 0.0014 | 100.00 | 0.0722 |", "| 0.0015 | 100.00 | 0.0722 |")
    assert other != page
    assert filled(other, ROOT) == page


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("<!-- table nothing 1 -->", "no experiment 'nothing'"),
        ("<!-- table nld 4 -->", "tables 1 to 3, not 4"),
    ],
)
def test_markers_without_a_table_are_refused(marker: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        filled(f"{marker}\n\n<!-- end -->\n", ROOT)


@pytest.mark.parametrize("name", reproduce.TABLES)
def test_every_experiment_is_shown_from_what_is_kept(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    show = [name, "--show", "--measured", f"--out={tmp_path}"]
    if reproduce.load(name).choices is not None:
        reproduce.main(ROOT, [*show, "--choose"])
    tried = capsys.readouterr().out
    reproduce.main(ROOT, show)
    shown = capsys.readouterr()
    assert ("nothing is recorded" in shown.err) == (name not in KEPT)
    assert len(shown.err.splitlines()) <= 2
    for table in recorded(ROOT, name):
        assert table in shown.out + tried
    drawn = [Path(line) for line in shown.out.splitlines() if line.endswith(".png")]
    assert all(path.stat().st_size > 0 for path in drawn)


def test_figures_that_need_missing_arrays_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reproduce.main(ROOT, ["kdd99_posterior", "--show", "--measured", f"--out={tmp_path}"])
    shown = capsys.readouterr()
    assert "kdd99-posterior-marginals is not drawn" in shown.err
    assert "moments.npz" in shown.err
    assert "kdd99-posterior-errors.png" in shown.out
