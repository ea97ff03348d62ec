"""The Prager-Synge bound: the identity, to round-off, and a bound on fields of every kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.linalg import null_space

from pde import (
    DarcySolver,
    Grid,
    KarhunenLoeve,
    MultiscaleSolver,
    PdeError,
    RandomPermeability,
    channelised_permeability,
    conforming_pressure,
    energy_bound,
    energy_norm,
    fitted_pressure,
    spe10_layer,
)
from pde.darcy.conforming import boundary_values
from pde.darcy.rt0 import boundary_data, divergence_matrix, mass_matrix

PRESSURE = {"left": 1.0, "right": 0.0}
GAUSS = np.polynomial.legendre.leggauss(4)


def balanced_change(grid: Grid, size: float, seed: int = 0) -> np.ndarray:
    """A velocity without divergence that does not pass bottom and top."""
    closed = boundary_data(grid, PRESSURE)[1]
    open_edges = np.setdiff1d(np.arange(grid.num_edges), closed)
    kernel = null_space(divergence_matrix(grid).toarray()[:, open_edges])
    change = np.zeros(grid.num_edges)
    change[open_edges] = kernel @ np.random.default_rng(seed).standard_normal(kernel.shape[1])
    return size * change


def some_pressure(grid: Grid, seed: int = 1) -> np.ndarray:
    """Nodal values that are random where they are not given."""
    given, free = boundary_values(grid, PRESSURE)
    return given + free * np.random.default_rng(seed).standard_normal(given.shape)


def gradient_distance(grid: Grid, kappa: np.ndarray, nodes: np.ndarray, slope: Callable) -> float:
    """||kappa^(1/2) grad(p~ - p)|| by quadrature, for grad p = (slope(x, y), 0)."""
    total, (points, weights) = 0.0, GAUSS
    for i, j in np.ndindex(*grid.shape):
        h, k = grid.widths[j], grid.heights[i]
        p = nodes[i : i + 2, j : j + 2]
        for s, ws in zip((points + 1) / 2, weights / 2, strict=True):
            for t, wt in zip((points + 1) / 2, weights / 2, strict=True):
                x = (p[0, 1] - p[0, 0]) / h * (1 - t) + (p[1, 1] - p[1, 0]) / h * t
                y = (p[1, 0] - p[0, 0]) / k * (1 - s) + (p[1, 1] - p[0, 1]) / k * s
                x -= slope(grid.x_lines[j] + s * h, grid.y_lines[i] + t * k)
                total += ws * wt * h * k * kappa[i, j] * (x**2 + y**2)
    return float(np.sqrt(total))


def test_the_norm_is_that_of_the_mass_matrix() -> None:
    grid = Grid.of_spacing([0.2, 0.5, 0.1], [0.3, 0.4])
    rng = np.random.default_rng(0)
    kappa, u = rng.lognormal(size=grid.shape), rng.standard_normal((2, grid.num_edges))
    squares = [v @ (mass_matrix(grid, kappa) @ v) for v in u]
    np.testing.assert_allclose(energy_norm(grid, kappa, u) ** 2, squares, rtol=1e-13)


def test_the_identity_holds_through_layers() -> None:
    """Layers across the flow: the exact flow is their harmonic mean, whatever is between."""
    grid = Grid.of_spacing([0.2, 0.3, 0.1, 0.4], [0.5, 0.25, 0.25])
    layers = np.array([1.0, 30.0, 0.02, 7.0])
    kappa = np.tile(layers, (3, 1))
    flow = 1 / (grid.widths / layers).sum()
    exact = np.repeat([flow, 0.0], [grid.num_vertical, grid.num_edges - grid.num_vertical])
    velocity, nodes = exact + balanced_change(grid, 3.0), some_pressure(grid)

    def slope(x: float, y: float) -> float:
        return -flow / layers[np.searchsorted(grid.x_lines[1:], x)]

    left = energy_bound(grid, kappa, PRESSURE, velocity, 0.0, nodes) ** 2
    of_flow = energy_norm(grid, kappa, velocity - exact) ** 2
    of_pressure = gradient_distance(grid, kappa, nodes, slope) ** 2
    assert of_flow > 0.01 * of_pressure > 0
    assert left == pytest.approx(of_flow + of_pressure, rel=1e-12)
    assert energy_bound(grid, kappa, PRESSURE, exact) < 1e-13 * energy_norm(grid, kappa, exact)


def test_the_identity_holds_with_a_source() -> None:
    """p = 1 - x + x (1 - x) / 2 and q = x + 1/2 for kappa = f = 1."""
    grid = Grid(5, 4)
    exact = np.zeros(grid.num_edges)
    exact[: grid.num_vertical] = np.tile(grid.x_lines + 0.5, 4)
    velocity, nodes = exact + balanced_change(grid, 0.1), some_pressure(grid)
    kappa = np.ones(grid.shape)
    left = energy_bound(grid, kappa, PRESSURE, velocity, 1.0, nodes) ** 2
    of_pressure = gradient_distance(grid, kappa, nodes, lambda x, y: -0.5 - x) ** 2
    of_flow = energy_norm(grid, kappa, velocity - exact) ** 2
    assert left == pytest.approx(of_flow + of_pressure, rel=1e-13)


def field(kind: str, grid: Grid, request: pytest.FixtureRequest) -> np.ndarray:
    if kind == "channels":
        return channelised_permeability(grid, 1)
    if kind.startswith("SPE10"):
        path: Path = request.getfixturevalue("real_spe10")
        return spe10_layer(path, int(kind.split()[-1]), grid, "kx", (20, 90))
    name, *rest = kind.split()
    lengths = {"short": (0.1, 0.15), "long": (0.3, 0.45)}.get(rest[0] if rest else "", (0.2, 0.3))
    terms = 128 if "p=128" in rest else 64
    modes = KarhunenLoeve(grid, lengths=lengths, terms=terms)
    return RandomPermeability(modes, name, {"additive": 6.0, "lognormal": 0.0}[name]).sample(0)


KINDS = [f"{a}{b}" for a in ("additive", "lognormal") for b in ("", " p=128", " short", " long")]
KINDS += ["channels", "SPE10 20", "SPE10 60"]


@pytest.mark.parametrize("kind", KINDS)
def test_it_bounds_the_error_on_every_kind_of_field(
    kind: str, request: pytest.FixtureRequest
) -> None:
    """The error is at least the distance to a finer grid's flow, and at least that to the grid's.

    Both are distances to RT0 flows that are nearest to the exact one among those of the same
    divergence, so that they grow with refinement towards the error, from below.
    """
    grid, fine = Grid(24, 24), Grid(96, 96)
    kappa = field(kind, grid, request)
    flow = MultiscaleSolver(grid, (4, 4)).solve(kappa, 1.0, PRESSURE).solution.velocity
    size = energy_norm(grid, kappa, flow)
    on_grid = energy_norm(
        grid, kappa, flow - DarcySolver(grid, kappa, PRESSURE).solve(1.0).velocity
    )
    finer = np.kron(kappa, np.ones((4, 4)))
    exact = DarcySolver(fine, finer, PRESSURE).solve(1.0).velocity
    error = energy_norm(fine, finer, refined(grid, flow, 4) - exact)
    best = energy_bound(grid, kappa, PRESSURE, flow, 1.0)
    nodes = fitted_pressure(grid, kappa, PRESSURE, flow)
    fitted = energy_bound(grid, kappa, PRESSURE, flow, 1.0, nodes)
    assert 0.01 * size < on_grid < error < best < fitted
    assert best < 1.5 * error
    if kind.startswith(("additive", "lognormal")):
        assert fitted < {"a": 1.1, "l": 2.5}[kind[0]] * error


def refined(grid: Grid, velocity: np.ndarray, n: int) -> np.ndarray:
    """The same RT0 flow on cells of an n-th of the size."""
    vertical, horizontal = grid.split(velocity)
    at = np.arange(n * grid.nx + 1) / n
    along = np.stack([np.interp(at, np.arange(grid.nx + 1), row) for row in vertical])
    over = np.stack([np.interp(at, np.arange(grid.ny + 1), column) for column in horizontal.T])
    return np.concatenate(
        [np.repeat(along, n, axis=0).ravel(), np.repeat(over, n, axis=0).T.ravel()]
    )


@pytest.mark.parametrize("pressure", [PRESSURE, {"top": 2.0}, {"left": 3.0, "bottom": 3.0}])
def test_pressures_are_nearest_in_their_norms(pressure: dict[str, float]) -> None:
    """No other nodal values come nearer: the derivative in every direction vanishes."""
    grid = Grid.of_spacing([0.2, 0.3, 0.1, 0.4], [0.5, 0.25, 0.25])
    rng = np.random.default_rng(2)
    kappa, source = rng.lognormal(size=(2, *grid.shape)), rng.standard_normal(grid.shape)
    flows = [DarcySolver(grid, one, pressure).solve(source).velocity for one in kappa]
    free = boundary_values(grid, pressure)[1]
    best = conforming_pressure(grid, kappa, pressure, source)
    fitted = fitted_pressure(grid, kappa, pressure, np.stack(flows))
    for one, u, p, q in zip(kappa, flows, best, fitted, strict=True):
        for place in np.argwhere(free):
            change = np.zeros(free.shape)
            change[tuple(place)] = 0.1
            ends = [energy_bound(grid, one, pressure, u, source, p + s * change) for s in (-1, 1)]
            assert ends[0] == pytest.approx(ends[1], rel=1e-11)
            gaps = [mean_distance(grid, one, u, q + s * change) for s in (-1, 1)]
            assert gaps[0] == pytest.approx(gaps[1], rel=1e-11)


def mean_distance(grid: Grid, kappa: np.ndarray, u: np.ndarray, nodes: np.ndarray) -> float:
    """||grad p~ + kappa^-1 u||^2 up to what does not depend on p~."""
    gradient = gradient_distance(grid, np.ones(grid.shape), nodes, lambda x, y: 0.0) ** 2
    x = (np.diff(nodes, axis=1)[1:] + np.diff(nodes, axis=1)[:-1]) / 2 / grid.widths
    y = (np.diff(nodes, axis=0)[:, 1:] + np.diff(nodes, axis=0)[:, :-1]) / 2 / grid.heights[:, None]
    force = grid.cell_velocity(u) / kappa[..., None]
    cross = (x * force[..., 0] + y * force[..., 1]) * grid.cell_areas
    return float(gradient + 2 * cross.sum())


def test_what_the_bound_does_not_hold_for_is_refused() -> None:
    grid = Grid(4, 3)
    kappa = np.ones(grid.shape)
    flow = np.zeros(grid.num_edges)
    flow[: grid.num_vertical] = 1.0
    leaky = flow.copy()
    leaky[1] += 1e-6
    with pytest.raises(PdeError, match=r"differs from its source by .*: the bound holds for"):
        energy_bound(grid, kappa, PRESSURE, leaky)
    with pytest.raises(PdeError, match="through a closed side, expected zero"):
        energy_bound(grid, kappa, PRESSURE, np.ones(grid.num_edges))
    nodes = np.ones((4, 5))
    with pytest.raises(PdeError, match="misses the sides' pressures by up to 1: set them exactly"):
        energy_bound(grid, kappa, PRESSURE, flow, 0.0, nodes)
    with pytest.raises(PdeError, match=r"potential of shape \(4, 4\), expected finite values"):
        energy_bound(grid, kappa, PRESSURE, flow, 0.0, nodes[:, 1:])
    with pytest.raises(PdeError, match="side 'top' of pressure 2 meets a side of another"):
        conforming_pressure(grid, kappa, {"left": 1.0, "top": 2.0})
    with pytest.raises(PdeError, match="source"):
        conforming_pressure(grid, kappa, {"left": 1.0}, np.ones((2, *grid.shape)))
    with pytest.raises(PdeError, match="pressure on no side, expected one or more whole sides"):
        conforming_pressure(grid, kappa, {})
    with pytest.raises(PdeError, match="on left:0:1, expected one or more whole"):
        fitted_pressure(grid, kappa, {"left:0:1": 1.0}, flow)
    with pytest.raises(PdeError, match="expected one finite number"):
        conforming_pressure(grid, kappa, {"left": np.ones(3)})


def test_no_field_has_no_bound() -> None:
    grid, none = Grid(4, 3), np.empty((0, 3, 4))
    flows = np.empty((0, grid.num_edges))
    nodes = conforming_pressure(grid, none, {"left": 1.0})
    assert nodes.shape == (0, 4, 5)
    for potential in (None, nodes):
        assert energy_bound(grid, none, {"left": 1.0}, flows, potential=potential).shape == (0,)
