"""Integrated autocorrelation time, and the paper's product of it with the time of a draw."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from lightning_sgmcmc.diagnostics.arviz import array_stats
from lightning_sgmcmc.diagnostics.mixing import MIN_DRAWS, Array, as_traces, columns, standardised

_STATS: Any = array_stats


def autocorrelation_time(x: ArrayLike, convention: Literal["sgfs", "psgld"] = "sgfs") -> Array:
    """Return the integrated autocorrelation time, in draws.

    - ``sgfs``: tau = 1 + 2 sum_s rho(s), so that ESS = draws / tau; independent draws have 1
      (Ahn et al. 2012, footnote 1; Neal 1993). SGLD on a Gaussian direction of curvature lambda
      has rho = 1 - eps lambda / 2 and tau = 4 / (eps lambda) - 1.
    - ``psgld``: tau = 1/2 + sum_s rho(s), half of it; independent draws have 1/2, and
      ESS = draws / (2 tau) (Li et al. 2016, after equation 9). There 2 / (eps lambda) - 1/2.

    An AR(1) process x' = rho x + noise has (1 + rho) / (1 - rho) and half of that. eps is the
    papers' step: eps/2 times the gradient of the sum, lr = eps N / 2 here.

    rho(s) comes from the autocovariances of all chains and the variance that they have together,
    cut off by Geyer's initial monotone sequence, as ArviZ computes it; chains that disagree
    therefore have a long autocorrelation time. Times below 1 / log10(C D) are cut there. A time
    longer than a fiftieth of the draws comes out too short.

    Args:
        x: Traces [C, D, ...] of C chains with D draws.
        convention: Whose definition.

    Returns:
        Array [...]. NaN for a quantity that is constant over all chains or not finite somewhere,
        and for all of them with fewer than 8 draws a chain.

    Raises:
        ValueError: If the shape or the convention's name is wrong.
    """
    if convention not in ("sgfs", "psgld"):
        raise ValueError(f"convention must be sgfs or psgld, got {convention!r}")
    traces = as_traces(x)
    rows, varies = columns(traces)
    result = np.full(len(rows), np.nan)
    if traces.shape[1] >= MIN_DRAWS and varies.any():
        scaled = standardised(rows[varies])
        result[varies] = 1 / _STATS.ess(scaled, method="identity", relative=True)
    if convention == "psgld":
        result /= 2
    return result.reshape(traces.shape[2:])


def atuc(x: ArrayLike, seconds_per_draw: float) -> float:
    """Return the autocorrelation time per unit of computation, in seconds.

    ATUC = (1 + 2 sum_s rho(s)) * time per draw, averaged over the quantities: the time that buys
    one independent draw (Ahn et al. 2012, section 5.1 and footnote 1). Their figures show its
    inverse.

    Args:
        x: Traces [C, D, ...] of C chains with D draws.
        seconds_per_draw: Computing time of one draw of one chain.

    Returns:
        The mean over all quantities for which there is an autocorrelation time, NaN without any.

    Raises:
        ValueError: If the shape is wrong or the time is not positive.
    """
    if not 0 < seconds_per_draw < np.inf:
        raise ValueError(f"seconds_per_draw must be positive, got {seconds_per_draw}")
    times = autocorrelation_time(x)
    known = times[~np.isnan(times)]
    return float(known.mean() * seconds_per_draw) if known.size else float("nan")
