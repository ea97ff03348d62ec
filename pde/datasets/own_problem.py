"""The parameters of data sets on one's own permeability, wells and sides."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from ..darcy.wells import read_wells
from ..errors import PdeError
from ..io.field_file import read_cells


def own_problem(
    *,
    permeability: str | None = None,
    field: str | None = None,
    permeability_name: str | None = None,
    axes: Literal["yx", "xy"] = "yx",
    active: str | None = None,
    wells: str | None = None,
    nx: int | None = None,
    ny: int | None = None,
    lx: float | None = None,
    ly: float | None = None,
    side_pressure: Mapping[str, float] | None = None,
    side_flux: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Arguments of `SourceDataSpec` for what is given; nothing for what is not.

    Args:
        permeability: File of an own permeability, as for `read_field`; two fields in it are those
            along x and along y.
        field: The permeability's kind where there is no file.
        permeability_name: The array in that file, where it holds several.
        axes: `yx` where the file's last axis is x, else `xy`.
        active: File of which cells are active, 1 or 0; all without it.
        wells: Table of own wells, as for `read_wells`; the rates of those with a spread vary.
        nx: Cells in x; those of the file, or 60.
        ny: Cells in y; those of the file, or 60.
        lx: Width of the domain; 1 without a file, and needed beside a file that has none.
        ly: Height of the domain, likewise.
        side_pressure: Pressures of sides (`left`) and parts of them (`left:0:0.5`), with wells.
        side_flux: `u . n` out of sides and parts of them, with wells.

    Raises:
        FileContentError: A file that cannot be read.
        PdeError: Counts or lengths that the file contradicts, or lengths that nothing names.
    """
    found: dict[str, Any] = {"nx": nx, "ny": ny, "lx": lx, "ly": ly, "field": field}
    if permeability is not None:
        if field is not None:
            raise PdeError(f"field {field!r} and permeability {permeability!r}: give one of them")
        path = Path(permeability)
        file = read_cells(path, permeability_name, axes)
        grid = file.on_domain(path, lx, ly)
        if (nx or grid.nx, ny or grid.ny) != (grid.nx, grid.ny):
            turned = (ny, nx) == (grid.nx, grid.ny)
            raise PdeError(
                f"{path} holds {grid.nx} x {grid.ny} cells (x, y), given are nx = {nx}, ny = {ny}"
                + (f"; axes={'yx' if axes == 'xy' else 'xy'!r} turns it" if turned else "")
            )
        found = {name: getattr(grid, name) for name in ("nx", "ny", "lx", "ly", "dx", "dy")}
        found |= {"field": "file", "permeability_file": str(path)}
    if wells is not None:
        found |= {"source": "wells", "wells": read_wells(wells)}
    found |= {"permeability_name": permeability_name, "active_file": active}
    found |= {"side_pressure": side_pressure, "side_flux": side_flux}
    if axes != "yx":
        found["axes"] = axes
    return {name: value for name, value in found.items() if value is not None}
