"""Karhunen-Loeve fields against dense eigenproblems, a closed form, and their own samples."""

import numpy as np
import pytest
from scipy.linalg import eigh
from scipy.optimize import brentq

from pde import Grid, KarhunenLoeve, PdeError, RandomPermeability

GRID = Grid(9, 7, lx=1.5, ly=0.8)
LENGTHS = (0.5, 0.3)


def covariance(grid, variance, correlation, lengths):
    """The covariance of all pairs of cells, `[num_cells, num_cells]`."""
    centres = grid.cell_centres().reshape(-1, 2)
    d = (centres[:, None] - centres[None, :]) / np.array(lengths)
    return variance * correlation(d[..., 0], d[..., 1])


def gaussian(dx, dy):
    return np.exp(-(dx**2) - dy**2)


def exponential(dx, dy):
    return np.exp(-np.abs(dx) - np.abs(dy))


def round_(dx, dy):
    """A kernel that is no product."""
    return np.exp(-np.sqrt(dx**2 + dy**2))


@pytest.mark.parametrize("terms", [5, 20, 50])
@pytest.mark.parametrize(
    ("kernel", "correlation"),
    [("gaussian", gaussian), ("exponential", exponential), (round_, round_)],
)
def test_modes_are_those_of_the_dense_covariance(kernel, correlation, terms):
    expansion = KarhunenLoeve(GRID, 2.0, LENGTHS, terms, kernel)
    dense = covariance(GRID, 2.0, correlation, LENGTHS)
    values, modes = expansion.eigenvalues, expansion.modes.reshape(terms, -1)
    exact = eigh(dense * GRID.cell_area, eigvals_only=True)[::-1][:terms]
    np.testing.assert_allclose(values, exact, rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(
        modes @ dense * GRID.cell_area, values[:, None] * modes, rtol=0, atol=1e-12
    )
    np.testing.assert_allclose(modes @ modes.T * GRID.cell_area, np.eye(terms), rtol=0, atol=1e-10)
    share = exact.sum() / (2.0 * GRID.lx * GRID.ly)
    assert expansion.captured == pytest.approx(share, rel=1e-9)


def test_all_terms_are_the_whole_covariance():
    expansion = KarhunenLoeve(GRID, 3.0, LENGTHS, GRID.num_cells, "exponential")
    modes = expansion.modes.reshape(GRID.num_cells, -1)
    found = modes.T * expansion.eigenvalues @ modes
    np.testing.assert_allclose(found, covariance(GRID, 3.0, exponential, LENGTHS), atol=1e-12)
    assert expansion.captured == pytest.approx(1.0, rel=1e-12)


def test_a_function_gives_what_the_product_gives():
    product = KarhunenLoeve(GRID, 2.0, LENGTHS, 12, "gaussian")
    function = KarhunenLoeve(GRID, 2.0, LENGTHS, 12, gaussian)
    np.testing.assert_allclose(function.eigenvalues, product.eigenvalues, rtol=1e-10)
    np.testing.assert_allclose(function.modes, product.modes, atol=1e-9)


def test_the_exponential_kernel_has_its_closed_form():
    """Eigenvalues 2c / (w^2 + c^2) in one dimension, c = tan(w/2) w or w = -c tan(w/2)."""
    length, n = 0.4, 400
    c, roots = 1 / length, []
    for k in range(4):
        even = brentq(lambda w: c - w * np.tan(w / 2), 2 * np.pi * k, 2 * np.pi * k + np.pi - 1e-9)
        odd = brentq(
            lambda w: w + c * np.tan(w / 2), 2 * np.pi * k + np.pi + 1e-9, 2 * np.pi * (k + 1)
        )
        roots += [even, odd]
    exact = np.array([2 * c / (w**2 + c**2) for w in roots])
    found = KarhunenLoeve(Grid(n, 1), 1.0, (length, 1.0), 8, "exponential").eigenvalues
    np.testing.assert_allclose(found, exact, rtol=2e-3)


def test_samples_have_the_covariance():
    """The mean of products over 20,000 fields, to 5.5 standard errors at each of 784 pairs.

    A false alarm has a probability of 3e-5.
    """
    grid = Grid(7, 4)
    expansion = KarhunenLoeve(grid, 2.0, (0.6, 0.4), 9)
    fields = expansion.field(np.random.default_rng(0).standard_normal((20_000, 9)))
    flat = fields.reshape(len(fields), -1)
    modes = expansion.modes.reshape(9, -1)
    truncated = modes.T * expansion.eigenvalues @ modes
    variances = np.diag(truncated)
    error = np.sqrt((variances[:, None] * variances + truncated**2) / len(flat))
    assert np.abs((flat.T @ flat / len(flat) - truncated) / error).max() < 5.5


def test_a_sample_depends_on_seed_and_index_alone():
    expansion = KarhunenLoeve(Grid(10, 10), terms=16)
    fields = RandomPermeability(expansion, seed=3)
    alone = RandomPermeability(KarhunenLoeve(Grid(10, 10), terms=16), seed=3).sample(7)
    for i in range(7):
        fields.sample(i)
    np.testing.assert_array_equal(fields.sample(7), alone)
    many = expansion.field(np.stack([fields.coefficients(i) for i in range(9)])) + 6.0
    np.testing.assert_array_equal(many[7], alone)
    assert not np.array_equal(fields.sample(8), alone)
    assert not np.array_equal(RandomPermeability(expansion, seed=4).sample(7), alone)


def test_kinds_are_what_they_say():
    expansion = KarhunenLoeve(Grid(10, 10), variance=2.0, terms=16)
    lognormal = RandomPermeability(expansion, "lognormal", mean=0.5, seed=1)
    xi, kappa = lognormal.draw(0)
    np.testing.assert_allclose(np.log(kappa), expansion.field(xi) + 0.5, rtol=1e-13)
    additive = RandomPermeability(expansion, "additive", mean=1.5, seed=1)
    drawn = [additive.draw(i) for i in range(20)]
    assert min(kappa.min() for _, kappa in drawn) > 0
    for xi, kappa in drawn:
        np.testing.assert_array_equal(expansion.field(xi) + 1.5, kappa)
    first = [np.array_equal(lognormal.coefficients(i), xi) for i, (xi, _) in enumerate(drawn)]
    assert 0 < sum(first) < 20  # some were positive at once, some were drawn again


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: KarhunenLoeve(GRID, kernel="matern"), "kernel='matern', expected gaussian"),
        (lambda: KarhunenLoeve(GRID, variance=0.0), "variance=0.0, expected a positive"),
        (lambda: KarhunenLoeve(GRID, lengths=(0.1, -1.0)), "ly=-1.0, expected a positive"),
        (lambda: KarhunenLoeve(GRID, lengths=(np.nan, 1.0)), "lx=nan, expected a positive"),
        (lambda: KarhunenLoeve(GRID, terms=64), "64 terms, expected 1 to 63"),
        (lambda: KarhunenLoeve(GRID, terms=0), "0 terms, expected 1 to 63"),
        (lambda: KarhunenLoeve(GRID, terms=2.5), "terms=2.5, expected an integer"),
        (
            lambda: KarhunenLoeve(GRID, terms=3, kernel=lambda x, y: 2 * gaussian(x, y)).modes,
            "must be a correlation",
        ),
        (
            lambda: KarhunenLoeve(GRID, terms=63, kernel=lambda x, y: np.cos(9 * x * y)).modes,
            "not positive definite",
        ),
        (lambda: KarhunenLoeve(GRID, terms=3, kernel=lambda x, y: 1.0).modes, "one finite value"),
        (lambda: KarhunenLoeve(GRID, terms=3).field(np.ones(4)), r"shape \(4,\), expected"),
        (
            lambda: RandomPermeability(KarhunenLoeve(GRID, terms=3), "logarithmic"),
            "kind='logarithmic', expected one of additive, lognormal",
        ),
        (
            lambda: RandomPermeability(KarhunenLoeve(GRID, terms=3), mean=np.inf),
            "mean=inf, expected a finite",
        ),
        (
            lambda: RandomPermeability(KarhunenLoeve(GRID, terms=3), mean=-20.0).sample(0),
            "raise the mean above -20",
        ),
        (lambda: RandomPermeability(KarhunenLoeve(GRID, terms=3), seed=-1), "seed -1"),
    ],
)
def test_bad_values_are_one_clear_error(make, message):
    with pytest.raises(PdeError, match=message):
        make()
