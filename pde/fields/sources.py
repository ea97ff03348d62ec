"""Sources: the paper's three spots, and arbitrary ones, each sample a function of (seed, index)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import PdeError, check_choice
from ..grid import Array, Grid
from .streams import SOURCE, STRENGTHS, check_draw, generator

SPREADS = {"variance": float(np.sqrt(5.0)), "sd": 5.0}
MEAN_STRENGTH = 10.0


def block_cells(n: int) -> int:
    """Side of a spot on n cells: a tenth, rounded so that the centre spot sits at the centre.

    The number has the parity of n (the larger of two that are equally near): 6 of 60, 6 of 50.
    """
    return n - 2 * int(np.floor((n - max(n / 10, 1)) / 2))


def three_spots(grid: Grid) -> Array:
    """The two flow patterns that three-spot sources combine, `[2, ny, nx]`.

    Pattern 0 is 1 in the upper right corner, pattern 1 in the lower left, both -1 at the centre.
    The blocks are aligned with the cells and of equal size, so both sum to zero exactly.

    Raises:
        PdeError: The grid is too small for three blocks that do not touch one another.
    """
    bx, by = block_cells(grid.nx), block_cells(grid.ny)
    x, y = (grid.nx - bx) // 2, (grid.ny - by) // 2
    if x < bx and y < by:
        raise PdeError(
            f"three spots of {bx} x {by} cells do not fit {grid.nx} x {grid.ny} cells apart from "
            "one another; use at least 6 x 6 cells"
        )
    if not grid.uniform:
        raise PdeError("three spots need equal cells, so that their blocks balance")
    patterns = np.zeros((2, *grid.shape))
    patterns[:, y : y + by, x : x + bx] = -1.0
    patterns[0, grid.ny - by :, grid.nx - bx :] = 1.0
    patterns[1, :by, :bx] = 1.0
    return patterns


def three_spot_source(grid: Grid, strengths: Any) -> Array:
    """Three-spot sources (Wang, Deng, Lin 2020, section 5.3.1).

    `f = f1` in the upper right corner's block, `f2` in the lower left's, `-(f1 + f2)` in the
    centre's, zero elsewhere; the blocks are equal, so that f integrates to zero.

    Args:
        grid: The grid.
        strengths: `[..., 2]`, the pairs (f1, f2).

    Returns:
        Cell values `[..., ny, nx]`.

    Raises:
        PdeError: Strengths that are not finite pairs, or a grid that is too small or of unequal
            cells.
    """
    pairs = np.asarray(strengths, dtype=np.float64)
    if pairs.ndim == 0 or pairs.shape[-1] != 2 or not np.isfinite(pairs).all():
        raise PdeError(f"strengths of shape {pairs.shape}, expected finite pairs (..., 2)")
    patterns = three_spots(grid)
    f1, f2 = pairs[..., 0, None, None], pairs[..., 1, None, None]
    return np.asarray(f1 * patterns[0] + f2 * patterns[1])


def three_spot_strengths(seed: int, num_samples: int, spread: str = "variance") -> Array:
    """Draw strengths (f1, f2), each from N(10, 5), `[num_samples, 2]`.

    Args:
        seed: The seed; sample i depends on (seed, i) alone.
        num_samples: Number of pairs.
        spread: What the 5 is: the `variance` (default), or the standard deviation, `sd`, with
            which one strength in 44 is negative.

    Raises:
        PdeError: A negative seed or count, or another spread.
    """
    check_draw(seed, num_samples)
    return strengths_of(seed, range(num_samples), spread)


def strengths_of(seed: int, samples: range, spread: str) -> Array:
    """The strengths of some samples, `[len(samples), 2]`, as `three_spot_strengths`."""
    check_choice("spread", spread, SPREADS)
    normal = [generator(seed, STRENGTHS, i).standard_normal(2) for i in samples]
    return MEAN_STRENGTH + SPREADS[spread] * np.array(normal, dtype=np.float64).reshape(-1, 2)


def random_source(grid: Grid, seed: int, index: int) -> Array:
    """Independent standard normal cell values less their mean, `[ny, nx]`, from (seed, index).

    The mean is that over the area, so that f integrates to zero.
    """
    check_draw(seed, index)
    values = generator(seed, SOURCE, index).standard_normal(grid.shape)
    mean = values.mean() if grid.uniform else np.average(values, weights=grid.cell_areas)
    return np.asarray(values - mean)
