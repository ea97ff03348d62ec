"""MNIST's sevens and nines under a random projection (Ahn et al. 2012, section 5.1)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tasks.data.download import data_root
from tasks.data.mnist import MNIST


def sevens_and_nines(
    count: int = 10_000, dimensions: int = 50, seed: int = 0, root: str | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return projected images of sevens and nines with an intercept, and which are nines.

    ``count`` of MNIST's 12,214 training sevens and nines, chosen at random; their pixels, divided
    by 255, times a matrix of independent N(0, 1) / sqrt(784), each feature then standardised. The
    paper gives neither its subset nor its projection.

    Args:
        count: N.
        dimensions: Features before the intercept.
        seed: Seed of the subset and of the projection.
        root: Folder of data sets; None is $SGMCMC_DATA_ROOT or ``./data``.

    Returns:
        Features [N, dimensions + 1], the last a column of ones, and labels [N].
    """
    images, labels = MNIST.read(data_root(root), "train")
    rng = np.random.default_rng(seed)
    rows = np.flatnonzero((labels == 7) | (labels == 9))
    rows = rng.choice(rows, count, replace=False)
    pixels = images[rows].reshape(count, -1) / 255.0
    x = pixels @ rng.standard_normal((pixels.shape[1], dimensions)) / np.sqrt(pixels.shape[1])
    x = (x - x.mean(0)) / x.std(0)
    return np.hstack([x, np.ones((count, 1))]), (labels[rows] == 9).astype(np.float64)
