"""Simulation-based calibration: the truth's rank among a posterior's draws is uniform.

500 parameter vectors are drawn from the prior, a data set of a logistic regression from each, and
one stacked chain samples each posterior (Talts et al. 2018). The ranks of every weight and of the
log-likelihood among 15 thinned draws must be uniform by a chi-square test of 8 cells.
False-alarm rate: 1e-6 a statistic (tests/harness.py), 4 a sampler.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from lightning_sgmcmc import SGLD
from tests.harness import CASES, FALSE_ALARM, Case, Chains
from tests.posteriors import LogisticRegression

SETS, NUM_DATA, DIM, DRAWS, CELLS = 500, 12, 3, 15, 8


@cache
def simulated() -> tuple[np.ndarray, LogisticRegression]:
    """Return the truths [K, d] and their data sets."""
    rng = np.random.default_rng(0)
    theta = rng.standard_normal((SETS, DIM))
    x = rng.standard_normal((SETS, NUM_DATA, DIM))
    x[..., 0] = 1
    eta = np.einsum("kni,ki->kn", x, theta)
    y = (rng.random(eta.shape) < 1 / (1 + np.exp(-eta))).astype(float)
    return theta, LogisticRegression(x, y, prior_variance=1.0)


def check_calibration(case: Case, burn_in: int = 200, thinning: int = 50) -> None:
    """Assert that the truths' ranks are uniform.

    Raises:
        AssertionError: If they are not; with probability ``FALSE_ALARM`` each for a right sampler.
    """
    truth, posterior = simulated()
    chains = Chains(case, posterior, SETS, fraction=min(0.1, case.fraction))
    chains.set(np.random.default_rng(1).standard_normal(truth.shape))
    chains.step(burn_in)
    draws = [chains.step(thinning) for _ in range(DRAWS)]
    data = posterior.data(torch.float64)

    def quantities(theta: np.ndarray) -> np.ndarray:
        losses = posterior.nll(torch.from_numpy(np.array(theta)), data)
        return np.column_stack([theta, losses.sum(-1).numpy()])

    ranks = sum((quantities(theta) < quantities(truth)).astype(int) for theta in draws)
    cells = ranks * CELLS // (DRAWS + 1)
    for i in range(DIM + 1):
        counts = np.bincount(cells[:, i], minlength=CELLS)
        p = stats.chisquare(counts).pvalue
        assert p > FALSE_ALARM, f"quantity {i} is not calibrated: {counts}, p = {p:.1e}"


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_ranks_are_uniform(case: Case) -> None:
    check_calibration(case)


class HalfNoise(SGLD):
    def noise(self) -> list[Tensor]:
        return [z * 0.5**0.5 for z in super().noise()]


class ForgottenPrior(SGLD):
    def drift(self, grads: list[Tensor]) -> list[Tensor]:
        return self.preconditioner.apply_(grads)


class PriorOnly(SGLD):
    """Forgets the data, which ranks of the weights alone cannot show."""

    def drift(self, grads: list[Tensor]) -> list[Tensor]:
        return super().drift([torch.zeros_like(g) for g in grads])


@pytest.mark.parametrize("wrong", [HalfNoise, ForgottenPrior, PriorOnly])
def test_a_wrong_sampler_is_not_calibrated(wrong: type[SGLD]) -> None:
    with pytest.raises(AssertionError, match="is not calibrated"):
        check_calibration(Case(wrong.__name__, wrong))
