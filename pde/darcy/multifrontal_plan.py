"""The plan of a multifrontal factorization: which edges are eliminated where, once for a grid."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..grid import Grid, IntArray

#: Cells of a leaf, at most this many in each direction.
LEAF = 2


@dataclass(frozen=True)
class Plan:
    """Fronts of a geometric nested dissection (George 1973), children before their parents.

    A front belongs to a rectangle of cells. Its edges are first those that it eliminates, which no
    cell outside has, then those on its border. A leaf sums the matrices of its cells, any other
    front the Schur complements of the two halves of its rectangle.

    Attributes:
        eliminated: Number of edges that each front eliminates, `[fronts]`.
        size: Number of all its edges.
        is_leaf: Whether it is a leaf.
        edges: The edges of all fronts one after another, those of front k from `edges_at[k]` on.
        edges_at: See there, `[fronts + 1]`.
        places: For a leaf, of each cell its number and the places of its four edges in the front,
            -1 where there is no unknown; otherwise the places of the first half's border in the
            front, then of the second's.
        places_at: Where each front's places begin, `[fronts + 1]`.
    """

    eliminated: IntArray
    size: IntArray
    is_leaf: NDArray[np.bool_]
    edges: IntArray
    edges_at: IntArray
    places: IntArray
    places_at: IntArray

    @property
    def factor_size(self) -> int:
        """Entries of the factor, of one sample."""
        return int((self.eliminated * self.size).sum())

    @property
    def stack_size(self) -> int:
        """Largest number of entries of Schur complements that wait for their parents."""
        height = largest = 0
        waiting: list[int] = []
        for s, m, leaf in zip(self.eliminated, self.size, self.is_leaf, strict=True):
            for _ in range(0 if leaf else 2):
                height -= waiting.pop()
            waiting.append(int(m - s) ** 2)
            height += waiting[-1]
            largest = max(largest, height)
        return largest


def dissect(grid: Grid, free: NDArray[np.bool_]) -> Plan:
    """Plan the elimination of the free edges of a grid."""
    cells = grid.cell_edges().reshape(grid.ny, grid.nx, 4)
    owners = np.bincount(cells.ravel(), minlength=grid.num_edges)
    place = np.full(grid.num_edges, -1, dtype=np.intp)
    marked = np.zeros(grid.num_edges, dtype=bool)
    eliminated, is_leaf, edges, places = [], [], [], []

    def add(leaf: bool, inner: IntArray, border: IntArray, where: list[IntArray]) -> IntArray:
        eliminated.append(inner.size)
        is_leaf.append(leaf)
        edges.append(np.concatenate([inner, border]))
        places.append(np.concatenate([w.ravel() for w in where]))
        return border

    def leaf(x: slice, y: slice) -> IntArray:
        here = cells[y, x].reshape(-1, 4)
        found, counts = np.unique(here, return_counts=True)
        alive = free[found]
        found, done = found[alive], (counts == owners[found])[alive]
        inner, border = found[done], found[~done]
        place[inner] = np.arange(inner.size)
        place[border] = inner.size + np.arange(border.size)
        at = np.where(free[here], place[here], -1)
        numbers = np.arange(grid.num_cells).reshape(grid.shape)[y, x].ravel()
        return add(True, inner, border, [np.column_stack([numbers, at])])

    def rectangle(x: slice, y: slice) -> IntArray:
        width, height = x.stop - x.start, y.stop - y.start
        if max(width, height) <= LEAF:
            return leaf(x, y)
        if width >= height:
            middle = (x.start + x.stop) // 2
            halves = (slice(x.start, middle), y), (slice(middle, x.stop), y)
        else:
            middle = (y.start + y.stop) // 2
            halves = (x, slice(y.start, middle)), (x, slice(middle, y.stop))
        first, second = rectangle(*halves[0]), rectangle(*halves[1])
        marked[second] = True
        shared = marked[first]
        marked[second] = False
        inner = first[shared]
        marked[inner] = True
        border = np.concatenate([first[~shared], second[~marked[second]]])
        marked[inner] = False
        place[inner] = np.arange(inner.size)
        place[border] = inner.size + np.arange(border.size)
        return add(False, inner, border, [place[first], place[second]])

    rectangle(slice(0, grid.nx), slice(0, grid.ny))
    size = np.array([e.size for e in edges])
    return Plan(
        np.array(eliminated),
        size,
        np.array(is_leaf),
        np.concatenate(edges),
        np.concatenate([[0], np.cumsum(size)]),
        np.concatenate(places),
        np.concatenate([[0], np.cumsum([p.size for p in places])]),
    )
