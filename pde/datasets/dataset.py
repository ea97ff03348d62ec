"""A generated data set, as read from its file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FileContentError
from ..fields.sources import three_spot_source
from ..grid import Array, Grid
from ..io.container import read_npz
from .spec import FORMAT, VERSION, SourceDataSpec


@dataclass(frozen=True)
class Dataset:
    """Sources and velocities on one permeability.

    Attributes:
        spec: The parameters that it was made from.
        permeability: `[ny, nx]`.
        velocity: Normal velocities `[num_samples, num_edges]`, float64.
        strengths: (f1, f2) of each sample `[num_samples, 2]`, for three spots.
        basis_velocity: Velocities `[2, num_edges]` for the strengths (1, 0) and (0, 1), for three
            spots: `velocity = strengths @ basis_velocity`, and the squared norm of a velocity is
            the quadratic form of its strengths with the matrix
            `basis_velocity @ basis_velocity.T`.
        pressure: `[num_samples, ny, nx]`, of zero mean, where it was kept.
        metadata: All that the file records, versions and the field's origin included.
    """

    spec: SourceDataSpec
    permeability: Array
    velocity: Array
    strengths: Array | None
    basis_velocity: Array | None
    pressure: Array | None
    metadata: dict[str, Any]
    random_source: Array | None = None

    @property
    def grid(self) -> Grid:
        """The grid."""
        return self.spec.grid

    def __len__(self) -> int:
        return int(self.velocity.shape[0])

    def source(self, samples: Any = slice(None)) -> Array:
        """Cell means of the sources, `[..., ny, nx]`.

        Args:
            samples: Index, slice or array of indices; all by default.
        """
        if self.random_source is not None:
            return np.asarray(self.random_source[samples])
        assert self.strengths is not None
        return three_spot_source(self.grid, self.strengths[samples])


def load(path: str | os.PathLike[str]) -> Dataset:
    """Read a data set; every array's checksum is verified.

    Raises:
        FileContentError: No such file, one that is cut short or altered, of another kind, or of
            a version that this code does not know.
    """
    metadata, arrays = read_checked(Path(path))
    try:
        return Dataset(
            spec=SourceDataSpec(**metadata["parameters"]),
            permeability=arrays["permeability"],
            velocity=arrays["velocity"],
            strengths=arrays.get("strengths"),
            basis_velocity=arrays.get("basis_velocity"),
            pressure=arrays.get("pressure"),
            metadata=metadata,
            random_source=arrays.get("source"),
        )
    except (KeyError, TypeError) as error:
        raise FileContentError(f"{path} lacks {error}; delete it and generate it again") from error


def read_checked(
    path: Path, only_metadata: bool = False
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Metadata and arrays of a data set of this format and version; errors as for `load`."""
    try:
        metadata, arrays = read_npz(path, only_metadata)
    except FileNotFoundError as error:
        raise FileContentError(f"no data set at {path}; generate it first") from error
    kind = (metadata.get("format"), metadata.get("version"))
    if kind != (FORMAT, VERSION):
        raise FileContentError(
            f"{path} is {kind[0]!r} of version {kind[1]!r}, expected {FORMAT!r} of version "
            f"{VERSION}; delete it and generate it again"
        )
    return metadata, arrays
