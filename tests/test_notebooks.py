"""The notebooks of docs run from top to bottom, shortened, and show pictures."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
#: What the first cell of a notebook sets, and what a test takes for it.
SHORT = {"posterior": "600", "own-network": "800", "surrogate": "20, 40"}


def pictures(notebook: nbformat.NotebookNode) -> int:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return sum("image/png" in output.get("data", {}) for output in outputs)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:zmq", "ignore::ResourceWarning")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = nbformat.read(path, as_version=4)
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    first.source, count = re.subn(
        r"^((?:samples, )?steps) = [\d, ]+", rf"\1 = {SHORT[path.stem]} ", first.source, flags=re.M
    )
    assert count == 1
    shown = pictures(notebook)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    NotebookClient(
        notebook, timeout=280, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    assert pictures(notebook) == shown >= 2


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_small(path: Path) -> None:
    """Its pictures, no streams of errors, no numbers of executions that change each time."""
    assert path.stat().st_size < 400_000
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            assert cell.execution_count is None
            assert all(output.get("name") != "stderr" for output in cell.outputs)


def test_files_in_notebooks_are_short() -> None:
    """What a reader writes in a file of one's own has under 40 lines."""
    for path in NOTEBOOKS:
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.source.startswith("%%writefile"):
                assert len(cell.source.splitlines()) - 1 < 40, path
