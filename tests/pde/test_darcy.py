"""What the discrete problem must satisfy whatever the permeability."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pde import DarcySolver, Grid, IncompatibleSourceError, PdeError, channelised_permeability
from scripts.bench.saddle_point import refined_solution, saddle_point_solution

FLOW_THROUGH = {"left": 1.0, "right": 0.0}
SIDES = ("left", "right", "bottom", "top")


def relative(value, reference):
    return np.linalg.norm(value - reference) / np.linalg.norm(reference)


def random_problem(seed, nx=9, ny=7, sides=(), decades=3.0):
    rng = np.random.default_rng(seed)
    grid = Grid(nx, ny, lx=rng.uniform(0.5, 2), ly=rng.uniform(0.5, 2))
    permeability = 10 ** rng.uniform(-decades / 2, decades / 2, grid.shape)
    lengths = {"left": ny, "right": ny, "bottom": nx, "top": nx}
    pressure = {side: rng.standard_normal(lengths[side]) for side in sides}
    source = rng.standard_normal(grid.shape)
    return grid, permeability, pressure, source if sides else source - source.mean()


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    nx=st.integers(1, 8),
    ny=st.integers(1, 8),
    sides=st.sets(st.sampled_from(SIDES)),
)
def test_agrees_with_the_saddle_point(seed, nx, ny, sides):
    grid, permeability, pressure, source = random_problem(seed, nx, ny, sorted(sides))
    solution = DarcySolver(grid, permeability, pressure).solve(source)
    reference = saddle_point_solution(grid, permeability, source, pressure)
    scale = np.abs(reference.velocity).max() + np.abs(source).max()
    assert np.abs(solution.velocity - reference.velocity).max() <= 1e-9 * scale
    scale = np.abs(reference.pressure).max() + np.abs(source).max()
    assert np.abs(solution.pressure - reference.pressure).max() <= 1e-9 * scale


@pytest.mark.parametrize("pressure", [{}, FLOW_THROUGH], ids=["closed", "flow through"])
@pytest.mark.parametrize("n", [25, 60])
def test_velocity_is_exact_to_rounding_at_contrast_1e7(n, pressure):
    grid = Grid(n, n)
    permeability = channelised_permeability(grid, seed=2)
    assert permeability.max() / permeability.min() > 1e7
    source = np.random.default_rng(0).standard_normal(grid.shape)
    source -= source.mean()
    solution = DarcySolver(grid, permeability, pressure).solve(source)
    reference = refined_solution(grid, permeability, source, pressure)
    assert relative(solution.velocity, reference.velocity) < 2e-13
    assert relative(solution.pressure, reference.pressure) < 2e-13
    imbalance = np.abs(grid.divergence(solution.velocity) - source)
    assert imbalance.max() < 1e-13 * np.abs(source).max() * n


@pytest.mark.parametrize("decades", [0.0, 7.0])
def test_mass_is_conserved_in_every_cell(decades):
    grid, permeability, _, source = random_problem(4, 20, 16, decades=decades)
    velocity = DarcySolver(grid, permeability).solve(source).velocity
    np.testing.assert_allclose(grid.divergence(velocity), source, atol=2e-13)


def test_nothing_flows_through_closed_sides():
    grid, permeability, pressure, source = random_problem(5, sides=("left",))
    velocity = DarcySolver(grid, permeability, pressure).solve(source).velocity
    for side in ("right", "bottom", "top"):
        assert (velocity[grid.boundary_edges(side)] == 0).all()
    assert (velocity[grid.boundary_edges("left")] != 0).all()


def test_patch_of_linear_pressure_is_exact():
    grid = Grid(6, 5, lx=1.5, ly=0.8)
    gradient, kappa = np.array([2.0, -3.0]), 0.7
    centre = grid.edge_midpoints()
    pressure = {side: centre[grid.boundary_edges(side)] @ gradient for side in SIDES}
    solution = DarcySolver(grid, np.full(grid.shape, kappa), pressure).solve(0.0)
    np.testing.assert_allclose(solution.pressure, grid.cell_centres() @ gradient, rtol=1e-13)
    vertical, horizontal = grid.split(solution.velocity)
    np.testing.assert_allclose(vertical, -kappa * 2.0, rtol=1e-12)
    np.testing.assert_allclose(horizontal, kappa * 3.0, rtol=1e-12)


def test_layers_in_series_have_the_harmonic_mean_permeability():
    grid = Grid(4, 3)
    column = np.array([1.0, 1e-6, 50.0, 3e3])
    solution = DarcySolver(grid, np.tile(column, (3, 1)), FLOW_THROUGH).solve(0.0)
    vertical, horizontal = grid.split(solution.velocity)
    np.testing.assert_allclose(vertical, 4 / (1 / column).sum(), rtol=1e-12)
    np.testing.assert_allclose(horizontal, 0.0, atol=1e-16)


@pytest.mark.parametrize("sides", [(), ("left", "top")])
def test_solution_is_affine_in_the_source(sides):
    grid, permeability, pressure, source = random_problem(6, sides=sides)
    other = np.roll(source, 3, axis=1)
    solver = DarcySolver(grid, permeability, pressure)
    still = solver.solve(0.0)
    combined = solver.solve(2 * source - 5 * other)
    for name in ("velocity", "pressure"):
        a, b, zero = (getattr(solver.solve(f), name) for f in (source, other, 0.0))
        expected = 2 * (a - zero) - 5 * (b - zero) + zero
        np.testing.assert_allclose(getattr(combined, name), expected, atol=1e-11)
    if not sides:
        assert not still.velocity.any()


def test_leading_dimensions_and_blocks():
    grid, permeability, _, _ = random_problem(7)
    source = np.random.default_rng(1).standard_normal((3, 27, *grid.shape))
    source -= source.mean(axis=(-2, -1), keepdims=True)
    solver = DarcySolver(grid, permeability)
    solution = solver.solve(source)
    assert solution.velocity.shape == (3, 27, grid.num_edges)
    assert solution.pressure.shape == source.shape
    assert solution.cell_velocity().shape == (*source.shape, 2)
    single = solver.solve(source[2, 13])
    np.testing.assert_allclose(solution.velocity[2, 13], single.velocity, atol=1e-13)
    np.testing.assert_allclose(solution.pressure[2, 13], single.pressure, atol=1e-13)
    assert solver.solve(source[:0]).velocity.shape == (0, 27, grid.num_edges)


def test_pressure_has_zero_mean_without_an_open_side():
    grid, permeability, _, source = random_problem(8)
    pressure = DarcySolver(grid, permeability).solve(source).pressure
    assert abs(pressure.mean()) < 1e-14 * np.abs(pressure).max()


def test_mirroring_and_turning_the_problem_turns_the_flow():
    grid, permeability, _, source = random_problem(9)
    velocity = DarcySolver(grid, permeability).solve(source).velocity
    vertical, horizontal = grid.split(velocity)
    mirrored = DarcySolver(grid, permeability[:, ::-1]).solve(source[:, ::-1]).velocity
    np.testing.assert_allclose(grid.split(mirrored)[0], -vertical[:, ::-1], atol=1e-12)
    np.testing.assert_allclose(grid.split(mirrored)[1], horizontal[:, ::-1], atol=1e-12)
    turned_grid = Grid(grid.ny, grid.nx, lx=grid.ly, ly=grid.lx)
    turned = DarcySolver(turned_grid, permeability.T).solve(source.T).velocity
    np.testing.assert_allclose(turned_grid.split(turned)[0], horizontal.T, atol=1e-12)
    np.testing.assert_allclose(turned_grid.split(turned)[1], vertical.T, atol=1e-12)


def test_velocity_does_not_depend_on_units_of_permeability():
    grid, permeability, _, source = random_problem(10)
    velocity = DarcySolver(grid, permeability).solve(source).velocity
    scaled = DarcySolver(grid, 1e-15 * permeability).solve(source)
    np.testing.assert_allclose(scaled.velocity, velocity, atol=1e-12)


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
def test_impossible_permeability_is_refused(value):
    permeability = np.ones((3, 4))
    permeability[1, 2] = value
    with pytest.raises(PdeError, match=r"permeability\[1, 2\] = .*expected positive finite"):
        DarcySolver(Grid(4, 3), permeability)


def test_shapes_and_sides_that_do_not_fit_are_refused():
    grid = Grid(4, 3)
    with pytest.raises(PdeError, match=r"expected \(ny, nx\) = \(3, 4\)"):
        DarcySolver(grid, np.ones((4, 3)))
    with pytest.raises(PdeError, match="unknown side 'west'"):
        DarcySolver(grid, np.ones(grid.shape), pressure={"west": 1.0})
    with pytest.raises(PdeError, match="one value for each of its 3 edges"):
        DarcySolver(grid, np.ones(grid.shape), pressure={"left": np.ones(4)})
    with pytest.raises(PdeError, match="side 'top' holds values that are not finite"):
        DarcySolver(grid, np.ones(grid.shape), pressure={"top": np.nan})
    solver = DarcySolver(grid, np.ones(grid.shape), pressure=FLOW_THROUGH)
    with pytest.raises(PdeError, match=r"source of shape \(2, 4, 3\)"):
        solver.solve(np.ones((2, 4, 3)))
    with pytest.raises(PdeError, match="not finite"):
        solver.solve(np.full(grid.shape, np.nan))


def test_sources_that_cannot_balance_are_refused():
    grid = Grid(4, 3)
    solver = DarcySolver(grid, np.ones(grid.shape))
    good = np.zeros(grid.shape)
    good[0, 0], good[2, 3] = 1.0, -1.0
    bad = good.copy()
    bad[1, 1] = 1e-6
    with pytest.raises(IncompatibleSourceError, match=r"1 of 2 do not \(off by 5\.0e-07"):
        solver.solve(np.stack([good, bad]))
    with pytest.raises(IncompatibleSourceError):
        solver.solve(1.0)
    assert solver.solve(good).velocity.any()
