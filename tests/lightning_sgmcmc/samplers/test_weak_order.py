"""The bias of E[theta^2] on a non-Gaussian posterior shrinks at each sampler's stated order.

The posterior is that of four observations with sech noise, whose potential is quadratic near its
minimum and linear far out; the truth comes from quadrature. At .3 and .15 of the largest stable
step Euler schemes are 32 and 14 % off, the standard error being .0025 for 10,000 chains: the order
log2(b(h) / b(h/2)) is measured to .025, its next term being .18. False-alarm rate: 1e-6 a test.
The thermostat's order, for which its options have to change with the step, is measured without
chance in ``test_thermostat_order.py``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from lightning_sgmcmc import SGHMC, SGLD
from tests.harness import BOUND, CASES, Case, Chains, baoab
from tests.posteriors import RobustRegression

X = np.array([[1.0, 1.0], [1.0, -1.0], [1.0, 1.0], [1.0, -1.0]])
POSTERIOR = RobustRegression(X, np.zeros(4))


@cache
def truth() -> tuple[float, np.ndarray]:
    """Return E[theta^2] and the covariance."""
    mean, second = POSTERIOR.moments()
    return float(np.trace(second)), second - np.outer(mean, mean)


def bias(case: Case, fraction: float) -> tuple[float, float]:
    """Return the relative bias of E[theta^2] at a step, and its standard error over chains."""
    square, covariance = truth()
    rows = min(case.rows, 10_000)
    chains = Chains(case, POSTERIOR, rows, fraction=fraction)
    chains.start(covariance)
    chains.step(round(10 / fraction))
    steps = round(75 / fraction**0.5)
    average = sum((chains.step() ** 2).sum(1) for _ in range(steps)) / steps
    return average.mean() / square - 1, average.std() / np.sqrt(rows) / square


def check_order(case: Case) -> None:
    """Measure the biases at two steps and compare their ratio with the stated order.

    Raises:
        AssertionError: If the order of a first-order sampler is not 1 within .3; if that of a
            higher one is lower than stated, beyond the bound of a normal score and a fifth for
            the terms that follow; if an exact one has any bias.
    """
    if np.isinf(case.order):
        found, error = bias(case, 0.5)
        assert error < 0.005
        assert abs(found) < BOUND * error, f"the bias is {found:.4f} +- {error:.4f}, not 0"
    elif case.order == 1:
        (whole, error), (half, half_error) = bias(case, 0.3), bias(case, 0.15)
        assert min(abs(whole) / error, abs(half) / half_error) > 20
        order = np.log2(abs(whole / half))
        assert order == pytest.approx(1, abs=0.3), f"the order is {order:.2f}, not 1"
    else:
        (whole, _), (half, error) = bias(case, 0.6), bias(case, 0.3)
        largest = 1.2 * abs(whole) / 2**case.order + BOUND * error
        assert abs(half) < largest, f"the bias falls from {whole:.4f} to {half:.4f}"


@pytest.mark.parametrize("case", [c for c in CASES if c.order], ids=lambda c: c.name)
def test_bias_shrinks_at_the_stated_order(case: Case) -> None:
    check_order(case)


def test_moment_matched_increments_keep_the_first_order() -> None:
    """Increments with the Gaussian's moments up to the third leave weak order 1."""

    def build(params: object, **kw: object) -> SGLD:
        sampler = SGLD(params, **kw)  # type: ignore[arg-type]
        sampler.increments = "moment-matched"
        return sampler

    check_order(Case("SGLD-matched", build))


def test_a_lower_order_is_caught() -> None:
    """Euler's scheme is neither of second order nor exact, and BAOAB not of first."""
    euler = Case("Euler", lambda p, momentum=0.0, **kw: SGLD(p, **kw), baoab, {"momentum": 0.0})
    with pytest.raises(AssertionError, match="the bias falls from"):
        check_order(replace(euler, order=2))
    with pytest.raises(AssertionError, match="not 0"):
        check_order(replace(euler, order=np.inf))
    with pytest.raises(AssertionError):
        check_order(Case("BAOAB", SGHMC, baoab, {"momentum": 0.0}, order=1))
