"""What many processes give, and what very many chains cost: the tables of two records."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from tasks.experiments.costs import cell, spread
from tasks.experiments.tables import markdown

#: The case that is worked out on paper: chains, weights of each, and GPUs.
CHAINS, WEIGHTS, GPUS = 1024, 1e8, 64


def scaling(record: dict[str, Any]) -> str:
    """Return the table of a record of ``scripts/bench/scaling.py``.

    With t_P the seconds of a chain-step on P processes, wall time is that of P processes together
    over their steps, so that linear scaling is t_1 / (P t_P) = 1. For processor time, which all
    of them spend, it is t_1 / t_P. Processes apart are as many runs at once that know nothing of
    each other: the last column, by the clock, is what the processes of one run cost beside them.
    """
    head = ("W", "a step, ms", "processes", "processor time", "wall time", "wall time, over apart")
    rows = []
    for width, by_number in record["seconds"].items():
        one = by_number["1"]
        step = f"{1e3 * statistics.median(one['wall']):.1f}"
        for name, own in by_number.items():
            if name == "1":
                continue
            number = name.split()[0]
            linear = {kind: [t / int(number) for t in one[kind]] for kind in own}
            linear["processor"] = one["processor"]
            cells = [cell(spread(linear[kind], own[kind])) for kind in ("processor", "wall")]
            apart = by_number[f"{number} apart"]["wall"]
            beside = "" if name != number else cell(spread(apart, own["wall"]))
            rows.append((width, step, name, *cells, beside))
    return markdown(head, rows)


def at_scale(record: dict[str, Any]) -> str:
    """Return the table of a record of ``scripts/bench/at_scale.py``, for many chains."""
    a_gpu = CHAINS // GPUS
    rows: dict[str, Callable[[dict[str, dict[str, float]]], float]] = {
        f"memory of a GPU with {a_gpu} chains, GB": lambda r: _sum(r["memory"], a_gpu) / 1e9,
        "a checkpoint of all chains, TB": lambda r: GPUS * _sum(r["checkpoint"], a_gpu) / 1e12,
        "a draw of all chains, TB": lambda r: GPUS * _sum(r["draw"], a_gpu) / 1e12,
        "read to continue, TB": lambda r: GPUS**2 * _sum(r["checkpoint"], a_gpu) / 1e12,
    }
    lines = []
    for kind in ("memory", "checkpoint", "draw"):
        for what in ("chain", "process"):
            cells = [f"{own[kind][what]:.3g}" for own in record.values()]
            if any(own[kind][what] for own in record.values()):
                lines.append((f"{kind}: bytes a weight, a {what}", *cells))
    for title, amount in rows.items():
        lines.append((title, *(f"{amount(r):.3g}" for r in record.values())))
    return markdown(("", *record), lines)


def _sum(bytes_a_weight: dict[str, float], chains: int) -> float:
    """Return the bytes of one process."""
    return WEIGHTS * (chains * bytes_a_weight["chain"] + bytes_a_weight["process"])
