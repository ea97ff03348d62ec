"""A line for whoever waits, where something between two steps takes long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer

from lightning.pytorch.utilities import rank_zero_info

#: Seconds after which a line is printed.
LONG = 10.0


@contextmanager
def said_if_long(line: str) -> Iterator[None]:
    """Print a line while the body runs, once, if it runs for longer than ten seconds.

    Args:
        line: What the first process prints.
    """
    timer = Timer(LONG, rank_zero_info, [line])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
