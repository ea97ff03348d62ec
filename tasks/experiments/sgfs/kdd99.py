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

from tasks.experiments.experiment import Cell, Choices, Experiment
from tasks.experiments.sgfs import runs
from tasks.experiments.tables import Column, Row, Table, each_chain

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
#: The prior's variance for the paper's lambda / N on a tenth of its rows.
LAMBDA1 = {"model.sampler.prior.variance": 1.0}
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
    found += [cell.but(WEAKER[cell.name], LAMBDA1) for cell in found if cell.name in WEAKER]
    return [*found, fisher("d", BEST, CHOSEN_LAMBDA1, True, True).but(BEST, LAMBDA1)]


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
        cell.but(cell.name.replace("-prior", "-lambda1"), LAMBDA1)
        for cell in found
        if cell.name.startswith("sgfs-d-prior")
    ]


def annealed(kind: str, name: str, lr: float, b: float, delta: float) -> Cell:
    """Return a run of SGD or SGLD whose step decays from ``lr`` as (1 + t / b)^-delta."""
    return runs.annealed(CONFIG, kind, name, float(f"{lr:.4g}"), b, delta, VARIANCE)


def fisher(kind: str, name: str, alpha: float, frozen: bool, count_prior: bool = False) -> Cell:
    """Return a run of SGFS-d or SGFS-f."""
    lr = runs.step_size(alpha, N, BATCH, digits=4)
    floor = {"floor": FLOOR_FULL} if kind == "f" else {}
    return runs.fisher(CONFIG, kind, name, lr, VARIANCE, frozen, count_prior=count_prior, **floor)


COLUMNS = [
    Column("iterations", "num_gradients", "{:,}"),
    Column("ours", each_chain("error_percent"), digits=1, scale=100.0, better="lower"),
    Column("paper", digits=1, missing=""),
    Column("NLL", "metrics.ensemble.nll", digits=5),
    Column("last draw", "metrics.last.error_percent", digits=1, scale=100.0),
    Column("validation", "metrics.ensemble_val.error_percent", digits=1, scale=100.0),
]
ROWS = [
    Row([label], name, published={"paper": PUBLISHED[name]} if name in PUBLISHED else {})
    for name, label in LABELS.items()
]
INTRO = (
    "Error rate of the ensemble on the held-out 5 % of the rows, times 1e4 (of several chains: "
    "mean +- standard deviation of each one's ensemble), its NLL there, and the error rate of "
    "the last draw."
)
TRIED = [
    Column("error rate", "metrics.ensemble_val.error_percent", digits=1, scale=100.0),
    Column("NLL", "metrics.ensemble_val.nll", digits=5),
]
EXPERIMENT = Experiment(
    cells,
    [INTRO, Table(["method"], COLUMNS, ROWS)],
    Choices(
        choices,
        TRIED,
        "Error rate of the ensemble on the validation rows, times 1e4, and its NLL there.",
    ),
)
