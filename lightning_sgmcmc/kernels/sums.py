"""The sum of all entries of a list of tensors, by which a step checks that gradients are finite."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from lightning_sgmcmc.kernels.compiler import (
    at,
    entry,
    floats,
    share,
    sum_loop,
    sums,
    task,
)
from lightning_sgmcmc.kernels.threads import each, lengths_of, run

_ZERO = np.float32(0)


@sum_loop
def _sum(x):  # type: ignore[no-untyped-def]
    total = _ZERO
    for i in range(len(x)):
        total += x[i]
    return total


@entry
def _total(data):  # type: ignore[no-untyped-def]
    first, last = share(data)
    for k in range(first, last):
        w = task(data, k)
        sums(data, w)[0] = _sum(floats(at(data, w, 0), w[0]))


def total(tensors: Sequence[Tensor]) -> float:
    """Return the sum of all entries."""
    return float(run(_total, lengths_of(tensors), (each(tensors),), sums=1)[0])
