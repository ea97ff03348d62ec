"""Langevin steps, overdamped and underdamped, that read each vector once.

theta <- theta - lr C (g + a (theta - b)) + size C^(1/2) z, where (a, b) is the pull of a Gaussian
prior, for contiguous float32 tensors of one chain on the CPU; and the BAOAB splitting alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from lightning_sgmcmc.kernels.compiler import (
    at,
    entry,
    floats,
    int8s,
    loop,
    numbers,
    share,
    sum_loop,
    task,
)
from lightning_sgmcmc.kernels.threads import along, each, lengths_of, run

_ZERO, _ONE = np.float32(0), np.float32(1)


@loop
def _identity_loop(theta, gradient, odd, lr, size, a, b):  # type: ignore[no-untyped-def]
    for i in range(len(theta)):
        theta[i] += size * np.float32(np.int8(odd[i] | 1)) - lr * (gradient[i] + a * (theta[i] - b))


@entry
def _identity(data):  # type: ignore[no-untyped-def]
    shared = numbers(data)
    lr, size = np.float32(shared[0]), np.float32(shared[1])
    a, b = np.float32(shared[2]), np.float32(shared[3])
    first, last = share(data)
    for k in range(first, last):
        w = task(data, k)
        n = w[0]
        theta, gradient, odd = (
            floats(at(data, w, 0), n),
            floats(at(data, w, 1), n),
            int8s(at(data, w, 2), n),
        )
        _identity_loop(theta, gradient, odd, lr, size, a, b)


def identity_(
    params: Sequence[Tensor],
    gradient: Sequence[Tensor],
    odd: Tensor,
    lr: float,
    size: float,
    pull: tuple[float, float],
) -> None:
    """Step with C = I and z the bytes of a vector, each with its lowest bit set.

    Args:
        params: Changed in place.
        gradient: Shaped like them.
        odd: int8, at least as many as weights.
        lr: Weight of the drift.
        size: Weight of the noise.
        pull: (a, b).
    """
    lengths = lengths_of(params)
    columns = (each(params), each(gradient), along(odd, lengths))
    run(_identity, lengths, columns, (lr, size, *pull))


@loop
def _langevin_loop(theta, gradient, z, root, lr, size, a, b):  # type: ignore[no-untyped-def]
    for i in range(len(theta)):
        g = gradient[i] + a * (theta[i] - b)
        theta[i] += root[i] * (size * z[i] - lr * root[i] * g)


@loop
def _euclidean_loop(theta, gradient, z, lr, size, a, b):  # type: ignore[no-untyped-def]
    for i in range(len(theta)):
        theta[i] += size * z[i] - lr * (gradient[i] + a * (theta[i] - b))


@entry
def _langevin(data):  # type: ignore[no-untyped-def]
    shared = numbers(data)
    lr, size = np.float32(shared[0]), np.float32(shared[1])
    a, b = np.float32(shared[2]), np.float32(shared[3])
    first, last = share(data)
    for k in range(first, last):
        w = task(data, k)
        n = w[0]
        theta, gradient = floats(at(data, w, 0), n), floats(at(data, w, 1), n)
        z = floats(at(data, w, 2), n)
        if shared[4] != 0:
            root = floats(at(data, w, 3), n)
            _langevin_loop(theta, gradient, z, root, lr, size, a, b)
        else:
            _euclidean_loop(theta, gradient, z, lr, size, a, b)


def langevin_(
    params: Sequence[Tensor],
    gradient: Sequence[Tensor],
    z: Sequence[Tensor],
    root: Sequence[Tensor] | None,
    lr: float,
    size: float,
    pull: tuple[float, float],
) -> None:
    """Step with C = diag(root^2), or C = I without one."""
    columns = [each(params), each(gradient), each(z)]
    columns += [each(root)] if root is not None else []
    run(_langevin, lengths_of(params), columns, (lr, size, *pull, float(root is not None)))


@loop
def _baoab_loop(theta, w, gradient, z, root, kick, half, mu, size, a, b):  # type: ignore[no-untyped-def]
    for i in range(len(theta)):
        c = root[i]
        v = w[i] - kick * c * c * (gradient[i] + a * (theta[i] - b))
        moved = theta[i] + half * v
        v = mu * v + size * c * z[i]
        w[i] = v
        theta[i] = moved + half * v


@loop
def _euclidean_baoab_loop(theta, w, gradient, z, kick, half, mu, size, a, b):  # type: ignore[no-untyped-def]
    for i in range(len(theta)):
        v = w[i] - kick * (gradient[i] + a * (theta[i] - b))
        moved = theta[i] + half * v
        v = mu * v + size * z[i]
        w[i] = v
        theta[i] = moved + half * v


@entry
def _baoab(data):  # type: ignore[no-untyped-def]
    shared = numbers(data)
    kick, half = np.float32(shared[0]), np.float32(shared[1])
    mu, size = np.float32(shared[2]), np.float32(shared[3])
    a, b = np.float32(shared[4]), np.float32(shared[5])
    first, last = share(data)
    for k in range(first, last):
        t = task(data, k)
        n = t[0]
        theta, w = floats(at(data, t, 0), n), floats(at(data, t, 1), n)
        gradient, z = floats(at(data, t, 2), n), floats(at(data, t, 3), n)
        if shared[6] != 0:
            root = floats(at(data, t, 4), n)
            _baoab_loop(theta, w, gradient, z, root, kick, half, mu, size, a, b)
        else:
            _euclidean_baoab_loop(theta, w, gradient, z, kick, half, mu, size, a, b)


def baoab_(
    params: Sequence[Tensor],
    velocity: Sequence[Tensor],
    gradient: Sequence[Tensor],
    z: Sequence[Tensor],
    root: Sequence[Tensor] | None,
    kick: float,
    half: float,
    mu: float,
    size: float,
    pull: tuple[float, float],
) -> None:
    """Take B, A, O and A with C = diag(root^2), or C = I without one.

    Args:
        params: Changed in place.
        velocity: w, changed in place.
        gradient: Shaped like them.
        z: Noise.
        root: C^(1/2), or None.
        kick: Weight of C times the gradient in w.
        half: Half of the time step.
        mu: What is left of w by O.
        size: Weight of the noise in O.
        pull: (a, b): a (params - b) is added to the gradient.
    """
    columns = [each(params), each(velocity), each(gradient), each(z)]
    columns += [each(root)] if root is not None else []
    shared = (kick, half, mu, size, *pull, float(root is not None))
    run(_baoab, lengths_of(params), columns, shared)


@sum_loop
def _unit_loop(  # type: ignore[no-untyped-def]
    theta, gradient, z, squares, products, inverse, bias_gradient, damping, lr, size, a, b
):
    """Move the weights of a unit; return what the move takes from its bias."""
    total = _ZERO
    for i in range(len(theta)):
        mean = products[i] * inverse
        schur = squares[i] + damping - products[i] * mean
        schur = damping if schur < damping else schur  # at least eps but for rounding
        root = _ONE / math.sqrt(schur)
        g = gradient[i] + a * (theta[i] - b) - mean * bias_gradient
        move = root * (size * z[i] - lr * root * g)
        theta[i] += move
        total += mean * move
    return total


@entry
def _quasi_diagonal(data):  # type: ignore[no-untyped-def]
    shared = numbers(data)
    damping, lr, size = np.float32(shared[0]), np.float32(shared[1]), np.float32(shared[2])
    a, b = np.float32(shared[3]), np.float32(shared[4])
    first, last = share(data)
    for k in range(first, last):
        w = task(data, k)
        units, inputs = w[0], w[1]
        n = units * inputs
        theta, gradient, z = (
            floats(at(data, w, 0), n),
            floats(at(data, w, 1), n),
            floats(at(data, w, 2), n),
        )
        squares, products = floats(at(data, w, 3), n), floats(at(data, w, 4), n)
        bias, g, bias_z = (
            floats(at(data, w, 5), units),
            floats(at(data, w, 6), units),
            floats(at(data, w, 7), units),
        )
        bias_squares = floats(at(data, w, 8), units)
        for u in range(units):
            row = slice(u * inputs, (u + 1) * inputs)
            inverse = _ONE / (bias_squares[u] + damping)
            root, g_0 = math.sqrt(inverse), g[u] + a * (bias[u] - b)
            onto_bias = _unit_loop(
                theta[row], gradient[row], z[row], squares[row], products[row],
                inverse, g_0, damping, lr, size, a, b,
            )  # fmt: skip
            bias[u] += root * (size * bias_z[u] - lr * root * g_0) - onto_bias


def quasi_diagonal_(
    weights: Sequence[Sequence[Tensor]],
    products: Sequence[Tensor],
    biases: Sequence[Sequence[Tensor]],
    damping: float,
    lr: float,
    size: float,
    pull: tuple[float, float],
) -> None:
    """Step with the metric of :class:`~lightning_sgmcmc.preconditioners.QuasiDiagonalFisher`.

    Args:
        weights: Of each layer's weights the values, which change, the gradient, z and J's
            diagonal, [out, ...].
        products: J_0i of each layer, [out, ...].
        biases: The same four of each layer's bias, [out].
        damping: eps.
        lr: Weight of the drift.
        size: Weight of the noise.
        pull: (a, b).
    """
    wide = [each(t) for t in (*zip(*weights, strict=True), products)]
    narrow = [each(t, narrow=True) for t in zip(*biases, strict=True)]
    units = tuple(len(p) for p in products)
    inputs = tuple(p[0].numel() for p in products)
    shared = (damping, lr, size, *pull)
    run(_quasi_diagonal, units, (*wide, *narrow), shared, sizes=inputs)
