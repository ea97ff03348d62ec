"""How right predictions are with minibatches and the defaults, and at what cost."""

from __future__ import annotations

from typing import Any

from tasks.experiments.tables import markdown

#: Independent draws below which a cost is too uncertain to be shown.
_ENOUGH = 100


def table(record: dict[str, dict[str, dict[str, dict[str, Any]]]]) -> str:
    """Return the table of the record of ``scripts/bench/accuracy.py``.

    Args:
        record: By posterior, sampler and kind of gradients: ``auto`` and, where they were run,
            ``plain`` and ``independent``.
    """
    head = (
        "posterior",
        "sampler",
        "gradients chosen",
        "deviation of predictions over the true one",
        "the same, plain",
        "alarms",
        "gradients for an independent draw",
        "the same, plain",
        "ratio",
        "the same, plain and independent",
        "ratio",
    )
    rows = []
    for posterior, samplers in record.items():
        for sampler, kinds in samplers.items():
            auto, plain, independent = (kinds.get(k) for k in ("auto", "plain", "independent"))
            assert auto is not None
            cost = _cost(auto)
            ratios = []
            for other in (plain, independent):
                found = _cost(other) if other else ""
                ratio = f"{other['cost'] / auto['cost']:.1f}" if other and cost and found else ""
                ratios += [found, ratio]
            row = (
                posterior,
                f"`{sampler}`",
                auto["gradients"],
                f"{auto['deviation']:.3f}",
                f"{plain['deviation']:.3f}" if plain else "",
                ", ".join(str(len(found["alarms"])) for found in (auto, plain) if found),
                cost,
                *ratios,
            )
            rows.append(row)
    return markdown(head, rows)


def _cost(found: dict[str, Any]) -> str:
    return f"{found['cost']:,.0f}" if found["independent_draws"] >= _ENOUGH else ""
