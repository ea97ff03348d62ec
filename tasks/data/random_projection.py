"""Random projections of many features to few."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.data.classes import Transform, standardiser


def random_projection(train: NDArray[np.float32], dimensions: int, seed: int) -> Transform:
    """Return x -> standardise(x R), R [D, d] of independent N(0, 1) / sqrt(D).

    Mean and variance are those of the projected training examples (Ahn et al. 2012, section
    5.2.2, projects MNIST so to d = 20 and gives neither R nor a scale).

    Args:
        train: Training examples [N, D].
        dimensions: d.
        seed: Seed of R.

    Raises:
        ValueError: If d does not lie between 1 and D.
    """
    features = train.shape[1]
    if not 1 <= dimensions <= features:
        raise ValueError(f"projection_dim must lie between 1 and {features}, got {dimensions}")
    matrix = np.random.default_rng(seed).standard_normal((features, dimensions))
    matrix = (matrix / np.sqrt(features)).astype(np.float32)
    standardise = standardiser(train @ matrix)

    def apply(x: NDArray[Any]) -> NDArray[np.float32]:
        return standardise(x @ matrix)

    return apply
