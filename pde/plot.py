"""Figures of fields and flows; needs matplotlib, imported when called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import PdeError
from .grid import Grid
from .rt0 import check_permeability

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_permeability(grid: Grid, permeability: Any, axes: Axes | None = None) -> Axes:
    """Permeability `[ny, nx]` by its decimal logarithm, with a colour bar.

    Args:
        grid: The grid.
        permeability: Positive cell values.
        axes: Where to draw; new axes by default.
    """
    values = np.log10(check_permeability(grid, permeability))
    axes = _axes(axes)
    image = axes.imshow(values, **_placement(grid), cmap="cividis")
    axes.set(xlabel="x", ylabel="y", title="permeability")
    axes.figure.colorbar(image, ax=axes, label="log10 of permeability")
    return axes


def plot_speeds(grid: Grid, velocities: Any, titles: Sequence[str], label: str = "speed") -> Figure:
    """Magnitudes of the cell-centre velocities of several flows, on one colour scale.

    Args:
        grid: The grid.
        velocities: Normal velocities `[n, num_edges]`.
        titles: One title a flow.
        label: What the colour bar says; name the unit here.

    Raises:
        PdeError: Another number of titles than of flows.
    """
    import matplotlib.pyplot as plt

    speeds = np.linalg.norm(grid.cell_velocity(np.atleast_2d(velocities)), axis=-1)
    if len(titles) != len(speeds):
        raise PdeError(f"{len(titles)} titles for {len(speeds)} flows, expected one each")
    size = (0.8 + 3.2 * len(speeds), 3.2)
    figure, panels = plt.subplots(
        1, len(speeds), figsize=size, squeeze=False, sharey=True, layout="constrained"
    )
    scale = {"vmin": 0.0, "vmax": float(speeds.max()), "cmap": "viridis"}
    for axes, speed, title in zip(panels[0], speeds, titles, strict=True):
        image = axes.imshow(speed, **_placement(grid), **scale)
        axes.set(xlabel="x", title=title)
    panels[0, 0].set_ylabel("y")
    figure.colorbar(image, ax=panels[0].tolist(), label=label)
    return figure


def _axes(axes: Axes | None) -> Axes:
    if axes is not None:
        return axes
    import matplotlib.pyplot as plt

    return plt.subplots(layout="constrained")[1]


def _placement(grid: Grid) -> dict[str, Any]:
    return {"origin": "lower", "extent": (0.0, grid.lx, 0.0, grid.ly), "interpolation": "nearest"}
