"""Theorems of pSGLD, NLD, HASGLD-SA and SGFS, measured: tables and a figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_sgmcmc.callbacks.report.figures import new_figure
from tasks.experiments.experiment import Experiment, Study
from tasks.experiments.tables import Column, Result, Results, Row, Table
from tasks.experiments.theory import averages, hessian, pairs, pruned, scores

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Lengths shown of a sequence of them.
SHOWN = (2**8, 2**10, 2**12, 2**14)


def cells() -> list[Study]:
    """Return the studies of all papers."""
    return [*averages.cells(), *hessian.cells(), *pairs.cells(), *scores.cells(), *pruned.cells()]


def measured(title: str, key: str, digits: int) -> Column:
    """Return a column of a number and its standard error."""
    form = f"{{:.{digits}f}} ± {{:.{digits}f}}"
    return Column(title, (key, f"{key}_se"), form)


def _at(key: str, length: int, digits: int) -> Column:
    """Return a column of a sequence's entry at a length, with its standard error."""

    def read(record: Result) -> tuple[float, float] | str:
        if length not in record["lengths"]:
            return ""
        place = record["lengths"].index(length)
        return record[key][place], record[f"{key}_se"][place]

    return Column(f"T = {length:,}", read, f"{{:.{digits}f}} ± {{:.{digits}f}}")


def _nth(title: str, key: str, place: int, digits: int) -> Column:
    """Return a column of a sequence's entry at a place, with its standard error."""

    def read(record: Result) -> tuple[float, float]:
        return record[key][place], record[f"{key}_se"][place]

    return Column(title, read, f"{{:.{digits}f}} ± {{:.{digits}f}}")


def report(results: Results) -> Iterator[Table | str]:
    """Yield the tables, in the order of the page."""
    yield "Time averages under steps a t^-beta."
    yield _exponents(results)
    yield _thinned(results)
    yield _adapting()
    yield "HASGLD-SA: the metric, the bias, the eigenvalues, the memory."
    yield _rates()
    yield _biases(results)
    yield _eigenvalues()
    yield _memory(results)
    yield "SGFS: the averaged covariance of scores, and what the metric costs."
    yield _scores(results)
    yield _cost(results)
    yield "Pruned weights."
    yield _pruned(results)


def _part(results: Results, name: str, thinning: int) -> Result | None:
    """Return the numbers of a pSGLD study at one thinning."""
    study = results.get(name)
    if study is None:
        return None
    (row,) = (r for r in study["rows"] if r["thinning"] == thinning)
    found: Result = {k: v for k, v in study.items() if k != "rows"} | row
    return found


def _exponents(results: Results) -> Table:
    columns = [
        Column("a", "step", "{:g}"),
        Column("theorem", "theory", "{:z.3f}"),
        measured("measured", "exponent", 3),
        Column("closed form, same T", "closed_exponent", "{:z.3f}"),
        Column("closed form, T = 2^18", "far", "{:z.3f}"),
    ]
    rows = []
    for method, label in (("psgld", "PSGLD, frozen"), ("nld", "SGLD, DOP metric, frozen")):
        for name, beta in averages.BETAS.items():
            if method == "psgld":
                record = _part(results, f"psgld-{name}", 1)
                rows.append(Row([label, f"{beta:.2f}"], record=record, cell="psgld-" + name))
            elif beta:
                rows.append(Row([label, f"{beta:.2f}"], f"nld-{name}"))
    return Table(["sampler", "beta"], columns, rows)


def _thinned(results: Results) -> Table:
    whole = _part(results, "psgld-0.33", 1)

    def ratio(length: int) -> Column:
        def read(record: Result) -> str:
            if whole is None:
                return "-"
            i = record["lengths"].index(length)
            closed = record["closed"][i] / whole["closed"][i]
            return f"{record['ratio'][i]:.2f} ± {record['ratio_se'][i]:.2f} ({closed:.2f})"

        return Column(f"T = {length:,}", read)

    rows = [
        Row([f"{k}"], record=_part(results, "psgld-0.33", k), cell="psgld-0.33")
        for k in averages.THINNINGS[1:]
    ]
    columns = [*map(ratio, SHOWN), measured("exponent", "exponent", 3)]
    return Table(["every k-th state, k ="], columns, rows)


def _adapting() -> Table:
    rows = [
        Row([f"{alpha:g}", "exact" if gamma else "dropped"], f"adapting-{name}")
        for name, (alpha, gamma) in averages.ADAPTING.items()
    ]
    columns = [_at("bias", length, 3) for length in SHOWN]
    bound = Column(
        "(1 - alpha)^2 / alpha^3", lambda r: (1 - r["alpha"]) ** 2 / r["alpha"] ** 3, "{:.1e}"
    )
    mse = Column("MSE, last T", lambda r: (r["mse"][-1], r["mse_se"][-1]), "{:.4f} ± {:.4f}")
    return Table(["alpha", "Gamma"], [*columns, mse, bound], rows)


def _rates() -> Table:
    columns = [
        Column("at omega_k =", lambda r: (r["rates"][-4], r["rates"][-1]), "{:.3f}, {:.4f}"),
        Column("‖C - C*‖²", lambda r: (r["error"][-4], r["error"][-1]), "{:.4f}, {:.4f}"),
        measured("exponent of omega_k", "exponent", 3),
        Column("‖C* - H^-1‖²", "delta", "{:z.3f}"),
    ]
    rows = [Row([f"5 (k + 10)^-{name}"], f"rate-{name}") for name in hessian.RATES]
    return Table(["omega_k"], columns, rows)


def _biases(results: Results) -> Table:
    columns = [
        Column("omega", lambda r: _rate(r["omega"])),
        Column("eps", "lr", "{:g}"),
        Column("M", "M", "{}"),
        Column("n", "n", "{}"),
        measured("bias", "bias", 3),
        Column("closed form, C constant", "constant", "{:z.3f}"),
        Column(
            "by adapting", lambda r: (r["bias"] - r["constant"], r["bias_se"]), "{:z.3f} ± {:.3f}"
        ),
        Column("‖C - H^-1‖ / ‖H^-1‖", "delta", "{:.2f}"),
    ]
    rows = [Row([varied(name)], f"bias-{name}") for name in hessian.SETTINGS]
    return Table(["varied"], columns, rows)


def varied(name: str) -> str:
    """Return what a setting of Theorem 2 changes."""
    return {"memory": "M", "omega": "omega", "eps": "eps", "n": "n"}[name.split("-")[0]]


def _rate(omega: Sequence[float]) -> str:
    c1, c2, p = omega
    return f"{c1:g}" if p == 0 else f"{c1:g} (k + {c2:g})^-{p:g}"


def _eigenvalues() -> Table:
    columns = [
        Column("a", "a", "{:z.3f}"),
        Column("A", "A", "{:.2f}"),
        Column("smallest of B", "smallest", "{:z.3f}"),
        Column("largest of B", "largest", "{:.2f}"),
        Column("lower bound", "lower", "{:.0e}"),
        Column("upper bound", "upper", "{:.0e}"),
    ]
    rows = [Row([str(m), f"{r:g}"], f"eigenvalues-{m}-{r:g}") for m, r in pairs.LEMMA2]
    return Table(["M", "r"], columns, rows)


def _memory(results: Results) -> Table:
    found = (results.get("memory") or {}).get("rows", [])
    columns = [
        Column("earlier states in C", "states", "{}"),
        Column("pairs", "pairs", "{}"),
        Column("vectors kept", "vectors", "{}"),
    ]
    rows = [Row([r["sampler"], str(r["M"])], record=r) for r in found]
    return Table(["sampler", "M"], columns, rows)


def _scores(results: Results) -> Table:
    first: Any = results.get("scores-exact") or {}
    sizes = list(first.get("N", scores.SIZES))

    columns = [
        *(_nth(f"N = {size}", "bias", i, 4) for i, size in enumerate(sizes)),
        measured("exponent of the mean", "exponent", 2),
        measured("exponent of one data set's error", "scatter_exponent", 2),
    ]
    labels = {"exact": "posterior draws", "sgfs": "SGFS-f's own chain, alpha = 2"}
    closed = {c.title: f"{-1 / s:.4f}" for c, s in zip(columns, sizes, strict=False)}
    closed |= {columns[-2].title: "-1", columns[-1].title: "-0.5"}
    rows = [Row([text], f"scores-{name}") for name, text in labels.items()]
    return Table(["theta_t"], columns, [*rows, Row(["closed form"], published=closed)])


def _cost(results: Results) -> Table:
    found: Any = results.get("cost") or {}
    columns = [
        _nth(f"D = {width:,}", "ratio", i, 1)
        for i, width in enumerate(found.get("D", scores.WIDTHS))
    ]
    return Table(["n"], columns, [Row([str(scores.EXAMPLES)], "cost")])


def _pruned(results: Results) -> Table:
    found = (results.get("pruned") or {}).get("rows", [])
    columns = [
        Column("bytes of a draw", "size", "{:.2f}"),
        *(
            _nth(f"CSR product, batch of {batch:,}", "time", i, 2)
            for i, batch in enumerate(pruned.BATCHES)
        ),
        Column("change of predictions", "change", "{:g}"),
    ]
    rows = [Row([f"{100 * r['rate']:g} %"], record=r) for r in found]
    return Table(["pruned"], columns, rows)


def figures(results: Results, out: Path) -> dict[str, Figure]:
    """Return MSE over T, measured and in closed form, and |C - C*|^2 over omega_k."""
    frozen = {n: _part(results, f"psgld-{n}", 1) for n in averages.BETAS}
    rates = {name: results.get(f"rate-{name}") for name in hessian.RATES}
    if not any(frozen.values()) or not any(rates.values()):
        return {}
    figure = new_figure(11, 4.6)
    left, right = figure.subplots(1, 2)
    for (name, record), marker in zip(frozen.items(), "osD^v", strict=True):
        if record is None:
            continue
        x, y = record["lengths"], record["mse"]
        (line,) = left.plot(x, record["closed"], "-")
        beta = averages.BETAS[name]
        found, theorem = f"T^{record['exponent']:z.2f}", f"theorem {record['theory']:z.2f}"
        label = f"beta = {beta:.2f}: {found}, {theorem}"
        left.errorbar(x, y, record["mse_se"], fmt=marker, color=line.get_color(), label=label)
    left.set(xscale="log", yscale="log", xlabel="steps T", ylabel="MSE of the time average")
    left.set_title("pSGLD, C frozen; lines: closed form")
    for (name, record), marker in zip(rates.items(), "osD", strict=True):
        if record is None:
            continue
        label = f"power {name}: omega^{record['exponent']:.2f}"
        right.errorbar(
            record["rates"], record["error"], record["error_se"], fmt=marker + "-", label=label
        )
    right.set(
        xscale="log", yscale="log", xlabel=r"$\omega_k$", ylabel=r"$E|C_k - C^*|^2 / |H^{-1}|^2$"
    )
    right.set_title("HASGLD-SA's metric")
    for axes in (left, right):
        axes.legend(fontsize="small")
    return {"theory": figure}


EXPERIMENT = Experiment(cells, report, figures=figures)
