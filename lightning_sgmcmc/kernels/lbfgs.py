"""Moves and pairs of an L-BFGS metric that read each vector once or twice.

Sums are taken in float32 over pieces of a few thousand numbers and in float64 over the pieces.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_sgmcmc.kernels.compiler import (
    at,
    entry,
    floats,
    loop,
    numbers,
    share,
    sum_loop,
    sums,
    task,
)
from lightning_sgmcmc.kernels.threads import along, each, lengths_of, run

Doubles = NDArray[np.float64]
_ZERO, _ONE = np.float32(0), np.float32(1)


@sum_loop
def _dot(x, y):  # type: ignore[no-untyped-def]
    total = _ZERO
    for i in range(len(x)):
        total += x[i] * y[i]
    return total


@sum_loop
def _dots(x, y, z):  # type: ignore[no-untyped-def]
    with_y = with_z = _ZERO
    for i in range(len(x)):
        with_y += x[i] * y[i]
        with_z += x[i] * z[i]
    return with_y, with_z


@loop
def _pull(gradient, theta, a, b):  # type: ignore[no-untyped-def]
    for i in range(len(gradient)):
        gradient[i] += a * (theta[i] - b)


@entry
def _project(data):  # type: ignore[no-untyped-def]
    shared = numbers(data)
    count, length = int(shared[0]), int(shared[1])
    a, b = np.float32(shared[2]), np.float32(shared[3])
    first, last = share(data)
    for k in range(first, last):
        w = task(data, k)
        n = w[0]
        gradient, z = floats(at(data, w, 0), n), floats(at(data, w, 1), n)
        found = sums(data, w)
        if a != 0:
            _pull(gradient, floats(at(data, w, 3), n), a, b)
        for j in range(count):
            row = floats(at(data, w, 2) + 4 * length * j, n)
            found[j], found[count + j] = _dots(row, gradient, z)


@loop
def _scale(z, gradient, size, lr):  # type: ignore[no-untyped-def]
    for i in range(len(z)):
        z[i] = size * z[i] - lr * gradient[i]


@loop
def _add(z, row, weight):  # type: ignore[no-untyped-def]
    for i in range(len(z)):
        z[i] += weight * row[i]


@entry
def _combine(data):  # type: ignore[no-untyped-def]
    shared = numbers(data)
    size, lr, length = np.float32(shared[0]), np.float32(shared[1]), int(shared[2])
    weights = shared[3:]
    first, last = share(data)
    for k in range(first, last):
        w = task(data, k)
        n = w[0]
        z = floats(at(data, w, 2), n)
        _scale(z, floats(at(data, w, 1), n), size, lr)
        for j in range(len(weights)):
            _add(z, floats(at(data, w, 3) + 4 * length * j, n), np.float32(weights[j]))
        _add(floats(at(data, w, 0), n), z, _ONE)


@loop
def _sum_of(x, y, out):  # type: ignore[no-untyped-def]
    for i in range(len(out)):
        out[i] = x[i] + y[i]


@entry
def _pair(data):  # type: ignore[no-untyped-def]
    first, last = share(data)
    for k in range(first, last):
        w = task(data, k)
        n = w[0]
        step, change, found = floats(at(data, w, 4), n), floats(at(data, w, 5), n), sums(data, w)
        _sum_of(floats(at(data, w, 0), n), floats(at(data, w, 1), n), step)
        _sum_of(floats(at(data, w, 2), n), floats(at(data, w, 3), n), change)
        found[0], found[1], found[2] = _dot(step, step), _dot(step, change), _dot(change, change)


def project(
    params: Sequence[Tensor],
    gradient: Sequence[Tensor],
    z: Sequence[Tensor],
    rows: Tensor,
    pull: tuple[float, float],
) -> tuple[Doubles, Doubles]:
    """Add a (params - b) to the gradient, (a, b) being the pull, and project on rows [m, d].

    Returns:
        The products of the rows with the gradient and with z, each [m].
    """
    lengths, (m, d) = lengths_of(z), rows.shape
    columns = (each(gradient), each(z), along(rows, lengths), each(params))
    found = run(_project, lengths, columns, (m, d, *pull), sums=2 * m)
    return found[:m], found[m:]


def combine_(
    params: Sequence[Tensor],
    gradient: Sequence[Tensor],
    z: Sequence[Tensor],
    rows: Tensor,
    weights: Doubles,
    lr: float,
    size: float,
) -> None:
    """Add size z - lr gradient + weights' rows to ``params``; overwrites z."""
    lengths = lengths_of(z)
    columns = (each(params), each(gradient), each(z), along(rows, lengths))
    run(_combine, lengths, columns, (size, lr, rows.shape[1], *weights))


def pair(
    start: tuple[Sequence[Tensor], Sequence[Tensor]],
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    step: Tensor,
    change: Tensor,
) -> Tensor:
    """Write the pair (s, y) that a move makes.

    Args:
        start: Minus the weights and minus the gradient before the move.
        params: The weights after it.
        grads: Their gradient.
        step: [d], becomes s.
        change: [d], becomes y.

    Returns:
        s's, s'y and y'y, [3] in float64.
    """
    lengths = lengths_of(params)
    old = map(each, (start[0], params, start[1], grads))
    columns = (*old, along(step, lengths), along(change, lengths))
    return torch.from_numpy(run(_pair, lengths, columns, sums=3))
