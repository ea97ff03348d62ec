"""PDEBench's Darcy files: made here by finite differences, and solved again by mixed elements."""

import builtins

import numpy as np
import pytest
from scipy import sparse
from scipy.sparse.linalg import spsolve

from pde import FileContentError, PdeError, read_pdebench

h5py = pytest.importorskip("h5py", reason="h5py is in the extra hdf5")

BETA = 2.5


def coefficient(x, y):
    """Smooth, and neither symmetric nor unchanged when an axis is turned round or both swapped."""
    return np.exp(1.5 * np.sin(5 * x) * y + x - 0.7 * np.cos(3 * y))


def five_point(kappa, hx, hy):
    """The solution of `-div(kappa grad p) = BETA`, zero on the boundary, `[x, y]` as kappa.

    Two-point fluxes between cell centres, with harmonic means; half a cell away from the boundary.
    """
    nx, ny = kappa.shape
    x = np.pad(2 / (1 / kappa[1:] + 1 / kappa[:-1]), ((1, 1), (0, 0))) / hx**2
    y = np.pad(2 / (1 / kappa[:, 1:] + 1 / kappa[:, :-1]), ((0, 0), (1, 1))) / hy**2
    x[0], x[-1] = 2 * kappa[0] / hx**2, 2 * kappa[-1] / hx**2
    y[:, 0], y[:, -1] = 2 * kappa[:, 0] / hy**2, 2 * kappa[:, -1] / hy**2
    number = np.arange(nx * ny).reshape(nx, ny)
    diagonal = (x[1:] + x[:-1] + y[:, 1:] + y[:, :-1]).ravel()
    pairs = [(number[1:], number[:-1], x[1:-1]), (number[:, 1:], number[:, :-1], y[:, 1:-1])]
    rows = np.concatenate([a.ravel() for a, _, _ in pairs])
    columns = np.concatenate([b.ravel() for _, b, _ in pairs])
    values = -np.concatenate([c.ravel() for _, _, c in pairs])
    lower = sparse.coo_array((values, (rows, columns)), shape=(nx * ny, nx * ny))
    matrix = sparse.csc_array(lower + lower.T + sparse.diags_array(diagonal))
    return spsolve(matrix, np.full(nx * ny, BETA)).reshape(nx, ny)


def contents(nx, ny, count=3, lx=1.0, ly=1.0):
    """What PDEBench's generator saves: single precision, x before y."""
    x, y = (np.arange(nx) + 0.5) * lx / nx, (np.arange(ny) + 0.5) * ly / ny
    shifts = np.linspace(0, 0.6, count)
    nu = np.stack([coefficient(x[:, None] + s, y[None, :]) for s in shifts])
    tensor = np.stack([five_point(one, lx / nx, ly / ny) for one in nu])[:, None]
    arrays = {"nu": nu, "tensor": tensor, "x-coordinate": x, "y-coordinate": y}
    return {name: values.astype(np.float32) for name, values in arrays.items()}


def write(path, arrays, **attributes):
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file[name] = values
        file.attrs.update(attributes)
    return path


@pytest.fixture(scope="module")
def square():
    return contents(12, 12)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "darcy.hdf5"


def test_fields_come_out_with_y_in_rows(path):
    arrays = contents(6, 4, lx=2.0, ly=0.5)
    data = read_pdebench(write(path, arrays, beta=BETA))
    assert (data.grid.nx, data.grid.ny, data.grid.lx, data.grid.ly) == (6, 4, 2.0, 0.5)
    assert (data.beta, data.total, len(data)) == (BETA, 3, 3)
    for sample, i, j in [(0, 0, 0), (1, 5, 0), (2, 0, 3), (2, 4, 1)]:
        assert data.permeability[sample, j, i] == arrays["nu"][sample, i, j]
        assert data.pressure[sample, j, i] == arrays["tensor"][sample, 0, i, j]
        x, y = data.grid.cell_centres()[j, i]
        shift = 0.3 * sample
        np.testing.assert_allclose(
            data.permeability[sample, j, i], coefficient(x + shift, y), rtol=1e-6
        )


def test_our_pressures_agree_with_finite_differences_to_second_order(path):
    """The two schemes differ by O(h^2); with any axis swapped or turned round, by tens of per cent.

    In this problem a pressure cannot be told from one turned round together with its permeability;
    the permeability alone can, so it is turned on purpose.
    """
    differences = {}
    for n in (16, 32, 64):
        data = read_pdebench(write(path, contents(n, n, count=2), beta=BETA))
        ours = data.family("scipy").solve(data.permeability).pressure
        differences[n] = np.linalg.norm(ours - data.pressure) / np.linalg.norm(data.pressure)
    assert differences[64] < 2e-3
    rate = np.log2(differences[16] / differences[64]) / 2
    assert 1.8 < rate < 2.2
    for turned in (np.swapaxes(data.permeability, 1, 2), data.permeability[:, ::-1]):
        wrong = data.family("scipy").solve(turned).pressure
        assert np.linalg.norm(wrong - data.pressure) > 0.1 * np.linalg.norm(data.pressure)


def test_an_oblong_file_is_solved_on_its_own_lengths(path):
    """Swapped lengths or counts of cells would be seen here."""
    data = read_pdebench(write(path, contents(48, 20, count=1, lx=2.0, ly=0.5), beta=BETA))
    ours = data.family("scipy").solve(data.permeability).pressure
    assert np.linalg.norm(ours - data.pressure) < 0.01 * np.linalg.norm(data.pressure)


def test_rows_of_constant_y_are_read_on_request(path):
    arrays = contents(6, 4)
    rows = arrays | {"nu": arrays["nu"].swapaxes(1, 2), "tensor": arrays["tensor"].swapaxes(2, 3)}
    with pytest.raises(FileContentError, match="6 values in x-coordinate for 4 cells along x"):
        read_pdebench(write(path, rows, beta=BETA))
    data = read_pdebench(path, axes="yx")
    np.testing.assert_array_equal(data.permeability, rows["nu"])
    np.testing.assert_array_equal(data.pressure, rows["tensor"][:, 0])


@pytest.mark.parametrize("samples", [slice(1, 3), slice(None, None, 2), slice(-1, None, -1)])
def test_slices_read_what_they_name_and_nothing_else(path, square, samples, monkeypatch):
    write(path, square, beta=BETA)
    read = []
    get = h5py.Dataset.__getitem__

    def spy(self, key, **options):
        values = get(self, key, **options)
        read.append((self.name, len(values)))
        return values

    monkeypatch.setattr(h5py.Dataset, "__getitem__", spy)
    data = read_pdebench(path, samples)
    np.testing.assert_array_equal(data.permeability, square["nu"][samples].swapaxes(1, 2))
    np.testing.assert_array_equal(data.pressure, square["tensor"][samples, 0].swapaxes(1, 2))
    assert data.total == 3
    assert dict(read)["/nu"] == dict(read)["/tensor"] == len(data) < 4


def test_a_bad_sample_is_named_by_its_place_in_the_file(path, square):
    nu, tensor = square["nu"].copy(), square["tensor"].copy()
    nu[2, 3, 4] = 0.0
    tensor[1, 0, 5, 6] = np.nan
    write(path, square | {"nu": nu, "tensor": tensor}, beta=BETA)
    assert len(read_pdebench(path, slice(0, 1))) == 1
    with pytest.raises(FileContentError, match=r"nu of sample 2 is 0.0 at \(3, 4\), expected posi"):
        read_pdebench(path, slice(2, 3))
    with pytest.raises(FileContentError, match=r"tensor of sample 1 is nan at \(5, 6\)"):
        read_pdebench(path, slice(1, 2))


def shifted(values):
    return values + 0.3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nu": None}, "has no array 'nu' .it has tensor, x-coordinate, y-coordinate."),
        ({"tensor": None}, "has no array 'tensor'"),
        ({"y-coordinate": None}, "has no array 'y-coordinate'"),
        ({"nu": lambda v: v[0]}, r"nu of type float32 and shape \(12, 12\), expected numbers in 3"),
        ({"nu": lambda v: v[:, :5]}, r"tensor of shape .* expected \(3, 1, 5, 12\)"),
        ({"tensor": lambda v: v[:, 0]}, "tensor of type float32 .* numbers in 4 dimensions"),
        ({"tensor": lambda v: v.repeat(2, axis=1)}, r"tensor of shape \(3, 2, 12, 12\)"),
        ({"tensor": lambda v: v.astype("S3")}, "tensor of type .S3"),
        ({"x-coordinate": shifted}, "x-coordinate runs from .* centres of equal cells"),
        ({"y-coordinate": np.square}, "y-coordinate runs from .* centres of equal cells"),
        ({"x-coordinate": lambda v: v - 0.5}, "centres of equal cells"),
        ({"x-coordinate": lambda v: np.linspace(0, 1, 12)}, "centres of equal cells"),
        ({"x-coordinate": lambda v: v * np.nan}, "centres of equal cells"),
    ],
)
def test_files_of_another_form_are_refused(path, square, changes, message):
    arrays = dict(square)
    for name, change in changes.items():
        values = arrays.pop(name)
        if change is not None:
            arrays[name] = change(values)
    with pytest.raises(FileContentError, match=message) as raised:
        read_pdebench(write(path, arrays, beta=BETA))
    assert str(raised.value).startswith(str(path))
    assert "\n" not in str(raised.value)


def test_the_source_is_the_file_s_or_given(path, square):
    write(path, square)
    with pytest.raises(FileContentError, match="no attribute 'beta'"):
        read_pdebench(path)
    assert read_pdebench(path, beta=BETA).beta == BETA
    write(path, square, beta=np.float32(0.1))
    assert read_pdebench(path, beta=0.1).beta == pytest.approx(0.1)
    with pytest.raises(PdeError, match=r"is for beta = 0.1, given beta = 1.0"):
        read_pdebench(path, beta=1.0)


def test_other_files_and_arguments_are_refused(path, square, monkeypatch):
    with pytest.raises(FileContentError, match="is not there"):
        read_pdebench(path)
    path.write_text("nu, tensor")
    with pytest.raises(FileContentError, match="cut short or not HDF5"):
        read_pdebench(path)
    write(path, square, beta=BETA)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(FileContentError, match="cut short or not HDF5"):
        read_pdebench(path)
    write(path, square, beta=BETA)
    with pytest.raises(PdeError, match="axes='x', expected one of xy, yx"):
        read_pdebench(path, axes="x")
    with pytest.raises(PdeError, match="leaves none of the 3 samples"):
        read_pdebench(path, slice(3, None))
    plain = builtins.__import__

    def without_h5py(name, *rest):
        if name == "h5py":
            raise ImportError
        return plain(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_h5py)
    with pytest.raises(PdeError, match="install the extra `hdf5`"):
        read_pdebench(path)
