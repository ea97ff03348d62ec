"""Making data sets of every family."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import scipy

from ..errors import FileContentError, PdeError, check_count
from ..io.sample_file import SampleFile
from ..io.sample_layout import differences
from .dataset import PathLike, read_checked
from .family import Arrays, DataSpec, Job
from .local_workers import computed
from .locking import one_at_a_time
from .progress import Progress

if TYPE_CHECKING:
    from .dask_cluster import Cluster

_Compute: TypeAlias = Callable[[Job, Mapping[int, range]], Iterator[tuple[int, Arrays]]]


def generate(
    spec: DataSpec,
    path: PathLike,
    workers: int | None = None,
    backend: str = "auto",
    progress: bool = True,
    scheduler: str | None = None,
) -> Path:
    """Make the data set of a specification, or find it made.

    A run that is stopped or killed at any moment goes on where it was, with the same command, and
    ends with the same bytes. Memory does not grow with the number of samples. Of several processes
    that want the same file one makes it and the others wait. The bytes depend on the specification
    and the backend alone (and on the versions of NumPy and SciPy), not on the number of workers or
    on interruptions.

    Args:
        spec: What to make, of any family.
        path: The safetensors file to write.
        workers: How many work at once, all cores by default: threads for the compiled backend and
            for three-spot sources, otherwise spawned processes of one BLAS thread each, so that a
            script that calls this needs the usual `if __name__ == "__main__":`.
        backend: As for `DarcyFamily`, where a family has the choice; the last bits depend on it.
        progress: Whether a progress line is shown on stderr.
        scheduler: Address of a Dask scheduler whose workers make the samples in place of this
            machine, `tcp://HOST:8786` say (the extra `cluster`; `pde.datasets.dask_cluster` says
            how to start them). This process writes the file, with the bytes of a run here with the
            same backend on the same kind of processor.

    Returns:
        The path.

    Raises:
        FileContentError: The file, finished or begun, is of other parameters (it says which), cut
            short or altered. Nothing is deleted.
        PdeError: Less than one worker, a worker that died, too small a disk, a backend that the
            family does not have, or a cluster that does not answer, has no workers or unlike ones.
    """
    path = Path(path)
    if path.suffix == ".npz" and not path.exists():
        raise PdeError(f"{path}: data sets are safetensors files, not .npz; choose another suffix")
    if scheduler is not None and workers is not None:
        raise PdeError(f"workers={workers!r} with a scheduler, which has its own: give one of them")
    workers = _cores() if workers is None else check_count(f"workers={workers!r}", workers)
    if not _finished(spec, path, progress):
        with one_at_a_time(path, progress):
            if not _finished(spec, path, progress):
                _make(spec, path, workers, backend, progress, scheduler)
    return path


def _make(
    spec: DataSpec,
    path: Path,
    workers: int,
    backend: str,
    progress: bool,
    scheduler: str | None,
) -> None:
    if scheduler is None:
        _write(spec, path, spec.backend(backend), partial(computed, workers=workers), progress)
        return
    with _cluster(scheduler) as cluster:
        _write(spec, path, cluster.agree(spec, backend), cluster.computed, progress)


def _cluster(scheduler: str) -> AbstractContextManager[Cluster]:
    try:
        from .dask_cluster import connected
    except ImportError as error:
        raise PdeError(
            "a scheduler needs Dask's distributed: install the extra `cluster`"
        ) from error
    return connected(scheduler)


def _write(spec: DataSpec, path: Path, backend: str, compute: _Compute, progress: bool) -> None:
    job = Job(spec, spec.shared(), backend)
    metadata = {
        "format": spec.format,
        "version": spec.version,
        "parameters": spec.parameters(),
        **spec.notes(),
        "made_with": {"numpy": np.__version__, "scipy": scipy.__version__, "backend": backend},
    }
    file = SampleFile(path, metadata, spec.shapes(), spec.num_samples, job.shared, spec.ignored)
    missing = file.missing()
    finished = spec.num_samples - sum(len(samples) for samples in missing.values())
    bar = Progress(spec.num_samples, finished, enabled=progress)
    with file:
        for index, arrays in compute(job, missing):
            file.write(index, arrays)
            bar.advance(len(missing[index]))
        file.finish()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _finished(spec: DataSpec, path: Path, announce: bool) -> bool:
    """Whether the file is there; an error if it is another one than would be made."""
    if not path.exists():
        return False
    metadata, arrays = read_checked(path, verify=False)
    ours = {"format": spec.format, "parameters": spec.parameters()}
    there = {name: metadata[name] for name in ours}
    if why := differences(ours, there, spec.ignored) or spec.unlike(arrays):
        raise FileContentError(
            f"{path} was made with other parameters ({'; '.join(why)}); delete it, or choose "
            "another path"
        )
    if announce:
        print(f"{path} is finished already, with these parameters", file=sys.stderr)
    return True
