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
from tasks.experiments.experiment import Cell, Experiment
from tasks.experiments.overrides import OPTIMIZED, gaussian, sampler, schedule
from tasks.experiments.sheet import sheet
from tasks.experiments.tables import Results, Row, Table

CONFIG = "kdd99.yaml"
#: Training rows of the 10 % file, and of the full one, which the paper has.
N, N_PAPER = 444_619, 4_408_587
BATCH = 500
ALPHA, CHOSEN, CHOSEN_LAMBDA1 = 8.95, 2.0, 1.0
#: The prior's variance, 1 / lambda.
VARIANCE = 0.1
#: With a tenth of it the full matrix, of 2,647 weights, is not positive definite in float32.
FLOOR_FULL = 1e-4
#: a, b, delta of epsilon_t = a (b + t)^-delta.
SCHEDULE = (0.1, 1e5, 0.9)
#: Runs that are made with lambda = 1 too, and what they are called then.
WEAKER = {
    "sgd-same-lr": "sgd-lambda1",
    "sgld-same-lr": "sgld-lambda1",
    "sgfs-d-prior": "sgfs-d-prior-lambda1",
    "sgfs-d-chosen": "sgfs-d-chosen-lambda1",
}
BEST = "sgfs-d-best-lambda1"
#: The prior's variance for the paper's lambda / N on a tenth of its rows.
LAMBDA1 = {"model.sampler.prior.variance": 1.0}
SHEET = sheet("kdd99")
LABELS, PUBLISHED, GRID = SHEET.labels, SHEET.published, SHEET.settings


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
    found += [cell.but(WEAKER[cell.name], LAMBDA1) for cell in found if cell.name in WEAKER]
    return [*found, fisher("d", BEST, CHOSEN_LAMBDA1, True, True).but(BEST, LAMBDA1)]


def choices() -> list[Cell]:
    """Return the grids, of which the paper took the best on the validation rows."""
    found = [
        annealed(kind, f"{kind}-lr{lr:g}-b{b:g}-delta{delta:g}", lr, b, delta)
        for kind in ("sgd", "sgld")
        for lr in GRID["first"]
        for b in GRID["b"]
        for delta in GRID["delta"]
    ]
    found += [
        fisher(kind, f"sgfs-{kind}{counted}-alpha{alpha:g}", alpha, True, bool(counted))
        for kind in ("d", "f")
        for counted, alphas in GRID["alphas"].items()
        for alpha in alphas
    ]
    return found + [
        cell.but(cell.name.replace("-prior", "-lambda1"), LAMBDA1)
        for cell in found
        if cell.name.startswith("sgfs-d-prior")
    ]


def annealed(kind: str, name: str, lr: float, b: float, delta: float) -> Cell:
    """Return a run of SGD or SGLD whose step decays from ``lr`` as (1 + t / b)^-delta."""
    drawn = {"sgd": OPTIMIZED, "sgld": "SGLD"}[kind]
    decay = schedule("PolynomialDecay", b=b, gamma=delta)
    return Cell(name, CONFIG, sampler(drawn, float(f"{lr:.4g}"), gaussian(VARIANCE)) | decay)


def fisher(kind: str, name: str, alpha: float, frozen: bool, count_prior: bool = False) -> Cell:
    """Return a run of SGFS-d or SGFS-f."""
    settings: dict[str, Any] = {"variant": "diagonal"}
    if kind == "f":
        settings = {"variant": "full", "floor": FLOOR_FULL}
    lr = float(f"{SGFS.step_size(alpha, N, BATCH):.4g}")
    drawn = sampler("SGFS", lr, gaussian(VARIANCE), count_prior=count_prior, **settings)
    return Cell(name, CONFIG, drawn | {"model.freeze_preconditioner": frozen})


def report(results: Results) -> list[str | Table]:
    """Return ours beside the paper's."""
    paper = {name: {"paper": rate} for name, rate in PUBLISHED.items()}
    rows = [Row([label], name, published=paper.get(name, {})) for name, label in LABELS.items()]
    return [SHEET.intro, Table(SHEET.heading, SHEET.made(SHEET.columns), rows)]


EXPERIMENT = Experiment(cells, report, SHEET.choices(choices))
