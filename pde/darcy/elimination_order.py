"""An elimination order for unknowns on the edges of a grid."""

from __future__ import annotations

import numpy as np

from ..grid import Grid, IntArray


def nested_dissection(grid: Grid, edges: IntArray) -> IntArray:
    """Edges reordered by geometric nested dissection (George 1973).

    A line of edges across the middle of the longer direction parts the others in two that share
    no cell; it is eliminated after both, and each is ordered likewise. The factor of an n by n
    grid then has `O(n^2 log n)` entries, a quarter less than by minimum degree, and the order
    depends on the grid alone.
    """
    # Lines of edges lie at even places, midpoints of the edges across them at odd ones.
    of_unit_cells = Grid(grid.nx, grid.ny, lx=grid.nx, ly=grid.ny)
    place = np.rint(2 * of_unit_cells.edge_midpoints()[edges]).astype(np.intp)
    low, high = np.zeros_like(place), np.tile([2 * grid.nx, 2 * grid.ny], (edges.size, 1))
    undecided = np.ones(edges.size, dtype=bool)
    code = np.zeros(edges.size, dtype=np.int64)
    every = np.arange(edges.size)
    for _ in range((grid.nx - 1).bit_length() + (grid.ny - 1).bit_length()):
        axis = np.argmax(high - low, axis=1)
        bottom, top = low[every, axis], high[every, axis]
        middle = (bottom + top) // 4 * 2
        undecided &= top - bottom > 2
        side = np.where(undecided, np.sign(place[every, axis] - middle), -1)
        code = 3 * code + np.array([2, 1, 0])[side]  # before: 0, after: 1, on the line: 2
        high[every, axis] = np.where(side == -1, middle, top)
        low[every, axis] = np.where(side == 1, middle, bottom)
        undecided &= side != 0
    return edges[np.argsort(code, kind="stable")]
