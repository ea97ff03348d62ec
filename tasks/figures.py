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
SPEED = "speed, length / time"


def flow_figure(
    grid: pde.Grid,
    permeability: Array,
    source: Array,
    truth: Array,
    mean: Array,
    std: Array,
    title: str,
    spread: str = "predicted deviation",
) -> Figure:
    """Draw one test field: what goes in, what comes out, how wrong and how sure.

    Args:
        grid: The grid.
        permeability: [ny, nx], or along x and y, [ny, nx, 2], of which the geometric mean is drawn.
        source: Cell means, [ny, nx].
        truth: Normal velocities on edges, [E].
        mean: Predictive mean, [E].
        std: Predictive standard deviation with noise, or another measure of the errors, [E].
        title: Heading.
        spread: What that measure is.

    Returns:
        Six panels: permeability and source; true and predicted speed on one scale; error of the
        velocity and what was said of it on another, so that they compare.
    """
    from matplotlib.colors import LogNorm, Normalize

    def magnitude(edges: Array) -> Array:
        vectors = grid.cell_velocity(edges)
        speed: Array = np.linalg.norm(vectors, axis=-1)
        return speed

    def joined(edges: Array) -> Array:
        """Root of the summed variances of the cell's mean velocity, edges independent."""
        u, v = grid.split(edges**2)
        root: Array = 0.5 * np.sqrt(u[:, :-1] + u[:, 1:] + v[:-1] + v[1:])
        return root

    true_speed, speed = magnitude(truth), magnitude(mean)
    error, deviation = magnitude(mean - truth), joined(std)
    top = max(true_speed.max(), speed.max())
    speeds = LogNorm(top * 1e-4, top, clip=True)
    errors = Normalize(0, max(np.quantile(field, 0.995) for field in (error, deviation)))
    limit = np.abs(source).max() or 1.0
    inputs = ("log10 of permeability,\nlength² / (pressure time)", "source, 1 / time")
    panels = [
        (
            "permeability",
            np.log10(permeability).reshape(*grid.shape, -1).mean(-1),
            inputs[0],
            "viridis",
            None,
        ),
        ("true flow", true_speed, SPEED, "magma", speeds),
        ("prediction, mean of draws", speed, SPEED, "magma", speeds),
        ("source", source, inputs[1], "PuOr", Normalize(-limit, limit)),
        ("error of the prediction", error, SPEED, "cividis", errors),
        (spread, deviation, SPEED, "cividis", errors),
    ]
    height = 3.2 * min(max(grid.ly / grid.lx, 0.6), 1.8)
    figure = new_figure(13, 1.2 + 2 * height)
    figure.suptitle(title)
    axes = figure.subplots(2, 3, sharex=True, sharey=True)
    for panel, (label, field, unit, cmap, norm) in zip(axes.flat, panels, strict=True):
        image = panel.pcolormesh(grid.x_lines, grid.y_lines, field, cmap=cmap, norm=norm)
        panel.set_title(label, fontsize="medium")
        panel.set_aspect("equal")
        figure.colorbar(image, ax=panel, shrink=0.9, label=unit)
    for panel in axes[1]:
        panel.set_xlabel("x, length")
    for panel in axes[:, 0]:
        panel.set_ylabel("y, length")
    return figure


def field_figure(
    grid: pde.Grid,
    permeability: Array,
    truth: Array,
    mean: Array,
    std: Array,
    title: str,
    spread: str,
) -> Figure:
    """Draw one test field and its pressure: true, predicted, how wrong and how sure.

    Args:
        grid: The grid; values at its nodes are drawn as those of as many cells.
        permeability: [ny, nx].
        truth: Pressures, [ny, nx].
        mean: Predictive mean, [ny, nx].
        std: What is said of the mean's error, [ny, nx].
        title: Heading.
        spread: What that is, the title of its panel.

    Returns:
        Five panels: the permeability; true and predicted pressure on one scale; the error's size
        and what is said of it on another, so that they compare.
    """
    from matplotlib.colors import Normalize

    error = np.abs(mean - truth)
    pressures = Normalize(min(truth.min(), mean.min()), max(truth.max(), mean.max()))
    errors = Normalize(0, max(np.quantile(field, 0.995) for field in (error, std)))
    panels = [
        ("permeability", np.log10(permeability), "log10 of permeability", "viridis", None),
        ("true pressure", truth, "pressure", "magma", pressures),
        ("prediction, mean of draws", mean, "pressure", "magma", pressures),
        ("error of the prediction", error, "pressure", "cividis", errors),
        (spread, std, "pressure", "cividis", errors),
    ]
    figure = new_figure(18, 4)
    figure.suptitle(title)
    axes = figure.subplots(1, 5, sharex=True, sharey=True)
    for panel, (label, field, unit, cmap, norm) in zip(axes, panels, strict=True):
        image = panel.pcolormesh(grid.x_lines, grid.y_lines, field, cmap=cmap, norm=norm)
        panel.set_title(label, fontsize="medium")
        panel.set_aspect("equal")
        panel.set_xlabel("x, length")
        figure.colorbar(image, ax=panel, shrink=0.8, label=unit)
    axes[0].set_ylabel("y, length")
    return figure
