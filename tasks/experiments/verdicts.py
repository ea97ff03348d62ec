"""How runs were judged whose draws' predictive law is known: the table of a record."""

from __future__ import annotations

import statistics
from typing import Any

from tasks.experiments.tables import markdown

#: Of a chain: sampler, right, wrong, alarms and, where its remedies were followed, what came of it.
Chain = dict[str, Any]

_HEAD = (
    "sampler",
    "right chains",
    "accused",
    "wrong chains",
    "without alarm",
    "remedies followed",
    "no alarm left",
    "and right or nearly",
    "gradients over the first run's, median",
)


def table(record: dict[str, dict[str, Chain]]) -> str:
    """Return the table of the records of ``scripts/bench/bank.py``, one a seed.

    Args:
        record: For each seed the chains by their names.
    """
    chains = [chain for seed in record.values() for chain in seed.values()]
    rows = [
        _row(sampler, [chain for chain in chains if chain["sampler"] == sampler])
        for sampler in sorted({chain["sampler"] for chain in chains})
    ]
    return markdown(_HEAD, [*rows, _row("all", chains)])


def _row(name: str, chains: list[Chain]) -> list[str | int]:
    right = [chain for chain in chains if chain["right"]]
    wrong = [chain for chain in chains if chain["wrong"]]
    remedied = [chain["remedied"] for chain in chains if "remedied" in chain]
    ended = [last for last in remedied if not last["alarms"]]
    cost = f"{statistics.median(last['cost'] for last in remedied):.0f}" if remedied else ""
    return [
        name,
        len(right),
        sum(chain["alarms"] > 0 for chain in right),
        len(wrong),
        sum(not chain["alarms"] for chain in wrong),
        len(remedied),
        len(ended),
        sum(not last["wrong"] for last in ended),
        cost,
    ]
