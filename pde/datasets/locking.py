"""Files that are made once: one process makes each, others that want it wait and find it."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_TAKEN = (errno.EAGAIN, errno.EACCES)


@contextlib.contextmanager
def one_at_a_time(path: Path, announce: bool = True) -> Iterator[None]:
    """Hold `<path>.lock` while a file is made, having waited for whoever holds it.

    The empty lock file goes with its holder; that of a process that was killed is free, and the
    next one removes it. Where there are no such locks (Windows, some network disks) nothing is
    held.

    Args:
        path: The file that is made.
        announce: Whether to say on stderr that it waits.
    """
    if fcntl is None:
        yield
        return
    lock = path.with_name(path.name + ".lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    with _held(lock, f"another process is making {path}: waiting for it" if announce else ""):
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def _held(lock: Path, message: str) -> IO[str]:
    """Return the open lock file, which is held and still has its name."""
    while True:
        file = lock.open("a")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _TAKEN:
                return file  # a disk without locks
            if message:
                print(message, file=sys.stderr, flush=True)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            except BaseException:
                file.close()
                raise
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(lock.stat(), os.fstat(file.fileno())):
                return file
        file.close()  # who held it has removed it
