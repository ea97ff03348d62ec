"""A command that is refused before its first step leaves nothing behind."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def no_trace_of(folder: Path, started: Callable[[], bool]) -> Iterator[None]:
    """Make a run's folder, and take away what this command put there if it is refused.

    What was in the folder before stays, and so do folders above it that others use.

    Args:
        folder: The run's.
        started: Says whether the run has taken a step; then all stays.
    """
    before = set(folder.iterdir()) if folder.is_dir() else set()
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except SystemExit as stop:
        if stop.code == 2 and not started():
            _remove(folder, before, made)
        raise


def _remove(folder: Path, before: set[Path], made: list[Path]) -> None:
    if not folder.is_dir():
        return
    for path in set(folder.iterdir()) - before:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    for path in made:
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
