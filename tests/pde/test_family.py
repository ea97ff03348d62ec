"""Many permeabilities at once: both backends against extended precision and the single solver."""

import sys

import numpy as np
import pytest

from pde import (
    DarcyFamily,
    DarcySolver,
    Grid,
    IncompatibleSourceError,
    KarhunenLoeve,
    PdeError,
    RandomPermeability,
    channelised_permeability,
)
from pde.darcy.multifrontal_plan import dissect
from pde.errors import SingularError
from scripts.bench.saddle_point import refined_solution

LEFT_TO_RIGHT = {"left": 1.0, "right": 0.0}


@pytest.fixture(params=["scipy", "compiled"])
def backend(request):
    if request.param == "compiled":
        pytest.importorskip("numba", reason="numba is in the extra fast")
    return request.param


def corners(grid):
    source = np.zeros(grid.shape)
    source[0, 0], source[-1, -1] = 1.0, -1.0
    return source


def fields(grid, count=3):
    """Log-normal fields and channels of seven decades, `[count + 2, ny, nx]`."""
    random = RandomPermeability(KarhunenLoeve(grid, terms=12), "lognormal", mean=0.0)
    channels = [channelised_permeability(grid, seed) for seed in range(2)]
    return np.stack([random.sample(i) for i in range(count)] + channels)


def relative(found, exact):
    return np.linalg.norm(found - exact) / np.linalg.norm(exact)


@pytest.mark.parametrize("grid", [Grid(30, 30), Grid(17, 22, lx=2.0, ly=0.5), Grid(23, 6)])
@pytest.mark.parametrize("boundary", ["left to right", "closed", "one side"])
def test_velocities_are_right_to_round_off(backend, grid, boundary):
    pressure, source = {
        "left to right": (LEFT_TO_RIGHT, np.zeros(grid.shape)),
        "closed": ({}, corners(grid)),
        "one side": ({"bottom": np.linspace(0, 1, grid.nx)}, np.ones(grid.shape)),
    }[boundary]
    kappa = fields(grid)
    solution = DarcyFamily(grid, pressure, source, backend).solve(kappa)
    assert solution.velocity.shape == (5, grid.num_edges)
    for i, one in enumerate(kappa):
        exact = refined_solution(grid, one, source, pressure)
        assert relative(solution.velocity[i], exact.velocity) < 1e-12
        assert relative(solution.pressure[i], exact.pressure) < 1e-12
        imbalance = np.abs(grid.divergence(solution.velocity[i]) - source).max()
        flow = np.abs(solution.velocity[i]).max() / min(grid.hx, grid.hy)
        assert imbalance < 1e-14 * max(flow, np.abs(source).max())
    for side in {"left", "right", "bottom", "top"} - set(pressure):
        assert not solution.velocity[:, grid.boundary_edges(side)].any()


@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (2, 1), (3, 1), (1, 5), (2, 3), (5, 4)])
def test_small_grids_are_no_exception(backend, shape):
    grid = Grid(*shape)
    kappa = np.random.default_rng(0).lognormal(size=(3, *grid.shape))
    for pressure in (LEFT_TO_RIGHT, dict.fromkeys(("left", "right", "bottom", "top"), 2.0)):
        found = DarcyFamily(grid, pressure, 1.0, backend).solve(kappa)
        for i, one in enumerate(kappa):
            exact = DarcySolver(grid, one, pressure).solve(1.0)
            np.testing.assert_allclose(found.velocity[i], exact.velocity, rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(found.pressure[i], exact.pressure, rtol=1e-12)


def test_a_samples_bits_do_not_depend_on_the_others(backend):
    grid = Grid(13, 11)
    kappa = np.random.default_rng(1).lognormal(sigma=3.0, size=(19, *grid.shape))
    for pressure, source in ((LEFT_TO_RIGHT, 0.0), ({}, corners(grid))):
        family = DarcyFamily(grid, pressure, source, backend)
        together = family.solve(kappa)
        for i in (0, 7, 8, 18):
            alone = family.solve(kappa[i])
            np.testing.assert_array_equal(alone.velocity, together.velocity[i])
            np.testing.assert_array_equal(alone.pressure, together.pressure[i])
        turned = family.solve(kappa[::-1])
        np.testing.assert_array_equal(turned.velocity[::-1], together.velocity)


def test_leading_dimensions_are_kept(backend):
    grid = Grid(4, 3)
    kappa = np.random.default_rng(2).lognormal(size=(2, 5, 3, 4))
    solution = DarcyFamily(grid, LEFT_TO_RIGHT, backend=backend).solve(kappa)
    assert solution.velocity.shape == (2, 5, grid.num_edges)
    assert solution.pressure.shape == (2, 5, 3, 4)
    alone = DarcyFamily(grid, LEFT_TO_RIGHT, backend=backend).solve(kappa[1, 2])
    np.testing.assert_array_equal(solution.velocity[1, 2], alone.velocity)


def test_the_backends_agree():
    pytest.importorskip("numba", reason="numba is in the extra fast")
    grid = Grid(40, 40)
    kappa = fields(grid)
    plain, fast = (
        DarcyFamily(grid, LEFT_TO_RIGHT, backend=b).solve(kappa).velocity
        for b in ("scipy", "compiled")
    )
    assert relative(fast, plain) < 1e-12
    assert DarcyFamily(grid, LEFT_TO_RIGHT).backend == "compiled"


def test_elimination_costs_grow_with_the_cube_of_a_side():
    """Multiplications and entries of the factor: about 10 n^3 and 3.1 n^2 log2 n and more."""

    def cost(n):
        grid = Grid(n, n)
        plan = dissect(grid, np.ones(grid.num_edges, dtype=bool))
        products = [
            np.square(np.arange(m - s + 1, m + 1)).sum() / 2
            for s, m in zip(plan.eliminated, plan.size, strict=True)
        ]
        assert (
            np.bincount(plan.edges[_first(plan)], minlength=grid.num_edges).tolist()
            == [1] * grid.num_edges
        )
        return sum(products), plan.factor_size

    products, entries = zip(*(cost(n) for n in (16, 32, 64)), strict=True)
    assert products[1] / products[0] < 8.5
    assert products[2] / products[1] < 8.2
    assert entries[2] / entries[1] < 4 * 6 / 5 * 1.05


def _first(plan):
    """Places in `plan.edges` of those that are eliminated."""
    return np.concatenate(
        [start + np.arange(s) for start, s in zip(plan.edges_at, plan.eliminated, strict=False)]
    )


def test_without_numba_scipy_serves(monkeypatch):
    for name in ("pde.darcy.batch_compiled", "pde.darcy.multifrontal_simd"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "numba", None)
    assert DarcyFamily(Grid(3, 3), LEFT_TO_RIGHT).backend == "scipy"
    with pytest.raises(PdeError, match="needs Numba: install the extra"):
        DarcyFamily(Grid(3, 3), LEFT_TO_RIGHT, backend="compiled")


@pytest.mark.parametrize("contrast", [1e7, 1e14])
def test_a_flow_that_loses_mass_is_not_returned(backend, contrast):
    """Large patches that are permeable take the digits of the flow between them."""
    grid = Grid(16, 16)
    patches = np.random.default_rng(0).uniform(size=(16, 16)) < 0.4
    kappa = np.where(patches, contrast, 1.0)
    family = DarcyFamily(grid, LEFT_TO_RIGHT, 0.0, backend)
    single = DarcySolver(grid, kappa, LEFT_TO_RIGHT)
    if contrast > 1e8:
        for solve in (lambda: family.solve(kappa), single.solve):
            with pytest.raises(SingularError):
                solve()
    else:
        velocity = family.solve(kappa).velocity
        largest = np.abs(velocity).max()
        assert np.abs(grid.divergence(velocity)).max() < 1e-7 * largest / grid.hx
        np.testing.assert_allclose(single.solve().velocity, velocity, atol=1e-7 * largest)


def test_a_pressure_that_drives_nothing_is_no_loss(backend):
    kappa = np.random.default_rng(1).lognormal(0, 3, size=(6, 6))
    for solve in (
        DarcyFamily(Grid(6, 6), {"left": 1.0}, 0.0, backend).solve,
        lambda k: DarcySolver(Grid(6, 6), k, {"left": 1.0}).solve(),
    ):
        assert np.abs(solve(kappa).velocity).max() < 1e-9


def test_bad_input_is_one_clear_error(backend):
    grid = Grid(4, 3)
    with pytest.raises(PdeError, match="backend='cuda', expected one of auto"):
        DarcyFamily(grid, LEFT_TO_RIGHT, backend="cuda")
    with pytest.raises(IncompatibleSourceError, match="must sum to zero"):
        DarcyFamily(grid, {}, 1.0, backend)
    with pytest.raises(PdeError, match=r"source of shape \(2, 3, 4\), expected one"):
        DarcyFamily(grid, LEFT_TO_RIGHT, np.ones((2, 3, 4)), backend)
    with pytest.raises(PdeError, match="unknown side 'west'"):
        DarcyFamily(grid, {"west": 1.0}, 0.0, backend)
    family = DarcyFamily(grid, LEFT_TO_RIGHT, 0.0, backend)
    with pytest.raises(PdeError, match=r"shape \(4, 3\), expected \(\.\.\., ny, nx\)"):
        family.solve(np.ones((4, 3)))
    kappa = np.ones((2, 3, 4))
    kappa[1, 0, 2] = np.nan
    with pytest.raises(PdeError, match=r"permeability\[1, 0, 2\] = nan \(1 such cells\)"):
        family.solve(kappa)
