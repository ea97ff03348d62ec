"""Opening data sets of every family."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np

from ..darcy.cells import BoolArray
from ..errors import FileContentError
from ..fields.sources import three_spot_source, three_spots
from ..grid import Array, Grid
from ..io.sample_layout import read
from .family import FORMATS, DataSpec

PathLike: TypeAlias = str | os.PathLike[str]
Spec = TypeVar("Spec", bound=DataSpec)


@dataclass(frozen=True)
class Dataset(Generic[Spec]):
    """A data set, mapped into memory.

    Attributes:
        spec: The parameters that it was made from.
        arrays: All arrays of the file, by name.
        metadata: All that the file records, versions included.
    """

    spec: Spec
    arrays: Mapping[str, Array]
    metadata: Mapping[str, Any]

    @property
    def grid(self) -> Grid:
        """The grid."""
        return self.spec.grid

    @property
    def permeability(self) -> Array:
        """`[num_samples, ny, nx]`, or `[ny, nx]` where all samples share it."""
        return self.arrays["permeability"]

    @property
    def velocity(self) -> Array:
        """Normal velocities `[num_samples, num_edges]`."""
        return self.arrays["velocity"]

    @property
    def pressure(self) -> Array | None:
        """`[num_samples, ny, nx]`, where it was kept."""
        return self.arrays.get("pressure")

    @property
    def coefficients(self) -> Array:
        """Karhunen-Loeve coefficients of random permeabilities, `[num_samples, terms]`."""
        return self.arrays["coefficients"]

    @property
    def active(self) -> BoolArray:
        """Which cells there is flow in, `[ny, nx]`; the permeability of others means nothing."""
        return np.asarray(self.arrays.get("active", np.ones(self.grid.shape))) > 0

    @property
    def strengths(self) -> Array | None:
        """(f1, f2) of each sample `[num_samples, 2]`, for three-spot sources; for wells, rates.

        Where there is flow without any rate, a last column of ones stands for it.
        """
        return self.arrays.get("strengths")

    @property
    def basis_velocity(self) -> Array | None:
        """Velocities `[strengths, num_edges]` of unit strengths, for three spots and wells.

        `velocity = strengths @ basis_velocity`, and the squared norm of a velocity is the quadratic
        form of its strengths with the matrix `basis_velocity @ basis_velocity.T`.
        """
        return self.arrays.get("basis_velocity")

    @property
    def patterns(self) -> Array | None:
        """The source of each strength, `[strengths, ny, nx]`, for three spots and wells."""
        if self.strengths is None:
            return None
        return self.arrays["patterns"] if "patterns" in self.arrays else three_spots(self.grid)

    def source(self, samples: Any = slice(None)) -> Array:
        """Cell means of varying sources, `[..., ny, nx]`.

        Args:
            samples: Index, slice or array of indices; all by default.
        """
        if self.strengths is None:
            return np.asarray(self.arrays["source"][samples])
        return self.source_of(self.strengths[samples])

    def source_of(self, strengths: Array) -> Array:
        """Cell means `[..., ny, nx]` of the sources of strengths `[..., patterns]`."""
        if "patterns" in self.arrays:
            return np.tensordot(strengths, self.arrays["patterns"], axes=1)
        return three_spot_source(self.grid, strengths)

    def __len__(self) -> int:
        return self.spec.num_samples


def load(
    path: PathLike, expected: type[DataSpec] | None = None, verify: bool = True
) -> Dataset[Any]:
    """Open a data set; its arrays are mapped, so that memory holds what is used.

    Args:
        path: The file.
        expected: The family that it is to be of, by the class of its specification.
        verify: Whether all bytes are read once and compared with the file's checksum.

    Raises:
        FileContentError: No such file, one that is cut short or altered, of another family, or of
            a version that this code does not know.
    """
    metadata, arrays = read_checked(Path(path), verify)
    family = FORMATS[metadata["format"]]
    if expected not in (None, family):
        raise FileContentError(
            f"{path} holds {family.format!r}, expected {getattr(expected, 'format', expected)!r}"
        )
    try:
        spec = family(**metadata["parameters"])
        return Dataset(spec, {name: arrays[name] for name in [*spec.shapes(), *arrays]}, metadata)
    except (KeyError, TypeError) as error:
        raise FileContentError(f"{path} lacks {error}; delete it and generate it again") from error


def read_checked(path: Path, verify: bool) -> tuple[dict[str, Any], dict[str, Array]]:
    """Metadata and arrays of a data set of a known family and version; errors as for `load`."""
    metadata, arrays = read(path, verify)
    kind, version = metadata.get("format"), metadata.get("version")
    if kind not in FORMATS or version != FORMATS[kind].version:
        known = ", ".join(f"{name!r}, version {spec.version}" for name, spec in FORMATS.items())
        raise FileContentError(
            f"{path} is {kind!r}, version {version!r}; expected {known}; delete it and generate it "
            "again"
        )
    return metadata, arrays
