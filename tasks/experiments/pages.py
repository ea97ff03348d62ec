"""The tables of ``docs`` that are made from recorded results, between markers.

``<!-- table NAME I -->`` begins the I-th table, counted from 1, of the report that
``scripts/reproduce.py NAME --show --measured`` prints, the one after them that of its ``--choose``
where one of its runs is kept, or the only one of a record ``docs/records/NAME.json`` such as
``robustness``, or of those in ``docs/records/NAME``, or ``price`` of runs of several experiments;
``<!-- end -->`` ends it. The README has them, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tasks.experiments import (
    accuracy,
    calibration,
    costs,
    equal_gradients,
    flow_runs,
    gpu,
    prices,
    reproduce,
    scale,
    verdicts,
)
from tasks.experiments.tables import Table, markdown

_MARKED = re.compile(r"<!-- table (\w+) (\d+) -->\n.*?<!-- end -->", re.DOTALL)


#: What is done to a run in the trials of ``scripts/bench/robustness.py``.
_HARM = {
    "kills": "killed by SIGKILL, each third one after its last step, and continued",
    "disks": "a write fails halfway, as on a full disk; continued with space",
    "damage": "a byte of one file changed, or the file cut; checked, and continued",
    "pairs": "two commands at once, in one named folder or in none",
    "signals": "TERM, INT, KILL or STOP to one process of two, or to both",
}


def _robustness(record: dict[str, Any]) -> str:
    rows = [(_HARM[k], e["trials"], len(e["wrong"])) for k, e in record.items()]
    return markdown(("harm", "trials", "wrong"), rows)


def _stream(record: dict[str, Any]) -> str:
    head = (
        "minibatches of 100",
        "rows a second of processor time",
        "over the stream in memory",
        "a step of 784-400-400-10 on them, over one on those in memory",
    )
    rows = [
        (
            "one chain" if k == "1" else f"{k} chains",
            f"{v['rows_a_second']:,.0f}",
            f"{v['over_memory']:.1f}",
            f"{v['step_over_memory']:.2f}",
        )
        for k, v in record["chains"].items()
    ]
    held = record["resident_peak_mb"] - record["resident_before_mb"]
    said = (
        f"{record['gigabytes']:g} GB, {record['rows']:,} rows of 784 float32, of which the process "
        f"holds at most {held:.0f} MB at a time; {record['cold_rows_a_second']:,.0f} rows a second "
        "by the clock where the system has none of them in its cache."
    )
    return f"{said}\n\n{markdown(head, rows)}"


#: Records of ``tasks/experiments/costs.py``'s form.
_COSTS = [
    "analogue",
    "chains",
    "darcy",
    "estimators",
    "memory",
    "nuts",
    "permeability",
    "predict",
    "psgld_bias",
    "steps",
    "subnormals",
    "training",
]
#: What makes the tables of a record that is no experiment's.
_RECORDS: dict[str, tuple[Callable[[dict[str, Any]], str], ...]] = {
    **dict.fromkeys(_COSTS, (costs.table,)),
    "robustness": (_robustness,),
    "sbc": (calibration.table,),
    "microcanonical": (equal_gradients.table,),
    "stream": (_stream,),
    "scaling": (scale.scaling,),
    "at_scale": (scale.at_scale,),
    "gpu": (gpu.table,),
    "bank": (verdicts.table,),
    "accuracy": (accuracy.table,),
    "pde_source": (flow_runs.table, flow_runs.printed),
    "price": (prices.table,),
}


def _record(records: Path, name: str) -> dict[str, Any]:
    """Return a record, or by their names those of a folder, which is empty before the first."""
    if name == "price":
        return prices.read(records.parent)
    whole = records / f"{name}.json"
    if whole.exists():
        return dict(json.loads(whole.read_text()))
    parts = sorted((records / name).glob("*.json"))
    return {path.stem: json.loads(path.read_text()) for path in parts}


@cache
def recorded(root: Path, name: str) -> list[str]:
    """Return the tables of an experiment's report, filled from ``docs/measured/NAME``."""
    if name in _RECORDS:
        record = _record(root / "docs" / "records", name)
        return [make(record) for make in _RECORDS[name]]
    experiment, kept = reproduce.load(name), root / "docs" / "measured" / name
    results = {cell.name: reproduce.read(kept, cell) for cell in experiment.cells()}
    parts = experiment.parts(results)
    tables = [part.render(results) for part in parts if isinstance(part, Table)]
    if experiment.choices is not None:
        tried = {cell.name: reproduce.read(kept, cell) for cell in experiment.choices.cells()}
        tables += [experiment.choices.table(tried)] if any(tried.values()) else []
    return tables


def filled(text: str, root: Path) -> str:
    """Return a page with its marked tables made anew.

    Args:
        text: The page.
        root: The repository's root.

    Raises:
        ValueError: If a marker names no experiment, or a table that its report does not have.
    """

    def table(marker: re.Match[str]) -> str:
        name, number = marker[1], int(marker[2])
        if name not in (*reproduce.TABLES, *_RECORDS):
            raise ValueError(f"no experiment {name!r}: {marker[0].splitlines()[0]}")
        tables = recorded(root, name)
        if not 1 <= number <= len(tables):
            raise ValueError(f"{name} has tables 1 to {len(tables)}, not {number}")
        return f"<!-- table {name} {number} -->\n\n{tables[number - 1]}\n\n<!-- end -->"

    return _MARKED.sub(table, text)


def pages(root: Path) -> list[Path]:
    """Return the pages that have tables."""
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def write(root: Path) -> list[Path]:
    """Fill the README and the pages in ``docs``, and return those that changed."""
    changed = []
    for page in pages(root):
        text = page.read_text()
        new = filled(text, root)
        if new != text:
            page.write_text(new)
            changed.append(page)
    return changed
