"""Convergence on a manufactured solution with variable permeability, with and without reaction."""

import numpy as np
import pytest

from pde import DarcySolver, Grid, ReactionSolver

SIZES = np.array([12, 24, 48])
GAUSS = np.array([-1, 0, 1]) * np.sqrt(0.6) / 2, np.array([5, 8, 5]) / 18


def kappa(x, y):
    return np.exp(x * y + np.sin(2 * x))


def pressure(x, y):
    return np.sin(np.pi * x + 0.3) * np.cos(2 * y) + x


def velocity(x, y):
    px = np.pi * np.cos(np.pi * x + 0.3) * np.cos(2 * y) + 1
    py = -2 * np.sin(np.pi * x + 0.3) * np.sin(2 * y)
    return -kappa(x, y) * px, -kappa(x, y) * py


def edge_means(grid, function):
    """Means over the edges of a function of (x, y), by three Gauss points."""
    x, y = grid.edge_midpoints().T
    vertical = np.arange(grid.num_edges) < grid.num_vertical
    nodes, weights = GAUSS
    return sum(
        w * function(x + ~vertical * s * grid.hx, y + vertical * s * grid.hy)
        for s, w in zip(nodes, weights, strict=True)
    )


def cell_means(grid, function):
    """Means over the cells of a function of (x, y), by three by three Gauss points."""
    x, y = np.moveaxis(grid.cell_centres(), -1, 0)
    nodes, weights = GAUSS
    return sum(
        ws * wt * function(x + s * grid.hx, y + t * grid.hy)
        for s, ws in zip(nodes, weights, strict=True)
        for t, wt in zip(nodes, weights, strict=True)
    )


def reaction(x, y):
    return 20 * (1 + x * y**2)


def errors(n, reactive):
    grid = Grid(n, n + 2, lx=1.0, ly=1.2)
    x, y = np.moveaxis(grid.cell_centres(), -1, 0)
    trace = edge_means(grid, pressure)
    sides = {side: trace[grid.boundary_edges(side)] for side in ("left", "bottom", "top", "right")}
    flux = np.where(
        np.arange(grid.num_edges) < grid.num_vertical,
        edge_means(grid, lambda x, y: velocity(x, y)[0]),
        edge_means(grid, lambda x, y: velocity(x, y)[1]),
    )
    # The divergence theorem gives the exact cell means of f from the exact edge fluxes.
    source = grid.divergence(flux)
    if reactive:
        source = source + cell_means(grid, lambda x, y: reaction(x, y) * pressure(x, y))
        rate = cell_means(grid, reaction)
        solution = ReactionSolver(grid, rate, sides, source).solve(kappa(x, y))
    else:
        solution = DarcySolver(grid, kappa(x, y), sides).solve(source)
    u, v = grid.split(solution.velocity)
    nodes, weights = GAUSS
    square = 0.0
    square_p = 0.0
    for s, ws in zip(nodes, weights, strict=True):
        for t, wt in zip(nodes, weights, strict=True):
            ux, uy = velocity(x + s * grid.hx, y + t * grid.hy)
            ex = u[:, :-1] * (0.5 - s) + u[:, 1:] * (0.5 + s) - ux
            ey = v[:-1] * (0.5 - t) + v[1:] * (0.5 + t) - uy
            square += ws * wt * (ex**2 + ey**2).mean()
            exact = pressure(x + s * grid.hx, y + t * grid.hy)
            square_p += ws * wt * ((solution.pressure - exact) ** 2).mean()
    centre = solution.cell_velocity() - np.stack(velocity(x, y), axis=-1)
    return {
        "velocity": np.sqrt(square),
        "pressure": np.sqrt(square_p),
        "velocity at centres": np.sqrt((centre**2).mean()),
        "pressure at centres": np.sqrt(((solution.pressure - pressure(x, y)) ** 2).mean()),
        "edge flux": np.sqrt(((solution.velocity - flux) ** 2).mean()),
    }


@pytest.fixture(scope="module", params=[False, True], ids=["Darcy", "reaction"])
def measured(request):
    return [errors(int(n), request.param) for n in SIZES]


@pytest.mark.parametrize(
    ("quantity", "rate"),
    [
        ("velocity", 1),
        ("pressure", 1),
        ("velocity at centres", 2),
        ("pressure at centres", 2),
        ("edge flux", 2),
    ],
)
def test_fitted_rate(measured, quantity, rate):
    values = np.log([error[quantity] for error in measured])
    fitted = -np.polyfit(np.log(SIZES), values, 1)[0]
    assert fitted == pytest.approx(rate, abs=0.1)
