"""With real minibatches, every sampler has the covariance and autocorrelation of its own recursion.

On linear regression the minibatch noise is a known function of the weights' covariance, so that
P = M P M' + Q + gain (V0 + K(P)) gain' is exact at every stable step, and the autocovariance at
lag k is M^k P. Compared by means over independent chains; false-alarm rate: 1e-6 a statistic
(tests/harness.py), 22 a check, some 20 checks: one in 2,000 for the file.
"""

from __future__ import annotations

import pytest

from tests.harness import CASES, CORRELATED, Case, check_moments

SGLD_CASE = CASES[0]


@pytest.mark.parametrize("case", [c for c in CASES if c.linear], ids=lambda c: c.name)
def test_independent_minibatches(case: Case) -> None:
    check_moments(case, CORRELATED)


def test_minibatches_without_replacement() -> None:
    check_moments(SGLD_CASE, CORRELATED, replacement=False, stated=False)


def test_the_two_ways_of_drawing_minibatches_differ() -> None:
    with pytest.raises(AssertionError, match="lag 0: not of the stated law"):
        check_moments(SGLD_CASE, CORRELATED, replacement=False)
