"""Signs of life between the processes of a run that torchrun or a scheduler has started."""

from __future__ import annotations

import contextlib
import os
import threading
import time

import torch.distributed

#: Seconds between signs of life.
EVERY = 0.5
#: What a process adds to its count when it ends: its work is done, or an error has ended it.
_DONE, _FAILED = 1 << 40, 1 << 41


class Beats:
    """Counts of what each process has said, in the store by which the processes found each other.

    Every process raises a count of its own. The first one reads those of all others, they read the
    first one's, and learn from it which other one is lost, so that the traffic grows as their
    number. Only one operation of the store is used, ``add``, which waits for nobody. It has a
    thread and a connection of its own: where the store hangs, the counts stand still, which is what
    a process that is gone looks like.

    Args:
        rank: The number of this process.
        count: How many there are.
    """

    def __init__(self, rank: int, count: int) -> None:
        self._rank = rank
        self._heard = range(1, count) if rank == 0 else range(1)
        self._counts: dict[int, int] = {}  # as the store has them, this process's own too
        self._still: dict[int, int] = {}  # looks since a count last rose
        self._seen: dict[int, int] = {}
        self._left = 0
        self._lost = 0
        self._thread = threading.Thread(target=self._talk, daemon=True, name="beats")
        self._thread.start()

    def look(self, still: int, together: int) -> str | None:
        """Return what became of a process that is lost, None where all run.

        Looks count, not the clock, so that a machine that sleeps finds nobody lost.

        Args:
            still: Looks for which a count may stand still.
            together: Looks in which all end that meet the same error.
        """
        if self._lost:
            return f"process {self._lost - 1} is lost, as process 0 has found"
        if self._rank and _DONE <= self._counts.get(0, 0) < _FAILED:
            return None  # the store goes with the first process
        silent = f"was not heard of for {still * EVERY:.0f} s"
        for rank in (self._rank, *self._heard):
            count = self._counts.get(rank, 0)
            waited = self._still.get(rank, 0) + 1 if count == self._seen.get(rank) else 0
            self._seen[rank], self._still[rank] = count, waited
            if not self._counts or _DONE <= count < _FAILED:
                continue  # nobody is connected yet; its work is done
            if count >= _FAILED and waited > together:
                return self._tell(rank, f"process {rank} has ended with an error")
            if waited > still and rank == self._rank:
                return f"process 0, or torchrun where the processes found each other, {silent}"
            if waited > still:
                return self._tell(rank, f"process {rank} {silent}")
        return None

    def end(self, done: bool) -> None:
        """Say that this process ends, by itself or by an error; wait a moment until it is said."""
        self._left = _DONE if done else _FAILED
        self._thread.join(4 * EVERY)

    def _tell(self, rank: int, what: str) -> str:
        if self._rank == 0:
            self._lost = rank + 1
            time.sleep(4 * EVERY)  # until the others have heard it
        return what

    def _talk(self) -> None:
        while not torch.distributed.is_initialized():
            if self._left:
                return
            time.sleep(EVERY)
        store = torch.distributed.distributed_c10d._get_default_store()
        with contextlib.suppress(RuntimeError):  # the store's host is gone: counts stand still
            if hasattr(store, "clone"):  # from torch 2.8 on; its own connection
                store = store.clone()
            while True:
                left = self._left
                self._counts[self._rank] = store.add(f"sgmcmc/alive/{self._rank}", left or 1)
                if self._rank == 0 and self._lost:
                    store.add("sgmcmc/lost", self._lost - store.add("sgmcmc/lost", 0))
                for rank in self._heard:
                    self._counts[rank] = store.add(f"sgmcmc/alive/{rank}", 0)
                self._lost = self._lost or store.add("sgmcmc/lost", 0)
                if left:
                    return
                time.sleep(EVERY)


def under_torchrun() -> bool:
    """Return whether torchrun has started this process, which starts failed ones again."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def restarts_meet_old_addresses() -> bool:
    """Return whether torchrun may start this run again and keeps the addresses of its processes.

    All starts then share one store. A process that comes first reads the other's old address there
    and fails (https://github.com/pytorch/pytorch/issues/135712).
    """
    again = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"
    return again and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
