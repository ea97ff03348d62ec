"""Signals that ask a run to stop."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

#: Seconds that a step, with the checkpoint after it, has to end in; schedulers often give 30.
_GRACE = 20.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class RunStoppedError(Exception):
    """A signal has stopped a run.

    Args:
        number: The signal's.
        step: The last step, which a checkpoint holds; None where no step was under way.
    """

    def __init__(self, number: int, step: int | None = None) -> None:
        self.number, self.step = number, step
        after = "" if step is None else f" after step {step}, which is saved"
        super().__init__(f"stopped by {signal.Signals(number).name}{after}")

    @property
    def status(self) -> int:
        """What the process exits with: 128 and the signal's number."""
        return 128 + self.number


class StopSignal:
    """Listens for SIGTERM and SIGINT.

    Outside the steps of a run a signal raises :class:`RunStoppedError` at once. Between
    :meth:`wait_for_step` and :meth:`at_once` it is noted, and the step in hand ends first. A second
    signal does not wait, and a step that takes too long is cut off.
    """

    def __init__(self) -> None:
        #: The signal's number, from the moment that one came.
        self.asked: int | None = None
        self._waits = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignal:
        self.listen()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def listen(self) -> None:
        """Take the signals, also from whoever took them since."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            before = signal.signal(number, self._receive)
            if before != self._receive:
                self._before.setdefault(number, before)

    def release(self) -> None:
        """Give the signals back to who had them first."""
        self._waits = False
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before = {}

    def wait_for_step(self) -> None:
        """From now on, let the step in hand end first."""
        self.listen()
        self._waits = True

    def at_once(self) -> None:
        """From now on, stop at once."""
        self._waits = False

    def _receive(self, number: int, frame: FrameType | None) -> None:
        first, self.asked = self.asked is None, number
        if not (self._waits and first):
            raise RunStoppedError(number)
        watch = threading.Timer(_GRACE, _leave, [number, lambda: self._waits])
        watch.daemon = True
        watch.start()


def _leave(number: int, waits: Callable[[], bool]) -> None:
    if waits():
        name = signal.Signals(number).name
        print(
            f"stopped by {name} within a step that did not end in {_GRACE:.0f} s; the last "
            "checkpoint stands",
            file=sys.stderr,
            flush=True,
        )
        os._exit(128 + number)
