r"""The pressure of a cell and that of the well in it.

Near a well that gives `q` to an infinite medium `diag(kx, ky)`, with `k = (kx ky)^(1/2)` and r the
distance where the medium is made isotropic, `p(r) = p_cell - q / (2 pi k) ln(r / r_e)` far away. A
discretisation's `r_e` is a constant of its own. For the five-point scheme it is Peaceman's (1983),

    r_o = e^-gamma / 2 (t^2 hx^2 + hy^2 / t^2)^(1/2) / (t + 1 / t),    t = (ky / kx)^(1/4),

.198 h on squares; ours is .414 h there. RT0/P0 with an exact mass matrix has another symbol: with
`a = kx hy / hx`, `b = ky hx / hy` and `s(t) = 4 sin^2(t / 2)`,

    five points: a s(t) + b s(v),    exact mass: a s(t) / (1 - s(t) / 6) + b s(v) / (1 - s(v) / 6),

and as the difference of the inverses is integrable, the two lattice Green's functions at zero give

    ln(r_e / r_o) = 2 pi (a b)^(1/2) mean over (-pi, pi)^2 of (1 / five points - 1 / exact mass).

A well of pressure P and radius r_w then gives `J (P - p_cell)`, `J = 2 pi k / ln(r_e / r_w)`.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ..errors import PdeError
from .wells import Well

POINTS = 100  # of Gauss's rule in each direction: r_e to nine digits up to a / b of 1e8


def well_index(well: Well, permeability: tuple[float, float], size: tuple[float, float]) -> float:
    """J of a well of unit thickness in a cell.

    Args:
        well: The well; its radius counts.
        permeability: kx and ky of its cell.
        size: hx and hy of its cell.

    Raises:
        PdeError: The well's radius is not below the cell's equivalent radius.
    """
    assert well.radius is not None
    radius = equivalent_radius(permeability, size)
    if well.radius >= radius:
        raise PdeError(
            f"the well at ({well.x:g}, {well.y:g}) has the radius {well.radius:g} in a cell of "
            f"{size[0]:g} x {size[1]:g}, expected less than {radius:.3g}: give it in the grid's "
            "unit of length, or take larger cells"
        )
    kx, ky = permeability
    return float(2 * np.pi * np.sqrt(kx * ky) / np.log(radius / well.radius))


def equivalent_radius(permeability: tuple[float, float], size: tuple[float, float]) -> float:
    """`r_e` of a cell with kx and ky, of width hx and height hy."""
    (kx, ky), (hx, hy) = permeability, size
    ratio = np.sqrt(ky / kx)
    peaceman = np.sqrt(ratio * hx**2 + hy**2 / ratio) / (ratio**0.5 + ratio**-0.5)
    aspect = kx * hy**2 / (ky * hx**2)
    return float(np.exp(-np.euler_gamma) / 2 * peaceman * np.exp(_shift(aspect)))


@lru_cache(maxsize=256)
def _shift(aspect: float) -> float:
    """`ln(r_e / r_o)` for a / b."""
    places, weights = np.polynomial.legendre.leggauss(POINTS)
    y = (places + 1) / 2
    weights = 1.5 * y**2 * weights  # t = pi y^3: close at zero, where the difference varies most
    s = 4 * np.sin(np.pi / 2 * y**3) ** 2  # a quarter of the square is enough
    exact = s / (1 - s / 6)
    points = aspect * s[:, None] + s
    mass = aspect * exact[:, None] + exact
    mean = weights @ (1 / points - 1 / mass) @ weights
    return float(2 * np.pi * np.sqrt(aspect) * mean)
