import numpy as np
import pytest

from pde import DarcySolver, Grid, PdeError, channelised_permeability

matplotlib = pytest.importorskip("matplotlib", reason="matplotlib draws the figures")
matplotlib.use("Agg")
plt = pytest.importorskip("matplotlib.pyplot")


def test_permeability_is_drawn_in_logarithm_with_row_zero_below():
    from pde.plot import plot_permeability

    grid = Grid(4, 3, lx=2.0)
    permeability = channelised_permeability(grid, 0)
    axes = plot_permeability(grid, permeability)
    (image,) = axes.images
    np.testing.assert_allclose(image.get_array(), np.log10(permeability))
    assert image.origin == "lower"
    assert tuple(image.get_extent()) == (0, 2, 0, 1)
    plt.close(axes.figure)


def test_speeds_share_one_colour_scale():
    from pde.plot import plot_speeds

    grid = Grid(4, 3)
    velocity = DarcySolver(grid, np.ones(grid.shape), {"left": 2.0, "right": 0.0}).solve(0).velocity
    figure = plot_speeds(grid, np.stack([velocity, velocity / 2]), ["one", "half"])
    images = [image for axes in figure.axes for image in axes.images]
    np.testing.assert_allclose(images[1].get_array(), 1.0)
    assert images[0].get_clim() == images[1].get_clim() == (0.0, pytest.approx(2.0))
    plt.close(figure)
    with pytest.raises(PdeError, match="1 titles for 2 flows"):
        plot_speeds(grid, np.stack([velocity, velocity]), ["one"])
