"""The figure of a study: its trials' metric, in their order and over every parameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState

from lightning_sgmcmc.callbacks.report.figures import new_figure
from lightning_sgmcmc.run.study import Study, last_value
from lightning_sgmcmc.run.sweep import NO_SAMPLE, does_not_sample

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Outcomes: the marker of each differs in form and in shade.
_STYLES: dict[str, dict[str, Any]] = {
    "sampled": {"marker": "o", "color": "k"},
    "worse than others": {"marker": "v", "color": "0.6"},
    NO_SAMPLE: {"marker": "x", "color": "C1"},
}
#: Distances of the median from the best trial, above which a trial is drawn at the edge.
_DRAWN = 4
_COLUMNS = 4


def study_figure(study: Study) -> Figure | None:
    """Draw the metric of every trial at its last draw, and the best of those that gave a sample.

    The first panel has the trials in their order, with the best value so far; the others have one
    parameter each. A trial far worse than the rest stands at the edge.

    Args:
        study: The study.

    Returns:
        The figure; None where no trial has a value.
    """
    trials = [t for t in study.ended if np.isfinite(last_value(t))]
    if not trials:
        return None
    sign = 1 if study.sweep.goal == "minimize" else -1
    values = np.array([last_value(trial) for trial in trials])
    best = sign * (sign * values).min()
    edge = best + (_DRAWN * (np.median(values) - best) or sign)
    drawn = sign * np.minimum(sign * values, sign * edge)
    count = 1 + len(study.sweep.space)
    rows = -(-count // _COLUMNS)
    columns = -(-count // rows)
    figure = new_figure(9, 0.7 + 2.6 * rows)
    panels = np.ravel(figure.subplots(rows, columns, sharey=True, squeeze=False))
    numbers = np.array([trial.number for trial in trials])
    _scatter(panels[0], trials, numbers, drawn)
    for number, value, place in zip(numbers, values, drawn, strict=True):
        if value != place:
            beside = {"va": "top" if sign > 0 else "bottom", "ha": "center", "rotation": 90}
            panels[0].text(number, place, f"   {value:.3g}   ", size="x-small", **beside)
    sampled = [t.state == TrialState.COMPLETE for t in trials]
    if any(sampled):
        so_far = np.minimum.accumulate(np.where(sampled, sign * values, np.inf)) * sign
        panels[0].step(numbers, so_far, "k:", lw=1, where="post", label="best so far")
    panels[0].set_xlabel("trial")
    panels[0].xaxis.get_major_locator().set_params(integer=True)
    for axes, (name, law) in zip(panels[1:], study.sweep.space.items(), strict=False):
        _scatter(axes, trials, _places(axes, law, [t.params[name] for t in trials]), drawn)
        axes.set_xlabel(name.removeprefix("model."))
    for axes in panels[count:]:
        axes.set_visible(False)
    for axes in panels[:count:columns]:
        axes.set_ylabel(f"{study.sweep.metric}\nat the last draw")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=4, frameon=False)
    return figure


def _scatter(axes: Axes, trials: Sequence[FrozenTrial], x: np.ndarray, y: np.ndarray) -> None:
    outcomes = np.array([_outcome(trial) for trial in trials])
    for outcome, style in _STYLES.items():
        chosen = outcomes == outcome
        if chosen.any():
            axes.plot(x[chosen], y[chosen], ls="", ms=6, label=outcome, **style)


def _outcome(trial: FrozenTrial) -> str:
    """Return the style's name of a trial's outcome."""
    if trial.state == TrialState.COMPLETE:
        return "sampled"
    return NO_SAMPLE if does_not_sample(trial) else "worse than others"


def _places(axes: Axes, law: BaseDistribution, values: Sequence[Any]) -> np.ndarray:
    """Return where a parameter's values stand on the axis, which gets their scale."""
    if isinstance(law, CategoricalDistribution):
        axes.set_xticks(range(len(law.choices)), [str(choice) for choice in law.choices])
        axes.set_xlim(-0.5, len(law.choices) - 0.5)
        return np.array([law.choices.index(value) for value in values], dtype=float)
    if getattr(law, "log", False):
        axes.set_xscale("log")
    return np.array(values, dtype=float)
