"""MNIST's sevens and nines under a random projection (Ahn et al. 2012, section 5.1)."""

from __future__ import annotations

import gzip
import struct

import numpy as np
from numpy.typing import NDArray

from tasks.data.download import data_root, fetch

_SOURCE = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_FILES = {
    "train-images-idx3-ubyte.gz": "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "md5:d53e105ee54ea40749a09fcbcd1e9432",
}


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
    folder = data_root(root) / "MNIST" / "raw"
    images, labels = (
        read_idx(gzip.decompress(fetch(_SOURCE + name, folder / name, checksum).read_bytes()))
        for name, checksum in _FILES.items()
    )
    rng = np.random.default_rng(seed)
    rows = np.flatnonzero((labels == 7) | (labels == 9))
    rows = rng.choice(rows, count, replace=False)
    pixels = images[rows].reshape(count, -1) / 255.0
    x = pixels @ rng.standard_normal((pixels.shape[1], dimensions)) / np.sqrt(pixels.shape[1])
    x = (x - x.mean(0)) / x.std(0)
    return np.hstack([x, np.ones((count, 1))]), (labels[rows] == 9).astype(np.float64)


def read_idx(content: bytes) -> NDArray[np.uint8]:
    """Return the array of an IDX file of bytes.

    Raises:
        ValueError: If it is no such file.
    """
    if content[:3] != b"\0\0\x08":
        raise ValueError("not an IDX file of unsigned bytes")
    axes = content[3]
    shape = struct.unpack(f">{axes}I", content[4 : 4 + 4 * axes])
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)
