"""The permeability of SPE10 model 2 (Christie, Blunt 2001), read from its official text file."""

from __future__ import annotations

import lzma
import os
import zipfile
from pathlib import Path

import numpy as np

from ..errors import FileContentError, PdeError, check_choice
from ..grid import Array, Grid

COMPONENTS = ("kx", "ky", "kz")
SHAPE = (3, 85, 220, 60)  # component, layer (top first), y, x (fastest)
MEMBER = "spe_perm.dat"

PathLike = str | os.PathLike[str]


def read_spe10(path: PathLike) -> Array:
    """Read the whole file.

    Args:
        path: `spe_perm.dat`, the same compressed by xz, or the official `por_perm_case2a.zip`
            that holds it; told apart by content, not by name. Nothing is written beside it.

    Returns:
        Permeability in millidarcy, `[3, 85, 220, 60]`: component (kx, ky, kz), layer from the
        top, y, x.

    Raises:
        FileContentError: No such file, an archive that cannot be read or lacks `spe_perm.dat`,
            text that is not numbers, another count than 3,366,000, or a value that is not positive.
    """
    words = _read_text(Path(path)).split()
    try:
        values = np.fromiter(map(float, words), dtype=np.float64, count=len(words))
    except ValueError as error:
        raise FileContentError(f"{path} is not a table of numbers ({error})") from error
    expected = int(np.prod(SHAPE))
    if values.size != expected:
        raise FileContentError(
            f"{path} holds {values.size:,} values, expected 3 x 85 x 220 x 60 = {expected:,}: "
            "it is cut short or not SPE10 model 2; fetch it again"
        )
    if not (np.isfinite(values) & (values > 0)).all():
        raise FileContentError(f"{path} holds permeabilities that are not positive; fetch it again")
    return values.reshape(SHAPE)


def spe10_layer(
    path: PathLike,
    layer: int,
    grid: Grid,
    component: str = "kx",
    origin: tuple[int, int] = (0, 0),
    window: tuple[int, int] | None = None,
) -> Array:
    """One layer of SPE10 on a grid, `[ny, nx]`, in millidarcy.

    Args:
        path: As for `read_spe10`.
        layer: 1 (top) to 85 (bottom): 1-35 are smooth (Tarbert), 36-85 channelised (Upper Ness).
        grid: The grid. Its bottom row is the file's smallest y.
        component: `kx`, `ky` or `kz`.
        origin: The first SPE10 cell taken, (x, y), counted from zero.
        window: How many SPE10 cells in (x, y) the grid covers. By default as many as the grid
            has, a crop cell for cell. A smaller window that divides the grid replicates cells; in
            general a grid cell takes the value of the SPE10 cell at its centre. Values are never
            averaged, which would open or close channels.

    Raises:
        PdeError: A layer, component or window that SPE10 does not have.
        FileContentError: As for `read_spe10`.
    """
    check_window(layer, grid, component, origin, window)
    values = read_spe10(path)[COMPONENTS.index(component), layer - 1]
    wx, wy = window or (grid.nx, grid.ny)
    columns = origin[0] + (2 * np.arange(grid.nx) + 1) * wx // (2 * grid.nx)
    rows = origin[1] + (2 * np.arange(grid.ny) + 1) * wy // (2 * grid.ny)
    return np.ascontiguousarray(values[np.ix_(rows, columns)])


def check_window(
    layer: int,
    grid: Grid,
    component: str,
    origin: tuple[int, int],
    window: tuple[int, int] | None,
) -> None:
    """Raise `PdeError` where `spe10_layer` could not cut this out of the file."""
    _, layers, ny, nx = SHAPE
    if not 1 <= layer <= layers:
        raise PdeError(f"layer {layer!r}, expected 1 (top) to {layers}")
    check_choice("component", component, COMPONENTS)
    wx, wy = window or (grid.nx, grid.ny)
    fits = 0 <= origin[0] <= nx - wx and 0 <= origin[1] <= ny - wy
    if not (wx >= 1 and wy >= 1 and fits):
        raise PdeError(
            f"a window of {wx} x {wy} SPE10 cells at {tuple(origin)} leaves the layer of {nx} x "
            f"{ny}; use a smaller grid, another origin, or window=(wx, wy) to resample"
        )


def _read_text(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            magic = file.read(6)
        if magic.startswith(b"PK"):
            return _read_zip(path)
        if magic == b"\xfd7zXZ\x00":
            with lzma.open(path) as stream:
                return stream.read()
        return path.read_bytes()
    except FileNotFoundError as error:
        raise FileContentError(f"no SPE10 file at {path}; give spe_perm.dat's path") from error
    except (EOFError, lzma.LZMAError, zipfile.BadZipFile, OSError) as error:
        raise FileContentError(f"cannot read {path} ({error}); fetch it again") from error


def _read_zip(path: Path) -> bytes:
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.rsplit("/", 1)[-1].lower() == MEMBER:
                return archive.read(name)
    raise FileContentError(f"{path} holds no {MEMBER}; give the official por_perm_case2a.zip")
