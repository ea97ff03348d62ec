"""The gallery's page runs as it stands, and shows the figures that it makes."""

import re
import runpy
from pathlib import Path

import numpy as np
import pytest

from pde import KarhunenLoeve, RandomPermeability

pytest.importorskip("matplotlib", reason="matplotlib draws the figures")

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The folder where the page was run, and the names that it leaves."""
    folder = tmp_path_factory.mktemp("gallery")
    return folder, runpy.run_path(str(ROOT / "scripts/figures/gallery.py"))["run"](folder)


def test_the_page_makes_the_figures_that_it_shows(page):
    folder, _ = page
    shown = re.findall(r"!\[.+?\]\(figures/(.+?)\)", (DOCS / "gallery.md").read_text())
    assert len(shown) == len(set(shown)) > 5
    assert {path.name for path in folder.glob("*.png")} == set(shown)
    assert {path.name for path in (DOCS / "figures").glob("gallery-*")} == set(shown)
    for name in shown:
        assert (DOCS / "figures" / name).stat().st_size < 200_000, name


def test_what_the_page_says_is_so(page):
    folder, names = page
    grid = names["grid"]
    for pair in names["lengths"]:
        expansion = KarhunenLoeve(grid, 2.0, pair, 256)
        field = RandomPermeability(expansion, "lognormal", mean=0.0).sample(0)
        assert 100 < field.max() / field.min() < 10_000
    speed = np.linalg.norm(names["through"].cell_velocity(), axis=-1)
    assert speed.max() / speed.min() > 1e7
    truth, wrong = names["velocities"][0], names["inputs"][0] @ names["weights"]
    relative = np.linalg.norm(wrong - truth) / np.linalg.norm(truth)
    assert f"by {100 * relative:.1f} % (relative L2)" in (DOCS / "gallery.md").read_text()
    error, deviation = (
        np.linalg.norm(grid.cell_velocity(edges), axis=-1)
        for edges in (wrong - truth, names["deviation"])
    )
    assert error.max() > 10 * error.min()
    assert deviation.max() < 2 * deviation.min()
    assert b'Name="log_kappa"' in (folder / "flow.vti").read_bytes()
