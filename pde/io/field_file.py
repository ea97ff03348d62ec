"""Cell fields from files of others: NumPy arrays, tables of text, HDF5 and VTK grids."""

from __future__ import annotations

import os
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..darcy.cells import BoolArray, check_active
from ..errors import FileContentError, PdeError, check_choice
from ..grid import Array, Grid
from .vtk_reader import read_vtk

#: What NumPy raises on archives that are cut short or changed, besides errors of values and files.
_DAMAGED = (zipfile.BadZipFile, zlib.error, tokenize.TokenError)

#: What the last two axes of a stored array are; `yx` has rows of constant y, the lowest first.
AXES = ("yx", "xy")
SUFFIXES = (".npy", ".npz", ".csv", ".txt", ".h5", ".hdf5", ".vti", ".vtr")


@dataclass(frozen=True)
class FieldFile:
    """A field, or several, on the cells of a grid.

    Attributes:
        values: `[ny, nx]`, or `[n, ny, nx]` for n fields.
        grid: The grid, where the file has one (VTK).
    """

    values: Array
    grid: Grid | None = None

    def on_domain(self, path: Path, lx: float | None, ly: float | None) -> Grid:
        """The grid of the cells, on the domain that the file or the caller names.

        Raises:
            PdeError: Neither names its lengths, or they contradict each other.
        """
        ny, nx = self.values.shape[-2:]
        if self.grid is None:
            if lx is None or ly is None:
                raise PdeError(
                    f"{path} holds {nx} x {ny} cells and no lengths: give lx and ly, in the unit "
                    "that the wells have too"
                )
            return Grid(nx, ny, lx=lx, ly=ly)
        for name, given, there in (("lx", lx, self.grid.lx), ("ly", ly, self.grid.ly)):
            if given is not None and not np.isclose(given, there, rtol=1e-6):
                raise PdeError(
                    f"{name} = {given:g}, and the grid of {path} is {there:g} long: leave {name} "
                    "out, or give lengths in the file's unit"
                )
        return self.grid


def read_field(
    path: str | os.PathLike[str], name: str | None = None, axes: str = "yx"
) -> FieldFile:
    """Read cell values.

    Args:
        path: `.npy`; `.npz` or HDF5 (the extra `hdf5`), with an array of the name; `.csv` or
            `.txt`, a line for each row of cells, the lowest y first; or VTK's `.vti` and `.vtr`.
        name: The array, where the file holds several.
        axes: `yx` for arrays `[..., ny, nx]`, `xy` for `[..., nx, ny]`.

    Raises:
        FileContentError: No such file, a file that cannot be read, an array that is not numbers in
            two or three dimensions, or values that are not finite.
        PdeError: Another suffix, an array of another name, or other axes.
    """
    file = read_cells(path, name, axes)
    bad = ~np.isfinite(file.values)
    if bad.any():
        place = tuple(int(i) for i in np.argwhere(bad)[0])
        raise FileContentError(
            f"{path}: {file.values[place]} at {place} ({bad.sum()} of {bad.size} values are not "
            "finite)"
        )
    return file


def read_cells(path: str | os.PathLike[str], name: str | None, axes: str) -> FieldFile:
    """As `read_field`, but values need not be finite: cells that are not active may hold NaN."""
    path = Path(path)
    check_choice("axes", axes, AXES)
    if path.suffix not in SUFFIXES:
        raise PdeError(f"{path} has the suffix {path.suffix!r}, expected {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise FileContentError(f"{path} is not there, or no file")
    grid = None
    if path.suffix in (".vti", ".vtr"):
        grid, arrays = read_vtk(path)
        values: Any = _chosen(path, arrays, name)
        if axes != "yx":
            raise PdeError(f"{path} says itself how its cells run: leave axes={axes!r} out")
    elif path.suffix in (".h5", ".hdf5"):
        values = _read_hdf5(path, name)
    else:
        values = _read_arrays(path, name)
    values = np.asarray(values)
    if values.ndim not in (2, 3) or values.dtype.kind not in "fiub" or 0 in values.shape:
        raise FileContentError(
            f"{path}: values of type {values.dtype} and shape {values.shape}, expected numbers "
            "(ny, nx), or (n, ny, nx) for n fields"
        )
    if axes == "xy":
        values = np.swapaxes(values, -1, -2)
    return FieldFile(np.ascontiguousarray(values, dtype=np.float64), grid)


def own_permeability(
    grid: Grid,
    path: str,
    name: str | None,
    axes: str,
    active: BoolArray | None = None,
    count: int | None = None,
) -> Array:
    """The permeability `[ny, nx]`, or n of them `[n, ny, nx]`, of a file that fits a grid.

    Of several the first `count` alone are looked at, all by default.

    Raises:
        FileContentError: Another number of cells, or an active cell that is not positive and
            finite; others as for `read_field`.
    """
    values = _fitting(grid, path, read_cells(path, name, axes).values, axes)[:count]
    bad = ~((values > 0) & np.isfinite(values))
    if active is not None:
        bad &= active
    if bad.any():
        place = tuple(int(i) for i in np.argwhere(bad)[0])
        raise FileContentError(
            f"{path}: permeability {values[place]:g} at {place} ({bad.sum()} of {bad.size} are not "
            "positive and finite): give the permeability itself, not its logarithm, and name cells "
            "without flow in a file of active cells"
        )
    return values if active is None else np.where(active, values, 1.0)


def own_activity(grid: Grid, path: str, axes: str) -> BoolArray:
    """Which cells are active, `[ny, nx]`, from a file of ones and zeros; errors as above."""
    given = axes if Path(path).suffix not in (".vti", ".vtr") else "yx"
    values = read_field(path, axes=given).values
    return check_active(grid, _fitting(grid, path, values, axes))


def _fitting(grid: Grid, path: str, values: Array, axes: str) -> Array:
    if values.shape[-2:] != grid.shape:
        ny, nx = values.shape[-2:]
        turned = (nx, ny) == grid.shape
        remedy = f"; axes={'yx' if axes == 'xy' else 'xy'!r} turns it" if turned else ""
        raise FileContentError(
            f"{path} holds {nx} x {ny} cells (x, y), expected {grid.nx} x {grid.ny}{remedy}"
        )
    return values


def _read_arrays(path: Path, name: str | None) -> Any:
    try:
        if path.suffix in (".csv", ".txt"):
            delimiter = "," if path.suffix == ".csv" else None
            return np.loadtxt(path, delimiter=delimiter, ndmin=2, encoding="utf-8-sig")
        found = np.load(path)
        if isinstance(found, np.ndarray):
            return found
        with found:
            return _chosen(path, {key: found[key] for key in found.files}, name)
    except PdeError:
        raise
    except (OSError, ValueError, EOFError, *_DAMAGED) as error:
        reason = str(error).splitlines()[0]
        raise FileContentError(f"{path} is not an array of numbers ({reason})") from error


def _read_hdf5(path: Path, name: str | None) -> Any:
    try:
        import h5py  # type: ignore[import-untyped]
    except ImportError as error:
        raise PdeError("HDF5 files need h5py: install the extra `hdf5`") from error
    try:
        with h5py.File(path, "r") as file:
            arrays: dict[str, Any] = {}
            file.visititems(
                lambda key, item: arrays.update({key: item} if hasattr(item, "shape") else {})
            )
            return _chosen(path, arrays, name)[()]
    except OSError as error:
        raise FileContentError(f"{path} is cut short or not HDF5 ({error})") from error


def _chosen(path: Path, arrays: Mapping[str, Any], name: str | None) -> Any:
    """The array of a name, or the only one, or the one called permeability."""
    if name is None:
        name = next(iter(arrays)) if len(arrays) == 1 else "permeability"
        hint = "name one of them"
    else:
        hint = "expected one of them"
    if name not in arrays:
        raise PdeError(
            f"{path} has no array {name!r}; it has {', '.join(arrays) or 'none'}: {hint}"
        )
    return arrays[name]
