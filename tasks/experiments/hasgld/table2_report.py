"""The tables and figures of ``scripts/reproduce.py table2``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tasks.experiments.hasgld.table1 import METHODS
from tasks.pde_perm import TABLE_2

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Results = dict[str, dict[str, Any] | None]

NETS = {"paper": "paper's network", "unet": "U-Net"}
FORMS = {
    "plain": "plain",
    "conservative": "projected",
    "physics": "projected, Darcy, symmetric",
    "profile": "projected, Darcy, symmetric, noise by edge",
}


def render(results: Results, kinds: Sequence[str], terms: Sequence[int]) -> str:
    """Return all tables as Markdown; unfinished cells are hyphens."""
    return "\n".join(
        [
            *_paper(results),
            "",
            *_networks(results, kinds, terms),
            "",
            *_references(results, kinds, terms),
            "",
            *_shift(results, kinds),
        ]
    )


def render_choices(results: Results) -> str:
    """Return what was measured on held-out training fields as Markdown."""
    lines = [
        "| run | mean error, % | where burn-in ended, % | coverage of 90 % bands | kinetic, "
        "configurational temperature |",
        "|---|---|---|---|---|",
    ]
    for name, result in results.items():
        if result is None:
            lines.append(f"| {name} | - | - | - | - |")
            continue
        metrics = result["metrics"]
        ensemble, before = metrics["ensemble_val"], metrics["burn_in_val"]
        lines.append(
            f"| {name} | {ensemble['relative_l2_mean_percent']:.3g} | "
            f"{before['relative_l2_mean_percent']:.3g} | {100 * ensemble['coverage_90']:.0f} | "
            f"{_temperatures(result)} |"
        )
    return "\n".join(lines)


def _paper(results: Results) -> list[str]:
    """Return the paper's table beside its cells as measured."""
    rates = list(next(iter(TABLE_2.values())))
    lines = [
        "| additive, p = 64, paper's network | no pruning | 30 % | 50 % |",
        "|---|---|---|---|",
    ]
    for name, label in METHODS.items():
        row = " | ".join(f"{TABLE_2[label][rate]:.2f}" for rate in rates)
        lines.append(f"| *paper*, {label} | {row} |")
        row = " | ".join(_cell(results.get(f"{name}-{int(100 * rate)}")) for rate in rates)
        lines.append(f"| ours, {label} | {row} |")
    return lines


def _cell(result: dict[str, Any] | None) -> str:
    if result is None:
        return "-"
    error, before = (
        result["metrics"][part]["relative_l2_mean_percent"] for part in ("ensemble", "burn_in")
    )
    return f"{error:.2f} [{before:.2f}]"


def _networks(results: Results, kinds: Sequence[str], terms: Sequence[int]) -> list[str]:
    """Return a row for every run of a network that is finished."""
    lines = [
        "| field | modes | network | form | mean error, % (median, largest) | where burn-in ended, "
        "% | coverage of 50, 90, 95 % bands | of 90 % bands by edge | CRPS / mean absolute error "
        "| imbalance (the truth's) | kinetic, configurational temperature | R-hat |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for kind in kinds:
        for net, net_label in NETS.items():
            for form, form_label in FORMS.items():
                for p in terms:
                    result = results.get(f"{net}-{form}-{kind}-{p}")
                    if result is not None:
                        row = " | ".join(_row(result))
                        lines.append(f"| {kind} | {p} | {net_label} | {form_label} | {row} |")
    return lines


def _row(result: dict[str, Any]) -> list[str]:
    metrics = result["metrics"]
    ensemble = metrics["ensemble"]
    errors = [ensemble[f"relative_l2_{k}_percent"] for k in ("mean", "median", "max")]
    return [
        f"{errors[0]:.3g} ({errors[1]:.3g}, {errors[2]:.3g})",
        f"{metrics['burn_in']['relative_l2_mean_percent']:.3g}",
        _coverage(ensemble),
        " to ".join(f"{100 * ensemble[f'coverage_90_output_{p}']:.0f}" for p in ("p05", "p95")),
        f"{ensemble['crps']:.2g} / {ensemble['mae']:.2g}",
        f"{ensemble['imbalance']:.0e} ({ensemble['imbalance_of_truth']:.0e})",
        _temperatures(result),
        _r_hat(result),
    ]


def _coverage(row: dict[str, float]) -> str:
    return ", ".join(f"{100 * row[f'coverage_{p}']:.0f}" for p in (50, 90, 95))


def _temperatures(result: dict[str, Any]) -> str:
    """Return both temperatures; overdamped chains have no kinetic one."""
    diagnostics = result["diagnostics"]
    kinetic = diagnostics.get("kinetic_temperature")
    configurational = diagnostics["configurational_temperature"]["value"]
    return f"{'-' if kinetic is None else f'{kinetic:.2f}'}, {configurational:.2f}"


def _r_hat(result: dict[str, Any]) -> str:
    return f"{result['diagnostics']['mixing']['predictions']['rhat']['median']:.2f}"


def _references(results: Results, kinds: Sequence[str], terms: Sequence[int]) -> list[str]:
    """Return the references as a table."""
    lines = [
        "| field | modes | | mean error, % | median, % | largest, % | imbalance (the truth's) | "
        "coverage of 50, 90, 95 % bands |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind in kinds:
        for p in terms:
            content = results.get(f"references-{kind}-{p}") or {}
            for name, row in content.get("rows", {}).items():
                label = name
                if name.startswith("quadratic"):
                    label += f", {content['quadratic']} leading"
                bands = (
                    f"({row['milliseconds']:.0f} ms a field)"
                    if "milliseconds" in row
                    else _coverage(row)
                )
                lines.append(
                    f"| {kind} | {p} | {label} | {row['relative_l2_mean_percent']:.2f} | "
                    f"{row['relative_l2_median_percent']:.2f} | "
                    f"{row['relative_l2_largest_percent']:.1f} | "
                    f"{row['imbalance']:.0e} ({row['imbalance_of_truth']:.0e}) | {bands} |"
                )
    return lines


def _shift(results: Results, kinds: Sequence[str]) -> list[str]:
    """Return what became of a network on other fields."""
    lines = [
        "| trained on | tested on | mean error, % | deviation over draws, % | with noise, % | "
        "coverage of 90 % bands | rank correlation of error and deviation |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind in kinds:
        content = results.get(f"shift-{kind}") or {}
        for name, row in content.get("rows", {}).items():
            lines.append(
                f"| {kind} | {name} | {row['error_percent']:.3g} | "
                f"{row['deviation_of_weights_percent']:.2g} | {row['deviation_percent']:.3g} | "
                f"{100 * row['coverage_90']:.0f} | {row['rank_correlation']:.2f} |"
            )
    return lines


def figures(results: Results, kinds: Sequence[str], terms: Sequence[int]) -> dict[str, Figure]:
    """Return the error over the number of modes, and deviation over error on other fields."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullLocator

    made = {}
    curves = [(kind, _curves(results, kind, terms)) for kind in kinds]
    if any(len(points) > 1 for _, found in curves for points in found.values()):
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        names = list(dict.fromkeys(name for _, found in curves for name in found))
        for axes, (kind, found) in zip(figure.subplots(1, len(kinds)), curves, strict=True):
            for name, points in found.items():
                color = f"C{names.index(name)}"
                axes.plot(*zip(*points, strict=True), marker="o", label=name, color=color)
            axes.set(xscale="log", yscale="log", xlabel="modes p", title=f"{kind} fields")
            axes.set_xlim(0.9 * terms[0], 1.1 * terms[-1])
            axes.set_xticks(terms, [str(p) for p in terms])
            axes.xaxis.set_minor_locator(NullLocator())
            for formatter in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
                formatter("{x:g}")
            axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
            axes.set_ylabel("mean relative L2 error, %")
        lines = {str(line.get_label()): line for axes in figure.axes for line in axes.get_lines()}
        figure.legend(lines.values(), lines.keys(), fontsize=7, loc="outside right upper")
        made["modes"] = figure
    for kind in kinds:
        content = results.get(f"shift-{kind}")
        if content is not None:
            figure = Figure(figsize=(5.5, 4), layout="constrained")
            axes = figure.subplots()
            for name, row in content["rows"].items():
                axes.scatter(row["errors"], row["deviations_of_weights"], s=6, label=name)
            axes.axline((1, 1), slope=1, color="0.6", lw=0.8)
            axes.set(
                xscale="log",
                yscale="log",
                xlabel="relative L2 error of the posterior mean, %",
                ylabel="deviation over draws, %",
                title=f"U-Net trained on {kind} fields, p = 64",
            )
            axes.legend(fontsize=7)
            made[f"shift_{kind}"] = figure
    return made


def _curves(
    results: Results, kind: str, terms: Sequence[int]
) -> dict[str, list[tuple[int, float]]]:
    """Return points (p, error) of each reference and each network."""
    found: dict[str, list[tuple[int, float]]] = {}
    for p in terms:
        content = results.get(f"references-{kind}-{p}") or {}
        for name, row in content.get("rows", {}).items():
            found.setdefault(name, []).append((p, row["relative_l2_mean_percent"]))
        for net, label in NETS.items():
            result = results.get(f"{net}-physics-{kind}-{p}")
            if result is not None:
                error = result["metrics"]["ensemble"]["relative_l2_mean_percent"]
                found.setdefault(label, []).append((p, error))
    return found
