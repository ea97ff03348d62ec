"""Figures of flow fields and their uncertainty."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

import pde
from lightning_sgmcmc.callbacks.report.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]


def flow_figure(
    grid: pde.Grid,
    permeability: Array,
    source: Array,
    truth: Array,
    mean: Array,
    std: Array,
    title: str,
) -> Figure:
    """Draw one test field: what goes in, what comes out, how wrong and how sure.

    Args:
        grid: The grid.
        permeability: [ny, nx].
        source: Cell means, [ny, nx].
        truth: Normal velocities on edges, [E].
        mean: Predictive mean, [E].
        std: Predictive standard deviation with noise, [E].
        title: Heading.

    Returns:
        Six panels: permeability and source; true and predicted speed on one scale; error of the
        velocity, and predictive standard deviation, which noise of one scale dominates, on a
        scale that shows what the draws add.
    """
    from matplotlib.colors import LogNorm, Normalize

    def magnitude(edges: Array) -> Array:
        vectors = grid.cell_velocity(edges)
        speed: Array = np.linalg.norm(vectors, axis=-1)
        return speed

    def spread(edges: Array) -> Array:
        """Root of the summed variances of the cell's mean velocity, edges independent."""
        u, v = grid.split(edges**2)
        root: Array = 0.5 * np.sqrt(u[:, :-1] + u[:, 1:] + v[:-1] + v[1:])
        return root

    true_speed, speed = magnitude(truth), magnitude(mean)
    error, deviation = magnitude(mean - truth), spread(std)
    top = max(true_speed.max(), speed.max())
    speed_norm = LogNorm(top * 1e-4, top, clip=True)
    error_norm = Normalize(0, np.quantile(error, 0.995))
    figure = new_figure(11, 7)
    figure.suptitle(title)
    axes = figure.subplots(2, 3, sharex=True, sharey=True)
    extent = (0, grid.lx, 0, grid.ly)
    limit = np.abs(source).max()
    panels = [
        (axes[0, 0], np.log10(permeability), "permeability, log10", "viridis", None),
        (axes[0, 1], true_speed, "true speed", "magma", speed_norm),
        (axes[0, 2], speed, "predicted speed (mean of draws)", "magma", speed_norm),
        (axes[1, 0], source, "source", "PuOr", Normalize(-limit, limit)),
        (axes[1, 1], error, "error of the velocity, magnitude", "cividis", error_norm),
        (axes[1, 2], deviation, "predictive standard deviation (own scale)", "cividis", None),
    ]
    for panel, field, label, cmap, norm in panels:
        image = panel.imshow(field, origin="lower", extent=extent, cmap=cmap, norm=norm)
        panel.set_title(label, fontsize="medium")
        figure.colorbar(image, ax=panel, shrink=0.85)
    for panel in axes[1]:
        panel.set_xlabel("x")
    for panel in axes[:, 0]:
        panel.set_ylabel("y")
    return figure
