"""Files that are made once: one process makes each, others that want it wait and find it."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_TAKEN = (errno.EAGAIN, errno.EACCES)


def make_once(
    path: Path, make: Callable[[], None], check: Callable[[], None], announce: bool = True
) -> None:
    """Make a file unless it is there, or another process is making it.

    Args:
        path: The file.
        make: Makes it.
        check: Raises if the file that is there is another one than would be made.
        announce: Whether to say on stderr that it was there, or that it is waited for.
    """

    def finished() -> bool:
        if not path.exists():
            return False
        check()
        if announce:
            print(f"{path} is finished already, with these parameters", file=sys.stderr)
        return True

    if not finished():
        with one_at_a_time(path, announce):
            if not finished():
                make()


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
            _take(file, message)
        except BaseException:
            file.close()
            raise
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(lock.stat(), os.fstat(file.fileno())):
                return file
        file.close()  # who held it has removed it


def _take(file: IO[str], message: str) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _TAKEN:
            return  # a disk without locks
        if message:
            print(message, file=sys.stderr, flush=True)
        fcntl.flock(file, fcntl.LOCK_EX)
