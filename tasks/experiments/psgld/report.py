"""The tables that pSGLD's network experiments print."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tasks.experiments.experiment import Choices, Studies, by_rightmost_dash
from tasks.experiments.labels import label
from tasks.experiments.psgld.methods import BATCH
from tasks.experiments.psgld.networks import Method, Networks
from tasks.experiments.psgld.students import LR
from tasks.experiments.sheet import sheet
from tasks.experiments.tables import Column, Result, Results, Row, Table, paper_row, repeated


def names_of(results: Results, column: str, method: str) -> list[str]:
    """Return the cells that make up an entry: one, or one run for each seed."""
    name = f"{column}-{method}"
    if name in results:
        return [name]
    return [n for n in results if n.startswith(f"{name}-seed")]


def _finished(results: Results, column: str, name: str) -> list[Result]:
    found = (results[cell] for cell in names_of(results, column, name))
    return [run for run in found if run is not None]


def _values(runs: Sequence[Result], metric: str, method: Method) -> list[float]:
    """Return a metric of every repetition."""
    if method.together:
        return [run["metrics"]["ensemble"][metric] for run in runs]
    return repeated(runs, metric)


def _entry(runs: Sequence[Result], method: Method, built: str) -> Result:
    """Return what the table says of finished runs, beside what the first of them is."""
    first, count = runs[0], sum(run["num_chains"] for run in runs)
    apart = len(runs) > 1 or "sampler" not in first  # of networks of runs of their own
    alone = method.together or apart or first["num_chains"] == 1
    draws, mean = first["metrics"]["ensemble"], first["metrics"].get("posterior_mean")
    one_mean = count == 1 and first.get("num_draws", 1) > 1 and mean is not None
    return first | {
        "built": built,
        "epochs": first["num_gradients"] * BATCH / first["num_data"],
        "chains": f"1 of {count} networks" if method.together else str(count),
        "nll": _values(runs, "nll", method),
        "ece": _values(runs, "ece", method),
        "together": "" if alone else _two(draws),
        "of_mean_weights": _two(mean) if one_mean else "",
        "seconds": sum(run["wall_seconds"] for run in runs),
    }


def _two(metrics: Result) -> str:
    return f"{metrics['error_percent']:.2f}, {metrics['nll']:.4f}"


def _cost(results: Results, networks: Networks, column: str, name: str) -> str:
    """Return what stands for an entry that is not measured: the minutes of one repetition.

    They are those of the method's shortest run, times the ratios of epochs and of weights.
    """
    sizes = {key: of.epochs * of.weights for key, of in networks.columns.items()}
    for shortest in sorted(sizes, key=sizes.__getitem__):
        if runs := _finished(results, shortest, name):
            alone = networks.methods[name].together
            repetitions = 1 if alone else sum(run["num_chains"] for run in runs)
            one = sum(run["wall_seconds"] for run in runs) / repetitions / 60
            return f"- ({one * sizes[column] / sizes[shortest]:,.0f} min)"
    return "-"


def _temperature(run: Result) -> str:
    """Return the stated and the measured temperature of a sampler, nothing for an optimizer."""
    if not run["temperature"]:
        return ""
    measured = run["diagnostics"].get("configurational_temperature", {}).get("value")
    stated = f"{run['temperature']:.3g}"
    return stated if measured is None else f"{stated}, {measured:.3g}"


SHEET = sheet("psgld", temperature=_temperature)


def report(networks: Networks, results: Results) -> Iterator[str | Table]:
    """Yield the table of test errors, one of its finished entries, and one of temperatures.

    The published errors of a method are in the order of the columns.
    """
    yield SHEET.intro
    columns, paper = networks.columns, networks.sheet.published
    errors = [
        Column(column.title, name, cell=f"{name}-{{}}", better="lower")
        for name, column in columns.items()
    ]
    rows, entries, shown = [], [], set()
    for name, method in networks.methods.items():
        if method.paper is not None and method.paper not in shown:
            shown.add(method.paper)
            rows.append(paper_row([f"*paper*, {method.paper}"], errors, paper[method.paper]))
        runs = {column: _finished(results, column, name) for column in columns}
        errors_of = {
            column: _values(of, "error_percent", method) or _cost(results, networks, column, name)
            for column, of in runs.items()
        }
        rows.append(Row([method.label], name, errors_of))
    yield Table([""], errors, rows)
    for name, column in columns.items():
        for key, method in networks.methods.items():
            if found := _finished(results, name, key):
                built = label(networks.cell(name, key).overrides) if method.recipe else ""
                if key == "distilled":
                    built = f"student by Adam, lr {LR:g}, of {built}"
                record = _entry(found, method, built)
                entries.append(Row([column.title, method.label], record=record))
    if entries:
        yield SHEET.settings["of_entries"]
        yield Table(["network", "method"], SHEET.made(SHEET.settings["entries"]), entries)
    rows = [
        Row([_at_any_temperature(networks.methods[name])], record=run)
        for name in networks.tempered
        for run in at_temperatures(results, name)
    ]
    if rows:
        yield SHEET.settings["of_temperatures"]
        yield Table(["method"], SHEET.made(SHEET.settings["temperatures"]), rows)


def _at_any_temperature(method: Method) -> str:
    """Return a method's label without the temperature that it states."""
    return method.label.replace(", posterior", "").replace(" (T = 1)", "")


def at_temperatures(results: Results, method: str) -> list[Result]:
    """Return a method's finished runs at several temperatures, the coldest first."""
    prefix = f"temperature-{method}-"
    found = [result for name, result in results.items() if name.startswith(prefix) and result]
    return sorted(found, key=lambda result: float(result["temperature"]))


def choices(networks: Networks, cells: Studies) -> Choices:
    """Return what step sizes were chosen from, by the NLL of held-out training examples."""

    def labels(name: str) -> tuple[str, str]:
        kind, _, rest = name.partition("-")
        key, setting = by_rightmost_dash(rest)
        method = networks.methods[key]
        if kind == "temperature":
            return _at_any_temperature(method), f"T = {setting}"
        return method.label, setting

    return SHEET.choices(
        cells,
        "Best in NLL of those that have run: {}.",
        lambda name: by_rightmost_dash(name.removeprefix("trial-")),
        heading=("method", "step or temperature"),
        labels=labels,
    )
