"""The figures that pSGLD's network experiments draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from tasks.experiments.learning_curve import ENSEMBLE, NETWORK, read_curve
from tasks.experiments.psgld.methods import BATCH
from tasks.experiments.psgld.report import Results, Row, at_temperatures, names_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLES = ("-", "--", ":", "-.")


def curves(
    results: Results, out: Path, rows: Mapping[str, Row], columns: Mapping[str, str]
) -> dict[str, Figure]:
    """Return the test error over epochs of all finished runs, one figure a column."""
    found: dict[str, Figure] = {}
    for column, title in columns.items():
        lines = {
            row.label: points
            for method, row in rows.items()
            if len(points := curve(results, out, column, method, row)) > 1
        }
        if lines:
            found[f"curves_{column}"] = _curves(lines, title)
    return found


def curve(
    results: Results, out: Path, column: str, method: str, row: Row
) -> list[tuple[float, float]]:
    """Return epochs and test errors in percent, the mean over the runs of an entry.

    Epochs are those of minibatches of 100.
    """
    if row.curve is None:
        return []
    errors: dict[float, list[float]] = {}
    for name in names_of(results, column, method):
        result = results[name]
        if result is None:
            continue
        for step, error in read_curve(out / name, ENSEMBLE if row.curve == "ensemble" else NETWORK):
            errors.setdefault(step * BATCH / result["num_data"], []).append(error)
    return [(epoch, float(np.mean(values))) for epoch, values in sorted(errors.items())]


def _curves(lines: Mapping[str, Sequence[tuple[float, float]]], title: str) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.subplots()
    for i, (label, points) in enumerate(lines.items()):
        style = _STYLES[i % len(_STYLES)]
        axes.plot(*zip(*points, strict=True), style, color=f"C{i % 10}", label=label)
    axes.set(xlabel="epoch", ylabel="test error, %", yscale="log", title=title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    figure.legend(fontsize=7, loc="outside right upper")
    return figure


def weights(results: Results, out: Path, column: str, rows: Mapping[str, Row]) -> dict[str, Figure]:
    """Return histograms of the weights, biases left out, at the end of a column's runs."""
    from matplotlib.figure import Figure

    found = {}
    for method, row in rows.items():
        for name in names_of(results, column, method)[:1]:
            path = out / name / "checkpoints" / "last.ckpt"
            if results[name] is not None and path.is_file():
                found[row.label] = last_weights(path)
    if not found:
        return {}
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    limit = max(float(np.quantile(np.abs(values), 0.999)) for values in found.values())
    for i, (label, values) in enumerate(found.items()):
        axes.hist(
            np.clip(values, -limit, limit),
            np.linspace(-limit, limit, 121).tolist(),
            density=True,
            histtype="step",
            ls=_STYLES[i % len(_STYLES)],
            color=f"C{i}",
            label=label,
        )
    axes.set(xlabel="weight, last iteration (the ends hold what lies beyond)", ylabel="density")
    axes.set_yscale("log")
    axes.legend(frameon=False, fontsize=7)
    return {f"weights_{column}": figure}


def last_weights(path: Path) -> NDArray[np.float32]:
    """Return all weights but biases of a checkpoint's first chain."""
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
    stacked = [value[0] for name, value in state.items() if name.startswith("chains.")]
    tensors = stacked or list(state.values())
    return torch.cat([value.flatten() for value in tensors if value.dim() > 1]).float().numpy()


def temperature_figure(
    results: Results, methods: Sequence[str], rows: Mapping[str, Row]
) -> dict[str, Figure]:
    """Return log-likelihood per example over the temperature, on both held-out sets."""
    from matplotlib.figure import Figure

    found = {method: at_temperatures(results, method) for method in methods}
    if not any(len(runs) > 1 for runs in found.values()):
        return {}
    figure = Figure(figsize=(6.5, 4), layout="constrained")
    axes = figure.subplots()
    for i, (method, runs) in enumerate(found.items()):
        for part, style, name in (
            ("ensemble", "o-", "test"),
            ("ensemble_val", "s--", "validation"),
        ):
            points = [(run["temperature"], -run["metrics"][part]["nll"]) for run in runs]
            if points:
                label = f"{rows[method].label.split(',')[0]}, {name}"
                axes.plot(*zip(*points, strict=True), style, color=f"C{i}", ms=4, label=label)
    axes.set(xscale="log", xlabel="temperature T", ylabel="log-likelihood of an example, nats")
    axes.axvline(1.0, color="0.6", lw=0.8)
    axes.legend(frameon=False, fontsize=8)
    return {"temperature": figure}
