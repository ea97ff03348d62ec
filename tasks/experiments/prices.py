"""The table of what surrogates cost beside our solvers, from the results of short runs."""

from __future__ import annotations

from typing import Any


def table(records: dict[str, Any]) -> str:
    """Return the table of the records in ``docs/records/price``.

    Args:
        records: Contents of ``results.json`` by the name of the task.
    """
    rows = []
    for task, content in records.items():
        found = content["price"]
        once = f"{found['data_seconds']:.3g} + {found['training_seconds']:.3g}"
        for name, one in found["surrogates"].items():
            own, solver = (
                f"{one[f'{key}error_percent']:.2g} %, {1e3 * one[f'{key}seconds_a_field']:.3g} ms"
                for key in ("", "solver_")
            )
            after = one["pays_after_fields"]
            said = "never at this size" if after is None else f"{after:,} fields"
            rows.append(f"| {task} | {once} | {name}: {own} | {one['solver']}: {solver} | {said} |")
    head = (
        "| task | data + training, s | surrogate: error, time a field "
        "| solver: error, time a field | pays after |\n|---|---|---|---|---|"
    )
    return "\n".join([head, *rows])
