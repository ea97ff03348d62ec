"""The table of what ``scripts/bench/gpu.py`` measured, with what is still open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tasks.experiments.tables import markdown

Records = dict[str, dict[str, Any]]

#: What is measured, its target, its part, and how the number is taken from the part's result.
_ROWS: list[tuple[str, str, str, Callable[[dict[str, Any]], str]]] = [
    (
        "step over SGD's (momentum, foreach), ResNet-20, batch 256: SGLD, SGHMC",
        "at most 1.05",
        "steps",
        lambda r: f"{r['over_foreach']['SGLD']:.2f}, {r['over_foreach']['SGHMC']:.2f}",
    ),
    (
        "the same over SGD's (momentum, fused)",
        "at most 1.05",
        "steps",
        lambda r: f"{r['over_fused']['SGLD']:.2f}, {r['over_fused']['SGHMC']:.2f}",
    ),
    (
        "16 chains of 784-400-400-10 over one: SGHMC",
        "at most 2",
        "chains",
        lambda r: f"{r['all_over_one']['SGHMC']:.2f}",
    ),
    (
        "SGHMC's step with the network in a CUDA graph, over one without: ResNet-20, "
        "784-400-400-10",
        "below 1 where it pays",
        "graphs",
        lambda r: ", ".join(f"{value:.2f}" for value in r["graph_over_plain"].values()),
    ),
    (
        "chain-steps a second, 64 chains of ResNet-20, batches of 256: float32, bf16-mixed",
        "at least 2,000",
        "resnet_chains",
        lambda r: ", ".join(_rate(r[kind]) for kind in ("float32", "bf16-mixed")),
    ),
    (
        "1,500 predictions by 100 draws of `pde_source`'s network, times faster than the CPU",
        "at least 20",
        "predict",
        lambda r: f"{r['times_faster']:.0f}",
    ),
    (
        "pSGLD's Tables 2 and 3, 10 repetitions as stacked chains, hours, extrapolated",
        "under 2",
        "tables",
        lambda r: f"{r['in_all']:.1f}",
    ),
    (
        "waits for the device in ten steps: SGLD, PSGLD, SGHMC, SGNHT",
        "0",
        "waits",
        lambda r: ", ".join(str(count) for count in r["waits"].values()),
    ),
    ("the tests that take a device", "all pass", "tests", lambda r: r["summary"].strip("= ")),
]


def _rate(result: dict[str, Any]) -> str:
    return f"{result['chain_steps_a_second']:,.0f} ({result['chains']} chains)"


def table(records: Records) -> str:
    """Return the rows in Markdown; a row whose part has no record is open.

    Args:
        records: The contents of ``docs/records/gpu/PART.json`` by the name of the part.
    """
    rows = [
        (what, target, number(records[part]["result"]) if part in records else "open")
        for what, target, part, number in _ROWS
    ]
    return markdown(("on one GPU", "target", "measured"), rows)
