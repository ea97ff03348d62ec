r"""A bound of a flow's error that needs no exact flow: the identity of Prager and Synge (1947).

For the exact flux `q = -kappa grad p`, any `q~` with `div q~ = f` and the closed sides' zero flux,
and any `p~` of finite energy with the sides' pressures,

    ||k^(-1/2) (q~ + k grad p~)||^2 = ||k^(-1/2) (q~ - q)||^2 + ||k^(1/2) grad(p~ - p)||^2.

The left side is computed, so that its root bounds both errors. *The error is that of the continuous
problem* with this permeability, constant on each cell. With the RT0 solution `q_h` on the same grid

    ||k^(-1/2) (q~ - q)||^2 = ||k^(-1/2) (q~ - q_h)||^2 + ||k^(-1/2) (q_h - q)||^2

where `q~` is of RT0 too, so that the bound holds for the distance to the discrete flow as well, and
does not fall below the error of the discretisation; `pde.darcy.discrete_bound` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import PdeError
from ..grid import SIDES, Array, Grid
from .conforming import boundary_values, conforming_pressure
from .rt0 import check_permeability
from .solver import check_sources

#: How far a cell's outflow may be from its source, and flow through closed sides from zero, as a
#: part of the largest velocity over the cell's side.
BALANCE = 1e-10


def energy_norm(grid: Grid, permeability: Any, velocity: Any) -> Array:
    r"""`||kappa^(-1/2) u||` of RT0 velocities, integrated exactly.

    Args:
        grid: The grid.
        permeability: Positive cell values `[..., ny, nx]`.
        velocity: `[..., num_edges]`; leading dimensions broadcast.

    Returns:
        The norms, `[...]`.

    Raises:
        PdeError: Another shape, or a permeability that is not positive.
    """
    kappa = check_permeability(grid, permeability, many=True)
    return _norm(grid, kappa, velocity, np.zeros((grid.ny + 1, grid.nx + 1)))


def energy_bound(
    grid: Grid,
    permeability: Any,
    pressure: Mapping[str, float],
    velocity: Any,
    source: Any = 0.0,
    potential: Any = None,
) -> Array:
    r"""An upper bound of `||kappa^(-1/2) (u - q)||`, q the exact flow, for velocities that balance.

    Args:
        grid: The grid.
        permeability: Positive cell values `[..., ny, nx]`.
        pressure: Pressure of whole sides, one number each; the other sides are closed.
        velocity: RT0 velocities `[..., num_edges]` that balance the source in every cell and do not
            pass closed sides; leading dimensions broadcast with the permeability's.
        source: `[ny, nx]` or a scalar: f, constant on each cell.
        potential: Any pressure with the sides' values, at the nodes, `[..., ny + 1, nx + 1]`: the
            one of `fitted_pressure` needs no solve; by default the one that makes the smallest
            bound (`conforming_pressure`), a solve a permeability, which serves all its velocities.

    Returns:
        The bounds, `[...]`.

    Raises:
        PdeError: Velocities that do not balance or pass closed sides; a potential with other
            boundary values; or as for `conforming_pressure`.
    """
    kappa = check_permeability(grid, permeability, many=True)
    given, free = boundary_values(grid, pressure)
    check_balance(grid, velocity, check_sources(grid, source, closed=False), pressure)
    if potential is None:
        nodes = conforming_pressure(grid, kappa, pressure, source)
    else:
        nodes = np.asarray(potential, dtype=np.float64)
        if nodes.shape[-2:] != given.shape or not np.isfinite(nodes).all():
            raise PdeError(
                f"potential of shape {nodes.shape}, expected finite values (..., ny + 1, nx + 1) = "
                f"{given.shape} at the nodes"
            )
        if (off := np.abs(nodes - given)[..., ~free].max(initial=0)) > 0:
            raise PdeError(
                f"the potential misses the sides' pressures by up to {off:.2g}: set them exactly"
            )
    return _norm(grid, kappa, velocity, nodes)


def check_balance(grid: Grid, velocity: Any, source: Array, pressure: Mapping[str, float]) -> None:
    """Raise `PdeError` where velocities do not balance a source, or pass closed sides."""
    values = np.asarray(velocity, dtype=np.float64)
    excess = grid.divergence(values) - source
    scale = np.abs(values).max(axis=-1) / min(grid.widths.min(), grid.heights.min())
    closed = [grid.boundary_edges(side) for side in SIDES if side not in pressure]
    through = values[..., np.concatenate(closed)] if closed else np.zeros(1)
    if (np.abs(excess).max(axis=(-2, -1)) > BALANCE * scale).any():
        raise PdeError(
            f"a cell's outflow differs from its source by {np.abs(excess).max():.1e}: the bound "
            "holds for velocities that balance; project them first, in double precision"
        )
    if through.any():
        raise PdeError(
            f"a velocity of {np.abs(through).max():.1e} through a closed side, expected zero"
        )


def _norm(grid: Grid, kappa: Array, velocity: Any, nodes: Array) -> Array:
    """`||kappa^(-1/2) (u + kappa grad p)||` of RT0 velocities u and bilinear pressures p.

    Each component is `c + a (s - 1/2) + b (t - 1/2)` on a cell, s and t in [0, 1], and the mean of
    its square is `c^2 + (a^2 + b^2) / 12`.
    """
    vertical, horizontal = grid.split(velocity)
    along_x = np.diff(nodes, axis=-1) / grid.widths
    along_y = np.diff(nodes, axis=-2) / grid.heights[:, None]
    squares = _mean_square(vertical, along_x, kappa, -1)
    squares = squares + _mean_square(horizontal, along_y, kappa, -2)
    energy = (squares / kappa * grid.cell_areas).sum(axis=(-2, -1))
    return np.asarray(np.sqrt(energy), dtype=np.float64)


def _mean_square(edges: Array, slopes: Array, kappa: Array, axis: int) -> Array:
    """Of one component: velocities and slopes at the cells' two ends along and across `axis`."""
    n, across = edges.shape[axis] - 1, -3 - axis
    u = edges.take(range(n), axis), edges.take(range(1, n + 1), axis)
    m = slopes.shape[across] - 1
    g = slopes.take(range(m), across), slopes.take(range(1, m + 1), across)
    centre = (u[0] + u[1]) / 2 + kappa * (g[0] + g[1]) / 2
    along, over = u[1] - u[0], kappa * (g[1] - g[0])
    square: Array = centre**2 + (along**2 + over**2) / 12
    return square
