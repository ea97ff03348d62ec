"""Processes that want the same file: one makes it, the others wait for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pde
from pde.datasets.locking import one_at_a_time

SPEC = "nx=6, ny=5, terms=4, num_samples=70"
MAKERS = {
    "permeability.safetensors": f"generate_permeabilities(pde.PermeabilityDataSpec({SPEC})",
    "source.safetensors": "generate(pde.SourceDataSpec(num_samples=10)",
}


def maker(path: Path) -> subprocess.Popen[str]:
    code = f"import pde; pde.{MAKERS[path.name]}, {str(path)!r})"
    return subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    return process.stderr.readline()


@pytest.mark.parametrize("name", MAKERS)
def test_the_second_waits_and_finds_the_file(tmp_path: Path, name: str) -> None:
    """This process is the first; what it leaves is not made again."""
    path, other = tmp_path / name, tmp_path / "other" / name
    with maker(other) as alone:
        alone.communicate()
    made = other.read_bytes()
    with one_at_a_time(path):
        second = maker(path)
        waiting = first_line(second)
        path.write_bytes(made)
    rest = second.communicate()[1]
    assert waiting == f"another process is making {path}: waiting for it\n"
    assert "finished already, with these parameters" in rest
    assert second.returncode == 0
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == [name]
    assert [p.name for p in other.parent.iterdir()] == [name]


@pytest.mark.parametrize("name", MAKERS)
def test_it_makes_the_file_if_the_first_did_not(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    try:
        with one_at_a_time(path):
            second = maker(path)
            waiting = first_line(second)
            raise RuntimeError("no room")
    except RuntimeError:
        second.communicate()
    assert waiting.startswith("another process")
    assert second.returncode == 0
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_a_system_that_keeps_open_files(tmp_path: Path, monkeypatch: Any) -> None:
    """As Windows does: the lock is free all the same."""

    def unlink(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(f"another process uses {self}")

    path = tmp_path / "file"
    with monkeypatch.context() as context:
        context.setattr(Path, "unlink", unlink)
        with one_at_a_time(path):
            path.write_text("made")
    with one_at_a_time(path):
        assert path.read_text() == "made"


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "permeability.safetensors"
    code = (
        "import sys, time, pathlib\nfrom pde.datasets.locking import one_at_a_time\n"
        f"with one_at_a_time(pathlib.Path({str(path)!r})):\n"
        "    print('held', file=sys.stderr, flush=True)\n    time.sleep(600)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    held = first_line(holder)
    holder.kill()
    holder.communicate()
    assert held == "held\n"
    spec = pde.PermeabilityDataSpec(nx=6, ny=5, terms=4, num_samples=70)
    pde.generate_permeabilities(spec, path, progress=False)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
