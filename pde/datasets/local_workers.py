"""Chunks of samples by threads or processes of this machine."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import connection, get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

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

    Workers are threads for kernels that let go of the interpreter, and processes for LAPACK's,
    which do not.

    Args:
        job: What to make.
        missing: The samples of each chunk.
        workers: How many work at once.

    Raises:
        PdeError: A worker process died.
    """
    workers = min(workers, len(missing))
    if not workers:
        return iter(())
    if job.spec.in_threads(job.backend):
        return _by_threads(job, missing, workers)
    return _by_processes(job, missing, workers)


def _by_threads(
    job: Job, missing: Mapping[int, range], workers: int
) -> Iterator[tuple[int, Arrays]]:
    queue = iter(missing)
    running: dict[Future[Arrays], int] = {}
    with ThreadPoolExecutor(workers, "pde", _start, (job,)) as threads:
        try:
            while True:
                while len(running) < 2 * workers and (index := next(queue, None)) is not None:
                    running[threads.submit(_compute, missing[index])] = index
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(future), future.result()
        finally:
            threads.shutdown(wait=True, cancel_futures=True)


@dataclass
class _Worker:
    process: SpawnProcess
    pipe: Connection
    running: deque[int] = field(default_factory=deque)


def _by_processes(
    job: Job, missing: Mapping[int, range], workers: int
) -> Iterator[tuple[int, Arrays]]:
    """Give each process a pipe of its own, so that one that dies halfway through a chunk is seen.

    A queue that processes share stays open, and its reader waits for the other half for ever.
    """
    queue = iter(missing)
    # Spawned also for one worker: its BLAS then has one thread whatever this process has.
    with _single_blas_thread():
        pool = [_spawn(job) for _ in range(workers)]
    try:
        for worker in 2 * pool:
            _hand_out(worker, queue, missing)
        while any(worker.running for worker in pool):
            ready = connection.wait([worker.pipe for worker in pool])
            for worker in pool:
                if worker.pipe in ready:
                    result = worker.pipe.recv()
                    if isinstance(result, Exception):
                        raise result
                    index = worker.running.popleft()
                    _hand_out(worker, queue, missing)
                    yield index, result
    except (EOFError, ConnectionError) as error:
        raise PdeError(
            "a worker process died (out of memory, or started from a script without "
            '`if __name__ == "__main__":`); finished chunks are kept, run again to continue'
        ) from error
    finally:
        for worker in pool:
            worker.process.terminate()
            worker.process.join()
            worker.pipe.close()


def _spawn(job: Job) -> _Worker:
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(job, theirs), daemon=True)
    process.start()
    theirs.close()  # so that the pipe ends with the worker
    return _Worker(process, ours)


def _hand_out(worker: _Worker, queue: Iterator[int], missing: Mapping[int, range]) -> None:
    if (index := next(queue, None)) is not None:
        worker.running.append(index)
        worker.pipe.send(missing[index])


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


def _start(job: Job) -> None:
    _LOCAL.family = job.family()


def _compute(samples: range) -> Arrays:
    family: Family = _LOCAL.family
    return family.compute(samples)


def _work(job: Job, pipe: Connection) -> None:
    # At Ctrl-C the parent stops, and this process ends with it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    try:
        family = job.family()
        while True:
            pipe.send(family.compute(pipe.recv()))
    except Exception as error:
        error.add_note(f"In a worker process:\n{traceback.format_exc()}")
        pipe.send(error)


def _exit_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
