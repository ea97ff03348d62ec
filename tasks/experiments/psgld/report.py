"""The tables that pSGLD's network experiments print."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tasks.experiments.experiment import Best, Cells, Choices, by_rightmost_dash
from tasks.experiments.psgld.methods import BATCH
from tasks.experiments.tables import Column, Result, Results, Row, Table, paper_row, repeated


@dataclass(frozen=True)
class Method:
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


Methods = Mapping[str, Method]


def names_of(results: Results, column: str, method: str) -> list[str]:
    """Return the cells that make up an entry: one, or one run for each seed."""
    name = f"{column}-{method}"
    if name in results:
        return [name]
    return [n for n in results if n.startswith(f"{name}-seed")]


@dataclass(frozen=True)
class Entry:
    """The finished runs of a method in a column."""

    method: Method
    runs: Sequence[Result]

    @classmethod
    def of(cls, results: Results, column: str, name: str, method: Method) -> Entry:
        """Collect the runs."""
        found = (results[n] for n in names_of(results, column, name))
        return cls(method, [run for run in found if run is not None])

    def values(self, metric: str) -> list[float]:
        """Return a metric of every repetition."""
        if self.method.together:
            return [run["metrics"]["ensemble"][metric] for run in self.runs]
        return repeated(self.runs, metric)

    @property
    def first(self) -> Result:
        """The first run."""
        return self.runs[0]

    @property
    def chains(self) -> str:
        """How many repetitions there are."""
        count = sum(run["num_chains"] for run in self.runs)
        return f"1 of {count} networks" if self.method.together else str(count)

    @property
    def mean_prediction(self) -> str:
        """Error and NLL of all chains' mean prediction, nothing of a single one."""
        if self.method.together or len(self.runs) > 1 or self.first["num_chains"] == 1:
            return ""
        metrics = self.first["metrics"]["ensemble"]
        return f"{metrics['error_percent']:.2f}, {metrics['nll']:.4f}"


def _temperature(run: Result) -> str:
    """Return the stated and the measured temperature of a sampler, nothing for an optimizer."""
    if not run["temperature"]:
        return ""
    measured = run["diagnostics"].get("configurational_temperature", {}).get("value")
    stated = f"{run['temperature']:.3g}"
    return stated if measured is None else f"{stated}, {measured:.3g}"


DETAILS: list[Column] = [
    Column("weights", lambda e: e.first["num_parameters"], "{:,}"),
    Column("epochs", lambda e: e.first["num_gradients"] * BATCH / e.first["num_data"], "{:.3g}"),
    Column("repetitions", lambda e: e.chains),
    Column("draws of each", lambda e: e.first["num_draws"], digits=0),
    Column("T", lambda e: _temperature(e.first)),
    Column("NLL", lambda e: e.values("nll"), digits=4),
    Column("ECE", lambda e: e.values("ece"), digits=4),
    Column("together: error, NLL", lambda e: e.mean_prediction),
    Column("minutes", lambda e: sum(run["wall_seconds"] for run in e.runs) / 60, digits=1),
    Column("device", lambda e: e.first["provenance"]["device"]),
]


def report(
    results: Results,
    methods: Methods,
    columns: Mapping[str, str],
    paper: Mapping[str, Sequence[float | None]],
) -> Iterator[str | Table]:
    """Yield the table of test errors, and one with a line for each finished entry of it.

    Args:
        results: Content of ``results.json`` of the cells, None where one is not finished.
        methods: The rows.
        columns: What the table calls each group of cells.
        paper: Published errors in the order of ``columns``; None or nothing where there is none.
    """
    yield "Test error in percent: mean +- standard deviation over (repetitions)."
    errors = [Column(title, column, better="lower") for column, title in columns.items()]
    rows, details, shown = [], [], set()
    for name, method in methods.items():
        if method.paper is not None and method.paper not in shown:
            shown.add(method.paper)
            rows.append(paper_row([f"*paper*, {method.paper}"], errors, paper[method.paper]))
        entries = {column: Entry.of(results, column, name, method) for column in columns}
        record = {column: entry.values("error_percent") for column, entry in entries.items()}
        rows.append(Row([method.label], record=record))
    yield Table([""], errors, rows)
    for column, title in columns.items():
        for name, method in methods.items():
            entry = Entry.of(results, column, name, method)
            details += [Row([title, method.label], record=entry)] if entry.runs else []
    if details:
        yield (
            "What each entry is: all numbers are from the runs themselves. An epoch is one of "
            f"minibatches of {BATCH}; T is the temperature of the target and, after the comma, of "
            "the draws, configurational; together are the repetitions of one run, by their mean "
            "prediction; minutes are those of all repetitions."
        )
        yield Table(["network", "method"], DETAILS, details)


TEMPERATURES = [
    Column("T: stated, of the draws", _temperature),
    Column(
        "validation log-likelihood", "metrics.ensemble_val.nll", scale=-1, digits=4, better="higher"
    ),
    Column("test log-likelihood", "metrics.ensemble.nll", scale=-1, digits=4, better="higher"),
    Column("validation error, %", "metrics.ensemble_val.error_percent", better="lower"),
    Column("test error, %", "metrics.ensemble.error_percent", better="lower"),
    Column("chains", "num_chains", digits=0),
]


def temperature_table(
    results: Results, names: Sequence[str], methods: Methods
) -> Iterator[str | Table]:
    """Yield predictions over the temperature of the target; finished runs alone."""
    rows = [
        Row([methods[name].label.replace(", posterior", "").replace(" (T = 1)", "")], record=run)
        for name in names
        for run in at_temperatures(results, name)
    ]
    if rows:
        yield (
            "The reduced protocol at other temperatures, on 50,000 training examples: the "
            "ensembles of all chains together. The draws' temperature is configurational."
        )
        yield Table(["method"], TEMPERATURES, rows)


def at_temperatures(results: Results, method: str) -> list[Result]:
    """Return a method's finished runs at several temperatures, the coldest first."""
    prefix = f"temperature-{method}-"
    found = [result for name, result in results.items() if name.startswith(prefix) and result]
    return sorted(found, key=lambda result: float(result["temperature"]))


NLL = Column("validation NLL", "metrics.ensemble_val.nll", digits=4, better="lower")


def choices(cells: Callable[[], Cells]) -> Choices:
    """Return what step sizes were chosen from, by the NLL of held-out training examples."""
    return Choices(
        cells,
        [NLL, Column("validation error, %", "metrics.ensemble_val.error_percent", better="lower")],
        "On held-out training examples, the ensemble of all chains together.",
        Best(
            "Best in NLL of those that have run: {}.",
            NLL,
            lambda name: by_rightmost_dash(name.removeprefix("trial-")),
        ),
    )
