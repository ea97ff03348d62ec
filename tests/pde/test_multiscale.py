"""The mixed multiscale method: exact where it must be, conservative, and closer on finer blocks."""

import numpy as np
import pytest

from pde import DarcySolver, Grid, KarhunenLoeve, MultiscaleSolver, PdeError, RandomPermeability
from pde.darcy.rt0 import divergence_matrix, mass_matrix

LEFT_TO_RIGHT = {"left": 1.0, "right": 0.0}


def relative(found, exact):
    return np.linalg.norm(found - exact) / np.linalg.norm(exact)


@pytest.mark.parametrize(
    "pressure",
    [
        LEFT_TO_RIGHT,
        {"bottom": 2.0},
        {"left": np.linspace(0, 1, 6), "top": 0.5},
        dict.fromkeys(("left", "right", "bottom", "top"), 1.0),
    ],
)
def test_blocks_of_one_cell_are_the_exact_solver(pressure):
    rng = np.random.default_rng(0)
    grid = Grid(5, 6, lx=1.3, ly=0.7)
    kappa, source = rng.lognormal(size=grid.shape), rng.standard_normal(grid.shape)
    exact = DarcySolver(grid, kappa, pressure).solve(source)
    found = MultiscaleSolver(grid, (5, 6)).solve(kappa, source, pressure).solution
    np.testing.assert_allclose(found.velocity, exact.velocity, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.pressure, exact.pressure, rtol=0, atol=1e-12)


@pytest.mark.parametrize("blocks", [(1, 1), (2, 3), (4, 6), (12, 1)])
def test_uniform_flow_is_in_the_span(blocks):
    grid = Grid(12, 12)
    found = MultiscaleSolver(grid, blocks).solve(np.full(grid.shape, 3.0), 0.0, LEFT_TO_RIGHT)
    vertical, horizontal = grid.split(found.solution.velocity)
    np.testing.assert_allclose(vertical, 3.0, atol=1e-12)
    np.testing.assert_allclose(horizontal, 0.0, atol=1e-12)


def test_mass_is_conserved_in_every_cell():
    grid = Grid(24, 16)
    kappa = RandomPermeability(KarhunenLoeve(grid), "lognormal", mean=0.0).sample(0)
    source = np.kron(np.random.default_rng(1).standard_normal((4, 6)), np.ones((4, 4)))
    found = MultiscaleSolver(grid, (6, 4)).solve(kappa, source, LEFT_TO_RIGHT).solution
    np.testing.assert_allclose(grid.divergence(found.velocity), source, atol=1e-11)
    for side in ("bottom", "top"):
        assert not found.velocity[grid.boundary_edges(side)].any()


def test_the_velocity_is_the_best_of_the_span():
    """Of all flows in the span with the block's balance it has the least energy (Thomson)."""
    grid = Grid(12, 12)
    kappa = RandomPermeability(KarhunenLoeve(grid), "lognormal", mean=0.0).sample(3)
    found = MultiscaleSolver(grid, (3, 4)).solve(kappa, 1.0, {"left": 0.0})
    span, blocks = found.velocity_basis, found.pressure_basis
    np.testing.assert_allclose(span.T @ found.coefficients, found.solution.velocity, atol=1e-13)
    A = (span @ mass_matrix(grid, kappa) @ span.T).toarray()
    balance = (blocks @ divergence_matrix(grid) @ span.T).toarray()
    free = np.linalg.svd(balance)[2][np.linalg.matrix_rank(balance) :]
    assert len(free) > 3
    np.testing.assert_allclose(free @ A @ found.coefficients, 0, atol=1e-12)
    assert blocks.sum() == grid.num_cells


def test_coefficients_are_the_flows_between_blocks():
    """A row of the basis passes a flow of one through its edge.

    Edges between blocks in x come first, then in y, then the open sides.
    """
    grid = Grid(8, 6, lx=2.0, ly=1.0)
    kappa = np.exp(np.random.default_rng(0).standard_normal(grid.shape))
    found = MultiscaleSolver(grid, (4, 2)).solve(kappa, 0.3, LEFT_TO_RIGHT)
    vertical, horizontal = grid.split(found.solution.velocity * grid.edge_lengths())
    across_x = vertical.reshape(2, 3, 9).sum(1)
    across_y = horizontal.reshape(7, 4, 2).sum(2)
    flows = [across_x[:, 2:-1:2], across_y[3:4], -across_x[:, :1], across_x[:, -1:]]
    expected = np.concatenate([np.ravel(part) for part in flows])
    np.testing.assert_allclose(found.coefficients, expected, rtol=1e-9)


def test_finer_blocks_come_closer():
    grid = Grid(48, 48)
    for kind, mean, worst in (("additive", 6.0, 0.05), ("lognormal", 0.0, 0.25)):
        kappa = RandomPermeability(KarhunenLoeve(grid), kind, mean).sample(1)
        exact = DarcySolver(grid, kappa, LEFT_TO_RIGHT).solve(1.0).velocity
        errors = [
            relative(
                MultiscaleSolver(grid, (n, n)).solve(kappa, 1.0, LEFT_TO_RIGHT).solution.velocity,
                exact,
            )
            for n in (6, 12, 24, 48)
        ]
        assert errors[0] < worst
        assert errors == sorted(errors, reverse=True)
        assert errors[-1] < 1e-12


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ((5, 2), "5 blocks in x do not divide 8 cells"),
        ((2, 0), "0 blocks in y, expected an integer"),
        ((2, 2.0), r"2\.0 blocks in y, expected an integer"),
    ],
)
def test_blocks_that_do_not_fit_are_refused(blocks, message):
    with pytest.raises(PdeError, match=message):
        MultiscaleSolver(Grid(8, 8), blocks)


def test_bad_problems_are_one_clear_error():
    solver = MultiscaleSolver(Grid(4, 4), (2, 2))
    with pytest.raises(PdeError, match="needs a side of given pressure"):
        solver.solve(np.ones((4, 4)))
    with pytest.raises(PdeError, match=r"permeability\[0, 0\] = 0\.0"):
        solver.solve(np.zeros((4, 4)), 0.0, LEFT_TO_RIGHT)
    with pytest.raises(PdeError, match="not finite"):
        solver.solve(np.ones((4, 4)), np.nan, LEFT_TO_RIGHT)
