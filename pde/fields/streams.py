"""Random streams: one for each seed, purpose and sample."""

from __future__ import annotations

import numpy as np

from ..errors import PdeError

STRENGTHS, SOURCE, PERMEABILITY = 1, 2, 3  # purposes, each with streams of its own


def check_draw(seed: int, count: int) -> None:
    """Raise `PdeError` unless both are integers that are not negative."""
    for name, value in (("seed", seed), ("number", count)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
            raise PdeError(f"{name} {value!r}, expected an integer that is not negative")


def generator(seed: int, stream: int, index: int) -> np.random.Generator:
    """The generator of one sample in one of a seed's streams."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(stream, index)))
