"""Whether fields are like those that a surrogate was trained on."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.fft import dctn
from scipy.stats import binom, norm

from tasks.surrogates import Array

#: The share of fields of the training law that is called outside, where there are enough fields.
LEVEL = 1e-3
#: The fewest fields that have a law.
FEWEST = 4
#: Normal scores of cells at which the law of training cells is kept; the ends bound them.
_SCORES = np.linspace(-3.5, 3.5, 71)
#: Parts of a spectrum below this share of a field's variance do not count.
_FLOOR = 1e-3
#: The share of cells beyond all training cells that begins to count.
_BEYOND = 0.1
#: Added to the variances of the features, which are logarithms.
_RIDGE = 1e-2


@dataclass(frozen=True)
class TrainingLaw:
    r"""The law of fields by their cells' values and by their spectrum.

    Cells become normal scores by the quantiles of the training cells, so that additive and
    log-normal fields become Gaussian ones. The features of a field are its mean, the logarithms of
    the power in bands of wave numbers along x and of those along y, of the discrete cosine
    transform, and that of the share of cells beyond all training cells. With their mean m and
    covariance S over one half of the training fields, the distance of a field is

        d^2 = (phi - m)^T (S + .01)^-1 (phi - m).

    A field is outside where d^2 exceeds a quantile of the other half, with which a further field of
    the same law is exchangeable: it is outside with a probability of at most `level` (split
    conformal prediction, Vovk et al. 2005), .001 or, for n < 999 of them, 1 / (n + 1).

    Attributes:
        cells: Quantiles of the training cells at normal scores from -3.5 to 3.5.
        range: The least and the largest of them.
        mean: m.
        precision: (S + .01)^-1.
        threshold: The quantile of d^2.
        level: The probability.
    """

    cells: list[float]
    range: tuple[float, float]
    mean: list[float]
    precision: list[list[float]]
    threshold: float
    level: float

    @classmethod
    def fit(cls, fields: Array) -> TrainingLaw:
        """Fit the law of fields [n, ny, nx].

        Raises:
            ValueError: If there are fewer than four.
        """
        if len(fields) < FEWEST:
            raise ValueError(f"the law of fields needs {FEWEST} of them or more, got {len(fields)}")
        fitted, others = fields[::2], fields[1::2]
        cells = np.quantile(fitted, norm.cdf(_SCORES)).tolist()
        ends = float(fitted.min()), float(fitted.max())
        features = _features(fitted, cells, ends)
        mean = features.mean(0)
        covariance = np.cov(features, rowvar=False) + _RIDGE * np.eye(len(mean))
        precision = np.linalg.inv(covariance)
        level = max(LEVEL, 1 / (len(others) + 1))
        law = cls(cells, ends, mean.tolist(), precision.tolist(), math.inf, level)
        order = math.ceil((1 - level) * (len(others) + 1) - 1e-9)
        threshold = float(np.sort(law.distances(others))[order - 1])
        return cls(cells, ends, mean.tolist(), precision.tolist(), threshold, level)

    def distances(self, fields: Array) -> Array:
        """Return d^2 of fields [n, ny, nx], [n]."""
        gaps = _features(fields, self.cells, self.range) - np.array(self.mean)
        squares: Array = np.einsum("ni,ij,nj->n", gaps, np.array(self.precision), gaps)
        return squares

    def outside(self, fields: Array) -> NDArray[np.bool_]:
        """Return which of the fields [n, ny, nx] are outside, [n]."""
        return self.distances(fields) > self.threshold

    def remark(self, fields: Array) -> str | None:
        """Return a line where more fields [n, ny, nx] are outside than the training law explains.

        Under the training law it comes with a probability of at most ``level``, for one field and
        for many.
        """
        outside, n = int(self.outside(fields).sum()), len(fields)
        if binom.sf(outside - 1, n, self.level) > self.level * (1 + 1e-9):
            return None
        return (
            f"{outside} of {n} fields are outside the law of the training fields, of which "
            f"{100 * self.level:.2g} % are: bands may not hold what they say"
        )

    def parameters(self) -> dict[str, Any]:
        """Return what :class:`TrainingLaw` takes, ready for JSON."""
        return asdict(self)


def _features(fields: Array, cells: list[float], ends: tuple[float, float]) -> Array:
    known, first, counts = np.unique(cells, return_index=True, return_counts=True)
    scores = np.interp(fields, known, _SCORES[first] + (counts - 1) * np.ptp(_SCORES[:2]) / 2)
    n, ny, nx = fields.shape
    power = dctn(scores, axes=(1, 2), norm="ortho") ** 2 / (nx * ny)
    mean = np.sqrt(power[:, :1, 0]) * np.sign(scores.mean((1, 2)))[:, None]
    power[:, 0, 0] = 0.0
    bands = [
        np.add.reduceat(power.sum(axis), _first_of_bands(size), axis=1)
        for axis, size in ((1, nx), (2, ny))
    ]
    # In single precision, in which fields reach a network: 0.1 is not beyond 0.1.
    least, largest = np.array(ends, np.float32)
    asked = fields.astype(np.float32)
    beyond = ((asked < least) | (asked > largest)).reshape(n, -1).mean(1, keepdims=True)
    logs = np.log(np.concatenate([_FLOOR + np.concatenate(bands, 1), _BEYOND + beyond], 1))
    return np.concatenate([mean, logs], 1)


def _first_of_bands(size: int) -> list[int]:
    """Return the first wave numbers of bands that grow by half, below ``size``."""
    found = [0]
    while found[-1] + 1 < size:
        found.append(max(found[-1] + 1, math.ceil(1.5 * found[-1])))
    return [k for k in found if k < size]
