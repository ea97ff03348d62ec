"""Making a data set: the same bytes from the same parameters, however often it was stopped."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from ..darcy.solver import DarcySolver
from ..errors import FileContentError, PdeError
from ..fields.sources import three_spot_strengths, three_spots
from ..grid import Array
from ..io.container import Pieces, write_npz
from .chunks import CHUNK, chunk_path, num_chunks, read_chunk, solve_chunks
from .dataset import read_checked
from .locking import make_once
from .progress import Progress
from .spec import FORMAT, VERSION, SourceDataSpec

SYNTHETIC = "synthetic channelised field of SPE10's character, not SPE10"


def generate(
    spec: SourceDataSpec,
    path: str | os.PathLike[str],
    workers: int = 1,
    progress: bool = True,
) -> Path:
    """Make the data set of a specification, or find it made.

    Three-spot sources combine two patterns, so two solves and a superposition are the whole work.
    Arbitrary sources are solved in chunks by worker processes, each with one BLAS thread; finished
    chunks stay in `<path>.parts` if the run is stopped or killed, and the next run with the same
    parameters goes on from there. The file's bytes depend on the specification alone (and on the
    versions of NumPy and SciPy), not on the number of workers or on interruptions.

    Args:
        spec: What to make.
        path: The `.npz` file to write.
        workers: Number of worker processes for `random` sources. They are spawned, so a script
            that calls this needs the usual `if __name__ == "__main__":`.
        progress: Whether a progress line is shown on stderr.

    Returns:
        The path.

    Raises:
        FileContentError: The file, or the parts of an earlier run, are of other parameters (it
            says which), cut short or altered. Nothing is deleted.
        PdeError: Less than one worker, or a worker died.
    """
    path = Path(path)
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise PdeError(f"workers={workers!r}, expected an integer of at least 1")
    make_once(
        path,
        make=partial(_make, spec, path, workers, progress),
        check=partial(_check_same, spec, path),
        announce=progress,
    )
    return path


def _make(spec: SourceDataSpec, path: Path, workers: int, progress: bool) -> None:
    permeability = spec.permeability()
    metadata = _metadata(spec, permeability)
    bar = Progress(spec.num_samples, enabled=progress)
    if spec.source == "three_spot":
        write_npz(path, metadata, _three_spot_arrays(spec, permeability, bar))
        return
    parts = path.with_name(path.name + ".parts")
    solve_chunks(spec, permeability, metadata, parts, workers, bar)
    write_npz(path, metadata, {"permeability": permeability, **_gather(spec, parts)})
    shutil.rmtree(parts)


def _three_spot_arrays(
    spec: SourceDataSpec, permeability: Array, bar: Progress
) -> dict[str, Array | Pieces]:
    strengths = three_spot_strengths(spec.seed, spec.num_samples, spec.spread)
    basis = DarcySolver(spec.grid, permeability).solve(three_spots(spec.grid))

    def combine(patterns: Array, count: bool) -> Iterator[Array]:
        # Elementwise, so that a sample's bits do not depend on its neighbours.
        for start in range(0, spec.num_samples, CHUNK):
            pairs = strengths[start : start + CHUNK].reshape(-1, 2, *[1] * (patterns.ndim - 1))
            yield pairs[:, 0] * patterns[0] + pairs[:, 1] * patterns[1]
            if count:
                bar.advance(pairs.shape[0])

    arrays: dict[str, Array | Pieces] = {
        "permeability": permeability,
        "strengths": strengths,
        "basis_velocity": basis.velocity,
        "velocity": Pieces(
            (spec.num_samples, spec.grid.num_edges), combine(basis.velocity, count=True)
        ),
    }
    if spec.save_pressure:
        shape = (spec.num_samples, *spec.grid.shape)
        arrays["pressure"] = Pieces(shape, combine(basis.pressure, count=False))
    return arrays


def _gather(spec: SourceDataSpec, parts: Path) -> dict[str, Pieces]:
    def pieces(name: str) -> Iterator[Array]:
        for index in range(num_chunks(spec)):
            arrays = read_chunk(spec, parts, index)
            if arrays is None:
                raise FileContentError(
                    f"{chunk_path(parts, index)} vanished or was altered; run the command again"
                )
            yield arrays[name]

    shapes = {"source": spec.grid.shape, "velocity": (spec.grid.num_edges,)}
    if spec.save_pressure:
        shapes["pressure"] = spec.grid.shape
    return {
        name: Pieces((spec.num_samples, *shape), pieces(name)) for name, shape in shapes.items()
    }


def _metadata(spec: SourceDataSpec, permeability: Array) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "parameters": spec.parameters(),
        "permeability": SYNTHETIC if spec.field == "channelised" else "SPE10 model 2",
        "permeability_sha256": hashlib.sha256(permeability.tobytes()).hexdigest(),
        "boundary": "no flow through any side",
        "made_with": {"numpy": np.__version__, "scipy": scipy.__version__},
    }


def _check_same(spec: SourceDataSpec, path: Path) -> None:
    metadata, _ = read_checked(path)
    differences = spec.differences(metadata["parameters"])
    if not differences and spec.spe10_at_hand():
        digest = _metadata(spec, spec.permeability())["permeability_sha256"]
        if digest != metadata["permeability_sha256"]:
            differences = [f"{spec.spe10_file} holds another permeability"]
    if differences:
        raise FileContentError(
            f"{path} was made with other parameters ({'; '.join(differences)}); "
            "delete it, or choose another path"
        )
