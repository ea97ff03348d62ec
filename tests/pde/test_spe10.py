import lzma
import zipfile

import numpy as np
import pytest

from pde import FileContentError, Grid, PdeError, read_spe10, spe10_layer


def test_plain_compressed_and_zipped_files_are_read(fake_spe10, fake_spe10_values, tmp_path):
    np.testing.assert_array_equal(read_spe10(fake_spe10), fake_spe10_values)
    text = fake_spe10.read_bytes()
    compressed = tmp_path / "no_suffix"
    compressed.write_bytes(lzma.compress(text, preset=0))
    np.testing.assert_array_equal(read_spe10(compressed), fake_spe10_values)
    archive = tmp_path / "por_perm_case2a.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        file.writestr("spe_phi.dat", "0.2 0.2")
        file.writestr("por_perm_case2a/spe_perm.dat", text)
    np.testing.assert_array_equal(read_spe10(archive), fake_spe10_values)


def test_crop_takes_layer_component_and_origin(fake_spe10, fake_spe10_values):
    crop = spe10_layer(fake_spe10, 38, Grid(20, 30), component="ky", origin=(7, 100))
    np.testing.assert_array_equal(crop, fake_spe10_values[1, 37, 100:130, 7:27])


def test_finer_grids_replicate_cells_and_coarser_ones_pick(fake_spe10, fake_spe10_values):
    layer = fake_spe10_values[0, 0]
    finer = spe10_layer(fake_spe10, 1, Grid(60, 40), window=(20, 20))
    np.testing.assert_array_equal(finer, layer[:20, :20].repeat(2, axis=0).repeat(3, axis=1))
    whole = spe10_layer(fake_spe10, 1, Grid(20, 44), window=(60, 220))
    np.testing.assert_array_equal(whole, layer[2::5, 1::3])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layer": 0}, "layer 0, expected 1"),
        ({"layer": 86}, "layer 86, expected 1"),
        ({"component": "x"}, "component='x', expected one of kx, ky, kz"),
        ({"grid": Grid(61, 10)}, "window of 61 x 10 SPE10 cells"),
        ({"origin": (55, 0)}, "leaves the layer of 60 x 220"),
        ({"origin": (0, -1)}, "leaves the layer"),
        ({"window": (0, 3)}, "leaves the layer"),
    ],
)
def test_impossible_crops_are_refused_before_reading(arguments, message, tmp_path):
    defaults = {"layer": 36, "grid": Grid(10, 10)}
    with pytest.raises(PdeError, match=message):
        spe10_layer(tmp_path / "not read", **{**defaults, **arguments})


def test_files_that_are_not_spe10_are_refused(fake_spe10, tmp_path):
    path = tmp_path / "spe_perm.dat"
    with pytest.raises(FileContentError, match="no SPE10 file at"):
        read_spe10(path)
    text = fake_spe10.read_bytes()
    path.write_bytes(text[: len(text) // 2])
    with pytest.raises(
        FileContentError, match=r"expected 3 x 85 x 220 x 60 = 3,366,000.*cut short"
    ):
        read_spe10(path)
    path.write_text("1.0 2.0 permeability")
    with pytest.raises(FileContentError, match="not a table of numbers"):
        read_spe10(path)
    path.write_bytes(b"-" + text)
    with pytest.raises(FileContentError, match="not positive"):
        read_spe10(path)
    compressed = lzma.compress(text[:100_000])
    path.write_bytes(compressed[: len(compressed) // 2])
    with pytest.raises(FileContentError, match="cannot read"):
        read_spe10(path)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("spe_phi.dat", "0.2")
    with pytest.raises(FileContentError, match=r"holds no spe_perm\.dat"):
        read_spe10(path)
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(FileContentError, match="cannot read"):
        read_spe10(path)


def test_real_file_has_the_published_values(real_spe10):
    values = read_spe10(real_spe10)
    np.testing.assert_allclose(values[0, 0, 0, :3], [18.2808, 28.5927, 23.8922])
    assert (values[0].min(), values[0].max()) == (6.65e-4, 20000.0)
    np.testing.assert_array_equal(values[0], values[1])
    smooth, channelised = np.log10(values[0, :35]).std(), np.log10(values[0, 35:]).std()
    assert channelised > smooth
