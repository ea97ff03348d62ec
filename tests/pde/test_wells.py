"""Wells: against radial flow, in balance, and what is refused."""

import numpy as np
import pytest
from scipy.integrate import quad

from pde import (
    DarcySolver,
    FileContentError,
    Grid,
    IncompatibleSourceError,
    PdeError,
    Well,
    read_wells,
)
from pde.darcy.well_index import equivalent_radius
from pde.datasets.well_rates import WellProblem, well_flows

SIDES = ("left", "right", "bottom", "top")


@pytest.mark.parametrize(("kx", "ky"), [(1.0, 1.0), (9.0, 1.0), (0.5, 4.0)])
@pytest.mark.parametrize("aspect", [1.0, 2.5])
def test_well_pressure_gives_the_rate_of_radial_flow(kx, ky, aspect):
    """Thiem: q = 2 pi k (P - p(r)) / ln(r / r_w), r the distance where the medium is isotropic."""
    n, radius, well_pressure = 41, 1e-3, 5.0
    grid = Grid(n, n, lx=2.0, ly=2.0 * aspect)
    x, y = grid.lx / 2, grid.ly / 2
    # Made isotropic, the plane turns the well into an ellipse, of whose axes the mean counts.
    stretch = np.array([(ky / kx) ** 0.25, (kx / ky) ** 0.25])

    def logarithm(points):
        distance = np.linalg.norm((points - [x, y]) * stretch, axis=1)
        return np.log(distance / (radius * stretch.mean()))

    rate = 2.0
    pressure = {
        side: well_pressure
        - rate
        / (2 * np.pi * np.sqrt(kx * ky))
        * logarithm(grid.edge_midpoints()[grid.boundary_edges(side)])
        for side in SIDES
    }
    tensor = np.broadcast_to([kx, ky], (n, n, 2))
    well = Well(x, y, pressure=well_pressure, radius=radius)
    solver = DarcySolver(grid, tensor, pressure, wells=[well])
    np.testing.assert_allclose(solver.well_rates(solver.solve()), rate, rtol=2e-3)


def test_a_well_takes_what_the_others_give():
    grid = Grid(8, 6, lx=80.0, ly=60.0)
    kappa = np.exp(np.random.default_rng(0).standard_normal(grid.shape))
    wells = [Well(5, 5, rate=3.0), Well(75, 55, rate=-1.0), Well(40, 30)]
    solver = DarcySolver(grid, kappa, flux={"top": 0.1}, wells=wells)
    solution = solver.solve(0.5)
    rates = solver.well_rates(solution, 0.5)
    np.testing.assert_allclose(rates, [3.0, -1.0, 0.1 * 80 - 0.5 * 4800 - 2.0], rtol=1e-10)
    still = grid.divergence(solution.velocity).ravel()
    still[[0, 47, 28]] = 0.5
    np.testing.assert_allclose(still, 0.5, rtol=1e-9)


def test_rates_are_those_given_on_unlike_cells_too():
    grid = Grid.of_spacing([0.1, 0.5, 0.2, 0.9], [0.3, 0.05, 0.7])
    kappa = np.exp(np.random.default_rng(0).standard_normal(grid.shape))
    wells = [Well(0.05, 0.1, rate=0.7), Well(1.2, 0.6, rate=-0.2), Well(0.4, 0.33)]
    solver = DarcySolver(grid, kappa, wells=wells)
    source = np.zeros(grid.shape)
    source[2, 2] = 1.5
    rest = -(0.7 - 0.2 + 1.5 * grid.cell_areas[2, 2])
    rates = solver.well_rates(solver.solve(source), source)
    np.testing.assert_allclose(rates, [0.7, -0.2, rest], rtol=0, atol=1e-10)


def test_rates_that_do_not_balance_are_refused():
    grid, kappa = Grid(4, 4), np.ones((4, 4))
    with pytest.raises(IncompatibleSourceError, match="must sum to zero"):
        DarcySolver(grid, kappa, wells=[Well(0.1, 0.1, rate=1.0)]).solve()
    active = np.ones((4, 4), dtype=bool)
    active[:, 2] = False
    wells = [Well(0.1, 0.1, rate=1.0), Well(0.9, 0.9, rate=-1.0)]  # a wall between them
    with pytest.raises(IncompatibleSourceError, match="must sum to zero"):
        DarcySolver(grid, kappa, wells=wells, active=active).solve()


@pytest.mark.parametrize(
    ("wells", "message"),
    [
        ([Well(2, 0.5, rate=1.0)], r"lies outside .*not in cells"),
        ([Well(0.1, 0.1, rate=1), Well(0.12, 0.1)], "lie in one cell"),
        (
            [Well(0.1, 0.1, pressure=1, radius=0.2)],
            "has the radius 0.2 in a cell .* unit of length",
        ),
        ([Well(0.1, 0.1), Well(0.9, 0.9)], "another such well balances"),
        ([Well(0.1, 0.1), Well(0.9, 0.9, pressure=1, radius=0.01)], "a pressure balances"),
    ],
)
def test_wells_that_do_not_fit_are_refused(wells, message):
    with pytest.raises(PdeError, match=message):
        DarcySolver(Grid(4, 4), np.ones((4, 4)), wells=wells)


def test_impossible_wells_are_refused():
    for given, message in (
        ({"rate": 1.0, "pressure": 1.0, "radius": 0.1}, "a rate and a pressure"),
        ({"pressure": 1.0}, "a pressure or a radius alone"),
        ({"spread": 1.0}, "expected one of a rate"),
        ({"rate": np.nan}, "expected a finite number"),
    ):
        with pytest.raises(PdeError, match=message):
            Well(0.0, 0.0, **given)


def test_a_table_of_wells_is_read_and_a_wrong_one_refused(tmp_path):
    path = tmp_path / "wells.csv"
    path.write_text("x, y, rate, spread, pressure, radius\n1, 2, 3, .5,,\n4, 5,,, 6, .1\n7,8,,,,\n")
    assert read_wells(path) == (
        Well(1, 2, rate=3, spread=0.5), Well(4, 5, pressure=6, radius=0.1), Well(7, 8),
    )  # fmt: skip
    for text, message in (
        ("x,y,q\n1,2,3\n", "has the columns x, y, q; expected"),
        ("x,y,rate\n1,two,3\n", "line 2: could not convert"),
        ("x,y,rate\n1,,3\n", "line 2: a well needs x and y"),
        ("x,y,rate\n1,2,3\n\n4,5,six\n", "line 4: could not convert"),
        ("x,y,rate\n1,2,3\n4,5,6,7\n", "line 3: more values than the header has columns"),
        ("x,y,rate\n1,2,3,4\n", "line 2: more values than the header has columns"),
        ("", "has no wells"),
    ):
        path.write_text(text)
        with pytest.raises(FileContentError, match=message):
            read_wells(path)


def test_activity_and_sides_that_do_not_fit_are_refused():
    grid, kappa = Grid(4, 3), np.ones((3, 4))
    for active, message in (
        (np.ones((4, 3), bool), "expected true or false"),
        (np.zeros((3, 4), bool), "no cell is active"),
        (np.full((3, 4), 0.5), "expected true or false"),
    ):
        with pytest.raises(PdeError, match=message):
            DarcySolver(grid, kappa, active=active)
    with pytest.raises(PdeError, match="3 edges have a pressure and a flux"):
        DarcySolver(grid, kappa, {"left": 1.0}, flux={"left": 1.0})
    with pytest.raises(PdeError, match="given twice for 1 edges"):
        DarcySolver(grid, kappa, {"left:0:0.5": 1.0, "left:0.4:1": 2.0})
    active = np.ones((3, 4), dtype=bool)
    active[0, 0] = False
    solver = DarcySolver(grid, kappa, {"left": 1.0}, active=active)
    with pytest.raises(PdeError, match="set it to zero there"):
        solver.solve(np.ones((3, 4)))
    assert np.isnan(solver.solve(1.0).pressure[0, 0])


def test_each_part_of_a_domain_balances_its_own_rates():
    """A unit rate is taken by the balancing wells of its part alone, as the solver does."""
    active = np.ones((4, 9), bool)
    active[:, 4] = False
    grid, kappa = Grid(9, 4, lx=9.0, ly=4.0), np.ones((4, 9))
    wells = (
        Well(0.5, 0.5, rate=1.0, spread=0.2),
        Well(2.5, 3.5),
        Well(5.5, 0.5, rate=2.0, spread=0.1),
        Well(8.5, 3.5),
    )
    flows = well_flows(WellProblem(grid, wells, {}, {}), kappa, active)
    together = flows["basis_velocity"][0] + 2 * flows["basis_velocity"][1]
    exact = DarcySolver(grid, kappa, wells=wells, active=active).solve()
    np.testing.assert_allclose(together, exact.velocity, atol=1e-12)


@pytest.mark.parametrize("aspect", [1.0, 1e-2, 1e2, 1e4, 1e6])
def test_the_equivalent_radius_is_exact_in_thin_cells_too(aspect):
    """One of the two integrals in closed form: the mean of 1 / (A + c s) is (A (A + 4 c))^-1/2."""
    a = min(aspect, 1 / aspect)  # a quarter turn changes nothing

    def inner(t):
        s = 4 * np.sin(t / 2) ** 2
        A = a * s / (1 - s / 6)
        c = 1 - A / 6
        mass = (1 + A / (6 * c)) / np.sqrt(A * (A + 4 * c)) - 1 / (6 * c)
        return 1 / np.sqrt(a * s * (a * s + 4)) - mass

    exact = 2 * np.sqrt(a) * quad(inner, 0, np.pi, epsabs=1e-12, limit=500)[0]
    hx, hy = 1.0, np.sqrt(aspect)
    ratio = equivalent_radius((1.0, 1.0), (hx, hy)) / (np.exp(-np.euler_gamma) / 2)
    assert ratio / (np.hypot(hx, hy) / 2) == pytest.approx(np.exp(exact), rel=1e-5)


def test_sides_without_an_active_cell_are_refused():
    """Nothing would flow, and the pressure would have no datum, without a word."""
    active = np.ones((3, 4), dtype=bool)
    active[:, 0] = False
    for given in ({"pressure": {"left": 1.0, "right": 0.0}}, {"flux": {"left:0:0.5": 0.0}}):
        with pytest.raises(PdeError, match=r"side 'left.*' has no active cell"):
            DarcySolver(Grid(4, 3), np.ones((3, 4)), active=active, **given)


def test_a_well_that_nothing_needs_is_refused_by_data_sets_as_by_the_solver():
    """It lies where a side's pressure, of zero too, balances the others."""
    active = np.ones((4, 9), bool)
    active[:, 4] = False
    grid, kappa = Grid(9, 4, lx=9.0, ly=4.0), np.ones((4, 9))
    wells = (Well(0.5, 0.5, rate=1.0, spread=0.2), Well(2.5, 3.5))
    for pressure in (0.0, 1.0):
        with pytest.raises(PdeError, match="and a pressure balances the others"):
            well_flows(WellProblem(grid, wells, {"left": pressure}, {}), kappa, active)
