"""MNIST's sevens and nines under a random projection (Ahn et al. 2012, section 5.1)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tasks.data.download import data_root
from tasks.data.mnist import MNIST

#: Features before the intercept.
DIMENSIONS = 50


def sevens_and_nines(count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return projected images of sevens and nines with an intercept, and which are nines.

    ``count`` of MNIST's 12,214 training sevens and nines, chosen at random; their pixels, divided
    by 255, times a matrix of independent N(0, 1) / sqrt(784), each feature then standardised. The
    paper gives neither its subset nor its projection.

    Args:
        count: N.

    Returns:
        Features [N, 51], the last a column of ones, and labels [N].
    """
    images, labels = MNIST.read(data_root(None), "train")
    rng = np.random.default_rng(0)
    rows = np.flatnonzero((labels == 7) | (labels == 9))
    rows = rng.choice(rows, count, replace=False)
    pixels = images[rows].reshape(count, -1) / 255.0
    x = pixels @ rng.standard_normal((pixels.shape[1], DIMENSIONS)) / np.sqrt(pixels.shape[1])
    x = (x - x.mean(0)) / x.std(0)
    return np.hstack([x, np.ones((count, 1))]), (labels[rows] == 9).astype(np.float64)
