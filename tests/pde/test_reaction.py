"""Flow with a reaction: against the dense saddle point, Darcy's flow, and a limit."""

import numpy as np
import pytest

from pde import DarcySolver, Grid, PdeError, ReactionDataSpec, ReactionSolver
from pde.darcy.rt0 import boundary_data, divergence_matrix, mass_matrix, saddle_point
from pde.errors import SingularError

SIDES = ("left", "right", "bottom", "top")


def dense(grid, kappa, rate, pressure, source):
    """The saddle point `[[A, -B^T], [-B, -R]]` solved densely."""
    matrix = saddle_point(mass_matrix(grid, kappa), divergence_matrix(grid)).toarray()
    n = grid.num_edges
    matrix[n:, n:] -= np.diag(rate.ravel() * grid.cell_area)
    signed, closed = boundary_data(grid, pressure)
    load = -np.concatenate([signed * grid.edge_lengths(), source.ravel() * grid.cell_area])
    keep = np.setdiff1d(np.arange(len(matrix)), closed)
    found = np.zeros(len(matrix))
    found[keep] = np.linalg.solve(matrix[np.ix_(keep, keep)], load[keep])
    return found[:n], found[n:].reshape(grid.shape)


@pytest.mark.parametrize("shape", [(7, 5), (1, 4), (6, 1), (1, 1)])
@pytest.mark.parametrize("sides", [("left", "right"), ("top",), SIDES])
def test_agrees_with_the_saddle_point(shape, sides):
    rng = np.random.default_rng(0)
    grid = Grid(*shape, lx=1.3, ly=0.8)
    kappa = np.exp(2 * rng.standard_normal((2, 3, *grid.shape)))
    rate = rng.uniform(0, 50, grid.shape)
    rate[0, 0] = 0.0
    source = rng.standard_normal(grid.shape)
    pressure = {side: rng.standard_normal(grid.boundary_edges(side).size) for side in sides}
    solution = ReactionSolver(grid, rate, pressure, source).solve(kappa)
    assert solution.velocity.shape == (2, 3, grid.num_edges)
    for at in np.ndindex(2, 3):
        velocity, cells = dense(grid, kappa[at], rate, pressure, source)
        assert np.abs(solution.velocity[at] - velocity).max() < 1e-9 * np.abs(velocity).max()
        assert np.abs(solution.pressure[at] - cells).max() < 1e-9 * np.abs(cells).max()
    balance = grid.divergence(solution.velocity) + rate * solution.pressure
    scale = np.abs(solution.velocity).max() / min(grid.hx, grid.hy)
    assert np.abs(balance - source).max() < 1e-12 * scale
    for side in set(SIDES) - set(sides):
        assert not solution.velocity[..., grid.boundary_edges(side)].any()


def test_without_a_reaction_it_is_darcys_flow():
    grid = Grid(9, 7)
    kappa = np.random.default_rng(1).lognormal(size=grid.shape)
    pressure = {"left": 1.0, "right": 0.0}
    reactive = ReactionSolver(grid, 0.0, pressure, 1.0).solve(kappa)
    exact = DarcySolver(grid, kappa, pressure).solve(1.0)
    np.testing.assert_allclose(reactive.velocity, exact.velocity, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(reactive.pressure, exact.pressure, rtol=1e-11)


def test_a_fast_reaction_keeps_the_pressure_near_its_source():
    grid = Grid(20, 20)
    solver = ReactionSolver(grid, 1e6, {"left": 1.0, "right": 0.0}, 3e6)
    pressure = solver.solve(np.ones(grid.shape)).pressure
    np.testing.assert_allclose(pressure[:, 7:-7], 3.0, rtol=1e-6)


def test_impossible_problems_are_refused():
    grid = Grid(4, 3)
    with pytest.raises(PdeError, match=r"reaction=-1\.0, expected rates that are not"):
        ReactionDataSpec(reaction=-1.0)
    with pytest.raises(
        PdeError, match=r"reaction of shape \(4, 3\), expected \(ny, nx\) = \(3, 4\)"
    ):
        ReactionSolver(grid, np.ones((4, 3)), {"left": 1.0})
    with pytest.raises(PdeError, match="needs a side of given pressure"):
        ReactionSolver(grid, 1.0, {})


def test_what_does_not_balance_is_refused_as_by_darcys_solvers():
    grid = Grid(20, 20)
    kappa = np.where(np.random.default_rng(0).random((20, 20)) < 0.3, 1e16, 1.0)
    solver = ReactionSolver(grid, 10.0, {"left": 1.0, "right": 0.0}, 1.0)
    with pytest.raises(SingularError):
        solver.solve(kappa)
    assert solver.solve(np.empty((0, 20, 20))).velocity.shape == (0, grid.num_edges)
