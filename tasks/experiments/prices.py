"""After how many fields recorded surrogates cost less than a solver of no larger error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tasks.experiments.tables import markdown

#: Recorded runs under ``docs``, by what they predict and with which network.
RUNS = {
    "flow by its source, the README's command": "records/pde_source/default.json",
    "flow by an additive permeability, the paper's network": (
        "measured/table2/paper-physics-additive-64/results.json"
    ),
    "the same, a U-Net": "measured/table2/unet-physics-additive-64/results.json",
    "flow by a log-normal permeability, a U-Net": (
        "measured/table2/unet-physics-lognormal-64/results.json"
    ),
    "pressure by FNO's permeability, a U-Net of 100 fields": (
        "measured/fno_darcy/unet-100/results.json"
    ),
}
_HEAD = (
    "surrogate",
    "predicts by",
    "error, %",
    "fields solved",
    "T_data, s",
    "T_train, s",
    "T_predict, ms",
    "solver",
    "its error, %",
    "T_solve, ms",
    "pays after",
)


def read(docs: Path) -> dict[str, Any]:
    """Return the prices of the runs, by the names in ``RUNS``.

    Args:
        docs: The folder ``docs``.
    """
    return {name: json.loads((docs / path).read_text())["price"] for name, path in RUNS.items()}


def table(record: dict[str, dict[str, Any]]) -> str:
    """Return the table of prices.

    Args:
        record: As :func:`read` gives it.
    """
    rows = []
    for name, price in record.items():
        for kind, one in price["surrogates"].items():
            after = one["pays_after_fields"]
            rows.append(
                (
                    name,
                    kind,
                    f"{one['error_percent']:.2g}",
                    f"{price['fields_solved']:,}",
                    f"{price['data_seconds']:.2g}",
                    f"{price['training_seconds']:,.0f}",
                    f"{1e3 * one['seconds_a_field']:.3g}",
                    one["solver"],
                    f"{one['solver_error_percent']:.2g}",
                    f"{1e3 * one['solver_seconds_a_field']:.3g}",
                    "never" if after is None else f"{after:,} fields",
                )
            )
    return markdown(_HEAD, rows)
