"""Own fields from files: every format gives the same field, and what is wrong is said."""

import base64
import re
import zlib

import numpy as np
import pytest

from pde import (
    DarcySolver,
    FileContentError,
    Grid,
    PdeError,
    SourceDataSpec,
    Well,
    generate,
    load,
    read_field,
    write_vtk,
)
from pde.darcy.wells import cells_of
from pde.datasets.command import main
from pde.datasets.own_fields import OwnFieldsSpec
from pde.datasets.own_problem import own_problem

FIELD = np.exp(np.random.default_rng(0).standard_normal((3, 5)))


def test_every_format_gives_the_same_field(tmp_path):
    h5py = pytest.importorskip("h5py", reason="h5py is in the extra hdf5")
    np.save(tmp_path / "a.npy", FIELD)
    np.save(tmp_path / "t.npy", FIELD.T)
    np.savez(tmp_path / "a.npz", permeability=FIELD, other=FIELD + 1)
    np.savetxt(tmp_path / "a.csv", FIELD, delimiter=",", fmt="%.17g", encoding="utf-8-sig")
    np.savetxt(tmp_path / "a.txt", FIELD, fmt="%.17g")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["rock/permeability"] = FIELD
    write_vtk(tmp_path / "a.vti", Grid(5, 3, lx=10.0, ly=3.0), FIELD)
    for name in ("a.npy", "a.npz", "a.csv", "a.txt", "a.h5", "a.vti"):
        np.testing.assert_array_equal(read_field(tmp_path / name).values, FIELD)
    np.testing.assert_array_equal(read_field(tmp_path / "t.npy", axes="xy").values, FIELD)
    np.testing.assert_array_equal(read_field(tmp_path / "a.npz", "other").values, FIELD + 1)
    assert read_field(tmp_path / "a.vti").grid == Grid(5, 3, lx=10.0, ly=3.0)


def test_unlike_cells_pass_through_vtk(tmp_path):
    grid = Grid.of_spacing([1.0, 2.0, 0.5, 0.5, 1.0], [0.25, 3.0, 1.0])
    solution = DarcySolver(grid, FIELD, {"left": 1.0}).solve(1.0)
    found = read_field(write_vtk(tmp_path / "a.vtr", grid, FIELD, solution), "pressure")
    assert found.grid == grid
    np.testing.assert_array_equal(found.values, solution.pressure)
    with pytest.raises(PdeError, match=r"write a '\.vtr'"):
        write_vtk(tmp_path / "a.vti", grid, FIELD)


@pytest.mark.parametrize("count", [7, 10, 50])
def test_equal_cells_pass_through_a_rectilinear_grid(count, tmp_path):
    """The differences of their lines, of which some round, are equal widths."""
    field = np.ones((count, count))
    found = read_field(write_vtk(tmp_path / "a.vtr", Grid(count, count, ly=0.7), field))
    assert found.grid.uniform
    assert found.grid.hy == pytest.approx(0.7 / count, rel=1e-14)


def block(data, compressed):
    """What VTK puts before and around the bytes of an array, with 32-bit headers."""
    if not compressed:
        return np.array([len(data)], "<u4").tobytes(), data
    parts = [data[:64], data[64:]]
    packed = [zlib.compress(part) for part in parts]
    sizes = [len(parts), 64, len(parts[1]), *(len(p) for p in packed)]
    return np.array(sizes, "<u4").tobytes(), b"".join(packed)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("encoding", ["raw", "base64", "inline", "ascii"])
def test_every_encoding_of_vtk_is_read(compressed, encoding, tmp_path):
    """As the VTK file formats' description has it, of which ParaView writes `raw` and `base64`."""
    head, body = block(FIELD.astype("<f8").tobytes(), compressed)
    # Without compression header and data are one base64 text, with it two.
    text = (
        base64.b64encode(head) + base64.b64encode(body)
        if compressed
        else base64.b64encode(head + body)
    )
    form = {"inline": "binary", "ascii": "ascii"}.get(encoding, "appended")
    content = {"inline": text, "ascii": " ".join(map(repr, FIELD.ravel().tolist())).encode()}.get(
        encoding, b""
    )
    appended = {"raw": head + body, "base64": text}.get(encoding)
    compressor = b' compressor="vtkZLibDataCompressor"' if compressed else b""
    document = (
        b'<VTKFile type="ImageData" version="1.0" byte_order="LittleEndian" header_type="UInt32"'
        + compressor
        + b'><ImageData WholeExtent="0 5 0 3 0 0" Origin="0 0 0" Spacing="2 1 1">'
        + b'<Piece Extent="0 5 0 3 0 0"><CellData><DataArray type="Float64" Name="k" format="'
        + form.encode()
        + b'" offset="0">'
        + content
        + b"</DataArray></CellData></Piece></ImageData>"
    )
    if appended is not None:
        document += (
            b'<AppendedData encoding="' + encoding.encode() + b'">_' + appended + b"</AppendedData>"
        )
    path = tmp_path / "a.vti"
    path.write_bytes(document + b"</VTKFile>")
    np.testing.assert_array_equal(read_field(path).values, FIELD)
    path.write_bytes(document[:-40])
    with pytest.raises(FileContentError, match="cut short"):
        read_field(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('Origin="0 0 0"', 'Origin="-5 0 0"', "begins at (-5, 0), expected (0, 0): move it there"),
        ('Piece Extent="0 5', 'Piece Extent="0 3', "is in pieces: merge them"),
    ],
)
def test_grids_elsewhere_and_in_pieces_are_refused(old, new, message, tmp_path):
    """Wells would lie in other cells, and cells of the other pieces would be missing."""
    path = write_vtk(tmp_path / "k.vti", Grid(5, 3, lx=10.0, ly=3.0), FIELD)
    text = path.read_bytes()
    assert text.count(old.encode()) == 1
    path.write_bytes(text.replace(old.encode(), new.encode()))
    with pytest.raises(FileContentError, match=re.escape(message)):
        read_field(path)


def test_the_end_of_a_domain_is_in_it_after_a_way_through_vtk(tmp_path):
    """49 widths of 1/49 sum to the number before 1."""
    wells = tmp_path / "w.csv"
    wells.write_text("x,y,rate,spread\n0,0,1,0.5\n1,1,,\n")
    write_vtk(tmp_path / "a.vti", Grid(49, 49), np.ones((49, 49)))
    assert read_field(tmp_path / "a.vti").grid.lx < 1
    spec = SourceDataSpec(**own_problem(permeability=str(tmp_path / "a.vti"), wells=str(wells)))
    assert cells_of(spec.grid, spec.wells) == [(0, 0), (48, 48)]


def test_a_set_of_own_fields_is_of_the_file_given_and_moves(tmp_path, capsys):
    path, out = tmp_path / "many.npy", tmp_path / "a.safetensors"
    np.save(path, np.stack([FIELD, 2 * FIELD]))
    options = ["fields", "--permeability", str(path), "--lx=1", "--ly=1", "--out", str(out)]
    for alike in ([], ["--side-pressure", "left=1"], ["--side-pressure", "left=1", "right=1"]):
        assert main([*options, *alike]) == 2
        assert "nothing drives a flow: give rates" in capsys.readouterr().err
    assert not out.exists()
    spec = OwnFieldsSpec.of_file(
        str(path), lx=1.0, ly=1.0, side_pressure={"left": 1.0, "right": 0.0}
    )
    np.save(path, np.stack([FIELD, 3 * FIELD]))
    with pytest.raises(FileContentError, match=r"many\.npy is another file than was given"):
        spec.family({}, "scipy")


def test_wells_and_another_source_are_refused(tmp_path, capsys):
    wells = tmp_path / "w.csv"
    wells.write_text("x,y,rate,spread\n0,0,1,0.5\n1,1,,\n")
    options = ["source", "--source=random", f"--wells={wells}", "--out", str(tmp_path / "a")]
    assert main(options) == 2
    assert "--source random and --wells: give one of them" in capsys.readouterr().err


def test_wrong_files_units_and_orders_are_one_line(tmp_path):
    path, bad = tmp_path / "k.npy", tmp_path / "bad.csv"
    np.save(path, FIELD)
    bad.write_text("1,2\n3,four\n")
    nan = FIELD.copy()
    nan[1, 2] = np.nan
    np.save(tmp_path / "nan.npy", nan)
    np.savez(tmp_path / "two.npz", a=FIELD, b=FIELD)
    write_vtk(tmp_path / "vector.vti", Grid(5, 3), np.stack([FIELD, FIELD], -1))
    cases = [
        (lambda: read_field(tmp_path / "no.npy"), "is not there"),
        (lambda: read_field(tmp_path / "k.dat"), "has the suffix '.dat', expected"),
        (lambda: read_field(bad), "is not an array of numbers"),
        (lambda: read_field(tmp_path / "nan.npy"), r"nan at \(1, 2\)"),
        (lambda: read_field(tmp_path / "two.npz"), "it has a, b: name one of them"),
        (
            lambda: read_field(tmp_path / "vector.vti"),
            "has vectors only .kappa., expected",
        ),
        (lambda: own_problem(permeability=str(path)), "5 x 3 cells and no lengths: give lx and ly"),
        (
            lambda: own_problem(permeability=str(path), lx=1.0, ly=1.0, nx=3, ny=5),
            "axes='xy' turns it",
        ),
        (
            lambda: own_problem(permeability=str(path), field="spe10"),
            "field 'spe10' and permeability .*: give one of them",
        ),
    ]
    for action, message in cases:
        with pytest.raises(PdeError, match=message) as raised:
            action()
        assert "\n" not in str(raised.value)
    (tmp_path / "cut.npy").write_bytes(path.read_bytes().replace(b"), }", b"    ", 1))
    with pytest.raises(FileContentError, match="not an array of numbers"):
        read_field(tmp_path / "cut.npy")
    write_vtk(tmp_path / "e.vtr", Grid(5, 3), FIELD)
    text = (tmp_path / "e.vtr").read_bytes()
    (tmp_path / "e.vtr").write_bytes(re.sub(rb"(?s)<Coordinates>.*</Coordinates>", b"", text))
    with pytest.raises(FileContentError, match="cut short or no VTK"):
        read_field(tmp_path / "e.vtr")
    np.save(path, np.log(FIELD))
    spec = SourceDataSpec(**own_problem(permeability=str(path), lx=5.0, ly=3.0), source="random")
    with pytest.raises(FileContentError, match="not its logarithm"):
        spec.permeability()


def test_a_set_of_own_wells_is_what_the_solver_says(tmp_path, capsys):
    """Rates that vary, a well's pressure, an open part of a side, a wall: each sample is solved."""
    rng = np.random.default_rng(1)
    kappa = np.exp(rng.standard_normal((9, 12)))
    active = np.ones((9, 12))
    active[4, :9] = 0
    kappa[active == 0] = 1.0
    np.save(tmp_path / "k.npy", kappa)
    np.save(tmp_path / "a.npy", active)
    table = tmp_path / "wells.csv"
    table.write_text(
        "x,y,rate,spread,pressure,radius\n15,15,2,.5,,\n105,75,-1,.2,,\n65,75,,,3,.1\n"
    )
    out = tmp_path / "set.safetensors"
    command = [
        "source",
        f"--out={out}",
        f"--permeability={tmp_path / 'k.npy'}",
        "--lx=120",
        "--ly=90",
    ]
    command += [f"--wells={table}", f"--active={tmp_path / 'a.npy'}", "--samples=7", "--pressure"]
    command += ["--side-pressure", "left:0:40=1", "--side-flux", "top=0.01"]
    for wrong, message in (
        (["--grid=7"], "holds 12 x 9 cells (x, y), given are nx = 7, ny = 7"),
        (["--field=channelised"], "field 'channelised' and permeability "),
    ):
        assert main([*command, *wrong], "generate") == 2
        assert message in capsys.readouterr().err
    assert main(command, "generate") == 0
    data = load(out)
    spec = data.spec
    assert main(command, "generate") == 0  # the same parameters again
    for i in (0, 6):
        rates = [
            type(well)(well.x, well.y, rate=rate) if well.rate is not None else well
            for well, rate in zip(spec.wells, [*data.strengths[i][:2], None], strict=True)
        ]
        solution = DarcySolver(
            spec.grid, kappa, {"left:0:40": 1.0}, flux={"top": 0.01}, wells=rates, active=active
        ).solve()
        np.testing.assert_allclose(data.velocity[i], solution.velocity, atol=1e-11)
        np.testing.assert_allclose(data.pressure[i], solution.pressure, atol=1e-9)
        total = data.source(i) * spec.grid.cell_areas
        np.testing.assert_allclose(total[[1, 7], [1, 10]], data.strengths[i][:2])
    assert np.std(data.strengths[:, 0]) > 0
    np.testing.assert_array_equal(data.strengths[:, 2], 1)
    capsys.readouterr()
    active[4, :8], active[4, 8] = 1, 0  # where the permeability is 1 as well
    np.save(tmp_path / "a.npy", active)
    assert main(command, "generate") == 2
    assert "other cells are active there" in capsys.readouterr().err
    table.write_text("x,y,rate\n15,15,2\n")
    assert main(command, "generate") == 2
    assert "no well has a spread" in capsys.readouterr().err


def test_two_fields_are_those_along_x_and_y(tmp_path):
    path = tmp_path / "k.npy"
    np.save(path, np.stack([FIELD, 3 * FIELD]))
    spec = SourceDataSpec(
        **own_problem(permeability=str(path), lx=5.0, ly=3.0), source="random", num_samples=3
    )
    shared = spec.shared()
    family = spec.family(shared, "scipy")
    drawn = family.draw(range(3))
    solver = DarcySolver(spec.grid, np.stack([FIELD, 3 * FIELD], axis=-1))
    np.testing.assert_allclose(
        family.solve(drawn).velocity, solver.solve(drawn["source"]).velocity, rtol=1e-12
    )
    np.save(path, np.stack([FIELD] * 3))
    with pytest.raises(FileContentError, match="holds 3 fields, expected one, or two: along x"):
        spec.permeability()


def test_cells_that_are_not_active_may_hold_anything(tmp_path):
    """As simulators write them; and a mask may be true or false."""
    active = np.ones(FIELD.shape, dtype=bool)
    active[0, :2] = False
    np.save(tmp_path / "a.npy", active)
    np.save(tmp_path / "k.npy", np.where(active, FIELD, np.nan))
    given = {"permeability": str(tmp_path / "k.npy"), "lx": 5.0, "ly": 3.0}
    wells = {"source": "wells", "wells": [{"x": 4.5, "y": 0.5, "rate": 1.0, "spread": 0.1}]}
    spec = SourceDataSpec(**own_problem(**given, active=str(tmp_path / "a.npy")) | wells)
    np.testing.assert_array_equal(spec.permeability(), np.where(active, FIELD, 1.0))
    with pytest.raises(FileContentError, match=r"permeability nan at \(0, 0\) .* and finite"):
        SourceDataSpec(**own_problem(**given) | wells).permeability()


def test_a_file_of_a_single_field_in_three_dimensions_is_that_field(tmp_path):
    np.save(tmp_path / "k.npy", FIELD[None])
    problem = own_problem(permeability=str(tmp_path / "k.npy"), lx=5.0, ly=3.0)
    np.testing.assert_array_equal(SourceDataSpec(**problem, source="random").permeability(), FIELD)


def test_sides_are_named_once_with_a_number(tmp_path, capsys):
    options = ["fields", "--permeability=k.npy", f"--out={tmp_path / 'a'}", "--side-pressure"]
    assert main([*options, "left=1", "left=2"]) == 2
    assert "--side-pressure names a side twice" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*options, "left"])
    assert "'left', expected SIDE=VALUE" in capsys.readouterr().err


def test_a_finished_set_of_own_fields_is_solved_again_without_the_file(tmp_path):
    """As a run does at its end, which may be hours after."""
    path = tmp_path / "many.npy"
    np.save(path, np.stack([FIELD, 2 * FIELD]))
    sides = {"left": 1.0, "right": 0.0}
    spec = OwnFieldsSpec.of_file(str(path), lx=1.0, ly=1.0, side_pressure=sides)
    data = load(generate(spec, tmp_path / "a", workers=1, progress=False))
    path.unlink()
    rows = data.spec.family(dict(data.arrays), "scipy").compute(range(2))
    for name in ("permeability", "velocity"):
        np.testing.assert_array_equal(rows[name], data.arrays[name])


def test_fields_that_are_not_asked_for_may_be_damaged(tmp_path):
    path = tmp_path / "many.npy"
    np.save(path, np.stack([FIELD, 2 * FIELD, -FIELD, np.nan * FIELD]))
    given = {"lx": 1.0, "ly": 1.0, "source": 1.0, "side_pressure": {"left": 1.0}}
    two, three = (OwnFieldsSpec.of_file(str(path), num_samples=n, **given) for n in (2, 3))
    np.testing.assert_array_equal(
        two.family({}, "scipy").draw(range(2))["permeability"], np.stack([FIELD, 2 * FIELD])
    )
    with pytest.raises(FileContentError, match=r"permeability -.* at \(2, 0, 0\)"):
        three.family({}, "scipy")


def test_a_set_on_unlike_cells_says_what_it_was_made_from(tmp_path):
    """Also where numbers are NumPy's."""
    grid = Grid.of_spacing([1.0, 2.0, 1.0, 3.0, 1.0], [1.0, 2.0, 4.0])
    write_vtk(tmp_path / "k.vtr", grid, FIELD)
    wells = [Well(0.5, 0.5, rate=1.0, spread=0.1)]
    given = own_problem(permeability=str(tmp_path / "k.vtr"))
    spec = SourceDataSpec(
        **given, num_samples=2, source="wells", wells=wells, side_pressure={"left": np.float32(1)}
    )
    assert load(generate(spec, tmp_path / "a", progress=False)).spec == spec
