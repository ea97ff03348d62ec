r"""The mixed multiscale finite element method, the reduced solver that the surrogates imitate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import splu

from ..errors import PdeError, check_choice, check_count
from ..grid import SIDES, Array, Grid, IntArray
from .family import DarcyFamily
from .rt0 import boundary_data, check_permeability, divergence_matrix, mass_matrix, saddle_point
from .solver import DarcySolution, check_sources


@dataclass(frozen=True)
class MultiscaleSolution:
    """A flow field in the span of the multiscale velocities.

    Attributes:
        solution: The velocity on the fine grid, and the pressure, constant in a coarse block.
        velocity_basis: `R_u`, a coarse edge's velocity on the fine edges a row.
        pressure_basis: `R_p`, a block's indicator on the fine cells a row.
        coefficients: The coarse velocities; `velocity = R_u^T coefficients`.
    """

    solution: DarcySolution
    velocity_basis: sparse.csr_array
    pressure_basis: sparse.csr_array
    coefficients: Array


class MultiscaleSolver:
    r"""Mixed multiscale finite elements on a coarse grid of blocks of cells.

    The velocity of a coarse edge is that of unit flow between the two blocks K and L beside it,

        kappa^-1 psi + grad phi = 0,   div psi = 1/|K| in K, -1/|L| in L,
        psi . n = 0 on the boundary of K and L together,

    solved exactly on the fine cells (Chen and Hou 2003; Aarnes 2004); on a side of given pressure
    it is the flow that a source in the one block drives out. With these as rows of `R_u`, and the
    blocks' indicators as rows of `R_p`, the coarse system (Wang, Deng and Lin 2020, section 5.3) is

        R_u A R_u^T c - (R_p B R_u^T)^T q = -R_u D,    R_p B R_u^T c = R_p F.

    Mass is conserved in every fine cell if the source is constant in each block.

    Args:
        grid: The fine grid.
        blocks: Number of blocks in x and y; each must divide the number of cells.

    Raises:
        PdeError: Blocks that do not divide the grid.
    """

    def __init__(self, grid: Grid, blocks: tuple[int, int]) -> None:
        for name, cells, count in zip("xy", (grid.nx, grid.ny), blocks, strict=True):
            if cells % check_count(f"{count!r} blocks in {name}", count):
                raise PdeError(f"{count} blocks in {name} do not divide {cells} cells")
        self.grid = grid
        self.coarse = Grid(int(blocks[0]), int(blocks[1]), lx=grid.lx, ly=grid.ly)
        width, height = grid.nx // self.coarse.nx, grid.ny // self.coarse.ny
        self._block = Grid(width, height, lx=width * grid.hx, ly=height * grid.hy)
        self._families: dict[str, DarcyFamily] = {}

    def solve(
        self, permeability: Any, source: Any = 0.0, pressure: Mapping[str, Any] | None = None
    ) -> MultiscaleSolution:
        """Solve one problem.

        Args:
            permeability: Positive cell values `[ny, nx]`.
            source: `[ny, nx]` or a scalar, as for `DarcySolver.solve`.
            pressure: Of the open sides, as for `DarcySolver`; at least one.

        Raises:
            PdeError: As for `DarcySolver`, or if no side is open.
        """
        grid, pressure = self.grid, dict(pressure or {})
        kappa = check_permeability(grid, permeability)
        if not pressure:
            raise PdeError("the multiscale solver needs a side of given pressure")
        values = grid.cell_field("source", check_sources(grid, source, closed=False))
        for side in pressure:
            check_choice("side of given pressure", side, SIDES)
        signed, _ = boundary_data(grid, pressure)
        velocities = self._velocities(kappa, pressure)
        indicators = self._indicators()
        A, B = mass_matrix(grid, kappa), divergence_matrix(grid)
        work = signed * grid.edge_lengths()
        coarse_A = velocities @ A @ velocities.T
        coarse_B = indicators @ B @ velocities.T
        system = sparse.csc_array(saddle_point(coarse_A, coarse_B))
        outflow = indicators @ (values.ravel() * grid.cell_area)
        found = splu(system).solve(-np.concatenate([velocities @ work, outflow]))
        count = velocities.shape[0]
        velocity, block_pressure = velocities.T @ found[:count], found[count:]
        cells = (indicators.T @ block_pressure).reshape(grid.shape)
        return MultiscaleSolution(
            DarcySolution(grid, velocity, cells), velocities, indicators, found[:count]
        )

    def _indicators(self) -> sparse.csr_array:
        rows = sparse.kron(sparse.eye_array(self.coarse.ny), np.ones((1, self._block.ny)))
        columns = sparse.kron(sparse.eye_array(self.coarse.nx), np.ones((1, self._block.nx)))
        return sparse.csr_array(sparse.kron(rows, columns))

    def _velocities(self, kappa: Array, pressure: Mapping[str, Any]) -> sparse.csr_array:
        """The velocity of each coarse edge that flow passes, a row."""
        ny, nx = self.coarse.shape
        blocks = kappa.reshape(ny, self._block.ny, nx, self._block.nx).transpose(0, 2, 1, 3)
        y, x = np.indices((ny, nx))
        at = {"left": x == 0, "right": x == nx - 1, "bottom": y == 0, "top": y == ny - 1}
        found = []
        if nx > 1:
            pairs = np.concatenate([blocks[:, :-1], blocks[:, 1:]], axis=3)
            found.append(self._local("x", pairs, y[:, :-1], x[:, :-1]))
        if ny > 1:
            pairs = np.concatenate([blocks[:-1], blocks[1:]], axis=2)
            found.append(self._local("y", pairs, y[:-1], x[:-1]))
        found += [self._local(s, blocks[at[s]], y[at[s]], x[at[s]]) for s in pressure]
        return sparse.csr_array(sparse.vstack(found))

    def _local(self, kind: str, kappa: Array, y: IntArray, x: IntArray) -> sparse.csr_array:
        """Velocities of unit flow in windows whose first blocks are given, a row each.

        Args:
            kind: `x` or `y`, from a block into the next one; or the side that it flows out of.
            kappa: Permeability of the windows, `[..., ny, nx]`.
            y: Numbers of the first blocks in y, `[...]`.
            x: In x.
        """
        family = self._family(kind)
        part = family.grid
        velocity = family.solve(kappa.reshape(-1, *part.shape)).velocity
        row = (y.ravel() * self._block.ny)[:, None, None]
        column = (x.ravel() * self._block.nx)[:, None, None]
        i, j = np.indices((part.ny, part.nx + 1))
        vertical = (row + i) * (self.grid.nx + 1) + column + j
        i, j = np.indices((part.ny + 1, part.nx))
        horizontal = self.grid.num_vertical + (row + i) * self.grid.nx + column + j
        count = len(velocity)
        edges = np.concatenate([vertical.reshape(count, -1), horizontal.reshape(count, -1)], axis=1)
        rows = np.broadcast_to(np.arange(count)[:, None], edges.shape)
        entries = velocity.ravel(), (rows.ravel(), edges.ravel())
        matrix = sparse.csr_array(sparse.coo_array(entries, shape=(count, self.grid.num_edges)))
        matrix.eliminate_zeros()
        return matrix

    def _family(self, kind: str) -> DarcyFamily:
        """The local problem of a kind of coarse edge, analysed once."""
        if kind not in self._families:
            block = self._block
            wide, high = {"x": (2, 1), "y": (1, 2)}.get(kind, (1, 1))
            part = Grid(wide * block.nx, high * block.ny, lx=wide * block.lx, ly=high * block.ly)
            pressure = {kind: 0.0} if kind in SIDES else {}
            source = np.full(part.shape, 1 / (block.lx * block.ly))
            if not pressure:  # from the first block into the second
                source[(high - 1) * block.ny :, (wide - 1) * block.nx :] *= -1
            self._families[kind] = DarcyFamily(part, pressure, source)
        return self._families[kind]
