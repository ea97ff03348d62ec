"""The figure of the verdict: what is drawn of ``results.json``, and what is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lightning_sgmcmc.callbacks.report.figures import verdict

pytest.importorskip("matplotlib")

RHAT = {"min": 0.99, "q05": 1.0, "median": 1.01, "q95": 1.03, "max": 1.2}
CONTENT: dict[str, Any] = {
    "directional_temperatures": {
        "leading": [{"value": 1.1, "standard_error": 0.1}, {"value": 50.0, "standard_error": 1.0}],
        "random": [{"value": None, "standard_error": None}],
    },
    "predictive": {"temperature": 0.97, "temperature_error": 0.05},
    "mixing": {
        "draws_per_chain": 20,
        "predictions": {"rhat": RHAT, "rhat_limit": 1.07},
        "weights": {"rhat": None, "rhat_limit": 1.07},
    },
}


def test_accepted_ranges_and_every_temperature_are_drawn() -> None:
    figure = verdict(CONTENT, 1.0)
    assert figure is not None
    left, right = figure.axes
    band = left.patches[0].get_extents().transformed(left.transData.inverted())
    np.testing.assert_allclose([band.y0, band.y1], [0.93**2, 1.07**2], rtol=1e-9)
    assert [label.get_text() for label in left.get_xticklabels()] == [
        "leading\ndirections",
        "predictions",
    ]
    assert left.get_ylim()[1] == 4.0
    assert [text.get_text().strip() for text in left.texts] == ["50"]
    limit = right.patches[0].get_extents().transformed(right.transData.inverted())
    np.testing.assert_allclose([limit.y0, limit.y1], [1.0, 1.07], rtol=1e-9)
    assert [label.get_text() for label in right.get_xticklabels()] == ["predictions"]


def test_what_is_not_known_is_counted_and_not_drawn() -> None:
    directions = {"leading": [{"value": v, "standard_error": e} for v, e in ((1.1, 0.9), (25, 17))],
                  "random": [{"value": -4.0, "standard_error": 6.0}]}  # fmt: skip
    figure = verdict(CONTENT | {"directional_temperatures": directions}, 1.0)
    assert figure is not None
    left = figure.axes[0]
    assert [label.get_text() for label in left.get_xticklabels()] == [
        "leading\ndirections\n(1 of 2\nnot known)",
        "random\ndirections\n(1 of 1\nnot known)",
        "predictions",
    ]
    points = [float(y) for bars in left.containers for y in bars[0].get_ydata()]
    assert points == [1.1, 0.97]
    assert not left.texts


@pytest.mark.parametrize("finite", [["min", "q05", "median", "q95"], ["min"], []])
def test_an_infinite_rhat_ends_at_the_edge(finite: list[str]) -> None:
    """Chains that stand still in different places have one."""
    rhat = {name: RHAT[name] if name in finite else np.inf for name in RHAT}
    mixing = CONTENT["mixing"] | {"predictions": {"rhat": rhat, "rhat_limit": 1.07}}
    figure = verdict(CONTENT | {"mixing": mixing}, 1.0)
    assert figure is not None
    right = figure.axes[1]
    top = right.get_ylim()[1]
    assert [text.get_text().strip() for text in right.texts] == ["infinite"]
    highest = max(np.max(line.get_ydata()) for line in right.lines)
    assert np.isfinite(top)
    assert highest == pytest.approx(top)


def test_few_draws_are_not_judged() -> None:
    """19 draws have a limit as well, which chance alone would reach."""
    figure = verdict(CONTENT | {"mixing": CONTENT["mixing"] | {"draws_per_chain": 19}}, 1.0)
    assert figure is not None
    _, right = figure.axes
    assert not right.patches
    assert right.get_title().startswith("too few draws to judge")


def test_weights_are_not_judged_beside_predictions() -> None:
    mixing = CONTENT["mixing"] | {"weights": CONTENT["mixing"]["predictions"]}
    figure = verdict(CONTENT | {"mixing": mixing}, 1.0)
    assert figure is not None
    labels = [label.get_text() for label in figure.axes[1].get_xticklabels()]
    assert labels == ["predictions", "weights,\nnot judged"]


def test_nothing_is_drawn_of_nothing() -> None:
    assert verdict({"mixing": {"weights": {"rhat": None}}}, 1.0) is None


def test_what_is_not_measured_has_no_panel() -> None:
    """An optimizer's iterates have no temperature, and one draw no R-hat."""
    figure = verdict(CONTENT, 0.0)
    assert figure is not None
    assert [axes.get_ylabel() for axes in figure.axes] == ["R-hat: median, 5 to 95 %, all"]
    figure = verdict(CONTENT | {"mixing": {}}, 1.0)
    assert figure is not None
    assert [axes.get_ylabel() for axes in figure.axes] == ["temperature, two standard errors"]
    assert verdict({}, 1.0) is None
