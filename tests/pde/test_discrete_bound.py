"""The bound of the distance to the grid's own flow: against dense matrices, and that it holds."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from pde import (
    DarcySolver,
    Grid,
    KarhunenLoeve,
    MultiscaleSolver,
    PdeError,
    RandomPermeability,
    channelised_permeability,
    discrete_bound,
    energy_norm,
)
from pde.darcy.rt0 import boundary_data, divergence_matrix, mass_matrix

PRESSURE = {"left": 1.0, "right": 0.0}
UNEQUAL = Grid.of_spacing([0.2, 0.5, 0.1], [0.3, 0.4])


def dense_bound(grid: Grid, kappa: np.ndarray, sides: Mapping[str, float], u: np.ndarray) -> float:
    """The same by dense matrices: weighted least squares for p, a solve for the norm."""
    signed, closed = boundary_data(grid, sides)
    opened = np.setdiff1d(np.arange(grid.num_edges), closed)
    mass, lumped = (mass_matrix(grid, k).toarray() for k in (kappa, np.ones(grid.shape)))
    root = np.sqrt(lumped.sum(1)[opened])
    residual = (mass @ u + signed * grid.edge_lengths())[opened]
    slopes = divergence_matrix(grid).toarray()[:, opened].T
    p = np.linalg.lstsq(slopes / root[:, None], residual / root, rcond=None)[0]
    rho = residual - slopes @ p
    return float(np.sqrt(rho @ np.linalg.solve(mass[np.ix_(opened, opened)], rho)))


@pytest.mark.parametrize(
    ("grid", "sides"),
    [
        (Grid(7, 5), PRESSURE),
        (Grid(1, 4), PRESSURE),
        (UNEQUAL, {"bottom": 2.0, "right": 2.0}),
        (UNEQUAL, {"top": -1.0}),
        (UNEQUAL, {"left": 1.0, "right": 1.0, "bottom": 1.0, "top": 1.0}),
    ],
)
def test_it_is_that_of_dense_matrices_and_holds(grid: Grid, sides: dict[str, float]) -> None:
    rng = np.random.default_rng(0)
    kappa, source = rng.lognormal(sigma=2.0, size=(4, *grid.shape)), rng.standard_normal(grid.shape)
    flows = np.stack(
        [DarcySolver(grid, k, sides).solve(source).velocity for k in rng.permutation(kappa)]
    )
    bound = discrete_bound(grid, kappa, sides, flows, source)
    for found, k, u in zip(bound, kappa, flows, strict=True):
        assert found == pytest.approx(dense_bound(grid, k, sides, u), rel=1e-9)
        exact = DarcySolver(grid, k, sides).solve(source).velocity
        assert energy_norm(grid, k, u - exact) <= found * (1 + 1e-9)
        assert discrete_bound(grid, k, sides, exact, source) < 1e-9 * energy_norm(grid, k, exact)
    np.testing.assert_allclose(
        discrete_bound(grid, kappa[0], sides, flows, source)[2],
        discrete_bound(grid, kappa[0], sides, flows[2], source),
        rtol=1e-12,
    )


def test_it_is_near_the_error_where_permeability_is_constant() -> None:
    """The pressures would be the nearest of all then, but for the lumped mass in their norm."""
    grid, sides = Grid(9, 6), {"left": 1.0, "top": 0.0}
    flow = DarcySolver(grid, np.random.default_rng(1).lognormal(size=grid.shape), sides).solve(2.0)
    kappa = np.full(grid.shape, 3.0)
    exact = DarcySolver(grid, kappa, sides).solve(2.0).velocity
    error = energy_norm(grid, kappa, flow.velocity - exact)
    found = discrete_bound(grid, kappa, sides, flow.velocity, 2.0)
    assert error <= found <= 1.1 * error


@pytest.mark.parametrize("kind", ["additive", "lognormal", "channels"])
def test_it_holds_and_is_near_the_error_on_random_fields(kind: str) -> None:
    """Medians over eight fields of the ratio to the error: near one but for channels."""
    grid = Grid(20, 20)
    if kind == "channels":
        fields = [channelised_permeability(grid, seed) for seed in range(8)]
    else:
        mean = 6.0 if kind == "additive" else 0.0
        law = RandomPermeability(KarhunenLoeve(grid, 2.0, (0.2, 0.3), 24), kind, mean)
        fields = [law.sample(i) for i in range(8)]
    solver, ratios = MultiscaleSolver(grid, (5, 5)), []
    for kappa in fields:
        flow = solver.solve(kappa, 1.0, PRESSURE).solution.velocity
        exact = DarcySolver(grid, kappa, PRESSURE).solve(1.0).velocity
        bound = discrete_bound(grid, kappa, PRESSURE, flow, 1.0)
        ratios.append(float(bound / energy_norm(grid, kappa, flow - exact)))
    assert min(ratios) >= 1
    if kind != "channels":
        assert np.median(ratios) < 1.1


def test_refuses_what_does_not_balance_or_has_no_pressure() -> None:
    grid = Grid(4, 3)
    kappa = np.ones(grid.shape)
    flow = DarcySolver(grid, kappa, PRESSURE).solve(1.0).velocity
    with pytest.raises(PdeError, match="outflow differs from its source"):
        discrete_bound(grid, kappa, PRESSURE, flow, 2.0)
    with pytest.raises(PdeError, match="no side"):
        discrete_bound(grid, kappa, {}, np.zeros(grid.num_edges))
    with pytest.raises(PdeError, match="through a closed side"):
        discrete_bound(grid, kappa, {"left": 1.0}, flow, 1.0)
