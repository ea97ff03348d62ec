"""The processes of one run on one machine: where one ends or stands still, all end."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from subprocess import Popen

import lightning as L
from lightning.pytorch.accelerators import CPUAccelerator

from lightning_sgmcmc.run.folder import started_by_first

#: Seconds between looks at the others, for which one may stand still, and in which all end that
#: meet the same error.
_EVERY, _STILL, _TOGETHER = 0.5, 15.0, 2.0
#: Processes a core, above which a machine has more to switch than to compute.
_A_CORE = 4


def check_number(trainer: L.Trainer) -> None:
    """Refuse more processes than the machine bears.

    Raises:
        ValueError: If there are more than four a core.
    """
    cores = os.cpu_count() or 1
    if isinstance(trainer.accelerator, CPUAccelerator) and trainer.num_devices > _A_CORE * cores:
        raise ValueError(
            f"--trainer.devices={trainer.num_devices} asks for as many processes, and this machine "
            f"has {cores} cores: take at most {_A_CORE * cores}; more chains in one process are "
            "--model.num_chains"
        )


class Ranks:
    """Watches the other processes of a run from each of them.

    Where the first process has started the others, it ends all of them with status 1 and one line
    if one is killed or stopped, and so do they if that happens to the first. What torchrun or a
    scheduler has started is theirs to watch.

    Args:
        trainer: The run's trainer.
        advice: What to do then, in words.
    """

    def __init__(self, trainer: L.Trainer, advice: str) -> None:
        self._trainer, self._advice = trainer, advice
        self._parent = os.getppid() if started_by_first() else None
        self._looks: dict[int, int] = {}
        self._ended = False
        if trainer.world_size > 1 and (self._parent is not None or trainer.is_global_zero):
            threading.Thread(target=self._watch, daemon=True, name="ranks").start()

    @property
    def is_child(self) -> bool:
        """Whether the first process has started this one."""
        return self._parent is not None

    def end(self) -> None:
        """Watch no longer: the work is done."""
        self._ended = True

    def lost(self, seconds: float = 4.0) -> str | None:
        """Return what became of another process, None where all run; wait a while to see it."""
        limit = time.monotonic() + seconds
        while (found := self._look()) is None and time.monotonic() < limit:
            time.sleep(_EVERY / 5)
        return found

    def leave(self, found: str) -> None:
        """End all processes at once, with one line."""
        for process in self._children():
            if process.poll() is None:
                process.kill()
        if self._parent is not None and os.getppid() == self._parent:
            os.kill(self._parent, getattr(signal, "SIGKILL", signal.SIGTERM))  # it stands still
        if os.environ.get("LOCAL_RANK", "0") in ("0", "1"):  # of several that see it, one says it
            print(f"error: {found}: all have ended. {self._advice}", file=sys.stderr, flush=True)
        os._exit(1)

    def _watch(self) -> None:
        while not self._ended:
            found = self._look()
            if found is not None and not self._ended:
                self.leave(found)
            time.sleep(_EVERY)

    def _children(self) -> list[Popen[bytes]]:
        return getattr(self._trainer.strategy.launcher, "procs", []) if not self._parent else []

    def _look(self) -> str | None:
        if self._parent is not None:
            if os.getppid() != self._parent:
                return "process 0 has ended"
            return self._of_still(0) if self._stands_still(self._parent) else None
        for rank, process in enumerate(self._children(), 1):
            status = process.poll()
            if status is None and self._stands_still(process.pid):
                return self._of_still(rank)
            if status is not None and status < 0:
                return f"process {rank} was ended by {signal.Signals(-status).name}"
            if status and self._lasts(process.pid, _TOGETHER):
                return f"process {rank} ended with status {status}"
        return None

    def _of_still(self, rank: int) -> str:
        return f"process {rank} stood still for {_STILL:.0f} s"

    def _stands_still(self, pid: int) -> bool:
        """Return whether a process has been stopped for too long; False where that is not told."""
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        if state not in "tT":
            self._looks.pop(pid, None)
            return False
        return self._lasts(pid, _STILL)

    def _lasts(self, pid: int, seconds: float) -> bool:
        """Return whether what is wrong with a process was there at so many looks.

        Looks count, not the clock, which goes on while a terminal has stopped all of them.
        """
        self._looks[pid] = self._looks.get(pid, 0) + 1
        return self._looks[pid] * _EVERY > seconds
