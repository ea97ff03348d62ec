"""ESS and R-hat against ArviZ's own, the textbook formula and chains whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from arviz_stats.base import array_stats
from scipy.stats import norm

from lightning_sgmcmc.diagnostics import ess, nested_rhat, rhat


def ar1(rho: float, shape: tuple[int, int, int], seed: int) -> np.ndarray:
    """Return stationary AR(1) traces [C, D, Q] of unit variance."""
    rng = np.random.default_rng(seed)
    z = rng.standard_normal(shape)
    x = z.copy()
    for t in range(1, shape[1]):
        x[:, t] = rho * x[:, t - 1] + np.sqrt(1 - rho**2) * z[:, t]
    return x


@pytest.mark.parametrize("shape", [(4, 200, 30), (2, 101, 5), (3, 8, 5)])
def test_rank_normalised_numbers_are_arviz_own(shape: tuple[int, int, int]) -> None:
    x = np.exp(ar1(0.5, shape, seed=0))
    x[0] += 0.3
    x[:, :, 1] = np.round(x[:, :, 1])  # ties
    for mine, theirs in [
        (ess(x), array_stats.ess(x, chain_axis=0, draw_axis=1, method="bulk")),
        (ess(x, "mean"), array_stats.ess(x, chain_axis=0, draw_axis=1, method="mean")),
        (ess(x, "tail"), array_stats.ess(x, 0, 1, method="tail", prob=(0.05, 0.95))),
        (rhat(x), array_stats.rhat(x, chain_axis=0, draw_axis=1, method="rank")),
    ]:
        assert np.isfinite(mine).all()
        np.testing.assert_allclose(mine, theirs, rtol=1e-10)


@pytest.mark.parametrize("rho", [-0.4, 0.0, 0.6, 0.9])
def test_ess_of_ar1(rho: float) -> None:
    """Mean over 50 quantities: standard error below 1 %, tolerance 4 %; bias of order tau/D."""
    x = ar1(rho, (4, 5000, 50), seed=1)
    expected = 20_000 * (1 - rho) / (1 + rho)
    assert ess(x, "mean").mean() == pytest.approx(expected, rel=0.04)
    if rho >= 0:  # ranks of an AR(1) have nearly its autocorrelation
        assert ess(x, "bulk").mean() == pytest.approx(expected, rel=0.05)


def test_the_standard_error_of_the_mean_is_sd_over_root_ess() -> None:
    """400 means of AR(1) chains: the variance ratio lies within 4 of its own deviations of 1."""
    x = ar1(0.8, (1, 2000, 400), seed=2)
    variance = x.mean((0, 1)).var()
    ratio = variance / np.mean(x.var((0, 1)) / ess(x, "mean"))
    assert abs(ratio - 1) < 4 * np.sqrt(2 / 400)


def test_rhat_is_one_for_equal_chains_and_sees_location_and_scale() -> None:
    x = ar1(0.0, (4, 1000, 40), seed=3)
    assert np.abs(rhat(x) - 1).max() < 0.01
    shifted, scaled = x.copy(), x.copy()
    shifted[0] += 1
    scaled[0] *= 3
    assert rhat(shifted).min() > 1.05
    assert rhat(scaled).min() > 1.05
    assert ess(shifted).max() < 0.05 * ess(x).min()


def test_rhat_by_its_formula() -> None:
    """The location part on values whose ranks are known: normal scores by bisection of the cdf."""
    rng = np.random.default_rng(4)
    order = rng.permutation(4 * 6)
    x = order.reshape(2, 12).astype(float)
    x[1] += 3 * np.arange(12)
    halves = np.concatenate([x[:, :6], x[:, 6:]])

    def formula(y: np.ndarray) -> float:
        ranks = np.array([[(y < v).sum() + ((y == v).sum() + 1) / 2 for v in row] for row in y])
        z = norm.ppf((ranks - 0.375) / (24 + 0.25))
        n = 6
        between = n * z.mean(1).var(ddof=1)
        within = z.var(axis=1, ddof=1).mean()
        return float(np.sqrt(((n - 1) / n * within + between / n) / within))

    folded = np.abs(halves - np.median(halves))
    expected = max(formula(halves), formula(folded))
    assert float(rhat(x)) == pytest.approx(expected, rel=1e-12)


def test_one_chain_is_compared_half_with_half() -> None:
    x = ar1(0.0, (1, 400, 20), seed=5)
    assert np.abs(rhat(x) - 1).max() < 0.05
    x[:, 200:] += 2
    assert rhat(x).min() > 1.3
    # Half chains given as chains of their own are split once more, so only the shift is common.
    assert rhat(x.reshape(2, 200, 20)).min() > 1.3


def test_what_cannot_be_said_is_nan_and_touches_nothing_else() -> None:
    x = ar1(0.3, (2, 100, 6), seed=6)
    clean_ess, clean_rhat = ess(x), rhat(x)
    x[:, :, 1] = 7.0
    x[0, 5, 2] = np.nan
    x[1, 9, 3] = np.inf
    x[0, :, 4], x[1, :, 4] = 1.0, 2.0  # two chains that are stuck, each elsewhere
    for method in ("bulk", "tail", "mean"):
        values = ess(x, method)
        assert np.isnan(values[[1, 2, 3]]).all()
        assert values[4] <= 4
    assert np.isnan(rhat(x)[[1, 2, 3]]).all()
    assert rhat(x)[4] == np.inf
    np.testing.assert_array_equal(ess(x)[[0, 5]], clean_ess[[0, 5]])
    np.testing.assert_array_equal(rhat(x)[[0, 5]], clean_rhat[[0, 5]])


def test_fewer_than_eight_draws_say_nothing() -> None:
    x = ar1(0.0, (4, 8, 3), seed=7)
    assert np.isfinite(ess(x)).all()
    assert np.isfinite(rhat(x)).all()
    for number in (ess(x[:, :7]), ess(x[:, :7], "tail"), rhat(x[:, :7]), rhat(x[:, :1])):
        assert np.isnan(number).all()


def test_numbers_do_not_depend_on_units() -> None:
    x = ar1(0.5, (2, 200, 4), seed=8)
    tiny = 1e-30 * x
    for number in (ess, rhat, lambda y: ess(y, "mean")):
        np.testing.assert_allclose(number(tiny), number(x), rtol=1e-10)
        assert number(x.reshape(2, 200, 2, 2)).shape == (2, 2)


def test_bad_input_is_one_line() -> None:
    with pytest.raises(ValueError, match=r"\[chains, draws, ...\].*trace\[None\]"):
        ess(np.zeros(10))
    with pytest.raises(ValueError, match=r"at least one of each"):
        rhat(np.zeros((0, 10, 2)))
    with pytest.raises(ValueError, match="method must be bulk, tail or mean, got 'median'"):
        ess(np.zeros((2, 10)), "median")


def definition(x: np.ndarray, superchains: list[int]) -> float:
    """Return nested R-hat of one quantity [C, D], as the paper defines it, term by term."""
    groups = [[c for c, k in zip(x, superchains, strict=True) if k == g] for g in set(superchains)]
    centre = np.mean([np.mean(g) for g in groups])
    between = sum((np.mean(g) - centre) ** 2 for g in groups) / (len(groups) - 1)
    within = 0.0
    for g in groups:
        if len(g) > 1:
            within += sum((np.mean(c) - np.mean(g)) ** 2 for c in g) / (len(g) - 1)
        if len(g[0]) > 1:
            within += np.mean([sum((v - np.mean(c)) ** 2 for v in c) / (len(c) - 1) for c in g])
    return float(np.sqrt(1 + between / (within / len(groups))))


@pytest.mark.parametrize(
    ("draws", "superchains"),
    [(7, [0, 1, 0, 1, 2, 2]), (1, [0, 0, 1, 1, 1, 0]), (5, [3, 1, 2, 0]), (9, [1, 1, 0, 0])],
)
def test_nested_rhat_is_its_definition(draws: int, superchains: list[int]) -> None:
    x = ar1(0.5, (len(superchains), draws, 3), seed=6)
    x[0] += 1.5
    expected = [definition(x[:, :, q], superchains) for q in range(3)]
    np.testing.assert_allclose(nested_rhat(x, superchains), expected, rtol=1e-12)


def test_nested_rhat_is_arviz_own() -> None:
    x, superchains = ar1(0.5, (8, 50, 4), seed=7), [0, 0, 1, 1, 2, 2, 3, 3]
    theirs = array_stats.rhat_nested(
        x, superchain_ids=superchains, method="identity", chain_axis=0, draw_axis=1
    )
    np.testing.assert_allclose(nested_rhat(x, superchains), theirs, rtol=1e-10)


@pytest.mark.parametrize("draws", [1, 4])
@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_nested_rhat_of_independent_draws_and_of_remembered_starts(
    draws: int, spread: float
) -> None:
    """E[B] = spread^2 + 1/(M N), W = 1 + 1/N, or 1 for N = 1.

    B / W of 500 quantities with 20 superchains of 30 chains: the mean's standard error is about
    sqrt(2 / 19 / 500) = 1.5 % of it; tolerance 6 %.
    """
    rng = np.random.default_rng(8)
    start = spread * rng.standard_normal((20, 1, 1, 500))
    x = start + rng.standard_normal((20, 30, draws, 500))
    found = nested_rhat(x.reshape(600, draws, 500), np.repeat(range(20), 30).tolist())
    expected = (spread**2 + 1 / (30 * draws)) / (1 + 1 / draws if draws > 1 else 1)
    assert (found**2 - 1).mean() == pytest.approx(expected, rel=0.06)


def test_nested_rhat_where_it_is_not_defined() -> None:
    x = ar1(0.0, (4, 6, 3), seed=9)
    x[:, :, 0] = 2.0
    x[:, :, 1] = np.array([0, 0, 1, 1])[:, None]
    found = nested_rhat(x, [0, 0, 1, 1])
    assert np.isnan(found[0])
    assert np.isinf(found[1])
    assert np.isfinite(found[2])
    for superchains, match in [
        ([0, 0, 1], "each of the 4 chains"),
        ([0, 0, 0, 1], "equally many"),
        ([0, 0, 0, 0], "two or more"),
    ]:
        with pytest.raises(ValueError, match=match):
            nested_rhat(x, superchains)
    with pytest.raises(ValueError, match="one draw"):
        nested_rhat(x[:, :1], [0, 1, 2, 3])
