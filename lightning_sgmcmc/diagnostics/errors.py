"""Relative errors of mean and covariance against a reference posterior."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from lightning_sgmcmc.diagnostics.mixing import Array, as_traces


@dataclass(frozen=True)
class RelativeErrors:
    """E1 and E2 after some draws of each chain.

    Attributes:
        draws: Number of draws of each chain so far.
        seconds: What was given as their computing time, NaN if nothing was.
        mean: E1, relative error of the mean, [C].
        covariance: E2, relative error of the covariance, [C].
    """

    draws: int
    seconds: float
    mean: Array
    covariance: Array


class RunningErrors:
    """E1 and E2 of Ahn et al. while draws come in, of each chain by itself.

    E1_t = sum_i |mean_t,i - mean_i| / sum_i |mean_i|
    E2_t = sum_ij |C_t,ij - C_ij| / sum_ij |C_ij|

    with mean_t and C_t those of the first t draws, C_t with divisor t (Ahn, Korattikara and
    Welling 2012, equation 14). Memory is one covariance a chain; blocks are merged by the pairwise
    formula, without cancellation.

    Args:
        mean: The reference's mean, [W].
        covariance: The reference's covariance, [W, W].

    Raises:
        ValueError: If shapes disagree, a value is not finite or a reference is all zero.
    """

    def __init__(self, mean: ArrayLike, covariance: ArrayLike) -> None:
        self.mean = np.asarray(mean, dtype=np.float64)
        self.covariance = np.asarray(covariance, dtype=np.float64)
        if self.mean.ndim != 1 or self.covariance.shape != 2 * self.mean.shape:
            raise ValueError(
                f"a reference is a mean [W] and a covariance [W, W], got shapes {self.mean.shape} "
                f"and {self.covariance.shape}"
            )
        for name, value in (("mean", self.mean), ("covariance", self.covariance)):
            if not (np.isfinite(value).all() and value.any()):
                raise ValueError(
                    f"the reference's {name} must be finite and not all zero: the error is relative"
                )
        self.draws = 0
        #: One entry a call of :meth:`update`.
        self.history: list[RelativeErrors] = []
        self._mean = np.zeros((0, len(self.mean)))
        self._scatter = np.zeros((0, *self.covariance.shape))

    def update(self, block: ArrayLike, seconds: float = float("nan")) -> RelativeErrors:
        """Take in the next draws of every chain and return the errors of all so far.

        Args:
            block: Draws [C, n, W].
            seconds: Computing time up to here, for errors over time.

        Raises:
            ValueError: If the shape does not fit the reference or the earlier blocks.
        """
        x = as_traces(block)
        chains = len(self._mean) or len(x)
        if x.ndim != 3 or x.shape[2] != len(self.mean) or len(x) != chains:
            raise ValueError(
                f"a block is [chains, draws, weights] = [{chains}, n, {len(self.mean)}], got shape "
                f"{x.shape}"
            )
        if not self.draws:
            self._mean = np.zeros((chains, len(self.mean)))
            self._scatter = np.zeros((chains, *self.covariance.shape))
        n, total = x.shape[1], self.draws + x.shape[1]
        centre = x.mean(1)
        centred = x - centre[:, None]
        gap = centre - self._mean
        self._scatter += centred.transpose(0, 2, 1) @ centred
        self._scatter += gap[:, :, None] * gap[:, None] * (self.draws * n / total)
        self._mean += gap * (n / total)
        self.draws = total
        errors = RelativeErrors(
            total,
            seconds,
            np.abs(self._mean - self.mean).sum(1) / np.abs(self.mean).sum(),
            np.abs(self._scatter / total - self.covariance).sum((1, 2))
            / np.abs(self.covariance).sum(),
        )
        self.history.append(errors)
        return errors


def relative_errors(x: ArrayLike, mean: ArrayLike, covariance: ArrayLike) -> RelativeErrors:
    """Return E1 and E2 of each chain's draws, see :class:`RunningErrors`.

    Args:
        x: Draws [C, D, W]; ``x.reshape(1, -1, W)`` for the error of all chains together.
        mean: The reference's mean, [W].
        covariance: The reference's covariance, [W, W].

    Raises:
        ValueError: If shapes disagree, or the reference is not finite or all zero.
    """
    return RunningErrors(mean, covariance).update(x)
