"""pSGLD's networks on MNIST (Li et al. 2016): Table 2, Figures 4 and 7, and what lies beyond.

Cells, ``COLUMN-METHOD``:

- ``400``, ``800`` and ``1200`` are the paper's networks 784-X-X-10 for the paper's 100 epochs;
- ``reduced`` is 784-400-400-10 for 20 epochs, for a machine without a GPU;
- ``temperature-METHOD-T`` are reduced runs at other temperatures, 10,000 training examples held
  out.

``psgld-published-*`` and ``sgld-published`` follow the authors' code, whose noise is that of the
temperature 1/N; ``psgld-*`` and ``sgld`` sample the posterior. Repetitions of ``dropout`` and
``distilled`` are runs of their own, ``-seed0`` and so on, which ``mc-dropout`` and ``distilled``
collect.
"""

from __future__ import annotations

from functools import partial

from tasks.experiments.experiment import Cell, Experiment, Study
from tasks.experiments.psgld import figures, report
from tasks.experiments.psgld.methods import Protocol
from tasks.experiments.psgld.networks import Networks
from tasks.experiments.psgld.students import distilled, mc_dropout, student
from tasks.experiments.sheet import sheet

NETWORKS = Networks(sheet("psgld_mnist"), "half an hour to some hours each")
#: Runs of one repetition each.
SEEDS = 3


def cells() -> list[Cell | Study]:
    """Return the cells of every column, then those at other temperatures."""
    pairs = [(column, method) for column in NETWORKS.columns for method in NETWORKS.methods]
    return [*(cell for pair in pairs for cell in cells_of(*pair)), *NETWORKS.temperatures()]


def cells_of(column: str, method: str, length: Protocol | None = None) -> list[Cell | Study]:
    """Return a method's runs on a column, and what collects them."""
    name, once = f"{column}-{method}", column == "reduced" or method == "distilled"
    seeds = 1 if once else SEEDS
    if method == "mc-dropout":
        return [Study(name, partial(mc_dropout, name=f"{column}-dropout", seeds=seeds))]
    hidden = NETWORKS.columns[column].changes["model.net.hidden"]
    callbacks = [student(hidden)] if method == "distilled" else []
    run = NETWORKS.cell(column, method, length, callbacks)
    if method not in ("dropout", "distilled"):
        return [run]
    runs = [
        run.but(f"{name}-seed{seed}", {"seed_everything": seed, "model.num_chains": 1})
        for seed in range(seeds)
    ]
    study = Study(name, partial(distilled, name=name, seeds=seeds))
    return [*runs, study] if method == "distilled" else [*runs]


EXPERIMENT = Experiment(
    cells,
    partial(report.report, NETWORKS),
    report.choices(NETWORKS, lambda: [*NETWORKS.trials(), *NETWORKS.temperatures()]),
    lambda: NETWORKS.left_out(cells()),
    partial(figures.figures, NETWORKS),  # Figures 4 and 7
)
