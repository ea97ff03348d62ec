"""Figures of fields and flows; needs matplotlib, imported when called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .darcy.rt0 import check_permeability
from .errors import PdeError, check_positive
from .grid import Array, Grid, finite

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
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
    image = _draw(axes, grid, values, "permeability", cmap="cividis")
    axes.figure.colorbar(image, ax=axes, label="log10 of permeability")
    return axes


def plot_permeabilities(grid: Grid, permeabilities: Any, titles: Sequence[str]) -> Figure:
    """Several permeabilities by their decimal logarithms, on one colour scale.

    Args:
        grid: The grid.
        permeabilities: Positive cell values `[n, ny, nx]`.
        titles: One title a field.

    Raises:
        PdeError: Another shape, a cell that is not positive and finite, or another number of
            titles than of fields.
    """
    fields = np.log10(check_permeability(grid, permeabilities, many=True))
    fields = fields.reshape(-1, *grid.shape)
    if len(titles) != len(fields):
        raise PdeError(f"{len(titles)} titles for {len(fields)} fields, expected one each")
    scale = {"vmin": fields.min(), "vmax": fields.max(), "cmap": "cividis"}
    figure, panels, images = _row(grid, fields, titles, [scale] * len(fields), beside=1.4)
    figure.colorbar(images[-1], ax=panels, label="log10 of permeability")
    return figure


def plot_pressure(grid: Grid, pressure: Any, axes: Axes | None = None) -> Axes:
    """Pressure `[ny, nx]` with ten isobars, to which the flow is normal.

    Args:
        grid: The grid.
        pressure: Cell values; NaN, as in cells that are not active, is drawn as nothing.
        axes: Where to draw; new axes by default.

    Raises:
        PdeError: Another shape, or values that are infinite or all NaN.
    """
    values = np.asarray(pressure, dtype=np.float64)
    blank = np.isnan(values)
    grid.cell_field("pressure", np.where(blank & ~blank.all(), 0.0, values))
    axes = _axes(axes)
    image = _draw(axes, grid, values, "pressure", cmap="cividis")
    bar = axes.figure.colorbar(image, ax=axes, label="pressure")
    if min(grid.shape) > 1 and np.ptp(values[~blank]) > 0:
        levels = np.linspace(np.nanmin(values), np.nanmax(values), 12)[1:-1]
        x, y = np.moveaxis(grid.cell_centres(), -1, 0)
        colors = ["white" if level < levels.mean() else "black" for level in levels]
        bar.add_lines(axes.contour(x, y, values, levels=levels, colors=colors, linewidths=0.7))
    return axes


def plot_flow(
    grid: Grid,
    velocity: Any,
    axes: Axes | None = None,
    label: str = "speed",
    decades: float | None = None,
    density: float = 1.0,
) -> Axes:
    """Speed at the cell centres, and streamlines of the cell-centre velocities.

    Args:
        grid: The grid.
        velocity: Normal velocities of one flow, `[num_edges]`.
        axes: Where to draw; new axes by default.
        label: What the colour bar says; name the unit here.
        decades: Colours by the logarithm, over so many decades below the largest; linear from zero
            by default.
        density: How close the streamlines lie, as for matplotlib's `streamplot`.

    Raises:
        PdeError: Another shape, a value that is not finite, or decades or a density
            that are not positive.
    """
    check_positive("density", density)
    vectors = grid.cell_velocity(_edge_values(grid, "velocity", velocity))
    speed = np.linalg.norm(vectors, axis=-1)
    scale = _scale(speed, decades)
    axes = _axes(axes)
    image = _draw(axes, grid, speed, "flow", **scale)
    axes.figure.colorbar(image, ax=axes, label=label)
    if min(grid.shape) > 1 and speed.max() > 0:
        # Streamlines need equal cells: the same domain in as many, each with the cell it lies in.
        x = (np.arange(grid.nx) + 0.5) * (grid.lx / grid.nx)
        y = (np.arange(grid.ny) + 0.5) * (grid.ly / grid.ny)
        if not grid.uniform:
            columns, rows = (
                np.searchsorted(lines, place) - 1
                for lines, place in ((grid.x_lines, x), (grid.y_lines, y))
            )
            vectors = vectors[np.ix_(rows, columns)]
        style: dict[str, Any] = {
            "density": density,
            "color": "white",
            "linewidth": 0.7,
            "arrowsize": 0.7,
        }
        axes.streamplot(x, y, vectors[..., 0], vectors[..., 1], **style)
    axes.set(xlim=(0, grid.lx), ylim=(0, grid.ly))
    return axes


def plot_comparison(
    grid: Grid,
    truth: Any,
    prediction: Any,
    deviation: Any,
    label: str = "speed",
    decades: float | None = None,
    deviation_title: str = "deviation",
) -> Figure:
    """True and predicted speed, the error, and the predictive standard deviation, side by side.

    The speeds share one colour scale, the error and the deviation another: the error is
    `|u_true - u_predicted|` at the cell centres, the deviation `(sd_x^2 + sd_y^2)^(1/2)`, its root
    mean square if the prediction is right about itself.

    Args:
        grid: The grid.
        truth: Normal velocities of one flow, `[num_edges]`.
        prediction: Likewise.
        deviation: Predictive standard deviations of the normal velocities, `[num_edges]`. That of
            a cell-centre component is taken to be the mean of its two edges', as if their errors
            were equal; it is never more. Where it is known, give the cells' own, `[ny, nx]`.
        label: What the speeds' colour bar says; name the unit here.
        decades: Colours by the logarithm, over so many decades below the largest; linear from zero
            by default.
        deviation_title: Title of the deviation's panel.

    Raises:
        PdeError: Another shape, a value that is not finite, a negative deviation, or decades that
            are not positive.
    """
    true = grid.cell_velocity(_edge_values(grid, "truth", truth))
    predicted = grid.cell_velocity(_edge_values(grid, "prediction", prediction))
    spread = np.asarray(deviation, dtype=np.float64)
    if spread.shape == grid.shape:
        spread = grid.cell_field("deviation", spread)
    else:
        edges = _edge_values(grid, "deviation", spread)
        spread = np.linalg.norm(grid.cell_velocity(edges), axis=-1)
    if np.min(deviation) < 0:
        raise PdeError(f"a standard deviation of {np.min(deviation):g}, expected none below 0")
    speeds = np.linalg.norm([true, predicted], axis=-1)
    errors = np.stack([np.linalg.norm(true - predicted, axis=-1), spread])
    scales = [_scale(speeds, decades)] * 2 + [_scale(errors, decades, "magma")] * 2
    titles = ("true", "predicted", "error", deviation_title)
    figure, panels, images = _row(grid, [*speeds, *errors], titles, scales, beside=2.6)
    figure.colorbar(images[0], ax=panels[:2], label=label)
    figure.colorbar(images[2], ax=panels[2:], label="error, predictive deviation")
    return figure


def _row(
    grid: Grid,
    fields: Sequence[Array] | Array,
    titles: Sequence[str],
    scales: Sequence[dict[str, Any]],
    beside: float,
) -> tuple[Figure, list[Axes], list[ScalarMappable]]:
    """Cell fields side by side; `beside` is the inches that colour bars and labels take."""
    import matplotlib.pyplot as plt

    height, count = min(2.4 * grid.ly / grid.lx, 5.0), len(fields)
    size = beside + count * (0.1 + height * grid.lx / grid.ly), 0.9 + height
    figure, (panels,) = plt.subplots(
        1, count, figsize=size, squeeze=False, sharey=True, layout="compressed"
    )
    together = zip(panels, fields, titles, scales, strict=True)
    images = [_draw(axes, grid, field, title, **scale) for axes, field, title, scale in together]
    for axes in panels[1:]:
        axes.set_ylabel("")
    return figure, panels.tolist(), images


def _draw(axes: Axes, grid: Grid, values: Array, title: str, **scale: Any) -> ScalarMappable:
    axes.set(xlabel="x, length", ylabel="y, length", title=title)
    if not grid.uniform:
        axes.set_aspect("equal")
        return axes.pcolormesh(grid.x_lines, grid.y_lines, values, **scale)
    extent = (0.0, grid.lx, 0.0, grid.ly)
    return axes.imshow(values, origin="lower", extent=extent, interpolation="nearest", **scale)


def _edge_values(grid: Grid, name: str, values: Any) -> Array:
    edges = np.asarray(values, dtype=np.float64)
    if edges.shape != (grid.num_edges,):
        raise PdeError(f"{name} of shape {edges.shape}, expected one flow, ({grid.num_edges},)")
    return finite(name, edges)


def _scale(values: Array, decades: float | None = None, cmap: str = "viridis") -> dict[str, Any]:
    """Colours from zero, or by the logarithm, up to the largest value."""
    top = float(values.max())
    if decades is None:
        return {"vmin": 0.0, "vmax": top, "cmap": cmap}
    from matplotlib.colors import LogNorm

    check_positive("decades", decades)
    top = top or 1.0
    return {"norm": LogNorm(top * 10.0**-decades, top, clip=True), "cmap": cmap}


def _axes(axes: Axes | None) -> Axes:
    if axes is not None:
        return axes
    import matplotlib.pyplot as plt

    return plt.subplots(layout="compressed")[1]
