"""Data sets of random permeabilities: contents and specifications; see test_runner too."""

import numpy as np
import pytest

from pde import (
    DarcyFamily,
    Grid,
    KarhunenLoeve,
    PdeError,
    PermeabilityDataSpec,
    RandomPermeability,
    ReactionDataSpec,
    ReactionSolver,
    load,
)
from tests.pde.families import SPECS, make


@pytest.mark.parametrize("name", ["permeability", "reaction"])
def test_samples_are_flows_through_their_fields(tmp_path, name):
    data = load(make(SPECS[name], tmp_path / "a"))
    grid, pressure = Grid(12, 10), {"left": 1.0, "right": 0.0}
    expansion = KarhunenLoeve(grid, 2.0, (0.2, 0.3), terms=8)
    fields = RandomPermeability(expansion, "additive", 6.0, seed=3)
    solver = (
        DarcyFamily(grid, pressure, 1.0)
        if name == "permeability"
        else ReactionSolver(grid, 10.0, pressure, 1.0)
    )
    for i in (0, 63, 64, 149):
        xi, kappa = fields.draw(i)
        solution = solver.solve(kappa)
        np.testing.assert_array_equal(data.coefficients[i], xi)
        np.testing.assert_array_equal(data.permeability[i], kappa)
        np.testing.assert_array_equal(data.velocity[i], solution.velocity)
        np.testing.assert_array_equal(data.pressure[i], solution.pressure)


@pytest.mark.parametrize("kind", [PermeabilityDataSpec, ReactionDataSpec])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nx": 1}, "a grid of 1 x 12 cells, expected at least 2 x 2"),
        ({"terms": 1000}, "1000 terms, expected 1 to 144"),
        ({"kernel": "matern"}, "kernel='matern'"),
        ({"lengths": (0.2, 0.0)}, "ly=0.0"),
        ({"variance": -2.0}, "variance=-2.0"),
        ({"kind": "log"}, "kind='log'"),
        ({"source": np.nan}, "source=nan, expected a finite number"),
        ({"num_samples": 0}, "num_samples=0"),
        ({"seed": -1}, "seed -1"),
    ],
)
def test_bad_values_are_one_clear_error(kind, change, message):
    with pytest.raises(PdeError, match=message):
        kind(**({"nx": 12, "ny": 12} | change))
