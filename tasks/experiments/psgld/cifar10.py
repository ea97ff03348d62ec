"""pSGLD's network on CIFAR-10 (Li et al. 2016): Figure 9, learning curves without augmentation.

Cells, ``COLUMN-METHOD``: ``full`` for 100 epochs, ``reduced`` for 5, for a machine without a GPU.
"We keep the same setting" as for MNIST is all that the paper says of steps and length; there they
are those of the appendix. ``*-published`` follow the authors' code, whose noise is that of the
temperature 1/N; ``psgld`` and ``sgld`` sample the posterior.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.experiments.experiment import Cell
from tasks.experiments.psgld import figures as drawn
from tasks.experiments.psgld import methods as networks
from tasks.experiments.psgld import mnist_cnn as psgld_cnn
from tasks.experiments.psgld import report
from tasks.experiments.psgld.methods import Protocol

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CONFIG = "cifar10.yaml"
COLUMNS = {"full": "32-32-64, 100 epochs", "reduced": "32-32-64, 5 epochs"}
METHODS = ("psgld-published", "psgld", "sgld-published", "sgld", "rmsprop", "sgd")
#: The methods of MNIST; of CIFAR-10 nothing is published but curves.
ROWS = {
    name: report.Row(row.label, row.curve)
    for name, row in psgld_cnn.ROWS.items()
    if name in METHODS
}
#: Those of MNIST, but for SGLD at T = 1, of which only a smaller one has been tried.
STEP = psgld_cnn.STEP | {"sgld": 0.03}
NUM_DATA = 50_000


def protocol(column: str) -> Protocol:
    """Return the paper's protocol, a twentieth of it for the reduced column."""
    if column == "reduced":
        return Protocol(epochs=5, decay=1, repetitions=1, num_data=NUM_DATA)
    return Protocol(100, 20, networks.repetitions(), NUM_DATA)


def cells() -> list[Cell]:
    """Return the cells of both columns."""
    return [cell(column, method, protocol(column)) for column in COLUMNS for method in ROWS]


def cell(column: str, method: str, length: Protocol) -> Cell:
    """Return a method's run.

    Args:
        column: Of ``COLUMNS``.
        method: Of ``ROWS``.
        length: How long.
    """
    run = networks.compared(method, length, STEP)
    return Cell(f"{column}-{method}", CONFIG, (*networks.common(length), *run))


def left_out() -> tuple[list[str], str]:
    """Return the cells that this machine is too slow for, or need not run, and why."""
    return networks.left_out(cells(), "about half a day each")


def render(results: report.Results, chosen_from: bool) -> str:
    """Return the test errors, and what each run was."""
    return "\n".join(report.render(results, ROWS, COLUMNS, {}))


def figures(results: dict[str, dict[str, Any] | None], out: Path) -> dict[str, Figure]:
    """Return the learning curves: Figure 9."""
    return drawn.curves(results, out, ROWS, COLUMNS)
