"""What figures of experiments share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLES = ("-", "--", ":", "-.")
Points = Sequence[tuple[float, float]]


def coloured(**more: Any) -> Iterator[dict[str, Any]]:
    """Yield styles of lines in turn; they differ in colour and dashes, and repeat after twenty."""
    i = 0
    while True:
        yield {"ls": STYLES[i % len(STYLES)], "color": f"C{i % 10}"} | more
        i += 1


def draw_lines(
    axes: Axes, lines: Mapping[str, Points], looks: Iterable[Mapping[str, Any]], **more: Any
) -> None:
    """Draw lines by their labels, each in a style of its own; a line without points uses one up."""
    for (label, points), look in zip(lines.items(), looks, strict=False):
        if points:
            axes.plot(*zip(*points, strict=True), label=label, **look, **more)


def legend_below(figure: Figure) -> None:
    """Name the lines of all panels once, below them; the names are sentences."""
    lines = {str(line.get_label()): line for axes in figure.axes for line in axes.get_lines()}
    named = {label: line for label, line in lines.items() if not label.startswith("_")}
    figure.legend(named.values(), named.keys(), fontsize="small", loc="outside lower center")


def ellipse(covariance: NDArray[np.float64], size: float = 1.0) -> NDArray[np.float64]:
    """Return the points ``size`` standard deviations from 0 under N(0, covariance), [2, 200]."""
    angles = np.linspace(0, 2 * np.pi, 200)
    circle = np.stack([np.cos(angles), np.sin(angles)])
    found: NDArray[np.float64] = np.linalg.cholesky(covariance) @ (size * circle)
    return found
