"""How right predictions are with minibatches and the defaults, and at what cost."""

from __future__ import annotations

from typing import Any


def table(record: dict[str, dict[str, dict[str, dict[str, Any]]]]) -> str:
    """Return the table of the record of ``scripts/bench/accuracy.py``.

    Args:
        record: By posterior, sampler and kind of gradients, ``auto`` or ``plain``.
    """
    lines = [
        "| posterior | sampler | gradients chosen | deviation of predictions over the true one | "
        "the same, plain | alarms | gradients for an independent draw | the same, plain | ratio |",
        "|---" * 9 + "|",
    ]
    for posterior, samplers in record.items():
        for sampler, kinds in samplers.items():
            auto, plain = kinds["auto"], kinds["plain"]
            lines.append(
                f"| {posterior} | `{sampler}` | {auto['gradients']} | {auto['deviation']:.3f} "
                f"| {plain['deviation']:.3f} | {len(auto['alarms'])}, {len(plain['alarms'])} "
                f"| {auto['cost']:,.0f} | {plain['cost']:,.0f} "
                f"| {plain['cost'] / auto['cost']:.1f} |"
            )
    return "\n".join(lines)
