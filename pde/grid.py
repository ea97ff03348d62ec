"""The rectangular grid, its numbering of cells and edges, and maps between the two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import PdeError, check_count, check_positive

Array = NDArray[np.float64]
IntArray = NDArray[np.intp]

SIDES = ("left", "right", "bottom", "top")


@dataclass(frozen=True)
class Grid:
    r"""`nx` by `ny` equal rectangular cells on `[0, lx] x [0, ly]`.

    A cell field is an array `[..., ny, nx]`, row 0 at y = 0 (the `bottom` side), column 0 at x = 0
    (`left`). A velocity is an array `[..., num_edges]` of mean normal components, positive towards
    +x and +y: first the `ny * (nx + 1)` vertical edges row by row, then the `(ny + 1) * nx`
    horizontal ones row by row.

    Args:
        nx: Number of cells in x.
        ny: Number of cells in y.
        lx: Width of the domain.
        ly: Height of the domain.

    Raises:
        PdeError: A count below one, or a length that is not positive and finite.
    """

    nx: int
    ny: int
    lx: float = 1.0
    ly: float = 1.0

    def __post_init__(self) -> None:
        for name in ("nx", "ny"):
            count = getattr(self, name)
            object.__setattr__(self, name, check_count(f"Grid: {name}={count!r}", count))
        for name in ("lx", "ly"):
            length = check_positive(f"Grid: {name}", getattr(self, name))
            object.__setattr__(self, name, length)

    @property
    def hx(self) -> float:
        """Width of a cell."""
        return self.lx / self.nx

    @property
    def hy(self) -> float:
        """Height of a cell."""
        return self.ly / self.ny

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
        """Area of a cell."""
        return self.hx * self.hy

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
        x = (np.arange(self.nx) + 0.5) * self.hx
        y = (np.arange(self.ny) + 0.5) * self.hy
        return np.stack(np.meshgrid(x, y), axis=-1)

    def edge_midpoints(self) -> Array:
        """Coordinates (x, y) of the edge midpoints, `[num_edges, 2]`."""
        x, y = np.arange(self.nx + 1) * self.hx, np.arange(self.ny + 1) * self.hy
        vertical = np.stack(np.meshgrid(x, y[:-1] + self.hy / 2), axis=-1)
        horizontal = np.stack(np.meshgrid(x[:-1] + self.hx / 2, y), axis=-1)
        return np.concatenate([vertical.reshape(-1, 2), horizontal.reshape(-1, 2)])

    def edge_lengths(self) -> Array:
        """Lengths of the edges, `[num_edges]`: hy for the vertical ones, hx for the others."""
        horizontal = self.num_edges - self.num_vertical
        return np.repeat([self.hy, self.hx], [self.num_vertical, horizontal])

    def cell_edges(self) -> IntArray:
        """Edges of each cell in the order left, right, bottom, top, `[num_cells, 4]`."""
        row, column = np.divmod(np.arange(self.num_cells), self.nx)
        left = row * (self.nx + 1) + column
        bottom = self.num_vertical + row * self.nx + column
        return np.stack([left, left + 1, bottom, bottom + self.nx], axis=-1)

    def boundary_edges(self, side: str) -> IntArray:
        """Edges of a side, in the direction of growing x or y.

        Args:
            side: `left`, `right`, `bottom` or `top`.

        Raises:
            PdeError: The side is none of the four.
        """
        if side not in SIDES:
            raise PdeError(f"unknown side {side!r}, expected one of {', '.join(SIDES)}")
        edges = self.cell_edges().reshape(self.ny, self.nx, 4)
        cells = {"left": edges[:, 0], "right": edges[:, -1], "bottom": edges[0], "top": edges[-1]}
        return np.array(cells[side][:, SIDES.index(side)])

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
        return np.diff(vertical, axis=-1) / self.hx + np.diff(horizontal, axis=-2) / self.hy


def finite(name: str, values: Array) -> Array:
    """Return values; raise `PdeError` if one is not finite."""
    if not np.isfinite(values).all():
        raise PdeError(f"{name} holds values that are not finite; mend it first")
    return values
