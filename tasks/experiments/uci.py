"""The UCI regression benchmark: 20 splits of each set, beside published numbers.

Every cell is a run of ``configs/uci_regression.yaml`` as it stands, 50 hidden units as in the
published ones, on one split. Nothing is chosen by a set: activation and prior of the
configuration were chosen once, by the log-likelihood of shorter chains on the last fifth of the
training rows of one set's first split (``choices``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.data.uci import NUM_SPLITS, SETS
from tasks.experiments.cell import Cell
from tasks.uci import PUBLISHED

CONFIG = "../uci_regression.yaml"
#: The set that the configuration was chosen on, and its number of validation rows.
CHOSEN_ON = {"concrete": 185}
#: What its runs were: three quarters of the length, at twice the step.
SHORT = (
    "--model.burn_in_optimizer.steps=600",
    "--model.burn_in=1000",
    "--model.step_fraction=0.2",
    "--trainer.max_steps=3000",
)
ACTIVATIONS = ("relu", "tanh")
#: Prior variances of what follows the first layer.
VARIANCES = (0.02, 0.1, 1.0)
PRIOR = "--model.sampler.prior.default"


def cells() -> list[Cell]:
    """Return one run a set and split, all sets' first splits first."""
    return [
        Cell(f"{name}-{split}", CONFIG, (f"--data.name={name}", f"--data.split={split}"))
        for split in range(NUM_SPLITS)
        for name in SETS
    ]


def choices() -> list[Cell]:
    """Return the runs that activation and prior were chosen from."""
    return [
        Cell(
            f"{name}-{activation}-{variance:g}",
            CONFIG,
            (
                f"--data.name={name}",
                f"--data.num_val={rows}",
                f"--model.net.activation={activation}",
                f"{PRIOR}={variance}",
                *SHORT,
            ),
        )
        for name, rows in CHOSEN_ON.items()
        for activation in ACTIVATIONS
        for variance in VARIANCES
    ]


def render(results: dict[str, dict[str, Any] | None], chosen_from: bool) -> str:
    """Return our means over splits beside the published ones, or the choices, as Markdown."""
    return _render_choices(results) if chosen_from else _render_table(results)


def _render_table(results: dict[str, dict[str, Any] | None]) -> str:
    lines = [
        "Mean ± standard error over the splits; coverage of 90 % bands pools their test rows.",
        "",
        "| set | | splits | test RMSE | test log-likelihood | coverage | kinetic temperature |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in SETS:
        found = [r for s in range(NUM_SPLITS) if (r := results.get(f"{name}-{s}")) is not None]
        ensembles = [r["metrics"]["ensemble"] for r in found]
        lines.append(
            f"| {name} | ours | {len(found)} | {_mean(ensembles, 'rmse')} | "
            f"{_mean(ensembles, 'log_likelihood')} | {_coverage(ensembles)} | "
            f"{_temperature(found)} |"
        )
        lines += [
            f"| | {method} | {NUM_SPLITS} | {rmse:.2f} | {density:.2f} | - | - |"
            for method, (rmse, density) in PUBLISHED[name].items()
        ]
    return "\n".join(lines)


def _mean(ensembles: list[dict[str, float]], key: str) -> str:
    if not ensembles:
        return "-"
    values = np.array([e[key] for e in ensembles])
    text = f"{values.mean():.2f}"
    if len(values) < 2:
        return text
    return f"{text} ± {values.std(ddof=1) / np.sqrt(len(values)):.2f}"


def _coverage(ensembles: list[dict[str, float]]) -> str:
    if not ensembles:
        return "-"
    # All splits of a set have equally many test rows.
    return f"{100 * np.mean([e['coverage_90'] for e in ensembles]):.1f} %"


def _temperature(found: list[dict[str, Any]]) -> str:
    values = [r["diagnostics"]["kinetic_temperature"] for r in found]
    return f"{min(values):.2f} to {max(values):.2f}" if values else "-"


def _render_choices(results: dict[str, dict[str, Any] | None]) -> str:
    lines = [
        "Validation log-likelihood of the ensemble (RMSE), on rows held out of the training set.",
        "",
        "| activation | prior variance | " + " | ".join(CHOSEN_ON) + " |",
        "|---|---|" + "---|" * len(CHOSEN_ON),
    ]
    for activation in ACTIVATIONS:
        for variance in VARIANCES:
            entries = []
            for name in CHOSEN_ON:
                result = results.get(f"{name}-{activation}-{variance:g}")
                found = result["metrics"]["ensemble_val"] if result is not None else None
                entries.append(
                    "-" if found is None else f"{found['log_likelihood']:.3f} ({found['rmse']:.3f})"
                )
            lines.append(f"| {activation} | {variance:g} | {' | '.join(entries)} |")
    return "\n".join(lines)
