"""Multifrontal Cholesky of eight multiplier systems at a time, one a vector lane; imports Numba."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numba
import numpy as np
from numba.core import config
from numpy.typing import NDArray

from ..errors import SingularError
from ..grid import Array, Grid, IntArray
from .hybrid import local_matrices
from .multifrontal_plan import dissect

#: Samples that one pass factors, one a lane of the processor's vectors.
LANES = 8

_inline = numba.njit(inline="always", fastmath={"contract"}, error_model="numpy")

# Eight numbers of one place, as a tuple: the compiler keeps them in one or two vector registers.


@_inline
def _load(a, i):  # type: ignore[no-untyped-def]
    i *= 8
    return (a[i], a[i + 1], a[i + 2], a[i + 3], a[i + 4], a[i + 5], a[i + 6], a[i + 7])


@_inline
def _store(a, i, v):  # type: ignore[no-untyped-def]
    i *= 8
    a[i] = v[0]
    a[i + 1] = v[1]
    a[i + 2] = v[2]
    a[i + 3] = v[3]
    a[i + 4] = v[4]
    a[i + 5] = v[5]
    a[i + 6] = v[6]
    a[i + 7] = v[7]


@_inline
def _subtract(c, a, b):  # type: ignore[no-untyped-def]
    """Return c - a b."""
    return (
        c[0] - a[0] * b[0], c[1] - a[1] * b[1], c[2] - a[2] * b[2], c[3] - a[3] * b[3],
        c[4] - a[4] * b[4], c[5] - a[5] * b[5], c[6] - a[6] * b[6], c[7] - a[7] * b[7],
    )  # fmt: skip


@_inline
def _add(a, b):  # type: ignore[no-untyped-def]
    return (
        a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3],
        a[4] + b[4], a[5] + b[5], a[6] + b[6], a[7] + b[7],
    )  # fmt: skip


@_inline
def _times(a, b):  # type: ignore[no-untyped-def]
    return (
        a[0] * b[0], a[1] * b[1], a[2] * b[2], a[3] * b[3],
        a[4] * b[4], a[5] * b[5], a[6] * b[6], a[7] * b[7],
    )  # fmt: skip


@_inline
def _scale(a, c):  # type: ignore[no-untyped-def]
    return (a[0] * c, a[1] * c, a[2] * c, a[3] * c, a[4] * c, a[5] * c, a[6] * c, a[7] * c)


@_inline
def _inverse_root(a):  # type: ignore[no-untyped-def]
    return (
        1 / np.sqrt(a[0]), 1 / np.sqrt(a[1]), 1 / np.sqrt(a[2]), 1 / np.sqrt(a[3]),
        1 / np.sqrt(a[4]), 1 / np.sqrt(a[5]), 1 / np.sqrt(a[6]), 1 / np.sqrt(a[7]),
    )  # fmt: skip


def _factorize(  # type: ignore[no-untyped-def]
    eliminated, size, edges, edges_at, is_leaf, places, places_at,
    kappa, local, extra, factor, stack, front,
):  # fmt: skip
    """Write the factor of every front: its columns by rows, the inverse of the diagonal on it."""
    top = 0  # of the Schur complements that wait, in places
    done = 0  # of the factor
    borders = np.empty(len(size), dtype=np.int64)
    waiting = 0
    for node in range(len(size)):
        s, m = eliminated[node], size[node]
        b = m - s
        at = places_at[node]
        for i in range(m):
            for p in range(i * m * 8, (i * m + i + 1) * 8):
                front[p] = 0.0
        if is_leaf[node]:
            for cell in range(at, places_at[node + 1], 5):
                weight = _load(kappa, places[cell])
                for i in range(4):
                    pi = places[cell + 1 + i]
                    if pi < 0:
                        continue
                    for j in range(4):
                        pj = places[cell + 1 + j]
                        if 0 <= pj <= pi:
                            value = _scale(weight, local[i, j])
                            _store(front, pi * m + pj, _add(_load(front, pi * m + pj), value))
        else:
            second = borders[waiting - 1]
            first = borders[waiting - 2]
            waiting -= 2
            for child in range(2):
                n = first if child == 0 else second
                where = at if child == 0 else at + first
                start = top - second * second - (first * first if child == 0 else 0)
                for i in range(n):
                    pi = places[where + i]
                    for j in range(i + 1):
                        pj = places[where + j]
                        p = pi * m + pj if pi >= pj else pj * m + pi
                        _store(front, p, _add(_load(front, p), _load(stack, start + i * n + j)))
            top -= first * first + second * second
        for j in range(s):
            p = j * m + j
            _store(front, p, _add(_load(front, p), _load(extra, edges[edges_at[node] + j])))

        for j in range(s):
            row = done + j * s
            pivot = _load(front, j * m + j)
            for k in range(j):
                a = _load(factor, row + k)
                pivot = _subtract(pivot, a, a)
            inverse = _inverse_root(pivot)
            _store(factor, row + j, inverse)
            for i in range(j + 1, m):
                value = _load(front, i * m + j)
                for k in range(j):
                    a = _load(factor, done + i * s + k)
                    value = _subtract(value, a, _load(factor, row + k))
                _store(factor, done + i * s + j, _times(value, inverse))

        for i in range(0, b - 1, 2):  # tiles of two by two
            r0 = done + (s + i) * s
            r1 = r0 + s
            f0 = (s + i) * m + s
            f1 = f0 + m
            for j in range(0, i + 1, 2):
                c0 = done + (s + j) * s
                c1 = c0 + s
                v00, v10 = _load(front, f0 + j), _load(front, f1 + j)
                v11 = _load(front, f1 + j + 1)
                v01 = v11
                if j < i:
                    v01 = _load(front, f0 + j + 1)
                for k in range(s):
                    a0, a1 = _load(factor, r0 + k), _load(factor, r1 + k)
                    b0, b1 = _load(factor, c0 + k), _load(factor, c1 + k)
                    v00, v01 = _subtract(v00, a0, b0), _subtract(v01, a0, b1)
                    v10, v11 = _subtract(v10, a1, b0), _subtract(v11, a1, b1)
                _store(stack, top + i * b + j, v00)
                _store(stack, top + (i + 1) * b + j, v10)
                _store(stack, top + (i + 1) * b + j + 1, v11)
                if j < i:
                    _store(stack, top + i * b + j + 1, v01)
        if b % 2:
            i = b - 1
            r0 = done + (s + i) * s
            for j in range(b):
                c0 = done + (s + j) * s
                value = _load(front, (s + i) * m + s + j)
                for k in range(s):
                    value = _subtract(value, _load(factor, r0 + k), _load(factor, c0 + k))
                _store(stack, top + i * b + j, value)
        top += b * b
        borders[waiting] = b
        waiting += 1
        done += m * s


def _solve(eliminated, size, edges, edges_at, factor, x):  # type: ignore[no-untyped-def]
    """Overwrite the right-hand sides by the solutions."""
    done = 0
    for node in range(len(size)):
        s, m, at = eliminated[node], size[node], edges_at[node]
        for i in range(m):
            e = edges[at + i]
            value = _load(x, e)
            for k in range(min(i, s)):
                value = _subtract(value, _load(factor, done + i * s + k), _load(x, edges[at + k]))
            if i < s:
                value = _times(value, _load(factor, done + i * s + i))
            _store(x, e, value)
        done += m * s
    for node in range(len(size) - 1, -1, -1):
        s, m, at = eliminated[node], size[node], edges_at[node]
        done -= m * s
        for i in range(m - 1, -1, -1):
            known = _load(x, edges[at + i])
            if i < s:
                known = _times(known, _load(factor, done + i * s + i))
                _store(x, edges[at + i], known)
            for k in range(min(i, s)):
                e = edges[at + k]
                _store(x, e, _subtract(_load(x, e), _load(factor, done + i * s + k), known))


def compile_(function: Callable[..., None], *arguments: Any) -> Any:
    """Compile for arguments of these types, with vectors of the eight lanes.

    Numba leaves out the pass that makes vectors of neighbouring numbers unless told. Where it finds
    no folder for its cache, each process compiles.
    """

    def compiled(cache: bool) -> Any:
        kind = numba.void(*arguments)
        return numba.njit(
            kind, cache=cache, nogil=True, fastmath={"contract"}, error_model="numpy"
        )(function)

    settings: Any = config
    before, settings.SLP_VECTORIZE = settings.SLP_VECTORIZE, 1
    try:
        return compiled(True)
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
        return compiled(False)
    finally:
        settings.SLP_VECTORIZE = before


@cache
def _kernels() -> tuple[Any, Any]:
    array, index = numba.float64[::1], numba.int64[::1]
    shape = (index,) * 4
    assembly = (numba.boolean[::1], index, index, array, numba.float64[:, ::1], array)
    return (
        compile_(_factorize, *shape, *assembly, array, array, array),
        compile_(_solve, *shape, array, array),
    )


class NestedDissection:
    """Multiplier systems of one grid, eight at a time: a multifrontal Cholesky factorization.

    All samples share the fronts, whose dense matrices hold one entry a lane next to each other, so
    that every operation is one on vectors, in small fronts too. A lane's bits do not depend on the
    others.

    Args:
        grid: The grid.
        free: Which edges carry unknowns, `[num_edges]`.
    """

    def __init__(self, grid: Grid, free: NDArray[np.bool_]) -> None:
        self._factorize, self._solve = _kernels()
        plan = dissect(grid, free)
        self._shape = (plan.eliminated, plan.size, plan.edges, plan.edges_at)
        self._assembly = (plan.is_leaf, plan.places, plan.places_at)
        self._local, self._cell_edges = local_matrices(grid)[0], grid.cell_edges()
        self._factor = np.zeros(plan.factor_size * LANES)
        self._stack = np.empty(plan.stack_size * LANES)
        self._front = np.empty(int(plan.size.max()) ** 2 * LANES)
        self._extra = np.zeros((grid.num_edges, LANES))

    def factorize(self, permeability: Array, pins: IntArray | None) -> None:
        """Factor the systems of permeabilities `[num_cells, LANES]`.

        Args:
            permeability: Cell values.
            pins: An edge of each lane whose diagonal entry is doubled, `[LANES]`.

        Raises:
            SingularError: A matrix is numerically singular.
        """
        if pins is not None:
            self._extra[:] = 0.0
            for lane, pin in enumerate(pins):
                cells, sides = np.nonzero(self._cell_edges == pin)
                double = self._local[sides, sides] * permeability[cells, lane]
                self._extra[pin, lane] = double.sum()
        self._factorize(
            *self._shape, *self._assembly, permeability.ravel(), self._local, self._extra.ravel(),
            self._factor, self._stack, self._front,
        )  # fmt: skip
        if not np.isfinite(self._factor[-LANES:]).all():
            raise SingularError

    def solve_(self, rhs: Array) -> None:
        """Overwrite `[num_edges, LANES]` by the solution; other edges' entries must be zero."""
        self._solve(*self._shape, self._factor, rhs.reshape(-1))
