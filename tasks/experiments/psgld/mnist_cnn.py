"""pSGLD's convolutional networks on MNIST (Li et al. 2016): Tables 3 and 4, Figures 5 and 8.

Cells, ``COLUMN-METHOD``:

- ``text`` is the network 32-64, 200-200 for the paper's 20 epochs;
- ``appendix`` the network 32-64, 500 for the paper's 100 epochs;
- ``reduced`` the former for 4 epochs, for a machine without a GPU.

``*-published`` follow the authors' code, whose noise is that of the temperature 1/N, and so does
``psgld-chosen``, at the step that is best on held-out examples; ``psgld`` and ``sgld`` sample the
posterior.
"""

from __future__ import annotations

from tasks.experiments.experiment import Cell, Experiment
from tasks.experiments.psgld import figures, methods, report
from tasks.experiments.psgld.methods import HELD_OUT, Protocol
from tasks.experiments.psgld.report import Method
from tasks.experiments.sheet import sheet

CONFIG = "mnist_cnn.yaml"
SHEET = sheet("psgld_cnn")
COLUMNS, HIDDEN, STEP, GRID = (SHEET.settings[k] for k in ("columns", "hidden", "step", "grid"))
METHODS = {name: Method(**method) for name, method in SHEET.settings["methods"].items()}


def protocol(column: str) -> Protocol:
    """Return the paper's protocol for its networks, a fifth of it for the reduced one."""
    if column == "reduced":
        return Protocol(epochs=4, decay=2, repetitions=1)
    epochs, decay = (20, 10) if column == "text" else (100, 20)
    return Protocol(epochs=epochs, decay=decay, repetitions=methods.repetitions())


def cells() -> list[Cell]:
    """Return the cells of every column."""
    return [cell(column, method, protocol(column)) for column in COLUMNS for method in METHODS]


def cell(column: str, method: str, length: Protocol) -> Cell:
    """Return a method's run.

    Args:
        column: Of ``COLUMNS``.
        method: Of ``METHODS``.
        length: How long.
    """
    scale = {"data.scale": "unit"} if method == "sghmc" else {}
    overrides = methods.common(length) | {"model.net.hidden": HIDDEN[column]} | scale
    if method == "psgld-chosen":
        overrides |= methods.published_psgld(length, STEP[method], 1.0)
    else:
        overrides |= methods.compared(method, length, STEP)
    return Cell(f"{column}-{method}", CONFIG, overrides)


def choices() -> list[Cell]:
    """Return the runs to choose steps from, on 10,000 held-out training examples."""
    length = protocol("reduced").with_data(60_000 - HELD_OUT)
    return methods.trials({method: cell("reduced", method, length) for method in GRID}, GRID)


EXPERIMENT = Experiment(
    cells,
    lambda results: report.report(results, METHODS, COLUMNS, SHEET.published),
    report.choices(choices),
    lambda: methods.left_out(cells(), "an hour or more each, half a day of the appendix's,"),
    # Learning curves: Figures 5 and 8.
    lambda results, out: figures.curves(results, out, METHODS, COLUMNS),
)
