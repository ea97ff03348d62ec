"""Bits of NumPy's SFC64, drawn by a loop of its own into memory that is used again."""

from __future__ import annotations

from functools import cache
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from lightning_sgmcmc.kernels.compiler import cached

_ONE, _3, _11, _24, _40 = (np.uint64(n) for n in (1, 3, 11, 24, 40))
_SIGN = np.uint64(2**63)


def _sfc64(state, words):  # type: ignore[no-untyped-def]
    a, b, c, counter = state[0], state[1], state[2], state[3]
    for i in range(len(words)):
        drawn = a + b + counter
        counter += _ONE
        a = b ^ (b >> _11)
        b = c + (c << _3)
        c = ((c << _24) | (c >> _40)) + drawn
        words[i] = drawn ^ _SIGN
    state[0], state[1], state[2], state[3] = a, b, c, counter


@cache
def _kernel() -> Any:
    vector = numba.uint64[::1]
    return cached(lambda cache: numba.njit((vector, vector), cache=cache, nogil=True)(_sfc64))


def draw(generator: np.random.Generator, words: NDArray[np.int64]) -> None:
    """Fill with what an SFC64 generator's ``integers`` draws from all of int64, and move it on."""
    source: Any = generator.bit_generator
    state = source.state
    _kernel()(state["state"]["state"], words.view(np.uint64))
    source.state = state
