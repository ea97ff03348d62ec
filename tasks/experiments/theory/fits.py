"""Fits of the powers that theorems state, with standard errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tasks.experiments.loop import Array

#: Groups of chains, each of which is left out in turn for the standard errors of fits and ratios.
GROUPS = 50


def jackknife(statistic: Callable[..., Array], *samples: Array) -> tuple[Array, Array]:
    """Return a statistic of independent repetitions, and its standard error by the jackknife.

    Args:
        statistic: Called with ``samples``, or with a part of their repetitions.
        samples: Each [..., K], of the same K repetitions.
    """
    parts = np.array_split(np.arange(samples[0].shape[-1]), GROUPS)
    left = np.array([statistic(*(np.delete(s, part, -1) for s in samples)) for part in parts])
    error: Array = np.sqrt((GROUPS - 1) * left.var(0))
    return statistic(*samples), error


def fitted(x: Sequence[float], samples: Array) -> tuple[float, float]:
    """Return p of mean ~ x^p by least squares in logarithms, and its standard error.

    Args:
        x: The values that the means belong to, [L].
        samples: Independent repetitions of what is averaged, [L, K].
    """
    value, error = jackknife(lambda s: np.array(power(x, s.mean(1))), samples)
    return float(value), float(error)


def power(x: Sequence[float], y: Array) -> float:
    """Return p of y ~ x^p by least squares in logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def mean_and_error(samples: Array) -> tuple[float, float]:
    """Return the mean of independent samples [K] and its standard error."""
    return float(samples.mean()), float(samples.std(ddof=1)) / math.sqrt(len(samples))
