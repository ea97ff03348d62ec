import numpy as np
import pytest

from pde import Grid, PdeError, channelised_permeability


def test_contrast_and_channels_are_like_spe10s():
    grid = Grid(60, 60)
    fields = np.stack([channelised_permeability(grid, seed) for seed in range(20)])
    decades = np.log10(fields.max(axis=(1, 2)) / fields.min(axis=(1, 2)))
    assert ((decades > 6) & (decades < 8)).all()
    assert 0.25 < (fields > 30).mean() < 0.45
    log = np.log10(fields)
    step_x = (np.diff(log, axis=2) ** 2).mean()
    step_y = (np.diff(log, axis=1) ** 2).mean()
    assert step_x > 2 * step_y, "channels run in y"


def test_field_is_a_function_of_position_and_seed():
    field = channelised_permeability(Grid(20, 30), 5)
    assert field.shape == (30, 20)
    # Cell centres of a grid three times finer contain those of the coarse one.
    finer = channelised_permeability(Grid(60, 90), 5)[1::3, 1::3]
    np.testing.assert_allclose(finer, field, rtol=1e-9)
    assert (channelised_permeability(Grid(20, 30), 6) != field).any()
    stretched = channelised_permeability(Grid(20, 30, lx=4.0), 5)
    np.testing.assert_array_equal(stretched, field)


def test_channels_are_sums_of_waves_of_their_lengths():
    """The documented formula, wave by wave."""
    grid, seed, fields = Grid(7, 5), 3, []
    lengths = ((0.10, 0.35), (0.03, 0.08), (0.03, 0.08))
    for stream, (lx, ly) in zip(np.random.SeedSequence(seed).spawn(3), lengths, strict=True):
        rng = np.random.default_rng(stream)
        kx, ky = rng.standard_normal((2, 1500))
        phase = rng.uniform(0.0, 2 * np.pi, 1500)
        x, y = np.moveaxis(grid.cell_centres(), -1, 0)
        waves = np.cos(x[..., None] * kx / lx + y[..., None] * ky / ly + phase)
        fields.append(np.sqrt(2 / 1500) * waves.sum(-1))
    g1, g2, g3 = fields
    expected = np.where(np.abs(g1 + 0.25 * g2) < 0.45, 2.9 + 0.6 * g3, -1 + g3).clip(-3, 4.3)
    found = np.log10(channelised_permeability(grid, seed))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


def test_negative_seed_is_refused():
    with pytest.raises(PdeError, match="seed -2"):
        channelised_permeability(Grid(3, 3), -2)
