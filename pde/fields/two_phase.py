"""Random permeabilities of two values, as the data sets of the operator papers have them."""

from __future__ import annotations

import numpy as np
from scipy.fft import dctn
from scipy.integrate import quad
from scipy.special import erf

from ..grid import Array, Grid
from .streams import BUMPS, THRESHOLD, generator

#: Of the field that is thresholded: its law is N(0, TAU^2 (-Laplace + TAU^2)^-2).
TAU = 3.0
#: Gaussian bumps in a sum.
NUM_BUMPS = 5


def mode_deviations(nodes: int) -> Array:
    r"""Standard deviations of the modes of N(0, 9 (-Laplace + 9)^-2), `[nodes, nodes]`.

    Neumann conditions on the unit square: of the L2-orthonormal modes `phi_k(x) phi_l(y)`, with
    `phi_0 = 1` and `phi_k(x) = sqrt 2 cos(pi k x)`, mode (l, k) has `3 / (pi^2 (k^2 + l^2) + 9)`.
    The constant one is dropped. (Li et al. 2021, "Fourier neural operator", section 5.2.)
    """
    squares = (np.pi * np.arange(nodes)) ** 2
    deviations: Array = TAU / (squares[:, None] + squares + TAU**2)
    deviations[0, 0] = 0.0
    return deviations


def smooth_field(nodes: int, seed: int, index: int) -> Array:
    """A draw of N(0, 9 (-Laplace + 9)^-2) at the nodes of the unit square, `[nodes, nodes]`.

    The modes are those that the nodes tell apart, k, l < nodes. Row 0 is at y = 0.

    Args:
        nodes: In each direction, the boundary's included, at least 2.
        seed: Of the data set.
        index: Of the sample.
    """
    normal = generator(seed, THRESHOLD, index).standard_normal((nodes, nodes))
    # The transform of type 1 counts its inner terms twice; phi_k has a root of 2 for k > 0.
    weight = np.full(nodes, np.sqrt(0.5))
    weight[0], weight[-1] = 1.0, np.sqrt(2.0)
    values: Array = dctn(mode_deviations(nodes) * normal * weight * weight[:, None], type=1)
    return values


def thresholded_permeability(
    nodes: int, seed: int, index: int, low: float = 3.0, high: float = 12.0
) -> Array:
    """FNO's coefficient: `high` where `smooth_field` is at least zero, else `low`."""
    return np.where(smooth_field(nodes, seed, index) >= 0, high, low)


def bumps_permeability(
    grid: Grid, seed: int, index: int, low: float = 0.1, high: float = 1.0
) -> Array:
    r"""PDEBench's coefficient `[ny, nx]`: `high` where a sum of five bumps is above its mean.

    The bumps are `exp(-|x - m|^2 / s)` at the cell centres of a square of side L, with m uniform on
    it and s uniform on [0, L/2] (a length where an area is meant, as published). The published code
    takes one mean, over the 200 fields that a run of it draws together; here it is the law's,
    `mean_of_bumps`, so that a sample does not depend on others. (Takamoto et al. 2022,
    `reaction_diffusion_2D_multi_solution_Hydra.py`.)
    """
    uniform = generator(seed, BUMPS, index).uniform(size=(3, NUM_BUMPS))
    x, y = np.moveaxis(grid.cell_centres(), -1, 0)
    total = np.zeros(grid.shape)
    for mx, my, s in uniform.T:
        square = (x - grid.lx * mx) ** 2 + (y - grid.ly * my) ** 2
        total += np.exp(-square / (0.5 * grid.lx * s))
    return np.where(total > mean_of_bumps(grid.lx), high, low)


def mean_of_bumps(length: float) -> float:
    r"""The mean of the sum of five bumps on a square of side L, over places and bumps.

    With `v = s / L^2`, x and m uniform on the side, `E exp(-(x - m)^2 / s) = sqrt(pi v)
    erf(1 / sqrt v) - v (1 - exp(-1 / v))`; the square of this, a bump's mean, is averaged over s.
    """

    def bump(s: float) -> float:
        v = s / length**2
        side = np.sqrt(np.pi * v) * erf(1 / np.sqrt(v)) - v * (1 - np.exp(-1 / v))
        return float(side**2)

    largest = 0.5 * length
    return NUM_BUMPS * float(quad(bump, 0, largest)[0]) / largest
