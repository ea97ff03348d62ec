"""Simulation-based calibration: whether ranks of the truth among posterior draws are uniform.

Talts et al. 2018, "Validating Bayesian inference algorithms with simulation-based calibration",
algorithm 1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import chisquare

from tasks.experiments.tables import markdown

BINS = 10


class Uniformity(NamedTuple):
    """How far ranks are from uniform.

    Attributes:
        p: The p-value of each quantity's chi-square test in ten bins, [Q].
        corrected: The smallest of them times Q, at most 1.
        spread: The ranks' root mean square distance from the middle over that of uniform ones,
            [Q]; above 1 where the draws are too narrow.
    """

    p: NDArray[np.float64]
    corrected: float
    spread: NDArray[np.float64]


def uniformity(fractions: ArrayLike, draws: int) -> Uniformity:
    """Return how uniform ranks are.

    Args:
        fractions: The part of the draws that lie below the truth, [R, Q] of R replicates and Q
            quantities.
        draws: Number of draws in a replicate, L. Uniform ranks take the values 0 to L alike.
    """
    ranks = np.rint(np.asarray(fractions) * draws).astype(int)
    bins = np.arange(draws + 1) * BINS // (draws + 1)
    expected = np.bincount(bins) * len(ranks) / (draws + 1)
    counts = [np.bincount(bins[column], minlength=BINS) for column in ranks.T]
    p = np.array([chisquare(found, expected).pvalue for found in counts])
    of_uniform = (np.arange(draws + 1) - draws / 2).std()
    spread = np.sqrt(((ranks - draws / 2) ** 2).mean(0)) / of_uniform
    return Uniformity(p, min(1.0, float(p.min() * len(p))), spread)


def table(record: dict[str, Any]) -> str:
    """Return the table of a record of ``scripts/bench/sbc.py``."""
    head = (
        "sampler",
        "replicates",
        "quantities",
        "smallest p-value, corrected",
        "spread of ranks over uniform",
    )
    rows = []
    for sampler, fractions in record["ranks"].items():
        found = uniformity(fractions, record["draws"])
        low, high = found.spread.min(), found.spread.max()
        smallest, spread = f"{found.corrected:.2f}", f"{low:.2f} to {high:.2f}"
        rows.append((f"`{sampler}`", len(fractions), len(found.p), smallest, spread))
    return markdown(head, rows)
