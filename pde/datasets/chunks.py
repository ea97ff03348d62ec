"""Solving arbitrary sources chunk by chunk, each chunk a file that outlives the run."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np

from ..darcy.solver import DarcySolver
from ..errors import FileContentError, PdeError
from ..fields.sources import random_source
from ..grid import Array
from ..io.container import read_npz, write_npz
from .progress import Progress
from .spec import SourceDataSpec

CHUNK = 64  # part of the format: a block's composition may change the last bits of its solutions
THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def num_chunks(spec: SourceDataSpec) -> int:
    """Number of chunks of a data set."""
    return -(-spec.num_samples // CHUNK)


def chunk_path(parts: Path, index: int) -> Path:
    """File of a chunk."""
    return parts / f"chunk_{index:06d}.npz"


def chunk_size(spec: SourceDataSpec, index: int) -> int:
    """Number of samples in a chunk; only the last may be short."""
    return min(CHUNK, spec.num_samples - index * CHUNK)


def read_chunk(spec: SourceDataSpec, parts: Path, index: int) -> dict[str, Array] | None:
    """The arrays of a chunk, or None where it is absent or damaged, hence to be solved again."""
    try:
        return read_npz(chunk_path(parts, index))[1]
    except (FileNotFoundError, FileContentError):
        return None


def solve_chunk(spec: SourceDataSpec, solver: DarcySolver, parts: Path, index: int) -> int:
    """Solve one chunk, write its file, and return its number of samples."""
    start, size = index * CHUNK, chunk_size(spec, index)
    source = np.stack([random_source(spec.grid, spec.seed, start + i) for i in range(size)])
    solution = solver.solve(source)
    arrays = {"source": source, "velocity": solution.velocity}
    if spec.save_pressure:
        arrays["pressure"] = solution.pressure
    write_npz(chunk_path(parts, index), {"chunk": index}, arrays)
    return size


def solve_chunks(
    spec: SourceDataSpec,
    permeability: Array,
    metadata: dict[str, Any],
    parts: Path,
    workers: int,
    bar: Progress,
) -> None:
    """Solve what is missing in a folder of chunks.

    Raises:
        FileContentError: The folder was begun with other parameters.
        PdeError: A worker died; finished chunks are kept.
    """
    _open_parts(spec, metadata, parts)
    missing = [i for i in range(num_chunks(spec)) if read_chunk(spec, parts, i) is None]
    if not missing:
        return
    bar.resume(spec.num_samples - sum(chunk_size(spec, i) for i in missing))
    workers = min(workers, len(missing))
    # Spawned also for one worker: its BLAS then has one thread whatever this process has.
    context = multiprocessing.get_context("spawn")
    setup = (spec, permeability, parts)
    with (
        single_blas_thread(),
        ProcessPoolExecutor(workers, context, _start_worker, setup) as pool,
    ):
        try:
            for future in as_completed([pool.submit(_work, index) for index in missing]):
                bar.advance(future.result())
        except BrokenProcessPool as error:
            raise PdeError(
                "a worker process died (out of memory, or started from a script without "
                '`if __name__ == "__main__":`); finished chunks are kept, run again to continue'
            ) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _open_parts(spec: SourceDataSpec, metadata: dict[str, Any], parts: Path) -> None:
    parts.mkdir(parents=True, exist_ok=True)
    record = parts / "metadata.json"
    if not record.exists():
        beside = record.with_suffix(f".{os.getpid()}.part")
        beside.write_text(json.dumps(metadata, indent=1))
        os.replace(beside, record)
        return
    try:
        stored = json.loads(record.read_text())
        differences = spec.differences(stored["parameters"])
        same = all(stored[key] == metadata[key] for key in ("permeability_sha256", "made_with"))
    except (ValueError, KeyError) as error:
        raise FileContentError(f"{record} cannot be read ({error}); delete {parts}") from error
    if differences or not same:
        why = "; ".join(differences) or "another permeability, or other versions of NumPy or SciPy"
        raise FileContentError(
            f"{parts} was begun with other parameters ({why}); delete it, or choose another path"
        )


@contextmanager
def single_blas_thread() -> Iterator[None]:
    """Let processes started meanwhile have one BLAS thread each."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


_STATE: dict[str, Any] = {}


def _start_worker(spec: SourceDataSpec, permeability: Array, parts: Path) -> None:
    leave_interrupts_to_parent()
    solver = DarcySolver(spec.grid, permeability)
    _STATE.update(spec=spec, solver=solver, parts=parts)


def leave_interrupts_to_parent() -> None:
    """In a worker: at Ctrl-C let the parent stop, with this chunk finished, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _work(index: int) -> int:
    return solve_chunk(_STATE["spec"], _STATE["solver"], _STATE["parts"], index)
