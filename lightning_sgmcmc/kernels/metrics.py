"""The moving average of squared gradients and its metric, in one pass or two."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from lightning_sgmcmc.kernels.compiler import (
    at,
    entry,
    floats,
    loop,
    numbers,
    share,
    task,
)
from lightning_sgmcmc.kernels.threads import each, lengths_of, run

_ONE = np.float32(1)


@loop
def _roots(squares, root, gradient, alpha):  # type: ignore[no-untyped-def]
    new = _ONE - alpha
    for i in range(len(squares)):
        squares[i] = alpha * squares[i] + new * gradient[i] * gradient[i]
        root[i] = math.sqrt(squares[i])


@loop
def _metric(squares, root, gradient, alpha, eps):  # type: ignore[no-untyped-def]
    new = _ONE - alpha
    for i in range(len(squares)):
        squares[i] = alpha * squares[i] + new * gradient[i] * gradient[i]
        root[i] = _ONE / math.sqrt(math.sqrt(squares[i]) + eps)


@loop
def _inverse_root(root, shift, eps):  # type: ignore[no-untyped-def]
    for i in range(len(root)):
        root[i] = _ONE / math.sqrt((root[i] + shift) + eps)


@entry
def _rmsprop(data):  # type: ignore[no-untyped-def]
    shared = numbers(data)
    alpha, eps = np.float32(shared[0]), np.float32(shared[1])
    first, last = share(data)
    for k in range(first, last):
        w = task(data, k)
        n = w[0]
        squares, root = floats(at(data, w, 0), n), floats(at(data, w, 1), n)
        gradient = floats(at(data, w, 2), n)
        if shared[1] > 0:  # eps itself may be 0 in float32
            _metric(squares, root, gradient, alpha, eps)
        else:
            _roots(squares, root, gradient, alpha)


@entry
def _shifted(data):  # type: ignore[no-untyped-def]
    shift, eps = np.float32(numbers(data)[0]), np.float32(numbers(data)[1])
    first, last = share(data)
    for k in range(first, last):
        w = task(data, k)
        _inverse_root(floats(at(data, w, 0), w[0]), shift, eps)


def rmsprop_(
    squares: Sequence[Tensor],
    root: Sequence[Tensor],
    gradient: Sequence[Tensor],
    alpha: float,
    eps: float = 0.0,
) -> None:
    """Move V by a gradient: V <- alpha V + (1 - alpha) g^2, and renew the root of C.

    Args:
        squares: V, changed in place.
        root: Becomes (eps + sqrt V)^(-1/2); without eps, sqrt V.
        gradient: g.
        alpha: Memory of the average.
        eps: Positive, or 0.
    """
    columns = (each(squares), each(root), each(gradient))
    run(_rmsprop, lengths_of(squares), columns, (alpha, eps))


def rmsprop_root_(root: Sequence[Tensor], shift: float, eps: float) -> None:
    """Make (sqrt V + shift + eps)^(-1/2) of sqrt V, in place."""
    run(_shifted, lengths_of(root), (each(root),), (shift, eps))
