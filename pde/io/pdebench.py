"""Darcy data of other benchmarks: the HDF5 files of PDEBench (Takamoto et al. 2022)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..darcy.family import DarcyFamily
from ..errors import FileContentError, PdeError, check_choice
from ..grid import SIDES, Array, Grid

if TYPE_CHECKING:
    import h5py  # type: ignore[import-untyped]

#: What the two axes of a stored field are; PDEBench's generator puts x first.
AXES = ("xy", "yx")
ROUNDING = 1e-3  # of a cell: what coordinates in single precision may be off


@dataclass(frozen=True)
class ImportedDarcy:
    """Samples of `-div(kappa grad p) = beta`, p = 0 on all four sides.

    Attributes:
        grid: The grid.
        permeability: kappa `[n, ny, nx]`.
        pressure: p `[n, ny, nx]` at the cell centres, as the file has it.
        beta: The source.
        total: Number of samples in the file, of which these are some.
    """

    grid: Grid
    permeability: Array
    pressure: Array
    beta: float
    total: int

    def __len__(self) -> int:
        return len(self.permeability)

    def family(self, backend: str = "auto") -> DarcyFamily:
        """The same problem for our solver, which adds the velocities that the file lacks."""
        return DarcyFamily(self.grid, dict.fromkeys(SIDES, 0.0), self.beta, backend)


def read_pdebench(
    path: str | os.PathLike[str],
    samples: slice = slice(None),
    axes: str = "xy",
    beta: float | None = None,
) -> ImportedDarcy:
    """Read samples of a Darcy file in PDEBench's form.

    The file holds `nu` (kappa) `[N, nx, ny]`, `tensor` (pressure) `[N, 1, nx, ny]`, the cell
    centres `x-coordinate` and `y-coordinate`, and the source as the attribute `beta`. The samples
    asked for are read, checked and turned into this package's `[n, ny, nx]`, row 0 at y = 0;
    memory holds no others, so that a large file is best read slice after slice.

    PDEBench's own pressures differ from ours by more than the discretisation: as published, its
    generator sets p = 0 half a cell outside the domain, which raises p by about 3 % at 128 x 128
    cells, and it stops its steps in time where up to 3 % of a random initial field is left, which
    counts where beta is small.

    Args:
        path: The file.
        samples: Which samples.
        axes: `xy` if the first axis of a field is x, as PDEBench's generator has it; `yx` for
            files that store rows of constant y.
        beta: The source of a file that does not record it.

    Raises:
        FileContentError: No such file, one that is not HDF5 or cut short, that lacks an array,
            or whose arrays do not fit each other; coordinates that are no cell centres of equal
            cells from zero; a value that is not finite, or a permeability that is not positive.
        PdeError: Other axes, a beta that the file contradicts, no samples left, or h5py is not
            installed (the extra `hdf5`).
    """
    path = Path(path)
    check_choice("axes", axes, AXES)
    try:
        import h5py
    except ImportError as error:
        raise PdeError("HDF5 files need h5py: install the extra `hdf5`") from error
    if not path.is_file():
        raise FileContentError(f"{path} is not there, or no file")
    try:
        with h5py.File(path, "r") as file:
            return _read(path, file, samples, axes, beta)
    except OSError as error:
        raise FileContentError(
            f"{path} is cut short or not HDF5 ({error}); fetch it again"
        ) from error


def _read(
    path: Path, file: h5py.File, samples: slice, axes: str, beta: float | None
) -> ImportedDarcy:
    kappa, pressure = _array(path, file, "nu", 3), _array(path, file, "tensor", 4)
    total, first, second = kappa.shape
    if pressure.shape != (total, 1, first, second):
        raise FileContentError(
            f"{path}: tensor of shape {pressure.shape} beside nu of shape {kappa.shape}, expected "
            f"{(total, 1, first, second)}"
        )
    grid = _grid(path, file, dict(zip(axes, (first, second), strict=True)))
    beta = _source(path, file, beta)
    chosen = range(total)[samples]
    if not chosen:
        raise PdeError(f"{samples} leaves none of the {total} samples of {path}")
    turn = (0, 2, 1) if axes == "xy" else (0, 1, 2)
    fields = []
    for name, values in (("nu", _rows(kappa, chosen)), ("tensor", _rows(pressure, chosen)[:, 0])):
        _check(path, name, values, chosen)
        fields.append(np.ascontiguousarray(values.transpose(turn), dtype=np.float64))
    return ImportedDarcy(grid, fields[0], fields[1], beta, total)


def _array(path: Path, file: h5py.File, name: str, ndim: int) -> h5py.Dataset:
    import h5py

    found = file.get(name)
    if not isinstance(found, h5py.Dataset):
        raise FileContentError(
            f"{path} has no array {name!r} (it has {', '.join(file) or 'nothing'}); "
            "expected nu, tensor, x-coordinate and y-coordinate, as PDEBench's Darcy files"
        )
    if found.ndim != ndim or found.dtype.kind not in "fiu" or 0 in found.shape:
        raise FileContentError(
            f"{path}: {name} of type {found.dtype} and shape {found.shape}, expected numbers in "
            f"{ndim} dimensions"
        )
    return found


def _rows(array: h5py.Dataset, chosen: range) -> Any:
    """The chosen samples; HDF5 knows no steps back."""
    forward = chosen if chosen.step > 0 else chosen[::-1]
    rows = array[forward.start : forward.stop : forward.step]
    return rows if chosen.step > 0 else rows[::-1]


def _grid(path: Path, file: h5py.File, counts: dict[str, int]) -> Grid:
    lengths = {}
    for axis, count in counts.items():
        name = f"{axis}-coordinate"
        centres = np.asarray(_array(path, file, name, 1)[:], dtype=np.float64)
        if centres.size != count:
            raise FileContentError(
                f"{path}: {centres.size} values in {name} for {count} cells along {axis}; if the "
                "file stores its fields otherwise, name the other axes"
            )
        # The coordinates are of single precision, and the mean of all centres is the middle.
        length = float(f"{2 * centres.mean():.6g}")
        expected = (np.arange(count) + 0.5) * length / count
        if not (length > 0 and np.abs(centres - expected).max() <= ROUNDING * length / count):
            raise FileContentError(
                f"{path}: {name} runs from {centres[0]:g} to {centres[-1]:g} in {count} values, "
                "expected the centres of equal cells, the first beginning at 0"
            )
        lengths[axis] = length
    return Grid(counts["x"], counts["y"], lx=lengths["x"], ly=lengths["y"])


def _source(path: Path, file: h5py.File, beta: float | None) -> float:
    stored = file.attrs.get("beta", beta)
    if stored is None:
        raise FileContentError(f"{path} has no attribute 'beta', the source: pass it as beta")
    value = float(stored)
    if not np.isfinite(value) or (beta is not None and not np.isclose(value, beta)):
        raise PdeError(f"{path} is for beta = {value:g}, given beta = {beta}")
    return value


def _check(path: Path, name: str, values: Any, chosen: range) -> None:
    bad = ~np.isfinite(values)
    if name == "nu":
        bad |= values <= 0
    if bad.any():
        sample, i, j = (int(k) for k in np.argwhere(bad)[0])
        expected = "positive finite values" if name == "nu" else "finite values"
        raise FileContentError(
            f"{path}: {name} of sample {chosen[sample]} is {values[sample, i, j]} at ({i}, {j}), "
            f"expected {expected} ({bad.sum()} of {bad.size} are not)"
        )
