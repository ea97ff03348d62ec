"""The figures that pSGLD's network experiments draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_sgmcmc.callbacks.report.figures import new_figure
from tasks.experiments.drawing import coloured, draw_lines
from tasks.experiments.learning_curve import ENSEMBLE, NETWORK, read_curve
from tasks.experiments.psgld.methods import BATCH
from tasks.experiments.psgld.networks import Method, Networks
from tasks.experiments.psgld.report import at_temperatures, names_of
from tasks.experiments.tables import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figures(networks: Networks, results: Results, out: Path) -> dict[str, Figure]:
    """Return learning curves, histograms of weights and the temperature curve, where asked for."""
    found = curves(networks, results, out)
    shown = networks.sheet.settings.get("histogram", {"columns": [], "methods": []})
    for column in shown["columns"]:
        found |= weights(networks, results, out, column, shown["methods"])
    return found | temperature_figure(networks, results)


def curves(networks: Networks, results: Results, out: Path) -> dict[str, Figure]:
    """Return the test error over epochs of all finished runs, one figure a column."""
    found: dict[str, Figure] = {}
    for column, of in networks.columns.items():
        lines = {
            method.label: points
            for name, method in networks.methods.items()
            if len(points := curve(results, out, column, name, method)) > 1
        }
        if lines:
            found[f"curves_{column}"] = _curves(lines, of.title)
    return found


def curve(
    results: Results, out: Path, column: str, name: str, method: Method
) -> list[tuple[float, float]]:
    """Return epochs and test errors in percent, the mean over the runs of an entry.

    Epochs are those of minibatches of 100.
    """
    if method.curve is None:
        return []
    errors: dict[float, list[float]] = {}
    of = ENSEMBLE if method.curve == "ensemble" else NETWORK
    for run in names_of(results, column, name):
        result = results[run]
        for step, error in read_curve(out / run, of) if result is not None else []:
            assert result is not None
            errors.setdefault(step * BATCH / result["num_data"], []).append(error)
    return [(epoch, float(np.mean(values))) for epoch, values in sorted(errors.items())]


def _curves(lines: Mapping[str, Sequence[tuple[float, float]]], title: str) -> Figure:
    from matplotlib.ticker import MaxNLocator

    figure = new_figure(8, 4.2)
    axes = figure.subplots()
    draw_lines(axes, lines, coloured())
    axes.set(xlabel="epoch", ylabel="test error, %", yscale="log", title=title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    figure.legend(fontsize=7, loc="outside right upper")
    return figure


def weights(
    networks: Networks, results: Results, out: Path, column: str, names: Sequence[str]
) -> dict[str, Figure]:
    """Return histograms of the weights, biases left out, at the end of a column's runs."""
    found = {}
    for name in names:
        for run in names_of(results, column, name)[:1]:
            path = out / run / "checkpoints" / "last.ckpt"
            if results[run] is not None and path.is_file():
                found[networks.methods[name].label] = last_weights(path)
    if not found:
        return {}
    figure = new_figure(7, 4)
    axes = figure.subplots()
    limit = max(float(np.quantile(np.abs(values), 0.999)) for values in found.values())
    bins = np.linspace(-limit, limit, 121).tolist()
    for (label, values), look in zip(found.items(), coloured(), strict=False):
        shown = np.clip(values, -limit, limit)
        axes.hist(shown, bins, density=True, histtype="step", label=label, **look)
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


def temperature_figure(networks: Networks, results: Results) -> dict[str, Figure]:
    """Return log-likelihood per example over the temperature, on both held-out sets."""
    found = {name: at_temperatures(results, name) for name in networks.tempered}
    if not any(len(runs) > 1 for runs in found.values()):
        return {}
    figure = new_figure(6.5, 4)
    axes = figure.subplots()
    parts = {"test": ("ensemble", "o-"), "validation": ("ensemble_val", "s--")}
    for i, (name, runs) in enumerate(found.items()):
        for data, (part, style) in parts.items():
            points = [(run["temperature"], -run["metrics"][part]["nll"]) for run in runs]
            if points:
                label = f"{networks.methods[name].label.split(',')[0]}, {data}"
                axes.plot(*zip(*points, strict=True), style, color=f"C{i}", ms=4, label=label)
    axes.set(xscale="log", xlabel="temperature T", ylabel="log-likelihood of an example, nats")
    axes.axvline(1.0, color="0.6", lw=0.8)
    axes.legend(frameon=False, fontsize=8)
    return {"temperature": figure}
