"""Random streams: one for each seed, purpose and sample."""

from __future__ import annotations

import numpy as np

from ..errors import check_count

# Purposes, each with streams of its own.
STRENGTHS, SOURCE, PERMEABILITY, WELLS, THRESHOLD, BUMPS = 1, 2, 3, 4, 5, 6


def check_draw(seed: int, index: int) -> None:
    """Raise `PdeError` unless both are integers that are not negative."""
    check_count(f"seed {seed!r}", seed, least=0)
    check_count(f"number {index!r}", index, least=0)


def generator(seed: int, stream: int, index: int) -> np.random.Generator:
    """The generator of one sample in one of a seed's streams."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(stream, index)))
