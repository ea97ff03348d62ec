"""Chains at several step sizes beside a reference: moments, mixing, errors over time, figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_sgmcmc import SGLD, GaussianPrior, Sampler
from lightning_sgmcmc.callbacks.report.figures import new_figure
from lightning_sgmcmc.chain import Sampling
from lightning_sgmcmc.diagnostics import RunningErrors, atuc, autocorrelation_time
from lightning_sgmcmc.samplers import NonFiniteGradientError
from tasks.experiments.drawing import ellipse
from tasks.experiments.labels import of_sampler
from tasks.experiments.loop import Array
from tasks.experiments.tables import Column, Result, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Called with a value of the parameter and N, returns what builds a sampler, and its lr.
Make = Callable[[float, int], tuple[Callable[..., Sampler], float]]
#: What is known of a target or of chains: ``mean``, ``covariance``, of a target also ``mode``.
Moments = dict[str, Array]


@dataclass(frozen=True)
class Method:
    """A sampler and its step sizes.

    Attributes:
        parameter: What sets its step size.
        values: The values of that.
        make: Builds it.
        sampling: How minibatches are drawn.
    """

    parameter: str
    values: Sequence[float]
    make: Make
    sampling: Sampling = "independent"

    @property
    def label(self) -> str:
        """What tables call it: what it builds, and how its minibatches are drawn."""
        make, lr = self.make(self.values[0], 1)
        built = of_sampler(make([torch.zeros(2)], lr=lr, prior=GaussianPrior()))
        return f"{built}, reshuffled epochs" if self.sampling == "reshuffled" else built


def langevin(epsilon: float, num_data: int) -> tuple[Callable[..., Sampler], float]:
    """Return SGLD at the paper's epsilon, twice the step on the sum."""
    return SGLD, epsilon * num_data / 2


def read_moments(folder: Path, suffix: str = "") -> Moments:
    """Return the arrays that a study wrote into ``moments.npz``, those named ``NAME_SUFFIX``.

    Raises:
        FileNotFoundError: If the study has not been made.
    """
    path = folder / "moments.npz"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: run the cell {folder.name} first")
    with np.load(path) as stored:
        names = {n.removesuffix(suffix): n for n in stored.files if n.endswith(suffix)}
        return {name: stored[n] for name, n in names.items()}


def missing(folders: Iterable[Path]) -> str:
    """Return the line that says which studies' moments are missing, empty if none are."""
    names = [str(folder / "moments.npz") for folder in folders]
    lost = [name for name in names if not Path(name).is_file()]
    return f"recorded results have no {', '.join(lost)}: run those cells" if lost else ""


def compare(
    draws: NDArray[Any], seconds: float, reference: Moments, thinning: int = 1
) -> tuple[dict[str, Any], Moments]:
    """Return what draws [K, draws, d] reach, and their moments.

    Args:
        draws: All finite.
        seconds: Processor time of all chains.
        reference: Moments of the target.
        thinning: Steps between draws.
    """
    flat = draws.reshape(-1, draws.shape[2]).astype(np.float64)
    own = {"covariance": np.cov(flat.T, bias=True), "mean": flat.mean(0)}
    variances = np.diag(reference["covariance"])
    shift = (own["mean"] - reference["mean"]) / np.sqrt(variances)
    ratios = np.quantile(np.diag(own["covariance"]) / variances, (0, 0.5, 1))
    return {
        "draws": draws.shape[1],
        "variance_ratio": [float(r) for r in ratios],
        "mean_error": float(np.abs(shift).max()),
        "act": float(np.mean(autocorrelation_time(draws))) * thinning,
        "atuc": atuc(draws, seconds / len(flat)),
    }, own


def over_steps(
    folder: Path,
    reference: Moments,
    method: Method,
    chains: Callable[[float], tuple[Array, float]],
    *,
    block: int,
    thinning: int = 1,
    also: Callable[[Array], dict[str, Any]] = lambda draws: {},
) -> dict[str, Any]:
    """Run chains at every step size, compare each with a reference, and write their moments.

    Args:
        folder: Where ``moments.npz`` goes.
        reference: Moments of the target.
        method: The sampler.
        chains: Returns draws [K, draws, d] and the processor seconds of all chains.
        block: Draws between two looks at the errors.
        thinning: Steps between draws.
        also: Returns what else the result says of draws.
    """
    rows: list[dict[str, Any]] = []
    arrays: Moments = {}
    for value in method.values:
        row: dict[str, Any] = {"parameter": method.parameter, "value": value}
        try:
            draws, seconds = chains(value)
        except NonFiniteGradientError:
            draws, seconds = np.full((1, 1, 1), np.nan), 0.0
        if np.isfinite(draws).all():
            reached, own = compare(draws, seconds, reference, thinning)
            errors = errors_in_time(draws, seconds, reference, block)
            row |= reached | also(draws) | {"errors": errors}
            arrays |= {f"{name}_{value:g}": array for name, array in own.items()}
        rows.append(row)
    np.savez(folder / "moments.npz", allow_pickle=False, **arrays)
    return {"rows": rows}


def errors_in_time(
    draws: Array, seconds: float, reference: Moments, block: int
) -> list[dict[str, float]]:
    """Return mean errors of mean (E1) and covariance (E2) of all draws so far, block by block.

    Args:
        draws: [K, draws, d].
        seconds: Processor time of all chains; ``seconds`` of the errors is that of one.
        reference: Moments of the target.
        block: Draws between two looks.
    """
    running = RunningErrors(reference["mean"], reference["covariance"])
    count = draws.shape[1]
    found = []
    for first in range(0, count, block):
        spent = seconds / len(draws) * min(first + block, count) / count
        now = running.update(draws[:, first : first + block], spent)
        errors = {"e1": float(now.mean.mean()), "e2": float(now.covariance.mean())}
        found.append({"seconds": now.seconds} | errors)
    return found


def at_budget(errors: list[dict[str, float]], budget: float) -> dict[str, float] | None:
    """Return the last errors within a budget of processor seconds, None if the run was shorter."""
    if not errors or errors[-1]["seconds"] < budget:
        return None
    within = [e for e in errors if e["seconds"] <= budget]
    return within[-1] if within else None


def columns(budgets: Sequence[float], digits: int) -> list[Column]:
    """Return the columns that every table has: moments, mixing and errors.

    Args:
        budgets: Processor seconds a chain after which errors are shown.
        digits: Of 1/ATUC.
    """
    return [
        Column("step", lambda row: f"{row['parameter']} = {row['value']:g}"),
        Column(
            "variance / reference: least, median, largest",
            lambda row: tuple(row["variance_ratio"]) if "act" in row else "diverges",
            "{:.3f}, {:.3f}, {:.3f}",
        ),
        Column("mean, in sd", "mean_error", digits=3, better="lower"),
        Column("autocorrelation time", "act", "{:.4g}", better="lower"),
        Column(
            "1/ATUC",
            lambda row: 1 / row["atuc"] if "atuc" in row else None,
            f"{{:,.{digits}f}}",
            better="higher",
        ),
        *(
            errors_column(f"E1, E2 after {budget:g} s", partial(at_budget, budget=budget))
            for budget in budgets
        ),
    ]


def errors_column(
    title: str, chosen: Callable[[list[dict[str, float]]], dict[str, float] | None]
) -> Column:
    """Return the column of E1 and E2 at one of the times at which they were measured."""

    def read(row: Result) -> tuple[float, float] | None:
        then = chosen(row["errors"]) if "errors" in row else None
        return None if then is None else (then["e1"], then["e2"])

    return Column(title, read, "{:.3f}, {:.3f}", better="lower")


def rows(label: str, result: Result | None) -> list[Row]:
    """Return a row for each step size of a study, none if it is not finished."""
    return [Row([label], record=row) for row in (result or {}).get("rows", [])]


def finite(result: Result | None) -> list[Result]:
    """Return the rows of step sizes at which chains did not diverge."""
    return [row for row in (result or {}).get("rows", []) if "act" in row]


def pair_extremes(found: Array, reference: Array) -> list[tuple[int, int]]:
    """Return the pairs whose 2 x 2 covariances differ least and most, relative to the reference."""
    pairs = [(i, j) for i in range(len(found)) for j in range(i)]
    gaps = []
    for i, j in pairs:
        pair = np.ix_([i, j], [i, j])
        gap = np.abs(found[pair] - reference[pair]).sum() / np.abs(reference[pair]).sum()
        gaps.append(float(gap))
    return [pairs[int(np.argmin(gaps))], pairs[int(np.argmax(gaps))]]


def marginals(
    reference: Moments, chains: Mapping[str, Moments], height: float, style: str = "b--"
) -> tuple[Figure, Iterable[tuple[Axes, str, str]]]:
    """Draw two-standard-deviation ellipses of the best and the worst pair of weights.

    Args:
        reference: Of the target.
        chains: Moments of chains by the label of their line, a row of panels each.
        height: Of a row, in inches.
        style: Of the chains' ellipses.

    Returns:
        The figure, and its panels with their row's label and ``best`` or ``worst``.
    """
    figure = new_figure(8, height * len(chains))
    panels = []
    grid = figure.subplots(len(chains), 2, squeeze=False)
    for line, (label, own) in zip(grid, chains.items(), strict=True):
        if not own:
            continue
        pairs = pair_extremes(own["covariance"], reference["covariance"])
        for axes, (i, j), kind in zip(line, pairs, ("best", "worst"), strict=True):
            pair = np.ix_([i, j], [i, j])
            for moments, look, name in ((reference, "r-", "HMC"), (own, style, label)):
                points = moments["mean"][[i, j], None] + ellipse(moments["covariance"][pair], 2)
                axes.plot(*points, look, label=name)
            axes.set(xlabel=f"weight {i}", ylabel=f"weight {j}")
            panels.append((axes, label, kind))
    return figure, panels


def draw_errors(
    panels: Sequence[Sequence[Axes]],
    studies: Mapping[str, Result | None],
    chosen: Mapping[str, Callable[[list[dict[str, float]]], dict[str, float] | None]],
) -> None:
    """Draw errors over mixing, a line for each study by its label, a point for each step size.

    Args:
        panels: A line of panels for E1 and one for E2.
        studies: Results by label.
        chosen: At which of their times errors are shown, by its name: a panel of a line each.
    """
    names = {"e1": "E1, mean", "e2": "E2, covariance"}
    for line, (key, title) in zip(panels, names.items(), strict=True):
        for axes, (when, of) in zip(line, chosen.items(), strict=True):
            for (label, result), marker in zip(studies.items(), "os^Dv", strict=False):
                points = [
                    (1 / row["atuc"], then[key])
                    for row in finite(result)
                    if (then := of(row["errors"])) is not None
                ]
                if points:
                    axes.plot(*zip(*points, strict=True), marker + "-", label=label)
            axes.set(xscale="log", yscale="log", xlabel="1/ATUC, independent draws a second")
            axes.set_ylabel(f"{title}, {when}")
