"""Scores, table and figure of the large-p-small-n regression."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lightning_sgmcmc.callbacks.report.figures import new_figure
from lightning_sgmcmc.diagnostics import ess
from tasks.experiments.hasgld.gibbs import gibbs
from tasks.experiments.hasgld.spike_slab_chains import THINNING, Chains, Data, Part
from tasks.experiments.loop import Array
from tasks.experiments.sheet import sheet
from tasks.experiments.tables import Result, Results, Row, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POINTS = 60
#: Line, marker and grey of each method in turn.
STYLES = (
    ("-", "o", "0.0"),
    ("--", "s", "0.35"),
    (":", "^", "0.5"),
    ("-.", "D", "0.6"),
    ("-", "v", "0.75"),
)


def errors(mean: Array, part: Part) -> tuple[Array, Array]:
    """Return mean squared and mean absolute error of the predictions of coefficients [K, p]."""
    x, y = (each.numpy() for each in part)
    residuals = y - np.einsum("knp,kp->kn", x, mean)
    return (residuals**2).mean(1), np.abs(residuals).mean(1)


def running_means(chains: Chains) -> tuple[NDArray[np.int64], Array]:
    """Return gradients spent, [G], and means of the second half of the draws so far, [G, K, p]."""
    draws = np.concatenate([chains.adapting, chains.sampled], axis=1)
    adapting = chains.adapting.shape[1]
    cost = THINNING * np.repeat(
        [chains.cost_adapting, chains.cost_sampling], [adapting, chains.sampled.shape[1]]
    )
    last = np.unique(np.geomspace(1, draws.shape[1], POINTS).astype(int))
    sums = np.concatenate([np.zeros_like(draws[:, :1]), draws.cumsum(1)], axis=1)
    means = [(sums[:, m] - sums[:, m // 2]) / (m - m // 2) for m in last]
    return cost.cumsum()[last - 1], np.stack(means)


def scores(chains: Chains, data: Data, part: str, folder: Path, reference: int) -> dict[str, Any]:
    """Return what chains reach, and write the curves and coefficients of the figure.

    Args:
        chains: On all data sets.
        data: The data sets.
        part: ``"test"``, or ``"validation"`` for choosing a step size.
        folder: Where ``curves.npz`` goes.
        reference: Draws of the exact posterior that the chains are compared with.
    """
    held_out: Part = getattr(data, part)
    mean = chains.sampled.mean(1)
    mse, mae = errors(mean, held_out)
    found: dict[str, Any] = {"part": part, "mse": summary(mse), "mae": summary(mae)}
    if not np.isfinite(mean).all():
        return {"part": part, "diverged": True}
    if part == "validation":
        return found
    gap = mean - data.beta
    exact, deviation = gibbs(*data.train, chains.variance, *chains.rates, draws=reference)
    spread = chains.sampled.std(1)
    sizes = np.stack([ess(draws[None], "mean") for draws in chains.sampled])
    gradients, means = running_means(chains)
    curves = [errors(m, held_out) for m in means]
    np.savez(
        folder / "curves.npz",
        gradients=gradients,
        mse=np.stack([c[0] for c in curves]),
        mae=np.stack([c[1] for c in curves]),
        mean=mean,
        exact=exact,
        beta=data.beta,
        truth=np.stack(errors(np.tile(data.beta, (len(mean), 1)), held_out)),
    )
    return found | {
        "excess": summary(np.einsum("kp,pq,kq->k", gap, data.covariance, gap)),
        "truth": [float(e.mean()) for e in errors(np.tile(data.beta, (len(mean), 1)), held_out)],
        "coefficients": [summary(mean[:, j]) for j in range(3)],
        "included": [int((chains.rho[:, j] > 0.5).sum()) for j in range(2)],
        "false": int((chains.rho[:, 2:] > 0.5).sum()),
        "first": [int((np.abs(mean).argsort(1)[:, -2:] == j).any(1).sum()) for j in range(2)],
        "delta": summary(chains.delta),
        "variance": summary(chains.variance.numpy()),
        "gibbs_mean": float(np.sqrt((((mean - exact) / deviation) ** 2).mean())),
        "gibbs_sd": float((spread / deviation).mean()),
        "ess": float(np.median(sizes)),
        "ess_worst": float(sizes.min()),
        "repetitions": len(mean),
    }


def summary(values: Array) -> list[float]:
    """Return mean and standard error over the data sets."""
    return [float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))]


def _score(key: str) -> Callable[[Result], tuple[float, ...] | str]:
    """Return the function of a study that gives a mean and its standard error."""

    def read(row: Result) -> tuple[float, ...] | str:
        return "diverges" if row.get("diverged") else tuple(row[key]) if key in row else "-"

    return read


def _tested(read: Callable[[Result], Any]) -> Callable[[Result], Any]:
    """Return ``-`` for studies that have not been measured on the test examples."""
    return lambda row: read(row) if "excess" in row else "-"


SHEET = sheet(
    "spike_slab",
    setting=lambda row: "-" if "diverged" in row else row["setting"],
    mse=_score("mse"),
    mae=_score("mae"),
    excess=_score("excess"),
    beta_1=_tested(lambda row: row["coefficients"][0][0]),
    beta_2=_tested(lambda row: row["coefficients"][1][0]),
    beta_3=_tested(lambda row: row["coefficients"][2][0]),
    included=_tested(lambda row: "{}, {}, {}".format(*row["included"], row["false"])),
    exact=_tested(lambda row: (row["gibbs_mean"], row["gibbs_sd"])),
    ess=_tested(lambda row: (row["ess"], row["ess_worst"])),
)


def table(results: Results, labels: Mapping[str, str]) -> Table:
    """Return a row a method, and what the true coefficients have."""
    rows = [Row([label], name) for name, label in labels.items()]
    truth = next((row["truth"] for row in results.values() if row and "truth" in row), None)
    if truth:
        errors = dict(zip(("test MSE", "test MAE"), truth, strict=True))
        known: dict[str, float | str] = {"excess risk": "0", **errors}
        rows.append(Row(["the true beta"], published=known, empty="-"))
    return Table(SHEET.heading, SHEET.made(SHEET.columns), rows)


def draw(labels: Mapping[str, str], out: Path, adapting: int) -> Figure:
    """Draw coefficients beside the truth, and errors over gradients."""
    figure = new_figure(11, 3.8)
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.2, 1, 1))
    panels = {"mse": (middle, "mean squared error"), "mae": (right, "mean absolute error")}
    shown = np.arange(1, 9)
    for i, (name, label) in enumerate(labels.items()):
        with np.load(out / name / "curves.npz") as stored:
            content = dict(stored)
        line, marker, shade = STYLES[i]
        mean = content["mean"][:, : len(shown)]
        centre = mean.mean(0)
        left.errorbar(
            shown + 0.16 * (i - (len(labels) - 1) / 2),
            centre,
            [centre - mean.min(0), mean.max(0) - centre],
            fmt=marker,
            color=shade,
            label=fill(label, 44),
            ms=4,
            lw=1,
        )
        for key, (axes, _) in panels.items():
            values = content[key].mean(1)
            axes.semilogx(content["gradients"], values, line, color=shade, label=label)
    left.hlines(content["beta"][: len(shown)], shown - 0.45, shown + 0.45, color="0.0", lw=1)
    left.set_xticks(shown)
    left.set_xlabel("coefficient (bars: the true values)")
    left.set_ylabel("posterior mean, with the range over data sets")
    left.legend(frameon=False, fontsize="x-small")
    for value, (axes, title) in zip(content["truth"].mean(1), panels.values(), strict=True):
        axes.axhline(value, color="0.5", lw=0.8, zorder=0)
        axes.set_ylim(bottom=0.95 * value)
        axes.axvline(adapting, color="0.8", lw=1, zorder=0)
        axes.set_xlabel("gradients of all the data")
        axes.set_ylabel(f"{title} on 50 test examples")
    return figure
