"""A progress line on stderr."""

from __future__ import annotations

import sys
import time


class Progress:
    """Counts finished samples, and shows how many a second; silent when not enabled.

    Samples that an earlier run `finished` do not enter the speed.
    """

    def __init__(self, total: int, finished: int = 0, enabled: bool = True) -> None:
        self.total, self.done, self._first = total, finished, finished
        self._enabled = enabled
        self._start = self._shown = time.monotonic()

    def advance(self, samples: int) -> None:
        """Count samples; redraw the line on a terminal at most ten times a second."""
        self.done += samples
        now = time.monotonic()
        last = self.done >= self.total
        if self._enabled and (last or (sys.stderr.isatty() and now - self._shown > 0.1)):
            self._shown = now
            rate = (self.done - self._first) / max(now - self._start, 1e-9)
            left = (self.total - self.done) / max(rate, 1e-9)
            start = "\r" if sys.stderr.isatty() else ""
            line = f"{self.done}/{self.total} samples, {rate:,.0f} a second, {left:,.0f} s left"
            print(f"{start}{line:<60}", end="\n" if last else "", file=sys.stderr, flush=True)
