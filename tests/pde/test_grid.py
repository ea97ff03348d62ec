import numpy as np
import pytest

from pde import Grid, PdeError


def linear_flow(grid: Grid) -> np.ndarray:
    """The RT0 field (1 + 2x, 3 - y): its normal components at the edges' midpoints."""
    midpoints = grid.edge_midpoints()
    velocity = 3 - midpoints[:, 1]
    velocity[: grid.num_vertical] = 1 + 2 * midpoints[: grid.num_vertical, 0]
    return velocity


def test_numbering_follows_the_contract():
    grid = Grid(3, 2, lx=3.0, ly=4.0)
    assert (grid.num_vertical, grid.num_edges, grid.num_cells) == (8, 17, 6)
    midpoints = grid.edge_midpoints()
    np.testing.assert_allclose(midpoints[[0, 1, 4]], [[0, 1], [1, 1], [0, 3]])
    np.testing.assert_allclose(midpoints[[8, 9, 11]], [[0.5, 0], [1.5, 0], [0.5, 2]])
    np.testing.assert_array_equal(grid.boundary_edges("left"), [0, 4])
    np.testing.assert_array_equal(grid.boundary_edges("right"), [3, 7])
    np.testing.assert_array_equal(grid.boundary_edges("bottom"), [8, 9, 10])
    np.testing.assert_array_equal(grid.boundary_edges("top"), [14, 15, 16])
    np.testing.assert_allclose(grid.edge_lengths()[[0, 8]], [2.0, 1.0])


def test_edges_of_a_cell_surround_its_centre():
    grid = Grid(4, 3, lx=2.0)
    centres = grid.cell_centres().reshape(-1, 1, 2)
    offset = grid.edge_midpoints()[grid.cell_edges()] - centres
    half_x, half_y = grid.hx / 2, grid.hy / 2
    expected = [[-half_x, 0], [half_x, 0], [0, -half_y], [0, half_y]]
    np.testing.assert_allclose(offset, np.broadcast_to(expected, offset.shape), atol=1e-15)


def test_cell_velocity_and_divergence_of_a_linear_field():
    grid = Grid(5, 4, lx=2.0, ly=3.0)
    velocity = np.stack([linear_flow(grid), 2 * linear_flow(grid)])
    centres = grid.cell_centres()
    expected = np.stack([1 + 2 * centres[..., 0], 3 - centres[..., 1]], axis=-1)
    np.testing.assert_allclose(grid.cell_velocity(velocity), [expected, 2 * expected])
    np.testing.assert_allclose(grid.divergence(velocity)[1], 2.0, rtol=1e-13)


@pytest.mark.parametrize(
    ("counts", "lengths"),
    [
        ((0, 3), {}),
        ((3, -1), {}),
        ((2.5, 3), {}),
        ((3, True), {}),
        ((3, 3), {"lx": 0.0}),
        ((3, 3), {"ly": float("inf")}),
        ((3, 3), {"dx": (1.0, 2.0)}),
        ((3, 3), {"lx": 2.0, "dx": (1.0, 2.0, 3.0)}),
    ],
)
def test_impossible_grids_are_refused(counts, lengths):
    with pytest.raises(PdeError, match="Grid: "):
        Grid(*counts, **lengths)


def test_a_third_count_is_no_length():
    with pytest.raises(TypeError, match="positional"):
        Grid(60, 220, 85)


def test_unlike_cells_measure_what_they_should():
    grid = Grid.of_spacing([1.0, 2.0, 0.5], [0.25, 3.0])
    assert grid.shape == (2, 3)
    assert (grid.lx, grid.ly) == (3.5, 3.25)
    np.testing.assert_allclose(grid.cell_centres()[:, :, 0], [[0.5, 2.0, 3.25]] * 2)
    np.testing.assert_allclose(grid.cell_centres()[:, 0, 1], [0.125, 1.75])
    np.testing.assert_allclose(grid.cell_areas.sum(), 3.5 * 3.25)
    np.testing.assert_allclose(grid.divergence(linear_flow(grid)), 1.0, rtol=1e-13)
    assert Grid.of_spacing([0.5] * 4, [0.5] * 2) == Grid(4, 2, lx=2.0)
    with pytest.raises(PdeError, match="needs equal cells"):
        _ = grid.cell_area


def test_a_part_of_a_side_holds_the_edges_whose_midpoints_it_holds():
    grid = Grid(4, 5, lx=4.0, ly=10.0)
    np.testing.assert_array_equal(grid.boundary_edges("left:2:6"), grid.boundary_edges("left")[1:3])
    np.testing.assert_array_equal(grid.boundary_edges("top:3:9"), grid.boundary_edges("top")[3:])
    for part, message in (
        ("left:0.1:0.2", "midpoint of no edge; they lie from 1 to 9"),
        ("left:0", "two numbers"),
        ("west:0:1", "unknown side 'west:0:1'"),
    ):
        with pytest.raises(PdeError, match=message):
            grid.boundary_edges(part)


def test_wrong_side_and_wrong_velocity_are_refused():
    grid = Grid(3, 2)
    with pytest.raises(PdeError, match="'north', expected one of left, right, bottom, top"):
        grid.boundary_edges("north")
    with pytest.raises(PdeError, match=r"expected \(\.\.\., 17\)"):
        grid.cell_velocity(np.zeros(16))
