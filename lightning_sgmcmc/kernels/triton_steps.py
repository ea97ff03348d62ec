"""Langevin steps on a GPU that read each vector once and make their noise; imports Triton.

theta <- theta - lr C (g + a (theta - b)) + size C^(1/2) z, where (a, b) is the pull of a Gaussian
prior, and the parts of the BAOAB splitting alike, for contiguous float32 tensors of one chain or
of K. z is that of :class:`~lightning_sgmcmc.noise.philox.Philox`. Each step is one launch.
"""

from __future__ import annotations

from collections.abc import Sequence

import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from lightning_sgmcmc.kernels.triton_compiler import jit
from lightning_sgmcmc.kernels.triton_noise import increments
from lightning_sgmcmc.kernels.triton_tables import launch, piece, vector

#: Of each chain's generator, and the number of the draw.
Place = tuple[Tensor, int]


@jit("draw")
def _langevin(  # type: ignore[no-untyped-def]
    pieces, addresses, keys, draw, lr, size, a, b,
    ROOT: tl.constexpr, MATCHED: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    COLUMNS: tl.constexpr = 3 if ROOT else 2
    tensor, start, at, mask = piece(pieces, COUNT)
    z = increments(start, tl.load(keys + tl.program_id(1)), draw, COUNT, MATCHED)
    params = vector(addresses, tensor, 0, COLUMNS) + at
    theta = tl.load(params, mask=mask)
    g = tl.load(vector(addresses, tensor, 1, COLUMNS) + at, mask=mask)
    move = g + a * (theta - b)
    if ROOT:
        root = tl.load(vector(addresses, tensor, 2, COLUMNS) + at, mask=mask)
        theta += root * (size * z - lr * root * move)
    else:
        theta += size * z - lr * move
    tl.store(params, theta, mask=mask)


def langevin_(
    params: Sequence[Tensor],
    gradient: Sequence[Tensor],
    root: Sequence[Tensor] | None,
    place: Place,
    matched: bool,
    lr: float,
    size: float,
    pull: tuple[float, float],
) -> None:
    """Step with C = diag(root^2), or C = I without one.

    Args:
        params: Changed in place.
        gradient: Shaped like them.
        root: C^(1/2), or None.
        place: Of the noise.
        matched: Whether it is moment-matched, not normal.
        lr: Weight of the drift.
        size: Weight of the noise.
        pull: (a, b): a (params - b) is added to the gradient.
    """
    columns = [params, gradient] + ([root] if root is not None else [])
    keys, draw = place
    numbers = (lr, size, *pull)
    constants = {"ROOT": root is not None, "MATCHED": matched}
    launch(_langevin, columns, len(keys), keys, draw, *numbers, **constants)


@jit("draw")
def _underdamped(  # type: ignore[no-untyped-def]
    pieces, addresses, keys, draw, damping, kick, half, mu, size, a, b,
    ROOT: tl.constexpr, KICK: tl.constexpr, NOISE: tl.constexpr, EACH: tl.constexpr,
    COUNT: tl.constexpr,
):  # fmt: skip
    COLUMNS: tl.constexpr = 4 if ROOT else 3
    tensor, start, at, mask = piece(pieces, COUNT)
    params = vector(addresses, tensor, 0, COLUMNS) + at
    velocity = vector(addresses, tensor, 1, COLUMNS) + at
    theta, w = tl.load(params, mask=mask), tl.load(velocity, mask=mask)
    if ROOT:
        root = tl.load(vector(addresses, tensor, 3, COLUMNS) + at, mask=mask)
    if KICK:
        move = tl.load(vector(addresses, tensor, 2, COLUMNS) + at, mask=mask) + a * (theta - b)
        if ROOT:
            move = root * root * move
        w -= kick * move
        theta += half * w
    if NOISE:
        chain = tl.program_id(1)
        z = increments(start, tl.load(keys + chain), draw, COUNT, False)
        if ROOT:
            z = root * z
        if EACH:
            mu, size = tl.load(damping + 2 * chain), tl.load(damping + 2 * chain + 1)
        w = mu * w + size * z
        theta += half * w
    tl.store(params, theta, mask=mask)
    tl.store(velocity, w, mask=mask)


class Underdamped:
    """The parts of a BAOAB step.

    Args:
        params: Changed in place.
        velocity: w, changed in place.
        gradient: Shaped like them.
        root: C^(1/2), or None for C = I.
        keys: Of each chain's generator.
        kick: Weight of C times the gradient in w.
        half: Half of the time step.
        pull: (a, b): a (params - b) is added to the gradient.
    """

    def __init__(
        self,
        params: Sequence[Tensor],
        velocity: Sequence[Tensor],
        gradient: Sequence[Tensor],
        root: Sequence[Tensor] | None,
        keys: Tensor,
        kick: float,
        half: float,
        pull: tuple[float, float],
    ) -> None:
        self._columns = [params, velocity, gradient] + ([root] if root is not None else [])
        self._keys, self._kick, self._half, self._pull = keys, kick, half, pull

    def baoab_(self, draw: int, mu: float, size: float) -> None:
        """Take B, A, O and A: ``w <- mu w + size C^(1/2) z`` is O, with the noise of a draw."""
        self._launch(draw, self._keys, mu, size, KICK=True, NOISE=True, EACH=False)

    def ba_(self) -> None:
        """Take B and A."""
        self._launch(0, self._keys, 0.0, 0.0, KICK=True, NOISE=False, EACH=False)

    def oa_(self, draw: int, damping: Tensor) -> None:
        """Take O and A, with mu and size of each chain, float32 [K, 2] on the device."""
        self._launch(draw, damping, 0.0, 0.0, KICK=False, NOISE=True, EACH=True)

    def _launch(self, draw: int, damping: Tensor, mu: float, size: float, **which: bool) -> None:
        numbers = (draw, damping, self._kick, self._half, mu, size, *self._pull)
        root, chains = len(self._columns) == 4, len(self._keys)
        launch(_underdamped, self._columns, chains, self._keys, *numbers, ROOT=root, **which)


@jit()
def _rmsprop(pieces, addresses, alpha, eps, COUNT: tl.constexpr):  # type: ignore[no-untyped-def]
    tensor, _start, at, mask = piece(pieces, COUNT)
    squares, root = vector(addresses, tensor, 0, 3) + at, vector(addresses, tensor, 1, 3) + at
    g = tl.load(vector(addresses, tensor, 2, 3) + at, mask=mask)
    V = alpha * tl.load(squares, mask=mask) + (1 - alpha) * g * g
    tl.store(squares, V, mask=mask)
    tl.store(root, tl.rsqrt(tl.sqrt(V) + eps), mask=mask)


def rmsprop_(
    squares: Sequence[Tensor],
    root: Sequence[Tensor],
    gradient: Sequence[Tensor],
    alpha: float,
    eps: float,
) -> None:
    """Move V by a gradient: V <- alpha V + (1 - alpha) g^2, and renew (eps + sqrt V)^(-1/2).

    Args:
        squares: V, changed in place.
        root: Changed in place.
        gradient: g.
        alpha: Memory of the average.
        eps: Positive.
    """
    launch(_rmsprop, [squares, root, gradient], 1, alpha, eps)
