"""The rectangular grid, its numbering of cells and edges, and maps between the two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import PdeError, check_count, check_positive

Array = NDArray[np.float64]
IntArray = NDArray[np.intp]

SIDES = ("left", "right", "bottom", "top")
#: Widths that differ by no more than this part of the length are equal: the rounding of lines.
_ROUNDING = 4 * np.finfo(np.float64).eps


@dataclass(frozen=True)
class Grid:
    r"""`nx` by `ny` rectangular cells on `[0, lx] x [0, ly]`, equal unless made by `of_spacing`.

    A cell field is an array `[..., ny, nx]`, row 0 at y = 0 (the `bottom` side), column 0 at x = 0
    (`left`). A velocity is an array `[..., num_edges]` of mean normal components, positive towards
    +x and +y: first the `ny * (nx + 1)` vertical edges row by row, then the `(ny + 1) * nx`
    horizontal ones row by row.

    Args:
        nx: Number of cells in x.
        ny: Number of cells in y.
        lx: Width of the domain; lengths are named, since a third number could be a third count.
        ly: Height of the domain.
        dx: Widths of the columns where they differ, `nx` numbers whose sum is `lx`.
        dy: Heights of the rows where they differ, `ny` numbers whose sum is `ly`.

    Raises:
        PdeError: A count below one, a length that is not positive and finite, or spacings that do
            not fit the counts and lengths.
    """

    nx: int
    ny: int
    _: KW_ONLY
    lx: float = 1.0
    ly: float = 1.0
    dx: tuple[float, ...] | None = None
    dy: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("nx", "ny"):
            count = getattr(self, name)
            object.__setattr__(self, name, check_count(f"Grid: {name}={count!r}", count))
        for name in ("lx", "ly"):
            length = check_positive(f"Grid: {name}", getattr(self, name))
            object.__setattr__(self, name, length)
        for axis, count, length in (("x", self.nx, self.lx), ("y", self.ny, self.ly)):
            given = getattr(self, f"d{axis}")
            if given is not None:
                spacing = _spacing(f"d{axis}", given)
                if len(spacing) != count or not np.isclose(sum(spacing), length, rtol=1e-12):
                    raise PdeError(
                        f"Grid: d{axis} has {len(spacing)} widths of sum {sum(spacing):g} for "
                        f"{count} cells and a length of {length:g}; Grid.of_spacing takes both "
                        "from the widths"
                    )
                equal = max(spacing) - min(spacing) <= _ROUNDING * length
                object.__setattr__(self, f"d{axis}", None if equal else spacing)

    @classmethod
    def of_spacing(cls, dx: Sequence[float] | Array, dy: Sequence[float] | Array) -> Grid:
        """The grid whose columns have the widths `dx` and whose rows have the heights `dy`.

        Raises:
            PdeError: Not lists of positive finite numbers.
        """
        x, y = _spacing("dx", dx), _spacing("dy", dy)
        return cls(len(x), len(y), lx=sum(x), ly=sum(y), dx=x, dy=y)

    @property
    def uniform(self) -> bool:
        """Whether all cells are equal."""
        return self.dx is None and self.dy is None

    @property
    def hx(self) -> float:
        """Width of a cell.

        Raises:
            PdeError: The columns differ.
        """
        self._need_equal_cells(self.dx)
        return self.lx / self.nx

    @property
    def hy(self) -> float:
        """Height of a cell.

        Raises:
            PdeError: The rows differ.
        """
        self._need_equal_cells(self.dy)
        return self.ly / self.ny

    @staticmethod
    def _need_equal_cells(spacing: tuple[float, ...] | None) -> None:
        if spacing is not None:
            raise PdeError(
                "this needs equal cells and the grid's differ; DarcySolver, write_vtk and the "
                "figures take such grids"
            )

    @property
    def widths(self) -> Array:
        """Widths of the columns, `[nx]`."""
        return np.full(self.nx, self.hx) if self.dx is None else np.array(self.dx)

    @property
    def heights(self) -> Array:
        """Heights of the rows, `[ny]`."""
        return np.full(self.ny, self.hy) if self.dy is None else np.array(self.dy)

    @property
    def x_lines(self) -> Array:
        """Where columns begin and end, `[nx + 1]`."""
        return _lines(self.nx, self.lx, self.dx)

    @property
    def y_lines(self) -> Array:
        """Where rows begin and end, `[ny + 1]`."""
        return _lines(self.ny, self.ly, self.dy)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of a cell field, `(ny, nx)`."""
        return self.ny, self.nx

    @property
    def num_cells(self) -> int:
        """Number of cells, hence of pressures."""
        return self.nx * self.ny

    @property
    def num_vertical(self) -> int:
        """Number of vertical edges; they come first."""
        return self.ny * (self.nx + 1)

    @property
    def num_edges(self) -> int:
        """Number of edges, hence of velocities."""
        return self.num_vertical + (self.ny + 1) * self.nx

    @property
    def cell_area(self) -> float:
        """Area of a cell; `PdeError` if they differ."""
        return self.hx * self.hy

    @property
    def cell_areas(self) -> Array:
        """Areas of the cells, `[ny, nx]`."""
        return np.outer(self.heights, self.widths)

    def cell_field(self, name: str, values: Any, vectors: bool = False) -> Array:
        """Return finite values `[ny, nx]`, or vectors `[ny, nx, 2]` if allowed.

        Raises:
            PdeError: Another shape, or a value that is not finite.
        """
        cells = np.asarray(values, dtype=np.float64)
        if cells.shape != self.shape and not (vectors and cells.shape == (*self.shape, 2)):
            also = f", or vectors {(*self.shape, 2)}" if vectors else ""
            raise PdeError(f"{name} of shape {cells.shape}, expected (ny, nx) = {self.shape}{also}")
        return finite(name, cells)

    def cell_centres(self) -> Array:
        """Coordinates (x, y) of the cell centres, `[ny, nx, 2]`."""
        x = self.x_lines[:-1] + self.widths / 2 if self.dx else (np.arange(self.nx) + 0.5) * self.hx
        y = (
            self.y_lines[:-1] + self.heights / 2
            if self.dy
            else (np.arange(self.ny) + 0.5) * self.hy
        )
        return np.stack(np.meshgrid(x, y), axis=-1)

    def edge_midpoints(self) -> Array:
        """Coordinates (x, y) of the edge midpoints, `[num_edges, 2]`."""
        x, y = self.x_lines, self.y_lines
        vertical = np.stack(np.meshgrid(x, y[:-1] + self.heights / 2), axis=-1)
        horizontal = np.stack(np.meshgrid(x[:-1] + self.widths / 2, y), axis=-1)
        return np.concatenate([vertical.reshape(-1, 2), horizontal.reshape(-1, 2)])

    def edge_lengths(self) -> Array:
        """Lengths of the edges, `[num_edges]`: a height for the vertical ones, then widths."""
        vertical = np.repeat(self.heights, self.nx + 1)
        return np.concatenate([vertical, np.tile(self.widths, self.ny + 1)])

    def cell_edges(self) -> IntArray:
        """Edges of each cell in the order left, right, bottom, top, `[num_cells, 4]`."""
        row, column = np.divmod(np.arange(self.num_cells), self.nx)
        left = row * (self.nx + 1) + column
        bottom = self.num_vertical + row * self.nx + column
        return np.stack([left, left + 1, bottom, bottom + self.nx], axis=-1)

    def boundary_edges(self, side: str) -> IntArray:
        """Edges of a side or of a part of it, in the direction of growing x or y.

        Args:
            side: `left`, `right`, `bottom` or `top`; or a part of one, `left:0.2:0.5` say, the
                edges whose midpoints lie between y = 0.2 and 0.5.

        Raises:
            PdeError: The side is none of the four, or the part is not two numbers, or holds no
                edge.
        """
        name, *ends = side.split(":")
        if name not in SIDES:
            raise PdeError(
                f"unknown side {side!r}, expected one of {', '.join(SIDES)}, or a part as left:0:1"
            )
        edges = self.cell_edges().reshape(self.ny, self.nx, 4)
        cells = {"left": edges[:, 0], "right": edges[:, -1], "bottom": edges[0], "top": edges[-1]}
        found = np.array(cells[name][:, SIDES.index(name)])
        if not ends:
            return found
        try:
            low, high = (float(end) for end in ends)
        except ValueError as error:
            raise PdeError(f"side {side!r}: a part is SIDE:FROM:TO, two numbers") from error
        place = self.edge_midpoints()[found, int(name in ("left", "right"))]
        found = np.array(found[(low <= place) & (place <= high)])
        if not found.size:
            raise PdeError(
                f"side {side!r} holds the midpoint of no edge; they lie from {place[0]:g} to "
                f"{place[-1]:g}"
            )
        return found

    def split(self, velocity: Any) -> tuple[Array, Array]:
        """Views of the vertical `[..., ny, nx + 1]` and horizontal `[..., ny + 1, nx]` edges.

        Raises:
            PdeError: The last axis is not of length `num_edges`.
        """
        values = np.asarray(velocity, dtype=np.float64)
        if values.ndim == 0 or values.shape[-1] != self.num_edges:
            raise PdeError(
                f"velocity of shape {values.shape}, expected (..., {self.num_edges}) "
                f"on a grid of {self.nx} x {self.ny} cells"
            )
        batch, cut = values.shape[:-1], self.num_vertical
        vertical = values[..., :cut].reshape(*batch, self.ny, self.nx + 1)
        return vertical, values[..., cut:].reshape(*batch, self.ny + 1, self.nx)

    def cell_velocity(self, velocity: Any) -> Array:
        """Velocity vectors at the cell centres, `[..., num_edges] -> [..., ny, nx, 2]`.

        An RT0 velocity is linear between opposite edges, so this is its exact value there, and its
        cell mean.
        """
        vertical, horizontal = self.split(velocity)
        x = (vertical[..., :-1] + vertical[..., 1:]) / 2
        y = (horizontal[..., :-1, :] + horizontal[..., 1:, :]) / 2
        return np.stack([x, y], axis=-1)

    def divergence(self, velocity: Any) -> Array:
        """Divergence of an RT0 velocity, constant in a cell, `[..., num_edges] -> [..., ny, nx]`.

        Mass is conserved when it equals the source.
        """
        vertical, horizontal = self.split(velocity)
        along_x = np.diff(vertical, axis=-1) / self.widths
        return along_x + np.diff(horizontal, axis=-2) / self.heights[:, None]


def finite(name: str, values: Array) -> Array:
    """Return values; raise `PdeError` if one is not finite."""
    if not np.isfinite(values).all():
        raise PdeError(f"{name} holds values that are not finite; mend it first")
    return values


def _spacing(name: str, values: Any) -> tuple[float, ...]:
    spacing = np.asarray(values, dtype=np.float64)
    if spacing.ndim != 1 or not spacing.size:
        raise PdeError(f"Grid: {name} of shape {spacing.shape}, expected a list of widths")
    return tuple(check_positive(f"Grid: {name}[{i}]", float(h)) for i, h in enumerate(spacing))


def _lines(count: int, length: float, spacing: tuple[float, ...] | None) -> Array:
    if spacing is None:
        return np.asarray(np.arange(count + 1) * (length / count), dtype=np.float64)
    return np.concatenate([np.zeros(1), np.cumsum(np.array(spacing, dtype=np.float64))])
