"""After how many fields a surrogate pays, and the solvers that it is measured against."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pde
from pde.darcy.five_point import FivePointSolver
from tasks.data.flows import FlowData
from tasks.data.pde_perm import PDEPermData
from tasks.data.pde_source import PDESourceData
from tasks.price import Surrogate, fields_until_it_pays, price, price_rows, seconds
from tasks.solvers import block_means, refined_flow, solvers_of
from tasks.surrogates import relative_errors


def opened(data: FlowData[Any]) -> FlowData[Any]:
    data.prepare_data()
    data.setup()
    return data


@pytest.mark.parametrize(("once", "own", "solver"), [(7.0, 0.25, 1.0), (3.0, 0.5, 1.0), (0, 1, 2)])
def test_it_pays_from_the_first_field_on_that_makes_it_cheaper(
    once: float, own: float, solver: float
) -> None:
    n = fields_until_it_pays(once, own, solver)
    assert n == next(n for n in count(1) if once + n * own < n * solver)


def test_what_is_slower_than_the_solver_never_pays() -> None:
    assert fields_until_it_pays(0.0, 1.0, 1.0) is None
    assert fields_until_it_pays(0.0, 2.0, 1.0) is None


def test_the_least_of_three_times_counts_or_of_those_in_a_second() -> None:
    def clock_of(*durations: float) -> Any:
        ends = np.cumsum([[0.0, d] for d in durations])
        return iter(ends.tolist()).__next__

    assert seconds(bool, clock_of(0.3, 0.2, 0.4)) == pytest.approx(0.2)
    assert seconds(bool, clock_of(0.7, 0.6)) == pytest.approx(0.6)  # a third one has no clock


def test_the_price_is_that_of_the_law(tmp_path: Path) -> None:
    """A clock by which every call takes a second, on eight fields: an eighth for each."""
    data = opened(
        PDEPermData(str(tmp_path), grid=8, terms=6, num_samples=60, num_test=10, num_calibration=5)
    )
    ticks = count()
    surrogates = {
        "fast": Surrogate(1 / 16, 100.0),
        "exact": Surrogate(1 / 16, 1e-9),
        "slow": Surrogate(1 / 4, 100.0),
    }
    found = price(data, 3.0, surrogates, lambda: float(next(ticks)))
    assert found["fields_solved"] == 55
    assert found["data_seconds"] == 55 / 8
    fast, exact, slow = found["surrogates"].values()
    assert fast["pays_after_fields"] == exact["pays_after_fields"] == 16 * (55 / 8 + 3) + 1
    assert slow["pays_after_fields"] is None
    assert fast["solver"] == "the solver on 4x4 cells"
    assert 0.1 < fast["solver_error_percent"] < 100
    assert (exact["solver"], exact["solver_error_percent"]) == ("the solver of the data", 0)
    rows = dict(price_rows(found))
    assert rows["cheaper than a solver, fast"] == "after 159 fields: 62.5 ms a field"
    assert rows["cheaper than a solver, slow"] == "never at this size: 250 ms a field"
    assert price_rows(None) == []


def test_sources_have_no_solver_but_the_sums_of_flows(tmp_path: Path) -> None:
    data = opened(PDESourceData(str(tmp_path), num_samples=20))
    found = price(data, 0.0, {"any": Surrogate(1.0, 50.0)}, iter(np.arange(99.0)).__next__)
    assert found["surrogates"]["any"]["solver"] == "the solver of the data"
    assert found["surrogates"]["any"]["solver_error_percent"] < 1e-9


SPECS: dict[str, pde.DataSpec] = {
    "flow": pde.PermeabilityDataSpec(24, 24, terms=12, num_samples=4),
    "fno": pde.FnoDataSpec(33, 33, num_samples=4),
    "pdebench": pde.PdebenchDataSpec(32, 32, num_samples=4, save_pressure=True),
}


@pytest.mark.parametrize("name", SPECS)
def test_solvers_become_exact(name: str) -> None:
    """Each is nearer to the solution than those before it, and the last one is its source."""
    spec = SPECS[name]
    family = spec.family({}, "scipy")
    drawn, made = family.draw(range(4)), family.compute(range(4))
    truth = made["velocity" if name == "flow" else "pressure"].reshape(4, -1)
    errors = [relative_errors(s.solve(drawn), truth).mean() for s in solvers_of(spec, family)]
    assert errors[-1] < 1e-12
    assert errors[0] > 0.01
    assert errors == sorted(errors, reverse=True)
    assert errors[-2] < errors[0] / 3


def test_coarse_pressures_lie_where_they_were_solved_for() -> None:
    """Of a uniform permeability the error is that of linear interpolation, of second order."""
    spec = pde.PdebenchDataSpec(32, 32, num_samples=1, save_pressure=True)
    family, drawn = spec.family({}, "scipy"), {"permeability": np.ones((1, 32, 32))}
    *coarse, exact = solvers_of(spec, family)
    truth = exact.solve(drawn)
    errors = {s.name: float(relative_errors(s.solve(drawn), truth)[0]) for s in coarse}
    eight, sixteen = (errors[f"the solver on {n}x{n} cells"] for n in (8, 16))
    assert sixteen < 0.01
    assert 3 < eight / sixteen < 6


def test_blocks_have_the_geometric_mean_of_their_cells() -> None:
    field = np.exp([[[1.0, 2.0, 0.0, 0.0], [3.0, 5.0, 0.0, 4.0]]])
    np.testing.assert_allclose(block_means(field, 2), np.exp([[[2.75, 1.0]]]))


def test_a_coarse_flow_balances_on_the_fine_grid() -> None:
    """Outflow of every fine cell is the source, and the flux through a coarse edge is kept."""
    fine, coarse = pde.Grid(12, 8, lx=2.0), pde.Grid(6, 4, lx=2.0)
    kappa = np.random.default_rng(0).lognormal(size=(3, 4, 6))
    flow = pde.DarcyFamily(coarse, {"left": 1.0, "right": 0.0}, 1.0).solve(kappa).velocity
    found = refined_flow(fine, flow, 2)
    np.testing.assert_allclose(fine.divergence(found), 1.0, rtol=1e-10)
    vertical = found[:, : fine.num_vertical].reshape(3, 8, 13)
    np.testing.assert_array_equal(vertical[:, ::2, ::2], flow[:, :28].reshape(3, 4, 7))
    np.testing.assert_array_equal(vertical[:, 1::2, ::2], flow[:, :28].reshape(3, 4, 7))


def test_iterations_end_at_the_tolerance() -> None:
    """Against the exact solution; the residual's norm bounds the error's to a factor of four."""
    a = np.where(np.random.default_rng(0).standard_normal((21, 21)) > 0, 12.0, 3.0)
    exact = FivePointSolver(21).solve(a)
    errors = [
        np.linalg.norm(FivePointSolver(21, tolerance=t).solve(a) - exact) / np.linalg.norm(exact)
        for t in (1e-2, 1e-4, 1e-6)
    ]
    assert all(error < 4 * t for error, t in zip(errors, (1e-2, 1e-4, 1e-6), strict=True))
    assert errors[1] > 1e-8
    with pytest.raises(pde.PdeError, match="tolerance=0, expected a positive finite number"):
        FivePointSolver(21, tolerance=0)
