"""The tables and figures of ``scripts/reproduce.py table2``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lightning_sgmcmc.callbacks.report.figures import new_figure
from tasks.experiments.labels import label
from tasks.experiments.sheet import sheet
from tasks.experiments.tables import Column, Result, Results, Row, Table, paper_row
from tasks.pde_perm import TABLE_2

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS: tuple[Literal["additive", "lognormal"], ...] = ("additive", "lognormal")
TERMS = (32, 64, 128)
#: Points (p, error) by the label of their line.
Curves = dict[str, list[tuple[int, float]]]


def _temperatures(result: Result) -> str:
    """Return both temperatures; overdamped chains have no kinetic one."""
    diagnostics = result["diagnostics"]
    kinetic = diagnostics.get("kinetic_temperature")
    configurational = diagnostics["configurational_temperature"]["value"]
    return f"{'-' if kinetic is None else f'{kinetic:.2f}'}, {configurational:.2f}"


def _bands(row: Result) -> str:
    if "milliseconds" in row:
        return f"({row['milliseconds']:.0f} ms a field)"
    return ", ".join(f"{100 * row[f'coverage_{p}']:.0f}" for p in (50, 90, 95))


SHEET = sheet("table2", temperatures=_temperatures, bands=_bands)
STARTS, NETS, FORMS = (SHEET.settings[name] for name in ("starts", "nets", "forms"))


def _columns(name: str) -> list[Column]:
    return SHEET.made(SHEET.settings[name])


def report(results: Results) -> Iterator[str | Table]:
    """Yield the paper's table beside its cells, networks, references, other fields, bounds."""
    runs, columns = {c.name: c for c in SHEET.runs()}, SHEET.made(SHEET.columns)
    rows = [paper_row(["*paper*", name], columns, TABLE_2[name].values()) for name in TABLE_2]
    for start, title in STARTS.items():
        names = [f"{start}-{method}".strip("-") for method in SHEET.labels]
        found = [name for name in names if f"{name}-0" in runs]
        rows += [Row([title, label(runs[f"{name}-0"].overrides)], name) for name in found]
    yield Table(SHEET.heading, columns, rows)
    rows = [
        Row([kind, str(p), net_label, form_label], name)
        for kind in KINDS
        for net, net_label in NETS.items()
        for form, form_label in FORMS.items()
        for p in TERMS
        if results.get(name := f"{net}-{form}-{kind}-{p}") is not None
    ]
    yield Table(["field", "modes", "network", "form"], _columns("networks"), rows)
    rows = []
    for kind in KINDS:
        for p in TERMS:
            content = results.get(f"references-{kind}-{p}") or {}
            for name, row in content.get("rows", {}).items():
                leading = f", {content['quadratic']} leading" if name.startswith("quad") else ""
                rows.append(Row([kind, str(p), name + leading], record=row))
    yield Table(["field", "modes", ""], _columns("references"), rows)
    rows = [
        Row([kind, name], record=row)
        for kind in KINDS
        for name, row in (results.get(f"shift-{kind}") or {}).get("rows", {}).items()
    ]
    yield Table(["trained on", "tested on"], _columns("shift"), rows)
    for study, first in (("bounds", "field"), ("outside", "trained on, asked for")):
        found = (results.get(study) or {}).get("rows", {})
        rows = [Row([name], record=row) for name, row in found.items()]
        yield Table([first], _columns(study), rows)


def figures(results: Results, out: Path) -> dict[str, Figure]:
    """Return the error over the number of modes, and deviation over error on other fields."""
    made = {}
    curves: dict[str, Curves] = {kind: _curves(results, kind) for kind in KINDS}
    if any(len(points) > 1 for found in curves.values() for points in found.values()):
        made["modes"] = _over_modes(curves)
    for kind in KINDS:
        content = results.get(f"shift-{kind}")
        if content is not None:
            made[f"shift_{kind}"] = _over_errors(kind, content["rows"])
    return made


def _over_errors(kind: str, rows: dict[str, dict[str, Any]]) -> Figure:
    """What is said of a field's error, over that error."""
    said = {
        "deviations_of_weights": ("deviation over draws, %", 1),
        "difficulties": ("guaranteed bound, % of a constant field's flow", 100),
    }
    shown = [name for name in said if all(name in row for row in rows.values())]
    figure = new_figure(5 * len(shown) + 0.5, 4)
    for axes, key in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        label, scale = said[key]
        for name, row in rows.items():
            axes.scatter(row["errors"], [scale * v for v in row[key]], s=6, label=name)
        axes.axline((1, 1), slope=1, color="0.6", lw=0.8)
        xlabel = "relative L2 error of the posterior mean, %"
        axes.set(xscale="log", yscale="log", xlabel=xlabel, ylabel=label)
    axes.legend(fontsize=7)
    figure.suptitle(f"U-Net trained on {kind} fields, p = 64")
    return figure


def _over_modes(curves: dict[str, Curves]) -> Figure:
    from matplotlib.ticker import LogLocator, NullLocator

    figure = new_figure(9, 3.6)
    names = list(dict.fromkeys(name for found in curves.values() for name in found))
    for axes, (kind, found) in zip(figure.subplots(1, len(KINDS)), curves.items(), strict=True):
        for name, points in found.items():
            color = f"C{names.index(name)}"
            axes.plot(*zip(*points, strict=True), marker="o", label=name, color=color)
        axes.set(xscale="log", yscale="log", xlabel="modes p", title=f"{kind} fields")
        axes.set_xlim(0.9 * TERMS[0], 1.1 * TERMS[-1])
        axes.set_xticks(TERMS, [str(p) for p in TERMS])
        axes.xaxis.set_minor_locator(NullLocator())
        for formatter in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            formatter("{x:g}")
        axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
        axes.set_ylabel("mean relative L2 error, %")
    lines = {str(line.get_label()): line for axes in figure.axes for line in axes.get_lines()}
    figure.legend(lines.values(), lines.keys(), fontsize=7, loc="outside right upper")
    return figure


def _curves(results: Results, kind: str) -> Curves:
    """Return points (p, error) of each reference and each network."""
    found: Curves = {}
    for p in TERMS:
        content = results.get(f"references-{kind}-{p}") or {}
        for name, row in content.get("rows", {}).items():
            found.setdefault(name, []).append((p, row["relative_l2_mean_percent"]))
        for net, title in NETS.items():
            result = results.get(f"{net}-physics-{kind}-{p}")
            if result is not None:
                error = result["metrics"]["ensemble"]["relative_l2_mean_percent"]
                found.setdefault(title, []).append((p, error))
    return found
