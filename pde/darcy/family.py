r"""Darcy problems that differ in their permeability alone: one analysis, many factorizations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from ..errors import PdeError, check_choice, check_conserved
from ..grid import Array, Grid
from .batch_numpy import OneByOne, Problem
from .rt0 import check_permeability
from .solver import DarcySolution, check_sources

#: Ways to factor the multiplier system: what everyone has, and what the extra `fast` adds.
BACKENDS = ("auto", "compiled", "scipy")


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
        values = check_sources(grid, source, closed=not self.pressure)
        if values.ndim != 2:
            raise PdeError(f"source of shape {values.shape}, expected one, {grid.shape}")
        self._problem = Problem.of(grid, self.pressure, values)
        self.backend, solver = choose_backend(backend)
        self._batches = solver(self._problem)

    def solve(self, permeability: Any) -> DarcySolution:
        """Velocity and pressure of one or many permeabilities.

        Args:
            permeability: Positive cell values `[..., ny, nx]`.

        Returns:
            The solution, with the permeability's leading dimensions. A sample's bits do not depend
            on the others.

        Raises:
            PdeError: A permeability that is not positive and finite, or of another shape.
            SingularError: The flow does not conserve mass in double precision, to 1e-6 of its
                largest value through an edge.
        """
        kappa = check_permeability(self.grid, permeability, many=True)
        flat = kappa.reshape(-1, *self.grid.shape)
        velocity = np.empty((len(flat), self.grid.num_edges))
        pressure = np.empty(flat.shape)
        lengths = self.grid.edge_lengths()
        for start in range(0, len(flat), self._batches.batch):
            part = slice(start, start + self._batches.batch)
            velocity[part], pressure[part] = self._batches.solve(flat[part])
            outflow = self.grid.divergence(velocity[part]) * self.grid.cell_area
            excess = (self._problem.source - outflow).reshape(len(outflow), -1)
            flow = velocity[part] * lengths
            check_conserved(excess, flow, flat[part], pressure[part].reshape(excess.shape))
        return DarcySolution.of_batch(self.grid, velocity, pressure, kappa.shape)


class Batches(Protocol):
    """A way to solve the problems of a family, a batch at a time."""

    batch: int

    def solve(self, kappa: Array) -> tuple[Array, Array]:
        """Velocities `[n, num_edges]` and pressures `[n, ny, nx]`, n at most `batch`."""


def choose_backend(asked: str) -> tuple[str, Callable[[Problem], Batches]]:
    """The name and the solver that `asked`, one of `BACKENDS`, means on this machine.

    Raises:
        PdeError: An unknown backend, or one that is not installed.
    """
    check_choice("backend", asked, BACKENDS)
    if asked != "scipy":
        try:
            from .batch_compiled import CompiledBatches

            return "compiled", CompiledBatches
        except ImportError as error:
            if asked == "compiled":
                raise PdeError(
                    "the compiled backend needs Numba: install the extra `fast`"
                ) from error
    return "scipy", OneByOne
