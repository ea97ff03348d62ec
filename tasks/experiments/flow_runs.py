"""Recorded runs of ``pde_source``: their table, and what the README's command prints last."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from lightning_sgmcmc import SGLD
from lightning_sgmcmc.callbacks.report import table as report
from tasks.experiments.tables import markdown
from tasks.pde_source import PDESource

#: What was run, by the record's name.
RUNS = {
    "default": "the README's command",
    "seed-1": "the same from other weights and with other noise",
    "momentum-995": "momentum .995, half as many steps again",
    "momentum-995-seed-1": "the same from other weights and with other noise",
    "quarter": "momentum .995, a quarter of the largest stable step, a draw every 8",
    "momentum-99": "momentum .99, burn-in of 1,000",
    "wide": "channels 64 and 128, momentum .95, a tenth of the largest step, bias variance .01",
}
_HEAD = (
    "chain",
    "ensemble",
    "last draw",
    "kinetic T",
    "configurational T",
    "R-hat of predictions: median, 95 % below",
    "predictive T",
    "bands of 50, 90, 95 % hold",
    "conformal",
    "minutes",
)


def table(record: dict[str, dict[str, Any]]) -> str:
    """Return the table of runs.

    Args:
        record: The runs' ``results.json`` by the names in ``RUNS``.

    Raises:
        ValueError: If a record has another name.
    """
    names = sorted(record, key=list(RUNS).index)
    return markdown(_HEAD, [_row(name, record[name]) for name in names])


def _row(name: str, results: dict[str, Any]) -> list[str]:
    found, errors = results["diagnostics"], results["metrics"]
    threads, device = (results["provenance"][key] for key in ("threads", "device"))
    steps = f"{results['num_gradients']:,} steps on {threads} thread{'s' * (threads > 1)}"
    space = found["configurational_temperature"]
    predictive, rhat = found["predictive"], found["mixing"]["predictions"]["rhat"]
    held = (f"{100 * errors['ensemble'][f'coverage_{level}']:.1f}" for level in (50, 90, 95))
    conformal = results["task_details"].get("conformal", {}).get("outputs_90_held_85_to_95")
    return [
        f"`{name}`: {RUNS[name]}; {steps}, {device}",
        f"{errors['ensemble']['relative_l2_mean_percent']:.4f}",
        f"{errors['last']['relative_l2_mean_percent']:.3f}",
        f"{found['kinetic_temperature']:.3f}",
        f"{space['value']:.2f} ± {space['standard_error']:.2f}",
        f"{rhat['median']:.3f}, {rhat['q95']:.3f}",
        f"{predictive['temperature']:.2f} ± {predictive['temperature_error']:.2f}",
        ", ".join(held),
        "-" if conformal is None else f"{100 * conformal:.0f} %",
        f"{results['wall_seconds'] / 60:.1f}",
    ]


def printed(record: dict[str, dict[str, Any]]) -> str:
    """Return what the README's command prints last.

    Args:
        record: As for ``table``.
    """
    results = record["default"]
    task = PDESource(nn.Identity(), partial(SGLD, lr=1.0))
    return f"```text\n{report.text(results, task.summary(results), None)}\n```"
