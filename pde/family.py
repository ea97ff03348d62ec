r"""Darcy problems that differ in their permeability alone: one analysis, many factorizations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .banded import BandedCholesky
from .darcy import DarcySolution, check_sources
from .errors import PdeError
from .grid import Array, Grid, IntArray
from .hybrid import local_matrices
from .rt0 import boundary_data, check_permeability

#: Ways to factor the multiplier system: what everyone has, and what the extra `fast` adds.
BACKENDS = ("auto", "compiled", "scipy")


class Backend(Protocol):
    """The multiplier systems of one grid and one set of boundary conditions, factored in batches.

    A system is `sum over cells of kappa H + diagonal` on the free edges, symmetric positive
    definite.
    """

    #: Number of samples that are best factored together.
    batch: int

    def factorize(self, permeability: Array, pins: IntArray | None) -> None:
        """Factor the systems of permeabilities `[n, num_cells]`, n at most `batch`.

        Args:
            permeability: Cell values.
            pins: An edge of each sample whose diagonal entry is doubled, `[n]`.
        """

    def solve(self, rhs: Array) -> Array:
        """Solve the factored systems for `[n, num_edges]`; entries of other edges are zero."""


class DarcyFamily:
    r"""Solve `kappa^-1 u + grad p = 0, div u = f` exactly in RT0/P0 for many kappa.

    As `DarcySolver`: the mass matrix is integrated exactly, the system hybridised, and every
    solution refined once with the residual of the saddle point, to round-off at contrasts of 1e7.
    What depends on the grid and the boundary alone is done once.

    Args:
        grid: The grid.
        pressure: Pressure of the open sides, as for `DarcySolver`.
        source: One source for all samples, `[ny, nx]` or a scalar, as for `DarcySolver.solve`.
        backend: `scipy`, banded Cholesky factorizations by LAPACK; `compiled`, nested dissection
            of eight samples at a time, which needs Numba (the extra `fast`); `auto`, the faster
            one at hand. Their solutions agree to round-off, not to the bit.

    Raises:
        PdeError: An unknown backend, one that is not installed, or as for `DarcySolver`.

    Example:
        >>> import numpy as np
        >>> family = DarcyFamily(Grid(4, 4), pressure={"left": 1.0, "right": 0.0})
        >>> solution = family.solve(np.full((3, 4, 4), 2.0))
        >>> bool(np.allclose(solution.velocity[:, :20], 2.0))
        True
    """

    def __init__(
        self,
        grid: Grid,
        pressure: Mapping[str, Any] | None = None,
        source: Any = 0.0,
        backend: str = "auto",
    ) -> None:
        self.grid, self.pressure = grid, dict(pressure or {})
        source = np.asarray(source, dtype=np.float64)
        if source.ndim == 0:
            source = np.broadcast_to(source, grid.shape)
        if source.ndim != 2:
            raise PdeError(f"source of shape {source.shape}, expected one, {grid.shape}")
        check_sources(grid, source, closed=not self.pressure)
        self._source = source * grid.cell_area
        if not self.pressure:
            self._source = self._source - self._source.mean()
        signed, closed = boundary_data(grid, self.pressure)
        self._boundary_pressure = signed
        self._open_to_flow = np.ones(grid.num_edges)
        self._open_to_flow[closed] = 0.0
        free = np.ones(grid.num_edges, dtype=bool)
        for side in self.pressure:
            free[grid.boundary_edges(side)] = False
        self._free = free
        self.backend, self._system = _choose(backend, grid, free)
        H, w = local_matrices(grid)
        # H = kappa [[a, b, -c, -c], [b, a, -c, -c], [-c, -c, d, e], [-c, -c, e, d]]
        self._H = (H[0, 0], H[0, 1], -H[0, 2], H[2, 2], H[2, 3])
        self._resistance, self._weight = 1 / w.sum(), w / w.sum()

    def solve(self, permeability: Any) -> DarcySolution:
        """Velocity and pressure of one or many permeabilities.

        Args:
            permeability: Positive cell values `[..., ny, nx]`.

        Returns:
            The solution, with the permeability's leading dimensions. A sample's bits do not depend
            on the others.

        Raises:
            PdeError: A permeability that is not positive and finite, or of another shape.
        """
        kappa = check_permeability(self.grid, permeability, many=True)
        flat = kappa.reshape(-1, *self.grid.shape)
        velocity = np.empty((len(flat), self.grid.num_edges))
        pressure = np.empty(flat.shape)
        for part, (u, p) in self._blocks(flat):
            velocity[part], pressure[part] = u, p
        batch = kappa.shape[:-2]
        return DarcySolution(
            self.grid, velocity.reshape(*batch, self.grid.num_edges), pressure.reshape(kappa.shape)
        )

    def _blocks(self, kappa: Array) -> Iterator[tuple[slice, tuple[Array, Array]]]:
        for start in range(0, len(kappa), self._system.batch):
            part = slice(start, start + self._system.batch)
            yield part, self._solve_block(kappa[part])

    def _solve_block(self, kappa: Array) -> tuple[Array, Array]:
        pins = None
        if not self.pressure:
            # The pressure is flattest in the most permeable cell; a multiplier there is held at 0.
            cells = kappa.reshape(len(kappa), -1).argmax(axis=1)
            pins = self.grid.cell_edges()[cells, 0]
        self._system.factorize(kappa.reshape(len(kappa), -1), pins)
        shares = self._shares(kappa)
        load = np.broadcast_to(
            -self._boundary_pressure * self.grid.edge_lengths(), (len(kappa), self.grid.num_edges)
        )
        source = np.broadcast_to(self._source, kappa.shape)
        velocity, pressure = self._solve_once(kappa, shares, load, source)
        # One step of refinement on the saddle point, mass matrix and divergence as they are.
        residual = self._residual(kappa, velocity, pressure)
        imbalance = source - self._outflow(velocity)
        du, dp = self._solve_once(kappa, shares, residual, imbalance)
        velocity += du
        pressure += dp
        if not self.pressure:
            pressure -= pressure.mean(axis=(1, 2), keepdims=True)
        return velocity, pressure

    def _sides(self, values: Array) -> tuple[Array, Array, Array, Array]:
        """Views of edge values at the left, right, bottom and top of each cell, `[n, ny, nx]`."""
        vertical, horizontal = self.grid.split(values)
        left, right = vertical[..., :-1], vertical[..., 1:]
        return left, right, horizontal[..., :-1, :], horizontal[..., 1:, :]

    def _edges(self, left: Array, right: Array, bottom: Array, top: Array) -> Array:
        """Sum cells' values onto the edges, `[n, num_edges]`."""
        result = np.zeros((len(left), self.grid.num_edges))
        for view, values in zip(self._sides(result), (left, right, bottom, top), strict=True):
            view += values
        return result

    def _shares(self, kappa: Array) -> list[Array]:
        """Weights that pass velocities and loads between an edge and its two cells.

        In proportion to the cells' resistance: in the permeable one both come from small
        differences of large numbers.
        """
        resistance = 1 / kappa
        total = self._edges(*[resistance] * 4) * self.grid.edge_lengths()
        sides = self._sides(self._open_to_flow / total)
        return [sign * resistance * side for sign, side in zip((-1, 1, -1, 1), sides, strict=True)]

    def _times_h(self, kappa: Array, d: list[Array]) -> list[Array]:
        """`kappa H d` in every cell."""
        a, b, c, f, g = self._H
        across, along = c * (d[2] + d[3]), c * (d[0] + d[1])
        return [
            kappa * (a * d[0] + b * d[1] - across),
            kappa * (b * d[0] + a * d[1] - across),
            kappa * (f * d[2] + g * d[3] - along),
            kappa * (g * d[2] + f * d[3] - along),
        ]

    def _solve_once(
        self, kappa: Array, shares: list[Array], load: Array, source: Array
    ) -> tuple[Array, Array]:
        """Solve `A u - B^T p = load, B u = source` through the multipliers."""
        g = [share * side for share, side in zip(shares, self._sides(load), strict=True)]
        w = self._weight
        driven = [w[i] * source + q for i, q in enumerate(self._times_h(kappa, g))]
        multiplier = self._system.solve(np.where(self._free, self._edges(*driven), 0.0))
        d = [a - b for a, b in zip(g, self._sides(multiplier), strict=True)]
        pressure = self._resistance / kappa * source
        pressure -= sum(w[i] * one for i, one in enumerate(d))
        flux = self._times_h(kappa, d)
        velocity = self._edges(
            *(share * (w[i] * source + flux[i]) for i, share in enumerate(shares))
        )
        return velocity, pressure

    def _residual(self, kappa: Array, velocity: Array, pressure: Array) -> Array:
        """`-D + B^T p - A u`, zero on edges that nothing passes."""
        # Differences of pressures are exact before they are multiplied: permeable channels at
        # nearly the pressure of their side lose four digits otherwise.
        residual = self._edges(-pressure, pressure, -pressure, pressure) - self._boundary_pressure
        residual *= self.grid.edge_lengths()
        weight = self.grid.cell_area / 6 / kappa
        left, right, bottom, top = self._sides(velocity)
        residual -= self._edges(
            weight * (2 * left + right),
            weight * (left + 2 * right),
            weight * (2 * bottom + top),
            weight * (bottom + 2 * top),
        )
        residual *= self._open_to_flow
        return residual

    def _outflow(self, velocity: Array) -> Array:
        left, right, bottom, top = self._sides(velocity)
        return (right - left) * self.grid.hy + (top - bottom) * self.grid.hx


def _choose(backend: str, grid: Grid, free: NDArray[np.bool_]) -> tuple[str, Backend]:
    if backend not in BACKENDS:
        raise PdeError(f"backend={backend!r}, expected one of {', '.join(BACKENDS)}")
    if backend != "scipy":
        try:
            from .compiled import NestedDissection

            return "compiled", NestedDissection(grid, free)
        except ImportError as error:
            if backend == "compiled":
                raise PdeError(
                    "the compiled backend needs Numba: install the extra `fast`"
                ) from error
    return "scipy", BandedCholesky(grid, free)
