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


def test_negative_seed_is_refused():
    with pytest.raises(PdeError, match="seed -2"):
        channelised_permeability(Grid(3, 3), -2)
