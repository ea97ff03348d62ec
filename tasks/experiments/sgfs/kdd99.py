"""A discriminative RBM on KDD Cup 99 (Ahn, Korattikara and Welling 2012, section 5.3, Table 1).

The published settings are alpha = 8.95 for SGFS and epsilon_t = .1 (1e5 + t)^-.9 for SGD and SGLD,
100,000 iterations, lambda = 10. epsilon acts on the sum over N examples, as in the paper's eq. 1:
lr = epsilon N / 2 for all. With N ten times smaller than in the paper, on the 10 % file, the same
epsilon is a ten times smaller lr; the row ``same lr`` has the paper's lr instead.

The paper's SGFS adapts its Fisher matrix until the end. It also runs here with the matrix frozen
where burn-in ends, from which point the chain has one target. ``sgfs-d-prior`` and
``sgfs-d-chosen``, which are frozen too, count the prior's precision in the matrix: weights of rare
features have next to no Fisher information, so that without it steps along them have no bound, and
chains diverge. The latter has the alpha that was best on the validation rows in short runs.

lambda = 10 weighs ten times as much against the 10 % file's rows as against the paper's;
``*-lambda1`` have the paper's ratio of the two, ``sgfs-d-best-lambda1`` the alpha that is best
there.
"""

from __future__ import annotations

from typing import Any

from lightning_sgmcmc import SGFS
from tasks.experiments.experiment import Cell
from tasks.experiments.tables import mean_and_spread, repeated

CONFIG = "kdd99.yaml"
#: Training rows of the 10 % file, and of the full one, which the paper has.
N, N_PAPER = 444_619, 4_408_587
BATCH = 500
ALPHA, CHOSEN, CHOSEN_LAMBDA1 = 8.95, 2.0, 1.0
#: With a tenth of it the full matrix, of 2,647 weights, is not positive definite in float32.
FLOOR_FULL = 1e-4
#: a, b, delta of epsilon_t = a (b + t)^-delta.
SCHEDULE = (0.1, 1e5, 0.9)
#: Test error rates times 1e4.
PUBLISHED = {"sgd": 8.0, "sgld": 6.6, "sgfs-d": 4.2, "sgfs-f": 4.4}
LABELS = {
    "sgd": "SGD",
    "sgld": "SGLD",
    "sgd-same-lr": "SGD, same lr",
    "sgld-same-lr": "SGLD, same lr",
    "sgfs-d": "SGFS-d",
    "sgfs-f": "SGFS-f",
    "sgfs-d-prior": "SGFS-d, prior counted, frozen after burn-in",
    "sgfs-d-chosen": f"SGFS-d, alpha = {CHOSEN:g}, prior counted, frozen after burn-in",
    "sgfs-d-frozen": "SGFS-d, frozen after burn-in",
    "sgfs-f-frozen": "SGFS-f, frozen after burn-in",
}
#: Runs that are made with lambda = 1 too, and what they are called then.
WEAKER = {
    "sgd-same-lr": "sgd-lambda1",
    "sgld-same-lr": "sgld-lambda1",
    "sgfs-d-prior": "sgfs-d-prior-lambda1",
    "sgfs-d-chosen": "sgfs-d-chosen-lambda1",
}
BEST = "sgfs-d-best-lambda1"
LABELS |= {name: f"{LABELS[base]}, lambda = 1" for base, name in WEAKER.items()} | {
    BEST: f"SGFS-d, alpha = {CHOSEN_LAMBDA1:g}, prior counted, frozen after burn-in, lambda = 1"
}
#: The prior's variance, 1 / lambda, for the paper's lambda / N on a tenth of its rows.
LAMBDA1 = "--model.sampler.prior.variance=1.0"
#: Three alphas without and with the prior counted, and 18 schedules by first lr, b and delta: as
#: many as in the paper, which does not say which.
ALPHAS = {"": (2.0, 4.0, ALPHA), "-prior": (1.0, 2.0, 4.0)}
FIRST = (0.1, 0.7, 5.0)
DECAYS = tuple((b, delta) for b in (1e3, 1e4, 1e5) for delta in (0.55, 0.9))


def cells() -> list[Cell]:
    """Return the runs of the table."""
    a, b, delta = SCHEDULE
    first = a * b**-delta / 2
    found = []
    for name, rows in (("", N), ("-same-lr", N_PAPER)):
        found += [annealed(kind, kind + name, first * rows, b, delta) for kind in ("sgd", "sgld")]
    for suffix in ("", "-frozen"):
        found += [fisher(kind, f"sgfs-{kind}{suffix}", ALPHA, bool(suffix)) for kind in ("d", "f")]
    counted = {"sgfs-d-prior": ALPHA, "sgfs-d-chosen": CHOSEN}
    found += [fisher("d", name, alpha, True, True) for name, alpha in counted.items()]
    found += [_weaker(cell, WEAKER[cell.name]) for cell in found if cell.name in WEAKER]
    return [*found, _weaker(fisher("d", BEST, CHOSEN_LAMBDA1, True, True), BEST)]


def choices() -> list[Cell]:
    """Return the grids, of which the paper took the best on the validation rows."""
    found = [
        annealed(kind, f"{kind}-lr{lr:g}-b{b:g}-delta{delta:g}", lr, b, delta)
        for kind in ("sgd", "sgld")
        for lr in FIRST
        for b, delta in DECAYS
    ]
    found += [
        fisher(kind, f"sgfs-{kind}{counted}-alpha{alpha:g}", alpha, True, bool(counted))
        for kind in ("d", "f")
        for counted, alphas in ALPHAS.items()
        for alpha in alphas
    ]
    return found + [
        _weaker(cell, cell.name.replace("-prior", "-lambda1"))
        for cell in found
        if cell.name.startswith("sgfs-d-prior")
    ]


def _weaker(cell: Cell, name: str) -> Cell:
    """Return the same run with lambda = 1."""
    return Cell(name, CONFIG, (*cell.overrides, LAMBDA1))


def annealed(kind: str, name: str, lr: float, b: float, delta: float) -> Cell:
    """Return a run of SGD or SGLD whose step decays from ``lr`` as (1 + t / b)^-delta."""
    overrides = [
        f"--model.sampler.lr={lr:.4g}",
        "--model.schedule=lightning_sgmcmc.schedules.PolynomialDecay",
        f"--model.schedule.b={b:g}",
        f"--model.schedule.gamma={delta:g}",
    ]
    if kind == "sgd":
        overrides.insert(0, "--model.sampler=lightning_sgmcmc.baselines.Optimized")
    return Cell(name, CONFIG, tuple(overrides))


def fisher(kind: str, name: str, alpha: float, frozen: bool, count_prior: bool = False) -> Cell:
    """Return a run of SGFS-d or SGFS-f."""
    overrides: tuple[str, ...] = (
        "--model.sampler=lightning_sgmcmc.SGFS",
        f"--model.sampler.variant={'diagonal' if kind == 'd' else 'full'}",
        f"--model.sampler.lr={SGFS.step_size(alpha, N, BATCH):.4g}",
        f"--model.sampler.count_prior={str(count_prior).lower()}",
        f"--model.freeze_preconditioner={str(frozen).lower()}",
    )
    if kind == "f":
        overrides += (f"--model.sampler.floor={FLOOR_FULL:g}",)
    return Cell(name, CONFIG, overrides)


def render(results: dict[str, dict[str, Any] | None], chosen_from: bool) -> str:
    """Return the table as Markdown, ours beside the paper's; unfinished runs are hyphens."""
    if chosen_from:
        return _render_choices(results)
    lines = [
        "Error rate of the ensemble on the held-out 5 % of the rows, times 1e4 (of several chains: "
        "mean +- standard deviation of each one's ensemble), its NLL there, and the error rate of "
        "the last draw.",
        "",
        "| method | iterations | ours | paper | NLL | last draw | validation |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, label in LABELS.items():
        run = results.get(name)
        paper = f"{PUBLISHED[name]:.1f}" if name in PUBLISHED else ""
        lines.append(f"| {label} | {' | '.join(_row(run, paper))} |")
    return "\n".join(lines)


def _row(run: dict[str, Any] | None, paper: str) -> list[str]:
    if run is None:
        return ["-", "-", paper, "-", "-", "-"]
    errors = [100 * e for e in repeated([run], "error_percent")]
    metrics = run["metrics"]
    return [
        f"{run['num_gradients']:,}",
        mean_and_spread(errors, 1),
        paper,
        f"{metrics['ensemble']['nll']:.5f}",
        f"{100 * metrics['last']['error_percent']:.1f}",
        f"{100 * metrics['ensemble_val']['error_percent']:.1f}",
    ]


def _render_choices(results: dict[str, dict[str, Any] | None]) -> str:
    lines = [
        "Error rate of the ensemble on the validation rows, times 1e4, and its NLL there.",
        "",
        "| run | error rate | NLL |",
        "|---|---|---|",
    ]
    for name, run in results.items():
        values = "- | -"
        if run is not None:
            metrics = run["metrics"]["ensemble_val"]
            values = f"{100 * metrics['error_percent']:.1f} | {metrics['nll']:.5f}"
        lines.append(f"| {name} | {values} |")
    return "\n".join(lines)
