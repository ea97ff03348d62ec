"""pSGLD's network on CIFAR-10 (Li et al. 2016): Figure 9, learning curves without augmentation.

Cells, ``COLUMN-METHOD``: ``full`` for 100 epochs, ``reduced`` for 5, for a machine without a GPU.
"We keep the same setting" as for MNIST is all that the paper says of steps and length; there they
are those of the appendix. ``*-published`` follow the authors' code, whose noise is that of the
temperature 1/N; ``psgld`` and ``sgld`` sample the posterior.
"""

from __future__ import annotations

from tasks.experiments.experiment import Cell, Experiment
from tasks.experiments.psgld import figures, methods, mnist_cnn, report
from tasks.experiments.psgld.methods import Protocol

CONFIG = "cifar10.yaml"
COLUMNS = {"full": "32-32-64, 100 epochs", "reduced": "32-32-64, 5 epochs"}
#: Those of MNIST; of CIFAR-10 nothing is published but curves.
METHODS = {
    name: report.Method(mnist_cnn.METHODS[name].label, mnist_cnn.METHODS[name].curve)
    for name in ("psgld-published", "psgld", "sgld-published", "sgld", "rmsprop", "sgd")
}
#: Those of MNIST, but for SGLD at T = 1, of which only a smaller one has been tried.
STEP = mnist_cnn.STEP | {"sgld": 0.03}
NUM_DATA = 50_000


def protocol(column: str) -> Protocol:
    """Return the paper's protocol, a twentieth of it for the reduced column."""
    if column == "reduced":
        return Protocol(epochs=5, decay=1, repetitions=1, num_data=NUM_DATA)
    return Protocol(100, 20, methods.repetitions(), NUM_DATA)


def cells() -> list[Cell]:
    """Return the cells of both columns."""
    return [cell(column, method, protocol(column)) for column in COLUMNS for method in METHODS]


def cell(column: str, method: str, length: Protocol) -> Cell:
    """Return a method's run.

    Args:
        column: Of ``COLUMNS``.
        method: Of ``METHODS``.
        length: How long.
    """
    run = methods.compared(method, length, STEP)
    return Cell(f"{column}-{method}", CONFIG, methods.common(length) | run)


EXPERIMENT = Experiment(
    cells,
    lambda results: report.report(results, METHODS, COLUMNS, {}),
    left_out=lambda: methods.left_out(cells(), "about half a day each"),
    # Learning curves: Figure 9.
    figures=lambda results, out: figures.curves(results, out, METHODS, COLUMNS),
)
