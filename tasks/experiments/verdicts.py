"""How runs were judged whose draws' predictive law is known: the table of a record."""

from __future__ import annotations

import statistics
from typing import Any

#: Of a chain: sampler, right, wrong, alarms and, where its remedies were followed, what came of it.
Chain = dict[str, Any]


def table(record: dict[str, dict[str, Chain]]) -> str:
    """Return the table of the records of ``scripts/bench/bank.py``, one a seed.

    Args:
        record: For each seed the chains by their names.
    """
    chains = [chain for seed in record.values() for chain in seed.values()]
    lines = [
        "| sampler | right chains | accused | wrong chains | without alarm | remedies followed "
        "| no alarm left | and right or nearly | gradients over the first run's, median |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for sampler in sorted({chain["sampler"] for chain in chains}):
        lines.append(_row(sampler, [chain for chain in chains if chain["sampler"] == sampler]))
    lines.append(_row("all", chains))
    return "\n".join(lines)


def _row(name: str, chains: list[Chain]) -> str:
    right = [chain for chain in chains if chain["right"]]
    wrong = [chain for chain in chains if chain["wrong"]]
    remedied = [chain["remedied"] for chain in chains if "remedied" in chain]
    ended = [last for last in remedied if not last["alarms"]]
    cost = f"{statistics.median(last['cost'] for last in remedied):.0f}" if remedied else ""
    cells = (
        len(right),
        sum(chain["alarms"] > 0 for chain in right),
        len(wrong),
        sum(not chain["alarms"] for chain in wrong),
        len(remedied),
        len(ended),
        sum(not last["wrong"] for last in ended),
    )
    return f"| {name} | {' | '.join(map(str, cells))} | {cost} |"
