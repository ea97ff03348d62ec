"""Averages over draws that count unequally, as where the step size decays."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from lightning_sgmcmc.diagnostics.autocorrelation import autocorrelation_time
from lightning_sgmcmc.diagnostics.mixing import Array, as_traces


def weighted_moments(x: ArrayLike, weights: ArrayLike) -> tuple[Array, Array]:
    """Return mean and standard deviation over all draws, each counted with its weight.

    m = sum_t w_t x_t / sum_t w_t and sd^2 = sum_t w_t (x_t - m)^2 / sum_t w_t. With the step sizes
    for w these estimate the posterior's where steps decay (Li et al. 2016, before Theorem 1; Wang,
    Deng and Lin 2020, Theorem 2).

    Args:
        x: Traces [C, D, ...].
        weights: Of the draws, [D] or [C, D]; any scale.

    Returns:
        Two arrays [...].

    Raises:
        ValueError: If shapes disagree, or weights are negative, not finite or all zero.
    """
    traces = as_traces(x)
    w = _shares(weights, traces)
    w = w.reshape(*w.shape, *(1,) * (traces.ndim - 2))
    mean: Array = (w * traces).sum((0, 1))
    deviation: Array = np.sqrt((w * (traces - mean) ** 2).sum((0, 1)))
    return mean, deviation


def effective_draws(weights: ArrayLike) -> float:
    """Return Kish's number (sum w)^2 / sum w^2 of equally weighted independent draws.

    It knows the weights alone and takes the draws for independent; :func:`weighted_ess` does not.

    Args:
        weights: Of all draws, any shape and scale.

    Raises:
        ValueError: If weights are negative, not finite or all zero.
    """
    w = _checked(weights)
    return float(w.sum() ** 2 / (w**2).sum())


def weighted_ess(x: ArrayLike, weights: ArrayLike) -> Array:
    """Return how many independent draws give a mean as precise as the weighted mean of these.

    ESS = sd^2 / Var(m). The error of the weighted mean m is the sum of the series
    y_t = w_t (x_t - m) / sum w, hence Var(m) = sum_t y_t^2 * tau(y), tau its autocorrelation time.
    This is :func:`effective_draws` for independent draws and C D / tau(x) for equal weights. It
    asks that weights change little within an autocorrelation time; where small steps make late
    draws more alike than early ones, tau is an average of both.

    Args:
        x: Traces [C, D, ...].
        weights: Of the draws, [D] or [C, D].

    Returns:
        Array [...]. NaN where :func:`autocorrelation_time` has none.

    Raises:
        ValueError: If shapes disagree, or weights are negative, not finite or all zero.
    """
    traces = as_traces(x)
    w = _shares(weights, traces)
    mean, deviation = weighted_moments(traces, w)
    y = w.reshape(*w.shape, *(1,) * (traces.ndim - 2)) * (traces - mean)
    with np.errstate(divide="ignore", invalid="ignore"):
        result = deviation**2 / ((y**2).sum((0, 1)) * autocorrelation_time(y))
    return np.where(np.isfinite(autocorrelation_time(traces)), result, np.nan)


def _checked(weights: ArrayLike) -> Array:
    w = np.asarray(weights, dtype=np.float64)
    if not (np.isfinite(w).all() and (w >= 0).all() and w.any()):
        raise ValueError("weights of draws must be finite, not negative and not all zero")
    return w


def _shares(weights: ArrayLike, traces: Array) -> Array:
    """Return the weights [C, D] with sum 1."""
    w = _checked(weights)
    if w.shape not in (traces.shape[1:2], traces.shape[:2]):
        raise ValueError(
            f"weights are [draws] or [chains, draws] of traces {traces.shape[:2]}, got {w.shape}"
        )
    w = np.broadcast_to(w, traces.shape[:2])
    shares: Array = w / w.sum()
    return shares
