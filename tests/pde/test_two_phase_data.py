"""The operator papers' Darcy data: laws of the coefficients, and solutions of the schemes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import sparse, stats
from scipy.sparse.linalg import spsolve

from pde import FnoDataSpec, Grid, PdebenchDataSpec, PdeError, load
from pde.darcy.five_point import FivePointSolver
from pde.darcy.rt0 import divergence_matrix, mass_matrix, saddle_point
from pde.datasets.command import main
from pde.fields.streams import BUMPS, THRESHOLD, generator
from pde.fields.two_phase import (
    bumps_permeability,
    mean_of_bumps,
    smooth_field,
    thresholded_permeability,
)
from tests.pde.families import make

#: The largest value of -Laplace u = 1 on the unit square with u = 0 around it, by its series.
LARGEST = 0.0736713532815
#: That tests of 400 draws alarm although the law is right.
ALARM = 1e-6


def test_modes_have_the_variances_of_the_law() -> None:
    """N v / lambda is chi-square of N degrees for each of the 35 largest-scale modes."""
    nodes, count, modes = 17, 400, 6
    x = np.arange(nodes) / (nodes - 1)
    basis = np.sqrt(2) * np.cos(np.pi * np.outer(x, np.arange(nodes)))
    basis[:, 0] = 1.0
    inverse = np.linalg.inv(basis)
    drawn = np.stack([inverse @ smooth_field(nodes, 7, i) @ inverse.T for i in range(count)])
    k = np.arange(modes) ** 2
    deviation = 3 / (np.pi**2 * (k[:, None] + k) + 9)
    assert np.abs(drawn[:, 0, 0]).max() < 1e-14  # the constant mode is dropped
    normal = generator(7, THRESHOLD, 0).standard_normal((nodes, nodes))
    every = np.arange(nodes) ** 2
    modes_of_first = 3 / (np.pi**2 * (every[:, None] + every) + 9) * normal
    modes_of_first[0, 0] = 0.0
    np.testing.assert_allclose(
        smooth_field(nodes, 7, 0), basis @ modes_of_first @ basis.T, atol=1e-13
    )
    sums = ((drawn[:, :modes, :modes] / deviation) ** 2).sum(0).ravel()[1:]
    low, high = stats.chi2(count).ppf([ALARM / 70, 1 - ALARM / 70])
    assert low < sums.min() < sums.max() < high
    # Independent of each other: the largest of their correlations, each of deviation 1/sqrt(N).
    flat = drawn[:, :modes, :modes].reshape(count, -1)[:, 1:]
    worst = np.abs(np.corrcoef(flat.T) - np.eye(35)).max()
    assert worst < stats.norm.isf(ALARM / (35 * 34)) / np.sqrt(count)


def test_coefficients_have_two_values_where_the_field_changes_sign() -> None:
    field, a = smooth_field(13, 1, 4), thresholded_permeability(13, 1, 4)
    np.testing.assert_array_equal(a == 12, field >= 0)
    np.testing.assert_array_equal(a == 3, field < 0)
    assert 0 < (a == 3).sum() < a.size
    assert not np.array_equal(a, thresholded_permeability(13, 1, 5))


@pytest.mark.parametrize("contrast", [4.0, 1e4])
def test_the_five_point_scheme_is_solved(contrast: float) -> None:
    """Against its matrix, written entry by entry, and a sparse direct solver."""
    n = 30
    rng = np.random.default_rng(0)
    a = np.where(rng.standard_normal((2, n, n)) > 0, contrast, 1.0)
    source = rng.standard_normal((n, n))
    found = FivePointSolver(n, source).solve(a)
    for one, u in zip(a, found, strict=True):
        matrix = sparse.lil_array((n * n, n * n))
        rhs = np.zeros((n, n))
        for i, j in np.ndindex(n, n):
            if {i, j} & {0, n - 1}:
                matrix[i * n + j, i * n + j] = 1.0
                continue
            rhs[i, j] = source[i, j] / (n - 1) ** 2
            for k, m in ((i - 1, j), (i + 1, j), (i, j - 1), (i, j + 1)):
                mean = (one[i, j] + one[k, m]) / 2
                matrix[i * n + j, i * n + j] += mean
                matrix[i * n + j, k * n + m] -= mean
        exact = spsolve(sparse.csc_array(matrix), rhs.ravel()).reshape(n, n)
        assert np.abs(u - exact).max() < 1e-11 * np.abs(exact).max()


def test_the_five_point_scheme_is_of_second_order() -> None:
    """u = sin(pi x) sin(2 pi y) and a = 2 + x y; errors fall by 4 where h is halved."""
    errors = []
    for n in (17, 33, 65):
        x, y = np.meshgrid(np.linspace(0, 1, n), np.linspace(0, 1, n))
        u = np.sin(np.pi * x) * np.sin(2 * np.pi * y)
        a = 2 + x * y
        gradient = (
            y * np.pi * np.cos(np.pi * x) * np.sin(2 * np.pi * y)
            + x * 2 * np.pi * np.sin(np.pi * x) * np.cos(2 * np.pi * y)
        )  # fmt: skip
        source = 5 * np.pi**2 * a * u - gradient
        errors.append(np.abs(FivePointSolver(n, source).solve(a) - u).max())
    rates = np.log2(np.array(errors[:-1]) / errors[1:])
    np.testing.assert_allclose(rates, 2.0, atol=0.05)


def test_the_constant_coefficient_has_the_known_maximum() -> None:
    values = [FivePointSolver(n).solve(np.full((n, n), 12.0)).max() for n in (41, 81)]
    extrapolated = values[1] + (values[1] - values[0]) / 3
    assert 12 * extrapolated == pytest.approx(LARGEST, rel=1e-6)


def test_the_file_has_every_fifth_node(tmp_path: Path) -> None:
    spec = FnoDataSpec(nx=9, ny=9, num_samples=70, seed=2)
    assert spec.nodes == 41
    data = load(make(spec, tmp_path / "fno"))
    assert len(data) == 70
    for i in (0, 66):
        a = thresholded_permeability(41, 2, i)
        np.testing.assert_array_equal(data.permeability[i], a[::5, ::5])
        np.testing.assert_array_equal(data.pressure[i], FivePointSolver(41).solve(a)[::5, ::5])
    assert FnoDataSpec().nodes == 421


def test_bumps_are_pdebench_s(tmp_path: Path) -> None:
    """kappa term by term, and p and u against the saddle point, solved densely."""
    spec = PdebenchDataSpec(nx=9, ny=9, lx=2.0, ly=2.0, beta=0.5, num_samples=2, save_pressure=True)
    data = load(make(spec, tmp_path / "pdebench"))
    grid = Grid(9, 9, lx=2.0, ly=2.0)
    for i, kappa in enumerate(np.asarray(data.permeability)):
        mx, my, s = generator(0, BUMPS, i).uniform(size=(3, 5))
        total = np.zeros(grid.shape)
        for row, column in np.ndindex(*grid.shape):
            x, y = (column + 0.5) * 2 / 9, (row + 0.5) * 2 / 9
            for b in range(5):
                total[row, column] += np.exp(-((x - 2 * mx[b]) ** 2 + (y - 2 * my[b]) ** 2) / s[b])
        np.testing.assert_array_equal(kappa, np.where(total > mean_of_bumps(2.0), 1.0, 0.1))
        matrix = saddle_point(mass_matrix(grid, kappa), divergence_matrix(grid)).toarray()
        rhs = np.zeros(len(matrix))
        rhs[grid.num_edges :] = -0.5 * grid.cell_area
        exact = np.linalg.solve(matrix, rhs)
        assert data.pressure is not None
        np.testing.assert_allclose(data.velocity[i], exact[: grid.num_edges], atol=1e-12)
        np.testing.assert_allclose(data.pressure[i].ravel(), exact[grid.num_edges :], atol=1e-12)


@pytest.mark.parametrize("length", [1.0, 2.0])
def test_the_threshold_is_the_mean_of_the_law(length: float) -> None:
    """Over places, centres and areas, drawn; a field has more high cells or fewer, as published."""
    rng = np.random.default_rng(0)
    x, m = rng.uniform(0, length, size=(2, 2, 400_000))
    bumps = np.exp(-np.square(x - m).sum(0) / rng.uniform(0, length / 2, size=400_000))
    error = 5 * bumps.std() / np.sqrt(bumps.size)
    assert mean_of_bumps(length) == pytest.approx(5 * bumps.mean(), abs=4 * error)
    grid = Grid(16, 16, lx=length, ly=length)
    shares = [(bumps_permeability(grid, 0, i) == 1.0).mean() for i in range(100)]
    assert np.std(shares) > 0.15


def test_pdebench_s_pressure_is_zero_on_the_sides() -> None:
    """For equal values the largest pressure is the known one; 3 % more with p = 0 farther out."""
    spec = PdebenchDataSpec(nx=65, ny=65, low=1.0, high=1.0)
    solution = spec.family({}, "scipy").solve({"permeability": np.ones((1, 65, 65))})
    assert solution.pressure.max() == pytest.approx(LARGEST, rel=1e-3)


def test_the_commands_write_what_the_specifications_say(tmp_path: Path) -> None:
    small = ["--samples=3", "--workers=1", "--seed=4"]
    assert main(["fno", "--out", str(tmp_path / "a"), "--grid=6", "--every=2", *small]) == 0
    assert load(tmp_path / "a").spec == FnoDataSpec(6, 6, every=2, num_samples=3, seed=4)
    options = ["--grid=8", "--high=2", "--beta=3", "--pressure"]
    assert main(["pdebench", "--out", str(tmp_path / "b"), *options, *small]) == 0
    expected = PdebenchDataSpec(8, 8, high=2.0, beta=3.0, num_samples=3, seed=4, save_pressure=True)
    assert load(tmp_path / "b").spec == expected


@pytest.mark.parametrize(
    ("make_it", "message"),
    [
        (lambda: FnoDataSpec(nx=9), "9 x 85 nodes on 1 x 1, expected as many in x as in y"),
        (lambda: FnoDataSpec(every=0), "every=0, expected an integer of at least 1"),
        (lambda: FnoDataSpec(low=13.0), "low=13 is larger than high=12: exchange them"),
        (lambda: FnoDataSpec(save_pressure=False), "leave save_pressure true"),
        (lambda: PdebenchDataSpec(lx=2.0), "a domain of 2 x 1, expected a square"),
        (lambda: PdebenchDataSpec(low=-1.0), r"low=-1\.0, expected a positive finite number"),
        (lambda: PdebenchDataSpec(beta=np.inf), "beta=inf, expected a finite number"),
        (lambda: FivePointSolver(2), "2 nodes in each direction, expected at least 3"),
        (lambda: FivePointSolver(4, np.ones(3)), r"source of shape \(3,\), expected a number"),
        (lambda: FivePointSolver(4).solve(np.ones((4, 5))), r"shape \(4, 5\), expected \(\.\.\."),
        (lambda: FivePointSolver(4).solve(np.zeros((4, 4))), "expected positive finite values"),
    ],
)
def test_what_cannot_be_is_refused(make_it: object, message: str) -> None:
    assert callable(make_it)
    with pytest.raises(PdeError, match=message):
        make_it()
