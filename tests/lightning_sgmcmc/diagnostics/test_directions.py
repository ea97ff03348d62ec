"""Temperatures of directions and predictions against closed forms."""

from __future__ import annotations

import numpy as np
import pytest

from lightning_sgmcmc.diagnostics import directional_temperatures, predictive_temperature
from lightning_sgmcmc.diagnostics.directions import significance

RNG = np.random.default_rng(0)
A = np.diag([100.0, 4.0, 1.0, 0.25])
MU = np.array([3.0, -1.0, 0.5, 20.0])
J = RNG.standard_normal((5, 4))


def gaussian(
    variances: np.ndarray, shape: tuple[int, int] = (8, 2000), seed: int = 1, shift: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Return draws with variances in units of those of N(MU, A^-1), and their gradients of U."""
    rng = np.random.default_rng(seed)
    x = MU + shift + rng.standard_normal((*shape, 4)) * np.sqrt(variances / A.diagonal())
    return x, (x - MU) @ A


def predicted(
    x: np.ndarray, gradient: np.ndarray, inverse: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return values u' J x, forces and spreads for the vectors inverse J' u."""
    rows = np.random.default_rng(2).standard_normal((6, 5)) @ J
    vectors = rows @ inverse
    return x @ rows.T, gradient @ vectors.T, (vectors * rows).sum(1)


def test_each_direction_has_its_own() -> None:
    """Variances 16, 1, .5 and 1 of the true ones; four standard errors."""
    hot = np.array([16.0, 1.0, 0.5, 1.0])
    x, gradient = gaussian(hot)
    for measured, truth in zip(directional_temperatures(x, gradient), hot, strict=True):
        assert abs(measured.value - truth) < 4 * measured.standard_error
        assert measured.standard_error < 0.05 * truth


def test_the_temperature_of_predictions_is_their_variance_over_the_true_one() -> None:
    """On a Gaussian with v = A^-1 a: the sum of the variances of u' J theta over the true sum."""
    hot = np.array([16.0, 1.0, 0.5, 1.0])
    x, gradient = gaussian(hot)
    measured = predictive_temperature(*predicted(x, gradient, np.linalg.inv(A)))
    rows = np.random.default_rng(2).standard_normal((6, 5)) @ J
    ratio = (rows**2 @ (hot / A.diagonal())).sum() / (rows**2 @ (1 / A.diagonal())).sum()
    assert abs(measured.temperature.value - ratio) < 4 * measured.temperature.standard_error
    assert measured.deviation == pytest.approx(np.sqrt(measured.temperature.value))
    assert measured.mean_error < 0.02


@pytest.mark.parametrize("hot", [0.25, 1.0, 2.0])
def test_what_is_drawn_exactly_counts_in_the_deviation_and_in_the_error_of_the_mean(
    hot: float,
) -> None:
    """Against draws of the sums themselves, whose exact part has three times the true variance."""
    x, gradient = gaussian(np.full(4, hot), shift=0.3)
    values, forces, spreads = predicted(x, gradient, np.linalg.inv(A))
    exact = np.broadcast_to(3 * spreads, values.shape)
    whole = values + np.random.default_rng(4).standard_normal(values.shape) * np.sqrt(3 * spreads)
    measured = predictive_temperature(values, forces, spreads, exact=exact)
    true = 4 * spreads
    deviation = np.sqrt(whole.var((0, 1)).sum() / true.sum())
    assert measured.deviation == pytest.approx(deviation, abs=0.01)
    assert 0.0005 < measured.deviation_error < 0.005
    alone = predictive_temperature(values, forces, spreads)
    assert measured.temperature == alone.temperature
    assert measured.mean_error == pytest.approx(alone.mean_error / 2, rel=0.02)
    assert measured.exact_share == pytest.approx(3 / (3 + hot), rel=0.02)


def test_an_exact_part_that_changes_along_the_chain_brings_its_error() -> None:
    """Of 200 runs whose exact variances are exponential: deviations scatter as they say."""
    found = []
    for seed in range(200):
        x, gradient = gaussian(np.ones(4), (1, 64), seed=seed)
        values, forces, spreads = predicted(x, gradient, np.linalg.inv(A))
        rng = np.random.default_rng(1000 + seed)
        exact = 1e4 * spreads * rng.exponential(size=(1, 64, 1))
        measured = predictive_temperature(values, forces, spreads, exact=exact)
        true = (exact.mean((0, 1)) + values.var((0, 1))).sum() / (1e4 + 1) / spreads.sum()
        found.append(((true**0.5 - 1) / measured.deviation_error, measured.deviation))
    scores, deviations = np.array(found).T
    assert 0.85 < scores.std() < 1.35  # Student's law of seven degrees of freedom: 1.18
    assert np.abs(deviations - 1).max() < 1e-3


def test_a_chain_that_stands_still_lacks_the_part_that_it_should_move() -> None:
    """Noise in the forces makes its temperature a chance value; the spreads tell what lacks."""
    x, gradient = gaussian(np.full(4, 1e-12))
    values, forces, spreads = predicted(x, gradient, np.linalg.inv(A))
    forces = forces + np.random.default_rng(5).standard_normal(forces.shape)
    exact = np.broadcast_to(3 * spreads, values.shape)
    measured = predictive_temperature(values, forces, spreads, exact=exact)
    assert measured.deviation == pytest.approx(0.75**0.5, rel=1e-6)
    assert measured.significance(1.0) < 1e-6


@pytest.mark.parametrize("stated", [0.3, 2.0])
def test_any_vectors_give_the_stated_temperature(stated: float) -> None:
    x, gradient = gaussian(np.full(4, stated))
    measured = predictive_temperature(*predicted(x, gradient, np.eye(4)), stated=stated)
    assert abs(measured.temperature.value - stated) < 4 * measured.temperature.standard_error
    assert abs(measured.deviation - 1) < 4 * measured.deviation_error


@pytest.mark.parametrize(("size", "moves"), [(1.0, 1.2), (1.0, 0.02), (1e-3, 2.0)])  # or hardly
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize("chains", [1, 5])
def test_the_verdict_does_not_depend_on_the_unit_of_the_energy(
    chains: int, summed: bool, exact: bool, size: float, moves: float
) -> None:
    """A chain of exp(-U / T) is one of exp(-U') for U' = U / T.

    Fields v = (grad^2 U)^-1 a are in proportion to 1 / T; v' grad U is the same.
    """
    rng, stated = np.random.default_rng(0), 0.3
    shape = (chains, 64, 3)
    values = size * rng.standard_normal(shape)
    forces = moves * values + 0.1 * size * rng.standard_normal(shape) + 1
    spreads = 1 + 0.1 * rng.random(shape)
    bends = 0.2 * size * rng.standard_normal(shape)
    drawn = 0.5 * np.ones(shape) if exact else None
    sums = np.stack([size**2 * moves + bends[..., 1], bends[..., 0] / 10, spreads[..., 0]], -1)

    def found(T: float) -> dict[str, float]:
        of_all = sums / np.array([1.0, T, T]) if summed else None
        one = predictive_temperature(values, forces, spreads / T, bends / T, T, drawn, of_all)
        return {
            "temperature": one.temperature.value / T,
            "error": one.temperature.standard_error / T,
            "deviation": one.deviation,
            "deviation_error": one.deviation_error,
            "mean_error": one.mean_error,
            "mean_error_significance": one.mean_error_significance,
        }

    assert found(stated) == pytest.approx(found(1.0), rel=1e-9)


def test_the_mean_error_is_in_deviations() -> None:
    """All chains off by half a unit: the root mean square of u' J shift over deviations."""
    x, gradient = gaussian(np.ones(4), shift=0.5)
    values, forces, spreads = predicted(x, gradient, np.linalg.inv(A))
    measured = predictive_temperature(values, forces, spreads)
    rows = np.random.default_rng(2).standard_normal((6, 5)) @ J
    expected = np.sqrt(((rows.sum(1) * 0.5) ** 2 / spreads).mean())
    assert measured.mean_error == pytest.approx(expected, rel=0.05)
    assert measured.mean_error_significance < 1e-6


def test_fields_that_move_need_their_divergence() -> None:
    """g = x + x^3 / 3 under N(0, 1), v = g'(x): T = 1 with div v = g''(x) = 2 x, not without."""
    x = np.random.default_rng(3).standard_normal((8, 20_000, 1))
    slope = 1 + x**2
    arguments = (x + x**3 / 3, slope * x, slope**2)
    measured = predictive_temperature(*arguments, 2 * x)
    assert abs(measured.temperature.value - 1) < 4 * measured.temperature.standard_error
    assert measured.temperature.standard_error < 0.02
    without = predictive_temperature(*arguments)
    assert abs(without.temperature.value - 1) > 10 * without.temperature.standard_error


@pytest.mark.parametrize("slope", [1.0, 2.0, 5.0])
@pytest.mark.parametrize("variance", [0.25, 1.0, 4.0])
def test_predictions_that_saturate_follow_the_temperature_less(
    slope: float, variance: float
) -> None:
    """g = tanh(slope x), v = g', of draws N(0, variance) for N(0, 1), against quadrature.

    The deviation tells a part of what is wrong, most of it where g saturates little, and a right
    one to .02. The identity solved for T would give the root of the variance, 2 where the deviation
    is 1.05 times the true one.
    """
    grid = np.linspace(-15, 15, 20_001)
    normal = [np.exp(-(grid**2) / (2 * v)) for v in (variance, 1.0)]
    ratio, true = (np.sum(p * np.tanh(slope * grid) ** 2) / p.sum() for p in normal)
    ratio = float(np.sqrt(ratio / true))
    x = np.random.default_rng(3).standard_normal((8, 4000, 1)) * np.sqrt(variance)
    g = np.tanh(slope * x)
    field = slope * (1 - g**2)
    measured = predictive_temperature(g, field * x, field**2, -2 * slope * g * field)
    assert abs(measured.deviation - ratio) < 0.02 + 0.7 * abs(ratio - 1)
    exact = np.ones_like(g)  # of twice the variance of a g that has saturated, or so
    both = predictive_temperature(g, field * x, field**2, -2 * slope * g * field, exact=exact)
    whole = float(np.sqrt((ratio**2 * true + 1) / (true + 1)))
    assert abs(both.deviation - whole) < 0.01 + 0.7 * abs(whole - 1)
    assert both.deviation_error < 0.02


@pytest.mark.parametrize("variance", [0.5, 1.0, 2.0])
def test_the_sums_over_all_predictions_take_the_place_of_a_few(variance: float) -> None:
    """Of f_p = x_p - x_p^3 / 9 under N(0, 1), V_p = (f_p - c_p) f_p' about a centre that is off.

    The one combination that is given would say 1; the two chains have a centre that they share.
    """
    x = np.sqrt(variance) * np.random.default_rng(3).standard_normal((2, 4000, 20))
    f, slope, second = x - x**3 / 9, 1 - x**2 / 3, -2 * x / 3
    away = f - 0.3
    parts = [away * slope * x, away * second, slope**2]
    sums = np.stack([part.sum(-1) for part in parts], -1)
    one = np.random.default_rng(4).standard_normal((2, 4000, 1))
    measured = predictive_temperature(one, one, np.ones_like(one), sums=sums).temperature
    work, bent, spread = (part.mean() for part in parts)
    assert measured.value == pytest.approx((work - bent) / spread, rel=1e-6)
    assert measured.standard_error < 0.05
    off = abs(measured.value - 1) / measured.standard_error
    assert off < 4 if variance == 1 else off > 10


def test_right_chains_are_rarely_off() -> None:
    """Of 400 right runs two p-values each: 1.6 below .002 expected, more than 8 by chance 1e-4."""
    off = 0
    for seed in range(400):
        x, gradient = gaussian(np.ones(4), (1 + seed % 5, 40), seed=seed)
        measured = predictive_temperature(*predicted(x, gradient, np.linalg.inv(A)))
        off += measured.significance(1.0) < 0.002
        off += measured.mean_error_significance < 0.002
    assert off <= 8


@pytest.mark.parametrize("width", [0.5, 3.0])
def test_a_few_draws_that_outweigh_the_others_accuse_no_right_chain(width: float) -> None:
    """v = exp(width eta) along x, eta a second weight: div v = 0, and a few draws have it all.

    Of 200 right runs 2 have a p-value below .01 by expectation, more than 8 by chance 3e-4. With a
    little of that spread, chains at T = 1.5 are still found hot.
    """
    off, hot = 0, 0
    for seed in range(200):
        x, eta = np.random.default_rng(seed).standard_normal((2, 4, 96, 1))
        field = np.exp(width * eta)
        off += predictive_temperature(x, field * x, field).significance(1.0) < 0.01
        wide = np.sqrt(1.5) * x
        hot += predictive_temperature(wide, field * wide, field).significance(1.0) < 0.01
    assert off <= 8
    if width < 1:
        assert hot >= 150


def test_too_few_draws_say_nothing() -> None:
    x, gradient = gaussian(np.ones(4), (2, 7))
    measured = predictive_temperature(*predicted(x, gradient, np.eye(4)))
    assert np.isnan(measured.temperature.value)
    assert np.isnan(directional_temperatures(x, gradient)[0].value)
    assert significance(measured.temperature, 1.0, 7) == 1.0
    with pytest.raises(ValueError, match=r"\[chains, draws, directions\], got shapes"):
        directional_temperatures(x, gradient[:, :6])
