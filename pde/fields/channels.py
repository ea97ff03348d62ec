"""Synthetic permeability of the character of SPE10's channelised layers."""

from __future__ import annotations

import numpy as np

from ..grid import Array, Grid
from .streams import check_draw

LONG, SHORT = (0.10, 0.35), (0.03, 0.08)
NUM_WAVES = 1500
LOG_RANGE = (-3.0, 4.3)


def channelised_permeability(grid: Grid, seed: int) -> Array:
    r"""A SYNTHETIC channelised permeability `[ny, nx]`; not a layer of SPE10, but like one.

    With independent unit Gaussian fields `g1` of correlation lengths (.10, .35) in (x, y) and
    `g2, g3` of (.03, .08), as fractions of the domain, channels run in y where
    `|g1 + .25 g2| < .45`, about a third of the cells, and

        log10 kappa = 2.9 + .6 g3 in channels, -1 + 1.0 g3 outside, clipped to [-3, 4.3],

    6 to 8 decades on grids of thousands of cells, in millidarcy like SPE10's. The field is a
    function of position, the same at any resolution, and depends on the seed alone.

    Raises:
        PdeError: A negative seed.
    """
    check_draw(seed, 0)
    streams = np.random.SeedSequence(seed).spawn(3)
    g1, g2, g3 = (
        _unit_field(grid, np.random.default_rng(stream), lengths)
        for stream, lengths in zip(streams, (LONG, SHORT, SHORT), strict=True)
    )
    channel = np.abs(g1 + 0.25 * g2) < 0.45
    log_kappa = np.where(channel, 2.9 + 0.6 * g3, -1.0 + 1.0 * g3)
    return np.asarray(10.0 ** np.clip(log_kappa, *LOG_RANGE))


def _unit_field(grid: Grid, rng: np.random.Generator, lengths: tuple[float, float]) -> Array:
    """Unit variance, covariance `exp(-(dx/lx)^2/2 - (dy/ly)^2/2)`: a sum of random plane waves."""
    wave_x, wave_y = rng.standard_normal((2, NUM_WAVES)) / np.array(lengths)[:, None]
    phase = rng.uniform(0.0, 2 * np.pi, NUM_WAVES)
    x = np.outer(wave_x, (np.arange(grid.nx) + 0.5) / grid.nx) + phase[:, None]
    y = np.outer((np.arange(grid.ny) + 0.5) / grid.ny, wave_y)
    # einsum, unlike @, sums in an order that does not depend on the number of BLAS threads.
    waves = np.einsum("yk,kx->yx", np.cos(y), np.cos(x))
    waves -= np.einsum("yk,kx->yx", np.sin(y), np.sin(x))
    return np.asarray(np.sqrt(2.0 / NUM_WAVES) * waves)
