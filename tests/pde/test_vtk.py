"""VTK files, read back from the format's own description: XML, base64, a byte count, the bytes."""

import base64
import struct
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from pde import DarcyFamily, DarcySolver, Grid, PdeError, channelised_permeability, write_vtk
from pde.io.vtk_reader import read_vtk

GRID = Grid(5, 3, lx=2.0, ly=0.5)


@pytest.fixture(scope="module")
def flow():
    kappa = channelised_permeability(GRID, 0)
    source = np.arange(15.0).reshape(3, 5)
    return kappa, source, DarcySolver(GRID, kappa, {"left": 1.0}).solve(source)


def read(path):
    """The image element, and its cell data by name, `[cells, components]`."""
    root = ET.parse(path).getroot()
    assert root.attrib == {
        "type": "ImageData",
        "version": "1.0",
        "byte_order": "LittleEndian",
        "header_type": "UInt64",
    }
    (image,) = root
    (piece,) = image
    assert piece.get("Extent") == image.get("WholeExtent")
    fields = {}
    for array in piece.find("CellData"):
        assert array.get("type") == "Float64"
        assert array.get("format") == "binary"
        content = base64.b64decode(array.text, validate=True)
        (count,) = struct.unpack("<Q", content[:8])
        assert count == len(content) - 8
        values = np.array(struct.unpack(f"<{count // 8}d", content[8:]))
        fields[array.get("Name")] = values.reshape(-1, int(array.get("NumberOfComponents")))
    return image, fields


def test_every_field_is_in_the_file_to_the_bit_and_x_runs_fastest(flow, tmp_path):
    kappa, source, solution = flow
    path = write_vtk(tmp_path / "f.vti", GRID, kappa, solution, deviation=source)
    _, fields = read(path)
    assert list(fields) == ["kappa", "pressure", "velocity", "divergence", "deviation"]
    for row in range(3):
        for column in range(5):
            cell = column + 5 * row
            assert fields["kappa"][cell] == kappa[row, column]
            assert fields["pressure"][cell] == solution.pressure[row, column]
            assert fields["deviation"][cell] == source[row, column]
            velocity = [*solution.cell_velocity()[row, column], 0.0]
            assert fields["velocity"][cell].tolist() == velocity
    np.testing.assert_allclose(fields["divergence"].ravel(), source.ravel(), atol=1e-9)


def test_the_image_covers_the_domain(tmp_path):
    image, _ = read(write_vtk(tmp_path / "f.vti", GRID, depth=np.ones((3, 5))))
    assert image.get("WholeExtent") == "0 5 0 3 0 0"
    origin, spacing = (np.array(image.get(k).split(), float) for k in ("Origin", "Spacing"))
    np.testing.assert_array_equal(origin, 0)
    np.testing.assert_allclose(origin[:2] + spacing[:2] * [5, 3], [2.0, 0.5], rtol=1e-15)


def test_vectors_and_odd_names_are_kept(tmp_path):
    vectors = np.random.default_rng(0).standard_normal((3, 5, 2))
    _, fields = read(write_vtk(tmp_path / "f.vti", GRID, **{'<ü> & "u"': vectors}))
    np.testing.assert_array_equal(fields['<ü> & "u"'][:, :2], vectors.reshape(-1, 2))
    assert not fields['<ü> & "u"'][:, 2].any()


def test_a_file_is_replaced(tmp_path):
    path = write_vtk(tmp_path / "f.vti", GRID, a=np.zeros((3, 5)), b=np.zeros((3, 5)))
    write_vtk(path, GRID, c=np.ones((3, 5)))
    assert list(read(path)[1]) == ["c"]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "nothing to write"),
        ({"permeability": np.ones((5, 3))}, r"permeability of shape \(5, 3\)"),
        ({"permeability": np.full((3, 5), np.nan)}, r"permeability\[0, 0\] = nan"),
        ({"std": np.ones((5, 3))}, r"std of shape \(5, 3\), expected \(ny, nx\) = \(3, 5\)"),
        ({"std": np.ones((3, 5, 3))}, r"std of shape \(3, 5, 3\)"),
        ({"std": np.full((3, 5), np.inf)}, "std holds values that are not finite"),
        ({"permeability": np.ones((3, 5)), "kappa": np.ones((3, 5))}, "'kappa' is written already"),
    ],
)
def test_bad_fields_are_one_line_and_leave_no_file(given, message, tmp_path):
    path = tmp_path / "f.vti"
    with pytest.raises(PdeError, match=message) as raised:
        write_vtk(path, GRID, **given)
    assert "\n" not in str(raised.value)
    assert not path.exists()


def test_bad_solutions_and_suffixes_are_refused(flow, tmp_path):
    kappa, _, solution = flow
    with pytest.raises(PdeError, match=r"suffix '.vtk', expected '.vti' or '.vtr'"):
        write_vtk(tmp_path / "f.vtk", GRID, kappa)
    with pytest.raises(PdeError, match=r"solution on Grid\(nx=5.*expected one on Grid\(nx=3"):
        write_vtk(tmp_path / "f.vti", Grid(3, 5), None, solution)
    many = DarcyFamily(GRID, {"left": 1.0}, backend="scipy").solve(np.stack([kappa, kappa]))
    with pytest.raises(PdeError, match=r"\(2,\) samples, expected one"):
        write_vtk(tmp_path / "f.vti", GRID, None, many)


def test_cells_that_are_not_active_are_written(tmp_path):
    """Whatever the permeability holds there, which the solver took as well."""
    active = np.ones(GRID.shape, dtype=bool)
    active[0, 0] = False
    kappa = np.where(active, 2.0, np.nan)
    solution = DarcySolver(GRID, kappa, {"left": 1.0}, active=active).solve()
    _, written = read_vtk(write_vtk(tmp_path / "f.vti", GRID, kappa, solution))
    np.testing.assert_array_equal(written["kappa"], np.where(active, 2.0, 0.0))
