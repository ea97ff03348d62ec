"""A progress line on stderr."""

from __future__ import annotations

import sys
import time


class Progress:
    """Counts finished samples, and shows how many a second; silent when not enabled."""

    def __init__(self, total: int, enabled: bool = True) -> None:
        self.total, self.done, self._first = total, 0, 0
        self._enabled = enabled
        self._start = self._shown = time.monotonic()

    def resume(self, samples: int) -> None:
        """Count samples that an earlier run finished; they do not enter the speed."""
        self.done = self._first = samples

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
