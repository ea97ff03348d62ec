"""Files that are made once: one process makes each, others that want it wait and find it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout


@contextlib.contextmanager
def one_at_a_time(path: Path, announce: bool = True) -> Iterator[None]:
    """Hold `<path>.lock` while a file is made, having waited for whoever holds it.

    The empty lock file goes with its holder; that of a process that was killed is free, and the
    next one removes it.

    Args:
        path: The file that is made.
        announce: Whether to say on stderr that it waits.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path.with_name(path.name + ".lock"))
    try:
        lock.acquire(blocking=False)
    except Timeout:
        if announce:
            message = f"another process is making {path}: waiting for it"
            print(message, file=sys.stderr, flush=True)
        lock.acquire()
    try:
        yield
    finally:
        # Whoever waits for a file without a name makes a new one. Windows keeps an open file.
        with contextlib.suppress(PermissionError):
            Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()
