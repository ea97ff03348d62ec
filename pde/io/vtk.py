"""Fields and flows as a VTK grid, which ParaView, VisIt, PyVista and VTK open."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import numpy as np

from ..darcy.cells import check_active, check_tensor
from ..darcy.solver import DarcySolution
from ..errors import PdeError
from ..grid import Array, Grid


def write_vtk(
    path: str | os.PathLike[str],
    grid: Grid,
    permeability: Any = None,
    solution: DarcySolution | None = None,
    **cell_fields: Any,
) -> Path:
    """Write cell data on a grid to one file of VTK's XML formats, ImageData or RectilinearGrid.

    All values are of float64 and none is interpolated. ParaView draws streamlines of `velocity`
    after its filter "Cell Data to Point Data".

    Args:
        path: The file, `*.vti`, for equal cells, or `*.vtr`, for any; overwritten.
        grid: The grid, in the file a plane at z = 0.
        permeability: Positive cell values `[ny, nx]`, or `[ny, nx, 2]` along x and y, in the file
            `kappa`; zero in cells that are not active in the solution, whatever is given there.
        solution: One solution on the grid, in the file `pressure`, `velocity` (at the cell
            centres, with a zero third component) and `divergence`, which is to equal the source.
        **cell_fields: Further fields by name: numbers `[ny, nx]`, as a standard deviation, or
            vectors `[ny, nx, 2]`.

    Returns:
        The path.

    Raises:
        PdeError: Another suffix; nothing to write; a solution of another grid, or of many samples;
            a field of another shape, or not finite, or with the name of one above.

    Example:
        >>> from pde import DarcySolver
        >>> grid, kappa = Grid(3, 2), np.ones((2, 3))
        >>> solution = DarcySolver(grid, kappa, {"left": 1.0, "right": 0.0}).solve(0.0)
        >>> write_vtk("flow.vti", grid, kappa, solution)  # doctest: +SKIP
    """
    path = Path(path)
    if path.suffix not in (".vti", ".vtr"):
        raise PdeError(f"{path} has the suffix {path.suffix!r}, expected '.vti' or '.vtr'")
    if path.suffix == ".vti" and not grid.uniform:
        raise PdeError(f"{path}: an image has equal cells and the grid's differ; write a '.vtr'")
    flow = {} if solution is None else _flow(grid, solution)
    fields = {}
    if permeability is not None:
        active = ~np.isnan(flow["pressure"]) if flow else None
        fields["kappa"] = check_tensor(grid, permeability, check_active(grid, active))
    fields |= flow
    for name, given in cell_fields.items():
        if name in fields:
            raise PdeError(f"{name!r} is written already; give the field another name")
        fields[name] = grid.cell_field(name, given, vectors=True)
    if not fields:
        raise PdeError(f"nothing to write to {path}: give a permeability, a solution or a field")
    document = _image if path.suffix == ".vti" else _rectilinear
    path.write_text(document(grid, fields), encoding="ascii", errors="xmlcharrefreplace")
    return path


def _flow(grid: Grid, solution: DarcySolution) -> dict[str, Array]:
    if solution.grid != grid:
        raise PdeError(f"a solution on {solution.grid}, expected one on {grid}")
    if solution.velocity.ndim != 1:
        raise PdeError(
            f"a solution of {solution.velocity.shape[:-1]} samples, expected one: write each to a "
            "file of its own"
        )
    return {
        "pressure": solution.pressure,
        "velocity": solution.cell_velocity(),
        "divergence": grid.divergence(solution.velocity),
    }


def _rectilinear(grid: Grid, fields: dict[str, Array]) -> str:
    extent = f"0 {grid.nx} 0 {grid.ny} 0 0"
    arrays = "".join(_data_array(name, values) for name, values in fields.items())
    lines = (("x", grid.x_lines), ("y", grid.y_lines), ("z", np.zeros(1)))
    coordinates = "".join(_data_array(name, values) for name, values in lines)
    return (
        '<?xml version="1.0"?>\n<VTKFile type="RectilinearGrid" version="1.0" '
        'byte_order="LittleEndian" header_type="UInt64">\n'
        f'<RectilinearGrid WholeExtent="{extent}">\n<Piece Extent="{extent}">\n<PointData/>\n'
        f"<CellData>\n{arrays}</CellData>\n<Coordinates>\n{coordinates}</Coordinates>\n"
        "</Piece>\n</RectilinearGrid>\n</VTKFile>\n"
    )


def _image(grid: Grid, fields: dict[str, Array]) -> str:
    extent = f"0 {grid.nx} 0 {grid.ny} 0 0"
    arrays = "".join(_data_array(name, values) for name, values in fields.items())
    return (
        '<?xml version="1.0"?>\n'
        '<VTKFile type="ImageData" version="1.0" byte_order="LittleEndian" header_type="UInt64">\n'
        f'<ImageData WholeExtent="{extent}" Origin="0 0 0" Spacing="{grid.hx} {grid.hy} 1">\n'
        f'<Piece Extent="{extent}">\n<PointData/>\n<CellData>\n{arrays}</CellData>\n</Piece>\n'
        "</ImageData>\n</VTKFile>\n"
    )


def _data_array(name: str, values: Array) -> str:
    """One array inline: base64 of its number of bytes, then of its bytes, x running fastest."""
    components = 1
    if values.ndim == 3:
        components = 3
        values = np.concatenate([values, np.zeros((*values.shape[:2], 1))], axis=2)
    data = np.ascontiguousarray(values, dtype="<f8").tobytes()
    content = base64.b64encode(len(data).to_bytes(8, "little") + data).decode("ascii")
    return (
        f'<DataArray type="Float64" Name={quoteattr(name)} NumberOfComponents="{components}" '
        f'format="binary">{content}</DataArray>\n'
    )
