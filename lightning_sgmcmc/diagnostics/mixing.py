"""Effective sample size and R-hat of many quantities at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri
from scipy.stats import rankdata

from lightning_sgmcmc.diagnostics.arviz import array_stats

Array = NDArray[np.float64]

#: Fewest draws a chain for which anything is said: each half then has four.
MIN_DRAWS = 8

_STATS: Any = array_stats


def as_traces(x: ArrayLike) -> Array:
    """Return ``x`` as float64 with chains and draws in front, [C, D, ...].

    Raises:
        ValueError: If there are fewer than two axes, no chain or no draw.
    """
    traces = np.asarray(x, dtype=np.float64)
    if traces.ndim < 2 or 0 in traces.shape[:2]:
        raise ValueError(
            f"traces are [chains, draws, ...] with at least one of each, got shape "
            f"{traces.shape}: give one chain's trace as trace[None]"
        )
    return traces


def columns(traces: Array) -> tuple[Array, NDArray[np.bool_]]:
    """Return the quantities of traces as rows [Q, C, D], and which are finite and not constant."""
    rows = np.moveaxis(traces.reshape(*traces.shape[:2], -1), -1, 0)
    finite = np.isfinite(rows).all((1, 2))
    varies = np.zeros_like(finite)
    varies[finite] = np.ptp(rows[finite], axis=(1, 2)) > 0
    return rows, varies


def without_middle(traces: Array) -> Array:
    """Return traces without the middle one of an odd number of draws, which no half has."""
    draws = traces.shape[1]
    return np.delete(traces, draws // 2, axis=1) if draws % 2 and draws >= MIN_DRAWS else traces


def ess(x: ArrayLike, method: Literal["bulk", "tail", "mean"] = "bulk") -> Array:
    """Return how many independent draws would do as well.

    ESS = C D / (1 + 2 sum_s rho(s)) over split chains, rho cut off by Geyer's initial monotone
    sequence; a difference between the chains enters rho, so chains that disagree have a low ESS
    however quickly each moves.

    - ``bulk``: of the rank-normalised values, for the centre of the distribution; exists where
      variances do not.
    - ``tail``: the smaller one of the indicators of the 5 % and 95 % quantiles.
    - ``mean``: of the values themselves; sd / sqrt(ESS) is the standard error of their mean.

    Vehtari, Gelman, Simpson, Carpenter and Buerkner 2021 (Bayesian Analysis 16), as ArviZ computes
    it.

    Args:
        x: Traces [C, D, ...] of C chains with D draws.
        method: Of what.

    Returns:
        Array [...]. NaN for a quantity that is constant over all chains or not finite somewhere,
        and for all of them with fewer than 8 draws a chain.

    Raises:
        ValueError: If the shape or the method's name is wrong.
    """
    if method not in ("bulk", "tail", "mean"):
        raise ValueError(f"method must be bulk, tail or mean, got {method!r}")
    traces = as_traces(x)
    rows, varies = columns(without_middle(traces))
    result = np.full(len(rows), np.nan)
    if traces.shape[1] >= MIN_DRAWS and varies.any():
        rows = columns(traces)[0][varies]
        if method == "tail":
            result[varies] = _STATS.ess(rows, method="tail", prob=(0.05, 0.95))
        else:
            halves = _split(rows)
            # ArviZ takes a spread below 1e-15 for none, hence the standardisation.
            scaled = _rank_normalised(halves) if method == "bulk" else standardised(halves)
            result[varies] = _STATS.ess(scaled, method="identity")
    return result.reshape(traces.shape[2:])


def rhat(x: ArrayLike) -> Array:
    """Return the potential scale reduction: 1 when all halves of all chains agree.

    R-hat = sqrt((B / W + n - 1) / n) of the rank-normalised half chains of n draws, B the variance
    between them times n, W the mean variance within; the larger of that of the values (location)
    and of their distances from the median (scale). One chain is compared half with half. Vehtari
    et al. 2021.

    Args:
        x: Traces [C, D, ...] of C chains with D draws.

    Returns:
        Array [...]. Infinite where every half chain is constant and they differ; NaN for a quantity
        that is constant over all chains or not finite somewhere, and for all of them with fewer
        than 8 draws a chain.

    Raises:
        ValueError: If the shape is wrong.
    """
    traces = as_traces(x)
    rows, varies = columns(without_middle(traces))
    result = np.full(len(rows), np.nan)
    if traces.shape[1] >= MIN_DRAWS and varies.any():
        halves = _split(rows[varies])
        folded = np.abs(halves - np.median(halves, axis=(1, 2), keepdims=True))
        with np.errstate(divide="ignore", invalid="ignore"):
            value = np.fmax(
                _STATS.rhat(_rank_normalised(halves), method="identity"),
                _STATS.rhat(_rank_normalised(folded), method="identity"),
            )
        value[(np.ptp(halves, axis=-1) == 0).all(-1)] = np.inf
        result[varies] = value
    return result.reshape(traces.shape[2:])


def nested_rhat(x: ArrayLike, superchains: Sequence[int]) -> Array:
    """Return the nested R-hat of many short chains: 1 when groups of chains agree.

    A superchain is a group of M chains from a common start; there are K of them, of chains with N
    draws. With m_kj the mean of chain j of superchain k, m_k that of the superchain, m that of all,

        B = sum_k (m_k - m)^2 / (K - 1),
        W = mean over k of  sum_j (m_kj - m_k)^2 / (M - 1)  +  mean over j of the variance within,

    and the result is sqrt(1 + B / W), where a term with a divisor of 0 is 0. The number of chains
    makes up for their shortness: stationary chains of independent draws have
    B / W = 1 / (M (N + 1)) about, or 1 / M for N = 1. Chains that have not forgotten their common
    starts keep B, however many there are. Margossian, Hoffman, Sountsov, Riou-Durand, Vehtari and
    Gelman 2022 (arXiv 2110.13017), definition 2.1.

    Args:
        x: Traces [C, D, ...] of C = K M chains with D = N draws.
        superchains: The superchain of each chain, C labels.

    Returns:
        Array [...]. Infinite where nothing varies within superchains and these differ; NaN for a
        quantity that is constant over all chains or not finite somewhere.

    Raises:
        ValueError: If the shape is wrong, there are not two superchains of equally many chains, or
            a superchain is a single draw.
    """
    traces, labels = as_traces(x), np.asarray(superchains)
    if labels.shape != traces.shape[:1]:
        raise ValueError(
            f"superchains names the group of each of the {len(traces)} chains, got {labels.shape}"
        )
    names, counts = np.unique(labels, return_counts=True)
    size = int(counts[0])
    if len(names) < 2 or (counts != size).any():
        raise ValueError(
            f"nested R-hat compares two or more superchains of equally many chains, got "
            f"{dict(zip(names.tolist(), counts.tolist(), strict=True))}"
        )
    if size * traces.shape[1] == 1:
        raise ValueError("a superchain of one draw has no variance: give more chains or draws")
    rows, varies = columns(traces)
    result = np.full(len(rows), np.nan)
    order = np.argsort(labels, kind="stable")
    grouped = rows[varies][:, order].reshape(int(varies.sum()), len(names), size, -1)
    means = grouped.mean(-1)
    within = np.zeros(grouped.shape[:2])
    if grouped.shape[-1] > 1:
        within += grouped.var(-1, ddof=1).mean(-1)
    if size > 1:
        within += means.var(-1, ddof=1)
    with np.errstate(divide="ignore"):
        ratio = means.mean(-1).var(-1, ddof=1) / within.mean(-1)
    result[varies] = np.sqrt(1 + ratio)
    return result.reshape(traces.shape[2:])


def standardised(rows: Array) -> Array:
    """Return rows [Q, C, D] with mean 0 and, where they vary, standard deviation 1."""
    centred = rows - rows.mean((1, 2), keepdims=True)
    scale = np.abs(centred).max((1, 2), keepdims=True)
    centred /= np.where(scale > 0, scale, 1.0)
    deviation = centred.std((1, 2), keepdims=True)
    scaled: Array = centred / np.where(deviation > 0, deviation, 1.0)
    return scaled


def _split(rows: Array) -> Array:
    """Return the halves of each chain as chains, [Q, 2 C, D // 2], without the middle draw."""
    half = rows.shape[-1] // 2
    return np.concatenate([rows[..., :half], rows[..., -half:]], axis=1)


def _rank_normalised(rows: Array) -> Array:
    """Return the normal scores of the ranks over all chains and draws, [Q, C, D]."""
    flat = rows.reshape(len(rows), -1)
    ranks = rankdata(flat, axis=-1)
    scores: Array = ndtri((ranks - 3 / 8) / (flat.shape[-1] + 1 / 4))
    return scores.reshape(rows.shape)
