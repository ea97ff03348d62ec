"""Chunks of samples by threads or processes of this machine."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import (
    FIRST_COMPLETED,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import connection, get_context, parent_process

from ..errors import PdeError
from .family import Arrays, Family, Job

BLAS_THREADS = (
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def computed(job: Job, missing: Mapping[int, range], workers: int) -> Iterator[tuple[int, Arrays]]:
    """Yield chunks as they are finished; two a worker are under way at any time.

    Args:
        job: What to make.
        missing: The samples of each chunk.
        workers: How many work at once.

    Raises:
        PdeError: A worker process died.
    """
    if not missing:
        return
    queue = iter(missing)
    with _executor(job, min(workers, len(missing))) as executor:
        running: dict[Future[Arrays], int] = {}
        try:
            while True:
                while len(running) < 2 * workers and (index := next(queue, None)) is not None:
                    running[executor.submit(_compute, missing[index])] = index
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(future), future.result()
        except BrokenProcessPool as error:
            raise PdeError(
                "a worker process died (out of memory, or started from a script without "
                '`if __name__ == "__main__":`); finished chunks are kept, run again to continue'
            ) from error
        finally:
            executor.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _executor(job: Job, workers: int) -> Iterator[Executor]:
    """Threads for kernels that let go of the interpreter, processes for LAPACK's, which do not."""
    if job.spec.in_threads(job.backend):
        with ThreadPoolExecutor(workers, "pde", _start, (job, False)) as threads:
            yield threads
        return
    # Spawned also for one worker: its BLAS then has one thread whatever this process has.
    with (
        _single_blas_thread(),
        ProcessPoolExecutor(workers, get_context("spawn"), _start, (job, True)) as processes,
    ):
        yield processes


@contextmanager
def _single_blas_thread() -> Iterator[None]:
    """Let processes started meanwhile have one BLAS thread each."""
    before = {name: os.environ.get(name) for name in BLAS_THREADS}
    os.environ.update(dict.fromkeys(BLAS_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


# What follows runs in the workers.

_LOCAL = threading.local()


def _start(job: Job, process: bool) -> None:
    if process:
        # At Ctrl-C the parent stops, and this process ends with it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=_exit_with_parent, daemon=True).start()
    _LOCAL.family = job.family()


def _exit_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _compute(samples: range) -> Arrays:
    family: Family = _LOCAL.family
    return family.compute(samples)
