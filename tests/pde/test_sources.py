import numpy as np
import pytest

from pde import (
    Grid,
    PdeError,
    random_source,
    three_spot_source,
    three_spot_strengths,
)
from pde.fields.sources import block_cells


def test_spots_lie_where_the_paper_puts_them():
    grid = Grid(60, 60)
    source = three_spot_source(grid, [10.0, 7.0])
    assert (source[54:, 54:] == 10).all()
    assert (source[:6, :6] == 7).all()
    assert (source[27:33, 27:33] == -17).all()
    assert np.count_nonzero(source) == 3 * 36
    assert source.sum() == 0


@pytest.mark.parametrize("shape", [(6, 6), (7, 5), (50, 50), (61, 40), (3, 9)])
def test_spots_balance_and_are_centred(shape):
    strengths = np.array([[10.0, 0.0], [0.0, 1.0], [3.0, 4.0]])
    source = three_spot_source(Grid(*shape), strengths)
    assert source.shape == (3, shape[1], shape[0])
    np.testing.assert_allclose(source.sum(axis=(1, 2)), 0, atol=1e-12)
    centre = np.where(source < 0, source, 0)
    np.testing.assert_array_equal(centre, centre[:, ::-1, ::-1])


def test_block_size_has_the_parity_of_the_grid():
    assert [block_cells(n) for n in (3, 6, 7, 20, 50, 60, 61)] == [1, 2, 1, 2, 6, 6, 7]


def test_a_sample_depends_on_seed_and_index_alone():
    many = three_spot_strengths(3, 20)
    np.testing.assert_array_equal(many[:5], three_spot_strengths(3, 5))
    assert not np.isin(many, three_spot_strengths(4, 20)).any()
    grid = Grid(5, 4)
    np.testing.assert_array_equal(random_source(grid, 1, 7), random_source(grid, 1, 7))
    assert (random_source(grid, 1, 7) != random_source(grid, 1, 8)).all()
    assert abs(random_source(grid, 1, 7).sum()) < 1e-13


@pytest.mark.parametrize(("spread", "variance"), [("variance", 5.0), ("sd", 25.0)])
def test_strengths_have_mean_ten_and_the_stated_spread(spread, variance):
    n = 4000
    strengths = three_spot_strengths(0, n, spread)
    # Five standard errors: a false alarm in a million seeds or so.
    np.testing.assert_allclose(strengths.mean(axis=0), 10, atol=5 * np.sqrt(variance / n))
    np.testing.assert_allclose(strengths.var(axis=0), variance, rtol=5 * np.sqrt(2 / n))
    assert abs(np.corrcoef(strengths.T)[0, 1]) < 5 / np.sqrt(n)


def test_sources_on_unequal_cells_integrate_to_zero_or_are_refused():
    grid = Grid.of_spacing(np.linspace(1.0, 2.0, 6), np.ones(6))
    field = random_source(grid, 0, 3)
    assert abs((field * grid.cell_areas).sum()) < 1e-12 * np.abs(field).sum()
    with pytest.raises(PdeError, match="three spots need equal cells"):
        three_spot_source(grid, (1.0, 2.0))


def test_impossible_sources_are_refused():
    with pytest.raises(PdeError, match="spread='5', expected one of variance, sd"):
        three_spot_strengths(0, 10, spread="5")
    with pytest.raises(PdeError, match="seed -1"):
        three_spot_strengths(-1, 10)
    with pytest.raises(PdeError, match="at least 6 x 6"):
        three_spot_source(Grid(4, 4), [1.0, 2.0])
    with pytest.raises(PdeError, match="finite pairs"):
        three_spot_source(Grid(6, 6), [1.0, 2.0, 3.0])
    with pytest.raises(PdeError, match="finite pairs"):
        three_spot_source(Grid(6, 6), [1.0, np.nan])
