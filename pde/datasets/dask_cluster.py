"""Chunks of samples on the workers of a Dask cluster.

A scheduler, and on every machine as many workers as cores, each a process of one thread:

    dask scheduler
    dask worker tcp://HOST:8786 --nworkers -1 --nthreads 1

They need this package and the extra `cluster`, no disk in common: a worker sends its arrays back,
and the process that asked for them writes the file. Dask lets BLAS have one thread in workers that
its nannies start, as by default they do; with `--no-nanny`, set OPENBLAS_NUM_THREADS=1 (or
MKL_NUM_THREADS=1) for them. Dask runs what whoever reaches the scheduler sends, so both belong on a
network that is trusted, or behind its TLS.

A worker's last bits depend on its versions, backend, kind of processor and number of BLAS threads.
So versions are compared with this process's, and a checksum of sample 0 from worker to worker.
"""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import get_ident
from typing import Any

import numpy as np
import scipy
from distributed import Client, KilledWorker, get_worker
from distributed.comm.addressing import get_address_host_port

from ..errors import PdeError
from .family import Arrays, DataSpec, Family, Job

#: Seconds that a scheduler has to answer, and that a cluster may be without any worker.
ANSWER, ALONE = 5.0, 60.0
_POLL = 1.0  # seconds between two looks at the cluster while no chunk comes
_SAMPLE = "checksum of sample 0"
_ADVICE = {
    "backend": "name one, or install the extra `fast` on all of them",
    _SAMPLE: "take processors of one kind, and one BLAS thread on all of them",
}
_AGAIN = "finished chunks are kept, run again to continue"


@contextmanager
def connected(address: str) -> Iterator[Cluster]:
    """Connect to a scheduler.

    Args:
        address: Such as `tcp://HOST:8786`.

    Raises:
        PdeError: No scheduler answers there.
    """
    log = logging.getLogger("distributed.client")
    level = log.level
    log.setLevel(logging.CRITICAL)  # what it would log of lost connections, our errors say
    try:
        try:
            get_address_host_port(address)  # the client leaves threads behind if this fails within
            client = Client(address, timeout=ANSWER, set_as_default=False)  # type: ignore[no-untyped-call]
        except (OSError, ValueError, TypeError, ImportError) as error:
            raise PdeError(
                f"no Dask scheduler answers at {address!r} ({_line(error)}): start one with "
                "`dask scheduler`, or give its address, such as tcp://HOST:8786"
            ) from error
        with client:
            yield Cluster(client, address)
    finally:
        log.setLevel(level)


class Cluster:
    """The workers of a scheduler.

    Args:
        client: A connection to the scheduler.
        address: Its address, for messages.
    """

    def __init__(self, client: Any, address: str) -> None:
        self._client, self._address = client, address
        self._expected = _versions()

    def agree(self, spec: DataSpec, backend: str) -> str:
        """Return the backend that all workers use.

        Args:
            spec: What they are to make.
            backend: As for `generate`; `auto` is what is at hand on the workers.

        Raises:
            PdeError: There are no workers, they differ from each other in their backend or from
                this process in their versions, or one of them cannot have this backend.
        """
        try:
            self._client.wait_for_workers(1, timeout=ALONE)
            answers = self._client.run(_report, spec, backend, on_error="return")
            if all(isinstance(answer, OSError) for answer in answers.values()):
                raise OSError("they died as they were asked what they have")
        except OSError as error:
            raise PdeError(
                f"the Dask scheduler at {self._address} has no workers ({_line(error)}); start "
                f"some with `dask worker {self._address} --nworkers -1 --nthreads 1`"
            ) from error
        for worker, answer in sorted(answers.items()):
            if isinstance(answer, PdeError):
                raise PdeError(f"worker {worker}: {answer}") from answer
            if isinstance(answer, OSError):  # it is gone
                continue
            if isinstance(answer, Exception):
                raise PdeError(
                    f"worker {worker} cannot run this ({_line(answer)}): install there what this "
                    "process has"
                ) from answer
            self._check(worker, answer)
        return self._expected["backend"]

    def computed(self, job: Job, missing: Mapping[int, range]) -> Iterator[tuple[int, Arrays]]:
        """Yield chunks as they are finished; two a thread of the cluster are under way.

        Dask gives the chunks of a worker that dies to another.

        Raises:
            PdeError: A chunk during which worker after worker died, a worker whose bits are not
                the others', no workers for a minute, or a scheduler that went away.
        """
        queue = deque(missing)
        running: dict[Any, int] = {}
        finished: SimpleQueue[Any] = SimpleQueue()
        seen = time.monotonic()
        while queue or running:
            threads = self._threads()
            while queue and len(running) < 2 * threads:
                index = queue.popleft()
                future = self._client.submit(_compute, job, missing[index], pure=False)
                running[future] = index
                future.add_done_callback(finished.put)
            try:
                future = finished.get(timeout=_POLL)
            except Empty:
                seen = self._attended(seen)
                continue
            index, seen = running.pop(future), time.monotonic()
            worker, origin, arrays = self._result(future, missing[index])
            del future  # the cluster may forget this chunk
            self._check(worker, origin)
            yield index, arrays
        with suppress(OSError):  # all is made; who has gone has forgotten too
            self._client.run(_forget, job.key, on_error="ignore")

    def _threads(self) -> int:
        try:
            if self._client.status != "running":
                raise OSError("the connection is closed")
            return sum(self._client.nthreads().values())
        except OSError as error:
            raise self._lost(error) from error

    def _attended(self, seen: float) -> float:
        """Return when there was a worker last; raise if that is too long ago."""
        now = time.monotonic()
        if self._threads():
            return now
        if now - seen > ALONE:
            raise PdeError(f"no worker is left at {self._address}; {_AGAIN}")
        return seen

    def _result(self, future: Any, samples: range) -> Any:
        """Fetch a finished chunk; if its worker has died since, it is made again before."""
        fetched = asyncio.run_coroutine_threadsafe(
            self._client.gather(future, asynchronous=True), self._client.loop.asyncio_loop
        )
        seen = time.monotonic()
        try:
            while not wait([fetched], timeout=_POLL).done:
                seen = self._attended(seen)
            return fetched.result()
        except KilledWorker as error:
            raise PdeError(
                f"{error.allowed_failures + 1} workers died one after the other with samples "
                f"{samples[0]} to {samples[-1]} in hand (out of memory?); {_AGAIN}"
            ) from error
        except (CancelledError, OSError) as error:
            raise self._lost(error) from error

    def _lost(self, error: BaseException) -> PdeError:
        return PdeError(
            f"the Dask scheduler at {self._address} went away or dropped the chunks "
            f"({_line(error)}); {_AGAIN}"
        )

    def _check(self, worker: str, origin: dict[str, str]) -> None:
        """Compare what a worker's bits depend on with this process and the workers before it."""
        for name, value in origin.items():
            expected = self._expected.setdefault(name, value)
            if value != expected:
                advice = _ADVICE.get(name, "install on all of them what this process has")
                raise PdeError(
                    f"worker {worker} has {name} {value}, expected {expected}, and would not make "
                    f"the same bytes as others: {advice}"
                )


def _line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__


# What follows runs on the workers.


def _versions() -> dict[str, str]:
    sources = sorted(Path(__file__).parents[1].rglob("*.py"))
    code = 0
    for path in sources:
        code = zlib.crc32(path.read_bytes(), code)
    return {"numpy": np.__version__, "scipy": scipy.__version__, "pde": f"{code:08x}"}


async def _report(spec: DataSpec, backend: str) -> dict[str, str]:
    """Say what this worker has; in a thread, so that it goes on answering meanwhile."""
    return _versions() | {"backend": await asyncio.to_thread(spec.backend, backend)}


@dataclass(frozen=True)
class _Kept:
    """What a thread keeps from chunk to chunk."""

    key: str
    family: Family
    origin: dict[str, str]


_kept: dict[int, _Kept] = {}


def _compute(job: Job, samples: range) -> tuple[str, dict[str, str], Arrays]:
    kept = _kept.get(get_ident())
    if kept is None or kept.key != job.key:
        _kept.pop(get_ident(), None)
        family = job.family()
        code = 0
        for rows in family.compute(range(1)).values():
            code = zlib.crc32(np.ascontiguousarray(rows).data, code)
        kept = _Kept(job.key, family, _versions() | {_SAMPLE: f"{code:08x}"})
        _kept[get_ident()] = kept
    return get_worker().address, kept.origin, kept.family.compute(samples)


def _forget(key: str) -> None:
    for thread, kept in list(_kept.items()):
        if kept.key == key:
            _kept.pop(thread, None)
