"""The last table of a run: its verdict in words, what ends its alarms, and its numbers."""

from __future__ import annotations

from textwrap import wrap
from typing import Any

import numpy as np

from lightning_sgmcmc.callbacks.progress import duration

_WIDTH = 100
Row = tuple[str, str]


def verdict(content: dict[str, Any]) -> str:
    """Return in a few words whether a run's draws are a sample of its target.

    Args:
        content: Of the run's ``results.json``.
    """
    found = content["diagnostics"]
    if not content["num_draws"]:
        return "no draw was kept"
    if found["alarms"]:
        return "not yet a sample of the target"
    if not content["temperature"]:
        return "T = 0: not a sample of a posterior"
    return "the draws are a sample of the target" if found["notes"] else "a sample of the posterior"


def rows(content: dict[str, Any], summary: list[Row]) -> list[Row]:
    """Return the rows of the numbers: the chain, what the task says, how good a sample it is.

    Args:
        content: Of the run's ``results.json``.
        summary: Rows of the task.
    """
    chains = content["num_chains"]
    of_each = f" of each of {chains} chains" if chains > 1 else ""
    return [
        ("chain", content["sampler"]["label"]),
        *summary,
        ("draws kept", f"{content['num_draws']}{of_each}"),
        *_diagnostic_rows(content["diagnostics"], content["temperature"]),
        ("time", duration(content["wall_seconds"])),
    ]


def text(content: dict[str, Any], summary: list[Row], command: str | None) -> str:
    """Return the table: verdict, alarms, remedy, notes, then the numbers.

    Args:
        content: Of the run's ``results.json``.
        summary: Rows of the task.
        command: What to paste to follow the remedy; None where it is not known.
    """
    found, of_run = content["diagnostics"], rows(content, summary)
    lines = [f"  Verdict: {verdict(content)}"]
    for sentence in found["alarms"]:
        lines += wrap(sentence, _WIDTH, initial_indent="  - ", subsequent_indent="    ")
    if found["alarms"] and command is not None:
        lines += ["  Remedy:", f"    {command}"]
    for sentence in found["notes"]:
        lines += wrap(f"Note: {sentence}", _WIDTH, initial_indent="  ", subsequent_indent="    ")
    width = max(len(name) for name, _ in of_run)
    return "\n".join([*lines, "", *(f"  {name:<{width}}  {value}" for name, value in of_run)])


def numbers(content: dict[str, Any]) -> dict[str, float]:
    """Return the final metrics and diagnostics by names joined with slashes.

    Args:
        content: Of ``results.json``.
    """
    return _flat("final", content["metrics"]) | _flat("diagnostics", content["diagnostics"])


def _flat(prefix: str, value: Any) -> dict[str, float]:
    if isinstance(value, dict):
        parts = [_flat(f"{prefix}/{key}", item) for key, item in value.items()]
        return {name: number for part in parts for name, number in part.items()}
    return {prefix: value} if isinstance(value, (int, float)) else {}


def _diagnostic_rows(found: dict[str, Any], stated: float) -> list[tuple[str, str]]:
    """Return the rows that say how good a sample the draws are."""
    rows = []
    predictive = found.get("predictive", {})
    if np.isfinite(predictive.get("deviation_over_true", np.nan)):
        value, error = predictive["deviation_over_true"], predictive["deviation_over_true_error"]
        rows.append(("predictive deviation over the true one", f"{value:.3f} +- {error:.2g}"))
    elif "kinetic_temperature" in found:
        text = f"{found['kinetic_temperature']:.3f} (stated {stated:g})"
        rows.append(("kinetic temperature", text))
    elif np.isfinite(found.get("configurational_temperature", {}).get("value", np.nan)):
        measured = found["configurational_temperature"]
        text = f"{measured['value']:.3f} +- {measured['standard_error']:.2g} (stated {stated:g})"
        rows.append(("configurational temperature", text))
    mixing = found.get("mixing", {})
    space = next((name for name in ("predictions", "weights") if name in mixing), None)
    if space is not None and mixing[space]["rhat"] is not None:
        rhat, size = mixing[space]["rhat"], mixing[space]["ess_bulk"]
        text = f"{rhat['median']:.3f} (95 % below {rhat['q95']:.3f}), ESS {size['median']:.0f}"
        rows.append((f"R-hat of {space}, median", text))
    return rows
