"""The tables that pSGLD's network experiments print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tasks.experiments.psgld.methods import BATCH
from tasks.experiments.tables import mean_and_spread, repeated

Result = dict[str, Any]
Results = dict[str, Result | None]


@dataclass(frozen=True)
class Row:
    """A method of a table.

    Attributes:
        label: What the table calls it.
        curve: Whose error its learning curve shows: of the ensemble of draws so far, or of the
            current network; None for no curve.
        paper: Name of the published row that it stands beside.
        together: Whether its chains are one predictor, not repetitions.
    """

    label: str
    curve: Literal["ensemble", "network"] | None = None
    paper: str | None = None
    together: bool = False


def names_of(results: Results, column: str, method: str) -> list[str]:
    """Return the cells that make up an entry: one, or one run for each seed."""
    name = f"{column}-{method}"
    if name in results:
        return [name]
    return [n for n in results if n.startswith(f"{name}-seed")]


def _finished(results: Results, column: str, method: str) -> list[Result]:
    found = (results[name] for name in names_of(results, column, method))
    return [result for result in found if result is not None]


def _values(runs: Sequence[Result], metric: str, row: Row) -> list[float]:
    if row.together:
        return [run["metrics"]["ensemble"][metric] for run in runs]
    return repeated(runs, metric)


def render(
    results: Results,
    rows: Mapping[str, Row],
    columns: Mapping[str, str],
    paper: Mapping[str, Sequence[float | None]],
) -> list[str]:
    """Return the table of test errors, and one line for each finished entry of it.

    Args:
        results: Content of ``results.json`` of the cells, None where one is not finished.
        rows: The methods.
        columns: What the table calls each group of cells.
        paper: Published errors in the order of ``columns``; None or nothing where there is none.
    """
    lines = [
        "Test error in percent: mean +- standard deviation over (repetitions).",
        "",
        f"| | {' | '.join(columns.values())} |",
        "|---" * (1 + len(columns)) + "|",
    ]
    shown: set[str] = set()
    for method, row in rows.items():
        if row.paper is not None and row.paper not in shown:
            shown.add(row.paper)
            published = [*paper[row.paper], *[None] * len(columns)][: len(columns)]
            texts = ["" if value is None else f"{value:.2f}" for value in published]
            lines.append(f"| *paper*, {row.paper} | {' | '.join(texts)} |")
        entries = [
            mean_and_spread(_values(_finished(results, c, method), "error_percent", row), 2)
            for c in columns
        ]
        lines.append(f"| {row.label} | {' | '.join(entries)} |")
    return [*lines, *_details(results, rows, columns)]


def _details(results: Results, rows: Mapping[str, Row], columns: Mapping[str, str]) -> list[str]:
    lines = []
    for column, title in columns.items():
        for method, row in rows.items():
            runs = _finished(results, column, method)
            if runs:
                lines.append(f"| {title} | {row.label} | {' | '.join(_detail(runs, row))} |")
    if not lines:
        return []
    return [
        "",
        "What each entry is: all numbers are from the runs themselves. An epoch is one of "
        f"minibatches of {BATCH}; T is the temperature of the target and, after the comma, of the "
        "draws, configurational; together are the repetitions of one run, by their mean "
        "prediction; minutes are those of all repetitions.",
        "",
        "| network | method | weights | epochs | repetitions | draws of each | T | NLL | ECE | "
        "together: error, NLL | minutes | device |",
        "|---" * 12 + "|",
        *lines,
    ]


def _detail(runs: Sequence[Result], row: Row) -> list[str]:
    first = runs[0]
    epochs = first["num_gradients"] * BATCH / first["num_data"]
    chains = sum(run["num_chains"] for run in runs)
    return [
        f"{first['num_parameters']:,}",
        f"{epochs:.3g}",
        f"1 of {chains} networks" if row.together else str(chains),
        str(first["num_draws"]),
        _temperature(first),
        mean_and_spread(_values(runs, "nll", row), 4),
        mean_and_spread(_values(runs, "ece", row), 4),
        _together(runs, row),
        f"{sum(run['wall_seconds'] for run in runs) / 60:.1f}",
        first["provenance"]["device"],
    ]


def _together(runs: Sequence[Result], row: Row) -> str:
    """Return error and NLL of all chains' mean prediction, nothing of a single one."""
    if row.together or len(runs) > 1 or runs[0]["num_chains"] == 1:
        return ""
    metrics = runs[0]["metrics"]["ensemble"]
    return f"{metrics['error_percent']:.2f}, {metrics['nll']:.4f}"


def _temperature(result: Result) -> str:
    """Return the stated and the measured temperature of a sampler, nothing for an optimizer."""
    if not result["temperature"]:
        return ""
    measured = result["diagnostics"].get("configurational_temperature", {}).get("value")
    stated = f"{result['temperature']:.3g}"
    return stated if measured is None else f"{stated}, {measured:.3g}"


def temperature_table(
    results: Results, methods: Sequence[str], rows: Mapping[str, Row]
) -> list[str]:
    """Return predictions over the temperature of the target; finished runs alone."""
    lines = []
    for method in methods:
        for result in at_temperatures(results, method):
            test, held_out = (result["metrics"][part] for part in ("ensemble", "ensemble_val"))
            lines.append(
                f"| {_family(rows[method])} | {_temperature(result)} | "
                f"{-held_out['nll']:.4f} | {-test['nll']:.4f} | {held_out['error_percent']:.2f} | "
                f"{test['error_percent']:.2f} | {result['num_chains']} |"
            )
    if not lines:
        return []
    return [
        "The reduced protocol at other temperatures, on 50,000 training examples: the ensembles of "
        "all chains together. The draws' temperature is configurational.",
        "",
        "| method | T: stated, of the draws | validation log-likelihood | test log-likelihood | "
        "validation error, % | test error, % | chains |",
        "|---" * 7 + "|",
        *lines,
    ]


def _family(row: Row) -> str:
    """Return a method's label without its temperature."""
    return row.label.replace(", posterior", "").replace(" (T = 1)", "")


def at_temperatures(results: Results, method: str) -> list[Result]:
    """Return a method's finished runs at several temperatures, the coldest first."""
    prefix = f"temperature-{method}-"
    found = [result for name, result in results.items() if name.startswith(prefix) and result]
    return sorted(found, key=lambda result: float(result["temperature"]))


def render_choices(results: Results) -> str:
    """Return what runs predict of held-out training examples, and the best step of each method."""
    lines = [
        "On held-out training examples, the ensemble of all chains together.",
        "",
        "| run | validation NLL | validation error, % |",
        "|---|---|---|",
    ]
    best: dict[str, tuple[float, str]] = {}
    for name, result in results.items():
        if result is None:
            lines.append(f"| {name} | - | - |")
            continue
        values = result["metrics"]["ensemble_val"]
        lines.append(f"| {name} | {values['nll']:.4f} | {values['error_percent']:.2f} |")
        method, _, choice = name.removeprefix("trial-").rpartition("-")
        best[method] = min(best.get(method, (float("inf"), "")), (values["nll"], choice))
    if best:
        found = ", ".join(f"{method} at {choice}" for method, (_, choice) in best.items())
        lines += ["", f"Best in NLL of those that have run: {found}."]
    return "\n".join(lines)
