"""The processes of one run: where one ends or stands still, all end."""

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
from lightning.pytorch.utilities import rank_zero_info

from lightning_sgmcmc.run.beats import Beats, restarts_meet_old_addresses, under_torchrun
from lightning_sgmcmc.run.folder import started_by_first

#: Seconds between looks at the others, for which one may stand still, and in which all end that
#: meet the same error.
_EVERY, _STILL, _TOGETHER = 0.5, 15.0, 2.0
#: Seconds without a sign of life from another process, and after an error in talking with it.
_SILENT, _SILENT_AFTER_ERROR = 20.0, 5.0
_OLD_ADDRESSES = (
    "a run that torchrun starts again may not find its processes, because torchrun keeps the "
    "addresses of the lost ones: set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for torchrun"
)
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
    if one is killed or stopped, and so do they if that happens to the first. Processes that
    torchrun or a scheduler has started, maybe on other machines, hear each other's
    :class:`~lightning_sgmcmc.run.beats.Beats`: each ends itself with status 1 and its machine's
    first one says the line.

    Args:
        trainer: The run's trainer.
        advice: What to do then, in words.
    """

    def __init__(self, trainer: L.Trainer, advice: str) -> None:
        self._trainer, self._advice = trainer, advice
        self._parent = os.getppid() if started_by_first() else None
        self._agent = os.getppid() if under_torchrun() else None
        self._looks: dict[int, int] = {}
        self._ended, self._silent = False, _SILENT
        self._beats: Beats | None = None
        self._rounds = 0
        self._watching = threading.Thread(target=self._watch, daemon=True, name="ranks")

    def start(self) -> None:
        """Watch from now on."""
        trainer = self._trainer
        if trainer.world_size == 1:
            return
        environment = getattr(trainer.strategy, "cluster_environment", None)
        others = getattr(environment, "creates_processes_externally", False)
        if others and self._parent is None:
            if restarts_meet_old_addresses():
                rank_zero_info(f"Note: {_OLD_ADDRESSES}")
            self._beats = Beats(trainer.global_rank, trainer.world_size)
        self._watching.start()

    @property
    def is_child(self) -> bool:
        """Whether the first process has started this one."""
        return self._parent is not None

    def end(self, done: bool) -> None:
        """Watch no longer: the work is done, or an error ends this process."""
        self._ended = True
        if self._beats is not None:
            self._beats.end(done)

    def lost(self) -> str | None:
        """Return what became of another process, None where all run; wait a while to see it."""
        if self._beats is not None:
            self._silent = _SILENT_AFTER_ERROR
            # The watch ends this process where it finds one lost. It may take its time for that.
            enough = self._rounds + round(2 * _SILENT_AFTER_ERROR / _EVERY)
            while self._watching.is_alive() and self._rounds < enough:
                time.sleep(_EVERY)
            return None
        limit = time.monotonic() + 4.0
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
        if self._speaks(found):
            print(f"error: {found}: all have ended. {self._advice}", file=sys.stderr, flush=True)
        os._exit(1)

    def _speaks(self, found: str) -> bool:
        """Return whether this process, of several of a machine that see it, is to say it."""
        local = self._trainer.local_rank
        if self._beats is None:
            return local <= 1
        first = self._trainer.global_rank - local
        return local == 0 or (local == 1 and found.startswith(f"process {first} "))

    def _watch(self) -> None:
        while not self._ended:
            found = self._look()
            if found is not None and not self._ended:
                self.leave(found)
            self._rounds += 1
            time.sleep(_EVERY)

    def _children(self) -> list[Popen[bytes]]:
        return getattr(self._trainer.strategy.launcher, "procs", []) if not self._parent else []

    def _look(self) -> str | None:
        if self._beats is not None:
            if self._agent is not None and os.getppid() != self._agent:
                return "torchrun has ended on this machine"
            return self._beats.look(round(self._silent / _EVERY), round(_TOGETHER / _EVERY))
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
