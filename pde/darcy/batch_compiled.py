"""A batch of Darcy problems in kernels that Numba compiles, eight samples at a time."""

from __future__ import annotations

from functools import cache
from typing import Any

import numba
import numpy as np

from ..grid import Array
from .batch_numpy import Problem
from .hybrid import local_matrices
from .multifrontal_simd import LANES, NestedDissection, compile_
from .rt0 import OUTWARD


def _share(cells, kappa, lengths, passable, sign, share):  # type: ignore[no-untyped-def]
    """Weights between an edge and its cells, in proportion to the cells' resistance."""
    total = np.zeros((len(lengths), LANES))
    for c in range(len(cells)):
        for i in range(4):
            for k in range(LANES):
                total[cells[c, i], k] += 1 / kappa[c, k]
    for c in range(len(cells)):
        for i in range(4):
            e = cells[c, i]
            factor = sign[i] * passable[e] / lengths[e]
            for k in range(LANES):
                share[c, i, k] = factor / (kappa[c, k] * total[e, k])


def _drive(cells, kappa, share, H, w, free, load, source, rhs):  # type: ignore[no-untyped-def]
    """Right-hand sides of the multipliers."""
    rhs[:] = 0.0
    g = np.empty((4, LANES))
    for c in range(len(cells)):
        for i in range(4):
            for k in range(LANES):
                g[i, k] = share[c, i, k] * load[cells[c, i], k]
        for i in range(4):
            e = cells[c, i]
            if free[e]:
                for k in range(LANES):
                    flux = H[i, 0] * g[0, k] + H[i, 1] * g[1, k]
                    flux += H[i, 2] * g[2, k] + H[i, 3] * g[3, k]
                    rhs[e, k] += w[i] * source[c, k] + kappa[c, k] * flux


def _flow(  # type: ignore[no-untyped-def]
    cells, kappa, share, H, w, resistance, multiplier, load, source, velocity, pressure
):
    """Add the velocity and the pressure that belong to multipliers."""
    d = np.empty((4, LANES))
    for c in range(len(cells)):
        for i in range(4):
            e = cells[c, i]
            for k in range(LANES):
                d[i, k] = share[c, i, k] * load[e, k] - multiplier[e, k]
        for k in range(LANES):
            mean = w[0] * d[0, k] + w[1] * d[1, k] + w[2] * d[2, k] + w[3] * d[3, k]
            pressure[c, k] += resistance / kappa[c, k] * source[c, k] - mean
        for i in range(4):
            e = cells[c, i]
            for k in range(LANES):
                flux = H[i, 0] * d[0, k] + H[i, 1] * d[1, k]
                flux += H[i, 2] * d[2, k] + H[i, 3] * d[3, k]
                velocity[e, k] += share[c, i, k] * (w[i] * source[c, k] + kappa[c, k] * flux)


def _remainder(  # type: ignore[no-untyped-def]
    cells, kappa, lengths, passable, sign, boundary, area, source, velocity, pressure, residual,
    imbalance,
):  # fmt: skip
    """Residuals of the saddle point, of the edges and of the cells."""
    residual[:] = 0.0
    for c in range(len(cells)):
        for i in range(4):
            for k in range(LANES):
                residual[cells[c, i], k] += sign[i] * pressure[c, k]
    for e in range(len(lengths)):
        for k in range(LANES):
            residual[e, k] = (residual[e, k] - boundary[e]) * lengths[e]
    for c in range(len(cells)):
        left, right, bottom, top = cells[c, 0], cells[c, 1], cells[c, 2], cells[c, 3]
        for k in range(LANES):
            weight = area / 6 / kappa[c, k]
            residual[left, k] -= weight * (2 * velocity[left, k] + velocity[right, k])
            residual[right, k] -= weight * (velocity[left, k] + 2 * velocity[right, k])
            residual[bottom, k] -= weight * (2 * velocity[bottom, k] + velocity[top, k])
            residual[top, k] -= weight * (velocity[bottom, k] + 2 * velocity[top, k])
            across = (velocity[right, k] - velocity[left, k]) * lengths[left]
            along = (velocity[top, k] - velocity[bottom, k]) * lengths[bottom]
            imbalance[c, k] = source[c, k] - (across + along)
    for e in range(len(lengths)):
        if passable[e] == 0:
            for k in range(LANES):
                residual[e, k] = 0.0


@cache
def _kernels() -> tuple[Any, Any, Any, Any]:
    one, two, three = numba.float64[::1], numba.float64[:, ::1], numba.float64[:, :, ::1]
    cells, number = numba.int64[:, ::1], numba.float64
    return (
        compile_(_share, cells, two, one, one, one, three),
        compile_(_drive, cells, two, three, two, one, numba.boolean[::1], two, two, two),
        compile_(_flow, cells, two, three, two, one, number, two, two, two, two, two),
        compile_(
            _remainder, cells, two, one, one, one, one, number, two, two, two, two, two
        ),
    )  # fmt: skip


class CompiledBatches:
    """What `OneByOne` does in NumPy, with every array `[places, LANES]`.

    Args:
        problem: What the samples share.
    """

    batch = LANES

    def __init__(self, problem: Problem) -> None:
        self._problem, grid = problem, problem.grid
        self._kernels = _kernels()
        self._factor = NestedDissection(grid, problem.free)
        self._cells, self._lengths = grid.cell_edges(), grid.edge_lengths()
        self._H, w = local_matrices(grid)
        self._resistance, self._weight = 1 / float(w.sum()), w / w.sum()
        self._source = np.repeat(problem.source.reshape(-1, 1), LANES, axis=1)
        load = -problem.boundary * self._lengths
        self._load = np.repeat(load[:, None], LANES, axis=1)
        self._share = np.empty((grid.num_cells, 4, LANES))
        self._edge = [np.empty((grid.num_edges, LANES)) for _ in range(3)]
        self._cell = [np.empty((grid.num_cells, LANES)) for _ in range(2)]

    def solve(self, kappa: Array) -> tuple[Array, Array]:
        """Velocities `[n, num_edges]` and pressures `[n, ny, nx]` for `[n, ny, nx]`."""
        problem, n = self._problem, len(kappa)
        lanes = np.arange(LANES) % n  # idle lanes repeat a sample
        across = np.ascontiguousarray(kappa.reshape(n, -1)[lanes].T)
        pins = problem.pins(kappa)
        self._factor.factorize(across, None if pins is None else pins[lanes])
        share, _, _, remainder = self._kernels
        share(self._cells, across, self._lengths, problem.passable, OUTWARD, self._share)
        (velocity, residual, _), (pressure, imbalance) = self._edge, self._cell
        velocity[:] = 0.0
        pressure[:] = 0.0
        self._add(across, self._load, self._source)
        # One step of refinement on the saddle point, mass matrix and divergence as they are.
        remainder(
            self._cells, across, self._lengths, problem.passable, OUTWARD, problem.boundary,
            problem.grid.cell_area, self._source, velocity, pressure, residual, imbalance,
        )  # fmt: skip
        self._add(across, residual, imbalance)
        found = np.ascontiguousarray(pressure.T[:n]).reshape(kappa.shape)
        if problem.closed:
            found = found - found.mean(axis=(1, 2), keepdims=True)
        return velocity.T[:n], found

    def _add(self, kappa: Array, load: Array, source: Array) -> None:
        """Add the solution of `A u - B^T p = load, B u = source` to the velocity and pressure."""
        _, drive, flow, _ = self._kernels
        velocity, _, multiplier = self._edge
        local = (self._cells, kappa, self._share, self._H, self._weight)
        drive(*local, self._problem.free, load, source, multiplier)
        self._factor.solve_(multiplier)
        flow(*local, self._resistance, multiplier, load, source, velocity, self._cell[0])
