"""How right predictions are with minibatches and the defaults: the table of a record."""

from __future__ import annotations

from typing import Any


def table(record: dict[str, dict[str, dict[str, dict[str, Any]]]]) -> str:
    """Return the table of the record of ``scripts/bench/accuracy.py``.

    Args:
        record: By problem, sampler and kind of gradients, ``auto`` or ``plain``.
    """
    lines = [
        "| posterior | sampler | deviation of predictions over the true one | error of their "
        "mean, in deviations | alarms | gradients for an independent draw | of plain minibatches, "
        "over that |",
        "|---|---|---|---|---|---|---|",
    ]
    for problem, samplers in record.items():
        for sampler, kinds in samplers.items():
            auto, plain = kinds["auto"], kinds.get("plain")
            ratio = "" if plain is None else f"{plain['cost'] / auto['cost']:.1f}"
            lines.append(
                f"| {problem} | `{sampler}` | {auto['deviation']:.3f} | {auto['mean_error']:.3f} "
                f"| {len(auto['alarms'])} | {auto['cost']:,.0f} | {ratio} |"
            )
    return "\n".join(lines)
