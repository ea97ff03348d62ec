"""Step-weighted time averages of a chain, and their error in closed form."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from tasks.experiments.loop import Array


class TimeAverages:
    """Step-weighted averages of phi at several lengths and thinnings.

    Args:
        phi: The test function of theta [K, ...], less its mean under the target; returns [K].
        lr: Returns the size of the step that made the state.
        lengths: Steps after which the averages are kept.
        thinnings: Each keeps every k-th state.
    """

    def __init__(
        self,
        phi: Callable[[Tensor], Tensor],
        lr: Callable[[], float],
        lengths: Sequence[int],
        thinnings: Sequence[int],
    ) -> None:
        self.phi, self.lr, self.lengths = phi, lr, set(lengths)
        self.sums = {k: (torch.zeros(()), 0.0) for k in thinnings}
        self.kept: dict[int, list[Array]] = {k: [] for k in thinnings}

    def __call__(self, step: int, theta: Tensor) -> None:
        """Take in the state that a step made."""
        weight = self.lr()
        for k, (total, weights) in self.sums.items():
            if step % k == 0:
                self.sums[k] = total + weight * self.phi(theta), weights + weight
            if step in self.lengths:
                total, weights = self.sums[k]
                self.kept[k].append((total / weights).numpy())

    def squares(self, thinning: int = 1) -> Array:
        """Return squared errors, [lengths, K]."""
        return np.square(self.kept[thinning])


def exact(h: Array, g: Array, variance: float, sd: float, lengths: Sequence[int], k: int) -> Array:
    """Return the MSE of the weighted average of theta^2 / variance, in closed form.

    theta <- (1 - h g a) theta + N(0, 2 h g + (h g sd)^2), a = 1 / variance, from its stationary
    law at the first step. The states are Gaussian, so that cov(theta_s^2, theta_t^2) is twice the
    square of their covariance.

    Args:
        h: The steps, [T].
        g: The metric of every chain, [K].
        variance: Of the target.
        sd: Standard deviation of the gradient's noise.
        lengths: Where the MSE is asked for.
        k: Every k-th state counts.

    Returns:
        The mean over the chains, [lengths].
    """
    a = 1 / variance
    move = 1 - h[0] * g * a
    p = (2 * h[0] * g + (h[0] * g * sd) ** 2) / (1 - move**2)
    bias = np.zeros_like(g)
    spread, covariances, weights = np.zeros_like(g), np.zeros_like(g), 0.0
    found, asked = [], set(lengths)
    for t in range(1, max(lengths) + 1):
        step = h[t - 1]
        move = 1 - step * g * a
        p = move**2 * p + 2 * step * g + (step * g * sd) ** 2
        covariances = move**2 * covariances
        if t % k == 0:
            spread += step * (step * p**2 + 2 * covariances)
            covariances += step * p**2
            bias += step * (p * a - 1)
            weights += step
        if t in asked:
            mse = (bias / weights) ** 2 + 2 * a**2 * spread / weights**2
            found.append(mse.mean())
    return np.array(found)
