"""Signals that ask a run to stop."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from types import FrameType
from typing import Any

from lightning_sgmcmc.callbacks.requeue import REQUEUES

#: Seconds that a step, with the checkpoint after it, has to end in; schedulers often give 30.
_GRACE = 20.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, REQUEUES)


class RunStoppedError(BaseException):
    """A signal has stopped a run.

    As ``KeyboardInterrupt``, it is no ``Exception``: parsers, loggers and others catch any of those
    and go on, or take it for a mistake in what they were given.

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
    """Listens for SIGTERM, SIGINT and SIGUSR1, which asks SLURM to start the job again too.

    Outside the steps of a run a signal raises :class:`RunStoppedError` at once. Between
    :meth:`wait_for_step` and :meth:`at_once` it is noted, and the step in hand ends first. A second
    SIGINT does not wait, and a step that takes too long is cut off. Other signals may come twice,
    from a scheduler and from what it has started: the first one counts.
    """

    def __init__(self) -> None:
        #: The signal's number, from the moment that one came.
        self.asked: int | None = None
        self._before: dict[int, Any] = {}
        self._ends: tuple[socket.socket, socket.socket] | None = None

    def __enter__(self) -> StopSignal:
        self._before = {number: signal.getsignal(number) for number in _SIGNALS}
        self._listen()
        return self

    def __exit__(self, *error: object) -> None:
        self.at_once()
        if _in_main_thread():
            for number, before in self._before.items():
                signal.signal(number, before)

    def _listen(self) -> None:
        if _in_main_thread():
            for number in _SIGNALS:
                signal.signal(number, self._receive)

    def wait_for_step(self) -> None:
        """From now on, let the step in hand end first, also where another has taken the signals."""
        self._listen()
        if self._ends is None and _in_main_thread():
            self._ends = told, heard = socket.socketpair()
            told.setblocking(False)
            self._wakeup = signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
            threading.Thread(target=self._watch, args=[heard], daemon=True, name="signals").start()

    def at_once(self) -> None:
        """From now on, stop at once."""
        if self._ends is not None:
            now = signal.set_wakeup_fd(-1)
            with contextlib.suppress(OSError):  # whoever had it before may be gone
                signal.set_wakeup_fd(self._wakeup if now == self._ends[0].fileno() else now)
            self._ends[0].close()  # ends the thread
            self._ends = None

    def _receive(self, number: int, frame: FrameType | None) -> None:
        first, self.asked = self.asked is None, self.asked or number
        if self._ends is None or (not first and number == signal.SIGINT):
            raise RunStoppedError(number)

    def _watch(self, heard: socket.socket) -> None:
        """End the process where a signal waits too long, also if no bytecode runs meanwhile."""
        with heard:
            while (byte := heard.recv(1)) and byte[0] not in _SIGNALS:
                pass
            heard.settimeout(_GRACE)
            try:
                while byte:
                    byte = heard.recv(1)
            except TimeoutError:
                print(
                    f"a step did not end within {_GRACE:.0f} s of the signal to stop: the last "
                    "checkpoint stands",
                    file=sys.stderr,
                    flush=True,
                )
                os._exit(1)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
