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

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.experiments.experiment import Cell, Experiment, Study
from tasks.experiments.overrides import component, ours
from tasks.experiments.psgld import figures as drawn
from tasks.experiments.psgld import report
from tasks.experiments.psgld.methods import Protocol
from tasks.experiments.psgld.networks import HELD_OUT, Networks
from tasks.experiments.psgld.students import distilled, mc_dropout
from tasks.experiments.sheet import sheet
from tasks.experiments.tables import Results, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHEET = sheet("psgld_mnist")
NETWORKS = Networks(SHEET, "half an hour to some hours each")
TEMPERED = SHEET.settings["tempered"]
#: Runs of one repetition each.
SEEDS = 3


def cells() -> list[Cell | Study]:
    """Return the cells of every column, then those at other temperatures."""
    pairs = [(column, method) for column in NETWORKS.columns for method in NETWORKS.methods]
    return [*(cell for pair in pairs for cell in cells_of(*pair)), *temperatures()]


def cells_of(column: str, method: str, length: Protocol | None = None) -> list[Cell | Study]:
    """Return a method's runs on a column, and what collects them."""
    name, seeds = f"{column}-{method}", 1 if column == "reduced" else SEEDS
    if method == "mc-dropout":
        return [Study(name, partial(mc_dropout, name=f"{column}-dropout", seeds=seeds))]
    callbacks = []
    if method == "distilled":
        hidden = NETWORKS.columns[column].changes["model.net.hidden"]
        net = {"inputs": 784, "hidden": hidden, "activation": "relu", "outputs": 10}
        student = component("tasks.nets.fan_in_mlp.FanInMLP", **net)
        adam = component("torch.optim.Adam", lr=1e-4)
        settings = {"noise_std": 0.1, "prior_precision": 0.1}
        callbacks.append(
            ours("callbacks.Distillation", student=student, optimizer=adam, **settings)
        )
    run = NETWORKS.cell(column, method, length, callbacks)
    if method not in ("dropout", "distilled"):
        return [run]
    alone = [{"seed_everything": seed, "model.num_chains": 1} for seed in range(seeds)]
    found: list[Cell | Study] = [
        run.but(f"{name}-seed{seed}", changes) for seed, changes in enumerate(alone)
    ]
    if method == "distilled":
        found.append(Study(name, partial(distilled, name=name, seeds=seeds)))
    return found


def temperatures() -> list[Cell]:
    """Return the runs at several temperatures, measured on held-out training examples too."""
    length = NETWORKS.protocol("reduced", HELD_OUT)
    values = (1 / length.num_data, *SHEET.settings["temperatures"])
    return [
        NETWORKS.cell("reduced", method, length).but(
            f"temperature-{method}-{T:g}",
            {"data.num_val": HELD_OUT, "model.sampler.temperature": T} | changes,
        )
        for method, changes in TEMPERED.items()
        for T in values
    ]


def tables(results: Results) -> Iterator[str | Table]:
    """Yield the paper's table beside ours, what each run of ours was, and the temperatures."""
    yield from report.report(NETWORKS, results)
    yield from report.temperature_table(NETWORKS, results, list(TEMPERED))


def figures(results: Results, out: Path) -> dict[str, Figure]:
    """Return learning curves (Figures 4b and 7), weights (Figure 4a) and the temperature curve."""
    found = drawn.curves(NETWORKS, results, out)
    for column in ("1200", "reduced"):
        found |= drawn.weights(NETWORKS, results, out, column, SHEET.settings["histogram"])
    return found | drawn.temperature_figure(NETWORKS, results, list(TEMPERED))


EXPERIMENT = Experiment(
    cells,
    tables,
    report.choices(lambda: [*NETWORKS.trials(), *temperatures()]),
    lambda: NETWORKS.left_out(cells()),
    figures,
)
