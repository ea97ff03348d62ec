"""Data sets of sources: contents and specifications. The runner's own tests are in test_runner."""

import numpy as np
import pytest

from pde import (
    DarcySolver,
    FileContentError,
    PdeError,
    SourceDataSpec,
    load,
    random_source,
    three_spot_strengths,
)
from tests.pde.families import SPECS, make


@pytest.fixture(scope="module", params=["three spots", "random sources"])
def data(request, tmp_path_factory):
    path = make(SPECS[request.param], tmp_path_factory.mktemp("data") / "a")
    return load(path, SourceDataSpec)


def test_every_sample_solves_its_problem(data):
    spec = data.spec
    assert data.velocity.shape == (spec.num_samples, spec.grid.num_edges)
    np.testing.assert_array_equal(data.permeability, spec.permeability())
    solution = DarcySolver(spec.grid, data.permeability).solve(data.source())
    np.testing.assert_allclose(data.velocity, solution.velocity, atol=1e-12)
    scale = np.abs(solution.pressure).max()
    np.testing.assert_allclose(data.pressure, solution.pressure, atol=1e-11 * scale)
    np.testing.assert_allclose(spec.grid.divergence(data.velocity), data.source(), atol=1e-11)


def test_sets_carry_what_was_drawn(data):
    if data.spec.source == "random":
        np.testing.assert_array_equal(data.source(77), random_source(data.grid, 3, 77))
        assert data.source([1, 2]).shape == (2, 8, 9)
        assert data.strengths is None
        assert data.basis_velocity is None
        return
    np.testing.assert_array_equal(data.strengths, three_spot_strengths(3, 150))
    np.testing.assert_allclose(data.strengths @ data.basis_velocity, data.velocity, atol=1e-13)
    gram = data.basis_velocity @ data.basis_velocity.T
    form = np.einsum("ni,ij,nj->n", data.strengths, gram, data.strengths)
    np.testing.assert_allclose(form, (data.velocity**2).sum(axis=1), rtol=1e-12)


def test_spread_is_named_where_it_differs(tmp_path):
    spec = SourceDataSpec(nx=12, ny=10, num_samples=2)
    path = make(spec, tmp_path / "a")
    with pytest.raises(FileContentError, match="spread is 'variance' there, 'sd' here"):
        make(SourceDataSpec(nx=12, ny=10, num_samples=2, spread="sd"), path)


def test_spe10_sets_know_their_field(fake_spe10, tmp_path):
    spec = SourceDataSpec(nx=8, ny=9, field="spe10", spe10_file=str(fake_spe10), num_samples=2)
    data = load(make(spec, tmp_path / "data"))
    np.testing.assert_array_equal(data.permeability, spec.permeability())
    assert data.metadata["permeability"] == "SPE10 model 2"
    moved = tmp_path / "elsewhere.dat"
    moved.write_bytes(fake_spe10.read_bytes())
    same = SourceDataSpec(nx=8, ny=9, field="spe10", spe10_file=str(moved), num_samples=2)
    make(same, tmp_path / "data")
    (tmp_path / "data").rename(tmp_path / "begun.part")
    (tmp_path / "begun.journal").touch()
    make(same, tmp_path / "begun")
    moved.write_bytes(fake_spe10.read_bytes().replace(b"30001", b"30002").replace(b"5", b"7"))
    with pytest.raises(FileContentError, match="holds another permeability"):
        make(same, tmp_path / "begun")
    (tmp_path / "begun").rename(tmp_path / "data.part")
    (tmp_path / "data.journal").touch()
    with pytest.raises(FileContentError, match=r"begun with other .*another permeability"):
        make(same, tmp_path / "data")


def test_synthetic_sets_say_so(tmp_path):
    metadata = load(make(SPECS["three spots"], tmp_path / "a")).metadata
    assert "synthetic" in metadata["permeability"]
    assert metadata["parameters"]["field_seed"] == 0
    assert "layer" not in metadata["parameters"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"field": "kle"}, "field='kle', expected one of channelised, spe10"),
        ({"source": "two"}, "source='two', expected one of"),
        ({"spread": "std"}, "spread='std', expected one of"),
        ({"num_samples": 0}, "num_samples=0, expected an integer of at least 1"),
        ({"seed": -1}, "seed -1"),
        ({"nx": 0}, "nx=0"),
        ({"nx": 4, "ny": 4}, "at least 6 x 6"),
        ({"field": "spe10"}, "needs spe10_file"),
        (
            {"spe10_file": "f"},
            "f is of field='spe10', and field is 'channelised': give",
        ),
        ({"layer": 86}, "layer = 86 is of field='spe10'"),
        (
            {"source": "random", "field": "file", "permeability_file": "f", "active_file": "a"},
            "random sources are in all cells",
        ),
        ({"origin": (1, 2)}, "origin = \\(1, 2\\) is of field='spe10'"),
        (
            {"field": "spe10", "spe10_file": "f", "field_seed": 1},
            "field_seed = 1 is of field='channelised'",
        ),
        (
            {"source": "random", "spread": "sd"},
            "spread = sd is of source='three_spot'",
        ),
        ({"field": "spe10", "spe10_file": "f", "layer": 99}, "layer 99"),
    ],
)
def test_impossible_specifications_are_refused(values, message):
    with pytest.raises(PdeError, match=message):
        SourceDataSpec(**values)
