"""Figures that any run can draw of itself."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lightning_sgmcmc.chain import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure that needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def read_columns(path: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return steps and values of every column of a ``metrics.csv``."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = [name for name in (rows[0] if rows else {}) if name != "step"]
    columns = {}
    for name in names:
        pairs = [(float(r["step"]), float(r[name])) for r in rows if r[name]]
        columns[name] = (np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs]))
    return columns


def learning_curve(path: Path, burn_in: int) -> Figure:
    """Draw the loss and the step size along the run, with burn-in marked."""
    columns = read_columns(path)
    figure = new_figure(7.5, 5)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    for name, label, style in (
        ("train/nll", "minibatch", {"color": "0.6", "lw": 0.8}),
        ("val/nll", "validation", {"color": "C0", "lw": 1.5}),
        ("val/ensemble_nll", "validation, ensemble", {"color": "k", "lw": 1.5, "ls": "--"}),
    ):
        if name in columns:
            upper.plot(*columns[name], label=label, **style)
    upper.set_ylabel("mean negative log-likelihood")
    if "lr" in columns:  # a run shorter than the logging interval has none
        from matplotlib.ticker import LogFormatterSciNotation, LogLocator

        lower.semilogy(*columns["lr"], color="k", lw=1)
        lower.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
        lower.yaxis.set_minor_formatter(LogFormatterSciNotation(minor_thresholds=(2, 2)))
    lower.set_ylabel("step size")
    lower.set_xlabel("step")
    for axes in (upper, lower):
        axes.axvline(burn_in, color="0.3", ls=":", lw=1, label="end of burn-in")
    upper.legend(loc="upper right")
    return figure


def trace(task: Task) -> Figure:
    """Draw what each draw was: its loss, its temperature, and a few of its weights."""
    kept = task.kept
    history = kept.history
    steps = np.array([row["step"] for row in history])
    panels: list[tuple[str, dict[str, np.ndarray]]] = [
        ("minibatch\nmean NLL", {"": np.array([row["train/nll"] for row in history])})
    ]
    if all("kinetic_temperature" in row for row in history):
        values = np.array([row["kinetic_temperature"] for row in history])
        panels.append(("kinetic\ntemperature", {"": values}))
    traces = kept.probes.trace("weights")
    if traces.shape[1] > 1:
        chosen = np.unique(np.linspace(0, traces.shape[2] - 1, 3).astype(int))
        names = [kept.probes.names[i] for i in chosen]
        weights = traces[0][:, chosen]  # of the first chain
        spread = np.maximum(weights.std(0), np.finfo(float).tiny)
        standard = (weights - weights.mean(0)) / spread
        panels.append(("standardised\nweights", dict(zip(names, standard.T, strict=True))))
    figure = new_figure(7.5, 1.2 + 1.7 * len(panels))
    for axes, (label, curves) in zip(
        np.atleast_1d(np.asarray(figure.subplots(len(panels), 1, sharex=True))), panels, strict=True
    ):
        for shade, (name, values) in enumerate(curves.items()):
            x = (
                steps
                if len(values) == len(steps)
                else np.linspace(steps[0], steps[-1], len(values))
            )
            axes.plot(x, values, ".-", lw=0.8, ms=3, color=str(0.25 * shade), label=name or None)
        axes.set_ylabel(label)
        if "temperature" in label:
            axes.axhline(task.chain.sampler.temperature, color="0.5", ls=":")
        if len(curves) > 1:
            axes.legend(fontsize="small", loc="upper right")
    axes.set_xlabel("step")
    return figure


def draw_all(folder: Path, task: Task) -> Mapping[str, Figure]:
    """Return the learning curve, the trace and the task's own figures, of what there is."""
    figures, log = {}, folder / "metrics.csv"
    if log.is_file():  # a run shorter than the logging interval has none
        figures["learning_curve"] = learning_curve(log, task.chain.draws.burn_in)
    if task.kept.num_draws:
        figures["trace"] = trace(task)
        figures |= task.figures(task.kept)
    return figures
