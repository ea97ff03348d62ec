"""Data sets of random permeabilities and their flows (Wang, Deng, Lin 2020, section 5.3.2)."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import scipy

from ..darcy.family import DarcyFamily
from ..errors import FileContentError, PdeError
from ..fields.kle import KarhunenLoeve, RandomPermeability
from ..fields.sources import check_draw
from ..grid import Array, Grid
from ..io.sample_file import Store, differences, read
from .chunks import leave_interrupts_to_parent, single_blas_thread
from .locking import make_once
from .progress import Progress

if TYPE_CHECKING:
    from .dask_cluster import Cluster

FORMAT, VERSION = "pde permeability data", 1
CHUNK = 64  # part of no format: a sample's bits do not depend on the others
PRESSURE = {"left": 1.0, "right": 0.0}

_Compute: TypeAlias = Callable[
    ["PermeabilityDataSpec", Store, str], Iterator[tuple[int, dict[str, Array]]]
]


@dataclass(frozen=True)
class PermeabilityDataSpec:
    """Random permeabilities, and the flow from left (pressure 1) to right (0) through each.

    Args:
        nx: Cells in x.
        ny: Cells in y.
        lx: Width of the domain.
        ly: Height of the domain.
        kind: `additive`, mean + field, or `lognormal`, exp(mean + field).
        mean: kappa_0. The paper does not give it; 6 is what its errors imply.
        variance: Variance of the Gaussian field.
        lengths: Its correlation lengths in x and y.
        terms: Number of Karhunen-Loeve modes p.
        kernel: `gaussian` or `exponential`.
        source: The source f, the same everywhere; the paper's is 1.
        num_samples: Number of samples.
        seed: Sample i depends on (seed, i) alone.
        save_pressure: Whether the pressures are kept too.

    Raises:
        PdeError: A value that is not one of these.
    """

    nx: int = 50
    ny: int = 50
    lx: float = 1.0
    ly: float = 1.0
    kind: str = "additive"
    mean: float = 6.0
    variance: float = 2.0
    lengths: tuple[float, float] = (0.2, 0.3)
    terms: int = 64
    kernel: str = "gaussian"
    source: float = 1.0
    num_samples: int = 1500
    seed: int = 0
    save_pressure: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", tuple(float(length) for length in self.lengths))
        check_draw(self.seed, self.num_samples)
        if self.num_samples < 1:
            raise PdeError(f"num_samples={self.num_samples}, expected at least 1")
        if not np.isfinite(self.source):
            raise PdeError(f"source={self.source!r}, expected a finite number")
        if self.nx < 2 or self.ny < 2:
            raise PdeError(f"a grid of {self.nx} x {self.ny} cells, expected at least 2 x 2")
        _ = self.fields

    @property
    def grid(self) -> Grid:
        """The grid."""
        return Grid(self.nx, self.ny, self.lx, self.ly)

    @property
    def fields(self) -> RandomPermeability:
        """The permeabilities."""
        expansion = KarhunenLoeve(self.grid, self.variance, self.lengths, self.terms, self.kernel)
        return RandomPermeability(expansion, self.kind, self.mean, self.seed)

    def parameters(self) -> dict[str, Any]:
        """The values that shape this data set, ready for JSON."""
        values = dataclasses.asdict(self)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The arrays of the file, and the shape of one sample in each."""
        shapes: dict[str, tuple[int, ...]] = {
            "coefficients": (self.terms,),
            "permeability": self.grid.shape,
            "velocity": (self.grid.num_edges,),
        }
        if self.save_pressure:
            shapes["pressure"] = self.grid.shape
        return shapes


@dataclass(frozen=True)
class PermeabilityDataset:
    """Permeabilities and their flows, mapped into memory.

    Attributes:
        spec: The parameters that it was made from.
        coefficients: Karhunen-Loeve coefficients `[num_samples, terms]`.
        permeability: `[num_samples, ny, nx]`.
        velocity: Normal velocities `[num_samples, num_edges]`.
        pressure: `[num_samples, ny, nx]`, where it was kept.
        metadata: All that the file records.
    """

    spec: PermeabilityDataSpec
    coefficients: Array
    permeability: Array
    velocity: Array
    pressure: Array | None
    metadata: dict[str, Any]

    @property
    def grid(self) -> Grid:
        """The grid."""
        return self.spec.grid

    def __len__(self) -> int:
        return int(self.velocity.shape[0])


def generate_permeabilities(
    spec: PermeabilityDataSpec,
    path: str | os.PathLike[str],
    workers: int | None = None,
    backend: str = "auto",
    progress: bool = True,
    scheduler: str | None = None,
) -> Path:
    """Make the data set of a specification, or find it made.

    A run that is stopped or killed at any moment goes on where it was, with the same command, and
    ends with the same bytes. Memory does not grow with the number of samples. Of several processes
    that want the same file one makes it and the others wait.

    Args:
        spec: What to make.
        path: The safetensors file to write.
        workers: How many work at once, all cores by default: threads for the compiled backend,
            spawned processes of one BLAS thread each for the other, so that a script that calls
            this then needs the usual `if __name__ == "__main__":`.
        backend: As for `DarcyFamily`; the last bits depend on it.
        progress: Whether a progress line is shown on stderr.
        scheduler: Address of a Dask scheduler whose workers make the samples in place of this
            machine, `tcp://HOST:8786` say (the extra `cluster`; `pde.datasets.dask_cluster` says how to start
            them). This process writes the file, with the bytes of a run here with the same backend
            on the same kind of processor.

    Returns:
        The path.

    Raises:
        FileContentError: The file, finished or begun, is of other parameters (it says which), cut
            short or altered. Nothing is deleted.
        PdeError: Less than one worker, a worker that died, too small a disk, or a cluster that
            does not answer, has no workers or unlike ones.
    """
    path = Path(path)
    if scheduler is not None and workers is not None:
        raise PdeError(f"workers={workers!r} with a scheduler, which has its own: give one of them")
    workers = _cores() if workers is None else workers
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise PdeError(f"workers={workers!r}, expected an integer of at least 1")
    make_once(
        path,
        make=partial(_make, spec, path, workers, backend, progress, scheduler),
        check=partial(_check_same, spec, path),
        announce=progress,
    )
    return path


def _make(
    spec: PermeabilityDataSpec,
    path: Path,
    workers: int,
    backend: str,
    progress: bool,
    scheduler: str | None,
) -> None:
    if scheduler is not None:
        with _cluster(scheduler) as cluster:
            backend = cluster.agree(backend)
            _write(spec, path, backend, cluster.computed, progress)
    else:
        backend = DarcyFamily(Grid(2, 2), PRESSURE, backend=backend).backend
        _write(spec, path, backend, partial(_computed, workers=workers), progress)


def _cluster(scheduler: str) -> AbstractContextManager[Cluster]:
    try:
        from .dask_cluster import connected
    except ImportError as error:
        raise PdeError(
            "a scheduler needs Dask's distributed: install the extra `cluster`"
        ) from error
    return connected(scheduler)


def _write(
    spec: PermeabilityDataSpec, path: Path, backend: str, compute: _Compute, progress: bool
) -> None:
    store = Store(path, _metadata(spec, backend), spec.shapes(), spec.num_samples, CHUNK)
    bar = Progress(spec.num_samples, enabled=progress)
    bar.resume(sum(len(store.samples(i)) for i in store.finished))
    try:
        for index, arrays in compute(spec, store, backend):
            store.write(index, arrays)
            bar.advance(len(store.samples(index)))
    except BaseException:
        store.close()
        raise
    store.finish()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def load_permeabilities(path: str | os.PathLike[str]) -> PermeabilityDataset:
    """Open a data set.

    Raises:
        FileContentError: The file is cut short, of another format or version.
    """
    metadata, arrays = _read_checked(Path(path))
    parameters = dict(metadata["parameters"])
    spec = PermeabilityDataSpec(**parameters)
    return PermeabilityDataset(
        spec,
        arrays["coefficients"],
        arrays["permeability"],
        arrays["velocity"],
        arrays.get("pressure"),
        metadata,
    )


def _metadata(spec: PermeabilityDataSpec, backend: str) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "parameters": spec.parameters(),
        "boundary": "pressure 1 on the left, 0 on the right, no flow below and above",
        "made_with": {"numpy": np.__version__, "scipy": scipy.__version__, "backend": backend},
    }


def _read_checked(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    metadata, arrays = read(path)
    found = metadata.get("format"), metadata.get("version")
    if found != (FORMAT, VERSION):
        raise FileContentError(
            f"{path} is {found[0]!r}, version {found[1]!r}; expected {FORMAT!r}, version {VERSION}"
        )
    return metadata, arrays


def _check_same(spec: PermeabilityDataSpec, path: Path) -> None:
    metadata, _ = _read_checked(path)
    different = differences(spec.parameters(), metadata["parameters"])
    if different:
        raise FileContentError(
            f"{path} was made with other parameters ({'; '.join(different)}); "
            "delete it, or choose another path"
        )


class Worker:
    """What a thread or process keeps from chunk to chunk.

    Args:
        spec: What to make.
        backend: As for `DarcyFamily`.
    """

    def __init__(self, spec: PermeabilityDataSpec, backend: str) -> None:
        self.spec, self.fields = spec, spec.fields
        self.family = DarcyFamily(spec.grid, PRESSURE, spec.source, backend)

    def compute(self, samples: range) -> dict[str, Array]:
        """Return the arrays of some samples, by name."""
        drawn = [self.fields.draw(i) for i in samples]
        kappa = np.stack([field for _, field in drawn])
        solution = self.family.solve(kappa)
        arrays = {
            "coefficients": np.stack([xi for xi, _ in drawn]),
            "permeability": kappa,
            "velocity": solution.velocity,
        }
        if self.spec.save_pressure:
            arrays["pressure"] = solution.pressure
        return arrays


_LOCAL = threading.local()


def _start(spec: PermeabilityDataSpec, backend: str, process: bool) -> None:
    if process:
        leave_interrupts_to_parent()
    _LOCAL.worker = Worker(spec, backend)


def _compute(samples: range) -> dict[str, Array]:
    worker: Worker = _LOCAL.worker
    return worker.compute(samples)


@contextmanager
def _executor(spec: PermeabilityDataSpec, backend: str, workers: int) -> Iterator[Executor]:
    """Threads for kernels that let go of the interpreter, processes for LAPACK's, which do not."""
    if backend == "compiled":
        with ThreadPoolExecutor(workers, "darcy", _start, (spec, backend, False)) as threads:
            yield threads
        return
    setup = (spec, backend, True)
    with (
        single_blas_thread(),
        ProcessPoolExecutor(workers, get_context("spawn"), _start, setup) as processes,
    ):
        yield processes


def _computed(
    spec: PermeabilityDataSpec, store: Store, backend: str, workers: int
) -> Iterator[tuple[int, dict[str, Array]]]:
    """Yield chunks as they are finished; a few are under way at any time."""
    missing = store.missing()
    if not missing:
        return
    queue = iter(missing)
    with _executor(spec, backend, min(workers, len(missing))) as executor:
        running: dict[Future[dict[str, Array]], int] = {}
        try:
            while True:
                while len(running) < 2 * workers and (index := next(queue, None)) is not None:
                    running[executor.submit(_compute, store.samples(index))] = index
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
