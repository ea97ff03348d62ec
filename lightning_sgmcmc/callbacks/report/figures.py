"""Figures that any run can draw of itself."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from lightning_sgmcmc.chain import Task
from lightning_sgmcmc.diagnostics.verdict import DEVIATION, ENOUGH_DRAWS
from lightning_sgmcmc.metrics import Moments, Normal
from lightning_sgmcmc.posterior import KeptDraws

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Letters of the names in a legend that stand in one line.
LINE = 60
#: Temperatures that are drawn, over the stated one; others stand at the edge as numbers.
DRAWN = (-1.0, 4.0)


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
        ("train/nll", "training", {"color": "0.6", "lw": 0.8}),
        ("val/nll", "validation", {"color": "C0", "lw": 1.5}),
        ("val/ensemble_nll", "validation, ensemble", {"color": "k", "lw": 1.5, "ls": "--"}),
    ):
        if name in columns:
            upper.plot(*columns[name], label=label, **style)
    upper.set_ylabel("mean negative log-likelihood, nats")
    if "lr" in columns:  # a run shorter than the logging interval has none
        from matplotlib.ticker import LogLocator

        lower.semilogy(*columns["lr"], color="k", lw=1)
        low, high = lower.get_ylim()
        lower.yaxis.set_major_formatter("{x:g}")
        lower.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
        lower.yaxis.set_minor_formatter("{x:g}" if high < 100 * low else "")
    lower.set_ylabel("step size")
    lower.set_xlabel("step")
    for axes in (upper, lower):
        axes.axvline(burn_in, color="0.3", ls=":", lw=1, label="end of burn-in")
    legend_above(upper)
    return figure


def legend_above(axes: Axes) -> None:
    """Put the legend over the panel, where no data are."""
    names = axes.get_legend_handles_labels()[1]
    beside = sum(map(len, names)) < LINE
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=len(names) if beside else 1,
        fontsize="small",
        frameon=False,
        borderaxespad=0.2,
    )


def trace(task: Task) -> Figure:
    """Draw what each draw was: its loss, its temperature, and a few of its weights."""
    kept = task.kept
    history = kept.history
    steps = np.array([row["step"] for row in history])
    panels: list[tuple[str, dict[str, np.ndarray]]] = [
        ("training\nmean NLL, nats", {"": np.array([row["train/nll"] for row in history])})
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
            legend_above(axes)
    axes.set_xlabel("step")
    return figure


def verdict(diagnostics: Mapping[str, Any], stated: float) -> Figure | None:
    """Draw what the verdict is made of: temperatures and R-hat, with the ranges accepted.

    Args:
        diagnostics: Those of ``results.json``.
        stated: The temperature of the run.

    Returns:
        Left the temperatures of single directions, of all weights and of the predictions, with two
        standard errors, but for those whose error is above the stated temperature, and where a
        predictive deviation that is right to ``DEVIATION`` puts them; right the quantiles of R-hat
        over predictions and weights, with the limit where there are enough draws to judge. What is
        not measured has no panel, as an optimizer's iterates have no temperature; None where
        nothing is.
    """
    measured = _temperatures(diagnostics) if stated else {}
    mixing = diagnostics.get("mixing", {})
    rhats = {
        kind: mixing[kind]
        for kind in ("predictions", "weights")
        if mixing.get(kind, {}).get("rhat") is not None
    }
    widths = [2] * bool(measured) + [1] * bool(rhats)
    if not widths:
        return None
    figure = new_figure(3 * sum(widths), 4)
    panels = np.atleast_1d(figure.subplots(1, len(widths), width_ratios=widths))
    if measured:
        _draw_temperatures(panels[0], measured, stated)
    if rhats:
        _draw_rhats(panels[-1], rhats, mixing["draws_per_chain"])
    return figure


def _draw_temperatures(
    axes: Axes, measured: Mapping[str, list[tuple[float, float]]], stated: float
) -> None:
    low, high = stated * (1 - DEVIATION) ** 2, stated * (1 + DEVIATION) ** 2
    axes.axhspan(low, high, color="C2", alpha=0.25, lw=0, label="accepted of predictions")
    axes.axhline(stated, color="0.4", ls=":", lw=1, label="stated")
    ticks, at, lowest, highest = [], 0.0, 0.8 * low, 1.2 * high
    for shade, (kind, values) in enumerate(measured.items()):
        known = [(one, error) for one, error in values if error <= stated]
        if len(known) < len(values):
            kind += f"\n({len(values) - len(known)} of {len(values)}\nnot known)"
        value, error = np.array(known, dtype=float).reshape(-1, 2).T
        x = at + np.arange(len(value))
        color = str(0.2 * (shade % 3))
        axes.errorbar(x, value, 2 * error, fmt="o", ms=4, lw=1, color=color)
        for place, one in zip(x, value / stated, strict=True):
            if not DRAWN[0] <= one <= DRAWN[1]:
                edge = stated * (DRAWN[1] if one > 0 else DRAWN[0])
                up: dict[str, Any] = {"va": "top" if one > 0 else "bottom", "ha": "center"}
                axes.text(place, edge, f" {one * stated:.2g} ", rotation=90, color=color, **up)
        lowest = min([lowest, *(value - 2 * error)])
        highest = max([highest, *(value + 2 * error)])
        ticks.append((at + max(0, len(x) - 1) / 2, kind))
        at += len(x) + 2
    axes.set_ylim(max(lowest, stated * DRAWN[0]), min(highest, stated * DRAWN[1]))
    axes.set_xlim(-1.5, at - 1.5)
    axes.set_xticks([x for x, _ in ticks], [kind for _, kind in ticks])
    legend_above(axes)
    axes.set_ylabel("temperature, two standard errors")


def _draw_rhats(axes: Axes, rhats: Mapping[str, Any], draws: int) -> None:
    # Chains that stand still apart have an infinite one, which ends at the upper edge.
    every = [float(r) for found in rhats.values() for r in found["rhat"].values()]
    finite = [r for r in every if np.isfinite(r)]
    top = max(finite, default=1.1)
    if draws < ENOUGH_DRAWS:
        axes.set_title(f"too few draws to judge:\n{ENOUGH_DRAWS} a chain are needed", size="medium")
    else:
        limit = max(found["rhat_limit"] for found in rhats.values())
        axes.axhspan(1, limit, color="C2", alpha=0.25, lw=0, label="accepted")
        top = max(top, limit)
        legend_above(axes)
    upper = 1 + 1.1 * (top - 1)
    for at, found in enumerate(rhats.values()):
        q = {name: min(value, upper) for name, value in found["rhat"].items()}
        if not np.isfinite(found["rhat"]["max"]):
            axes.text(at, upper, " infinite ", va="top", ha="right", rotation=90)
        axes.plot([at, at], [q["min"], q["max"]], color="0.5", lw=1)
        axes.plot([at, at], [q["q05"], q["q95"]], color="k", lw=5, solid_capstyle="butt")
        axes.plot(at, q["median"], "o", color="w", mec="k", ms=6)
    first, *others = rhats
    axes.set_xticks(range(len(rhats)), [first, *(f"{kind},\nnot judged" for kind in others)])
    axes.set_xlim(-0.6, len(rhats) - 0.4)
    axes.set_ylim(min([0.99, *finite]), upper)
    axes.set_ylabel("R-hat: median, 5 to 95 %, all")


def _temperatures(diagnostics: Mapping[str, Any]) -> dict[str, list[tuple[float, float]]]:
    """Return values and standard errors by what they are of, the finite ones."""
    groups = {
        f"{kind}\ndirections": values
        for kind, values in diagnostics.get("directional_temperatures", {}).items()
    }
    groups["all\nweights"] = [diagnostics.get("configurational_temperature", {})]
    predictive = diagnostics.get("predictive", {})
    names = {"value": "temperature", "standard_error": "temperature_error"}
    groups["predictions"] = [{name: predictive.get(key) for name, key in names.items()}]
    found = {}
    for kind, values in groups.items():
        pairs = [(v.get("value"), v.get("standard_error")) for v in values]
        finite = [
            (a, b)
            for a, b in pairs
            if a is not None and b is not None and np.isfinite([a, b]).all()
        ]
        if finite:
            found[kind] = finite
    return found


def predictions(prediction: Moments, y: Tensor, name: str, where: str) -> Figure:
    """Draw targets over their predictions, with 90 % bands.

    Args:
        prediction: Of N examples with one output each.
        y: Their targets.
        name: What is predicted, with its unit.
        where: Which examples they are.
    """
    truth, mean, lower, upper = (
        t.reshape(-1).cpu().double().numpy()
        for t in (y, prediction.mean, *prediction.interval(0.9))
    )
    figure = new_figure(5.5, 5)
    axes = figure.subplots()
    arms = (mean - lower, upper - mean)
    axes.errorbar(mean, truth, xerr=arms, fmt="o", color="k", ecolor="0.7", ms=3, lw=1)
    ends = [min(mean.min(), truth.min()), max(mean.max(), truth.max())]
    axes.plot(ends, ends, color="0.4", ls=":")
    axes.set_xlabel(f"predicted {name} with its 90 % band")
    axes.set_ylabel(f"{name} in the {where}")
    return figure


def _own_figures(kept: KeptDraws) -> dict[str, Figure]:
    """Return what can be drawn of a task that draws nothing itself: bands of a single output."""
    name = next((n for n in ("test", "val") if n in kept.held_out), None)
    if name is None or not kept.num_draws:
        return {}
    prediction = kept.ensemble(name)
    if prediction.law is not Normal or prediction.mean[0].numel() != 1:
        return {}
    y = kept.held_out[name].examples[1]
    return {"predictions": predictions(prediction, y, "y", f"{name} examples")}


def draw_all(folder: Path, task: Task, content: Mapping[str, Any]) -> Mapping[str, Figure]:
    """Return the learning curve, the verdict, the trace and the task's own figures.

    Args:
        folder: Of the run.
        task: Its task.
        content: Of its ``results.json``.
    """
    figures, log = {}, folder / "metrics.csv"
    if log.is_file():  # a run shorter than the logging interval has none
        figures["learning_curve"] = learning_curve(log, task.chain.draws.burn_in)
    judged = verdict(content["diagnostics"], content["temperature"])
    if judged is not None:
        figures["verdict"] = judged
    if task.kept.num_draws:
        figures["trace"] = trace(task)
        figures |= task.figures(task.kept) or _own_figures(task.kept)
    return figures
