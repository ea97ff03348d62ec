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


def test_permeabilities_share_one_colour_scale():
    from pde.plot import plot_permeabilities

    grid = Grid(4, 3)
    fields = np.stack([channelised_permeability(grid, seed) for seed in range(2)])
    figure = plot_permeabilities(grid, fields, ["one", "two"])
    images = [image for axes in figure.axes for image in axes.images]
    for image, field in zip(images, fields, strict=True):
        np.testing.assert_allclose(image.get_array(), np.log10(field))
        assert image.get_clim() == tuple(np.log10([fields.min(), fields.max()]))
    plt.close(figure)
    with pytest.raises(PdeError, match="1 titles for 2 fields"):
        plot_permeabilities(grid, fields, ["one"])
    with pytest.raises(PdeError, match=r"permeability\[1, 0, 0\] = 0.0"):
        plot_permeabilities(grid, fields * [[[1.0]], [[0.0]]], ["one", "two"])


GRID = Grid(12, 8, lx=1.5)


@pytest.fixture(scope="module")
def flow():
    """A flow through random cells, and its pressure."""
    kappa = np.exp(np.random.default_rng(0).standard_normal(GRID.shape))
    return DarcySolver(GRID, kappa, {"left": 2.0, "right": 1.0}).solve(0.0)


def image_of(axes):
    (image,) = axes.images
    assert image.origin == "lower"
    assert tuple(image.get_extent()) == (0, GRID.lx, 0, GRID.ly)
    return image


def test_isobars_run_where_the_pressure_has_their_value(flow):
    from pde.plot import plot_pressure

    exact = 2 - GRID.cell_centres()[..., 0] / GRID.lx  # of a uniform permeability
    axes = plot_pressure(GRID, exact)
    np.testing.assert_array_equal(image_of(axes).get_array(), exact)
    (lines,) = axes.collections
    assert len(lines.levels) == 10
    for level, path in zip(lines.levels, lines.get_paths(), strict=True):
        np.testing.assert_allclose(path.vertices[:, 0], (2 - level) * GRID.lx)
        assert np.ptp(path.vertices[:, 1]) > 0.8 * GRID.ly
    plt.close(axes.figure)
    axes = plot_pressure(GRID, np.ones(GRID.shape))  # at rest: no isobars, and no warning
    assert not axes.collections
    plt.close(axes.figure)


def test_streamlines_follow_the_flow(flow):
    from pde.plot import plot_flow

    # A rotation about the middle: streamlines are circles, and the speed is the radius.
    x, y = GRID.edge_midpoints().T - np.array([[GRID.lx / 2], [GRID.ly / 2]])
    cut = GRID.num_vertical
    axes = plot_flow(GRID, np.concatenate([-y[:cut], x[cut:]]))
    centre = np.array([GRID.lx / 2, GRID.ly / 2])
    radius = np.linalg.norm(GRID.cell_centres() - centre, axis=-1)
    np.testing.assert_allclose(image_of(axes).get_array(), radius, rtol=1e-12)
    (lines,) = axes.collections
    points = [np.asarray(one) - centre for one in lines.get_segments()]
    steps = np.concatenate([np.diff(one, axis=0) for one in points])
    middles = np.concatenate([(one[1:] + one[:-1]) / 2 for one in points])
    outward = (steps * middles).sum(axis=1) / np.linalg.norm(middles, axis=1)
    sideways = middles[:, 0] * steps[:, 1] - middles[:, 1] * steps[:, 0]
    assert len(steps) > 100
    assert np.abs(outward).max() < 0.1 * np.linalg.norm(steps, axis=1).max()
    assert (sideways >= 0).all()  # anticlockwise, as the velocity
    plt.close(axes.figure)
    axes = plot_flow(GRID, np.zeros(GRID.num_edges))
    assert not axes.collections
    plt.close(axes.figure)


def test_decades_bound_the_colours_below(flow):
    from pde.plot import plot_flow

    axes = plot_flow(GRID, flow.velocity, decades=2)
    norm = image_of(axes).norm
    assert norm.vmin == pytest.approx(norm.vmax / 100)
    assert norm(0.0) == 0.0  # stagnant cells have the lowest colour, not none
    assert norm(norm.vmax / 10) == pytest.approx(0.5)
    plt.close(axes.figure)


def test_comparison_shows_the_error_of_the_vector_and_its_deviation(flow):
    from pde.plot import plot_comparison

    truth = flow.velocity
    turned = -truth  # of the same speed everywhere, and wrong everywhere
    sd = np.repeat([0.3, 0.4], [GRID.num_vertical, GRID.num_edges - GRID.num_vertical])
    figure = plot_comparison(GRID, truth, turned, sd)
    panels = [axes for axes in figure.axes if axes.images]
    images = [image_of(axes) for axes in panels]
    assert [axes.get_title() for axes in panels] == ["true", "predicted", "error", "deviation"]
    speed = np.linalg.norm(flow.cell_velocity(), axis=-1)
    np.testing.assert_allclose(images[0].get_array(), speed)
    np.testing.assert_allclose(images[1].get_array(), speed)
    np.testing.assert_allclose(images[2].get_array(), 2 * speed)
    np.testing.assert_allclose(images[3].get_array(), 0.5)
    assert images[0].get_clim() == images[1].get_clim() == (0.0, pytest.approx(speed.max()))
    assert images[2].get_clim() == images[3].get_clim() == (0.0, pytest.approx(2 * speed.max()))
    bars = [axes.get_ylabel() for axes in figure.axes if not axes.images]
    assert bars == ["speed", "error, predictive deviation"]
    plt.close(figure)
    figure = plot_comparison(GRID, truth, turned, speed / 3)
    np.testing.assert_array_equal(figure.axes[3].images[0].get_array(), speed / 3)
    plt.close(figure)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("plot_pressure", [np.ones((12, 8))], r"pressure of shape \(12, 8\), expected \(ny, nx\)"),
        ("plot_pressure", [np.full((8, 12), np.nan)], "pressure holds values that are not finite"),
        ("plot_flow", [np.ones((2, 212))], r"velocity of shape \(2, 212\), expected one flow"),
        ("plot_flow", [np.ones(5)], r"velocity of shape \(5,\)"),
        ("plot_flow", [np.full(212, np.inf)], "velocity holds values that are not finite"),
        ("plot_comparison", [np.ones(212)] * 2 + [np.ones(5)], r"deviation of shape \(5,\)"),
        ("plot_comparison", [np.ones(212)] * 2 + [-np.ones(212)], "standard deviation of -1"),
        ("plot_comparison", [np.ones(212), np.ones(5), np.ones(212)], "prediction of shape"),
    ],
)
def test_what_cannot_be_drawn_is_refused_before_a_figure_is_opened(name, arguments, message):
    import pde.plot

    before = plt.get_fignums()
    with pytest.raises(PdeError, match=message):
        getattr(pde.plot, name)(GRID, *arguments)
    assert plt.get_fignums() == before


@pytest.mark.parametrize("option", ["density", "decades"])
def test_numbers_that_are_not_positive_are_refused(flow, option):
    from pde.plot import plot_flow

    before = plt.get_fignums()
    with pytest.raises(PdeError, match=f"{option}=0, expected a positive finite number"):
        plot_flow(GRID, flow.velocity, **{option: 0})
    assert plt.get_fignums() == before


def test_a_pressure_is_drawn_without_the_cells_that_are_not_active():
    from pde.plot import plot_pressure

    pressure = np.broadcast_to(np.arange(12.0), GRID.shape).copy()
    pressure[0, 0] = np.nan
    (image,) = plot_pressure(GRID, pressure).images
    assert np.ma.count_masked(image.get_array()) == 1
    plt.close("all")
