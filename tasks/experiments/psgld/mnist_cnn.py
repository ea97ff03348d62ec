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

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.experiments.experiment import Cell
from tasks.experiments.psgld import figures as drawn
from tasks.experiments.psgld import methods as networks
from tasks.experiments.psgld import report
from tasks.experiments.psgld.methods import Protocol
from tasks.experiments.psgld.report import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CONFIG = "mnist_cnn.yaml"
COLUMNS = {
    "text": "32-64, 200-200",
    "appendix": "32-64, 500",
    "reduced": "32-64, 200-200, 4 epochs",
}
HIDDEN = {"text": "[200,200]", "appendix": "[500]", "reduced": "[200,200]"}
#: Tables 3 and 4: test error in percent. Of Table 4 the text has two numbers.
PAPER = {
    "pSGLD": (0.45, 0.56),
    "SGLD": (0.71, None),
    "RMSprop": (0.65, None),
    "RMSspectral": (0.78, None),
    "SGD": (0.82, 0.81),
}
ROWS = {
    "psgld-published": Row("pSGLD, published code (T = 1/N)", "ensemble", "pSGLD"),
    "psgld-chosen": Row("pSGLD, published code (T = 1/N), step 3e-4", "ensemble", "pSGLD"),
    "psgld": Row("pSGLD, posterior (T = 1)", "ensemble", "pSGLD"),
    "sgld-published": Row("SGLD, published code (T = 1/N)", "ensemble", "SGLD"),
    "sgld": Row("SGLD, posterior (T = 1)", "ensemble", "SGLD"),
    "rmsprop": Row("RMSprop", "network", "RMSprop"),
    "rmsspectral": Row("RMSspectral", "network", "RMSspectral"),
    "sgd": Row("SGD", "network", "SGD"),
    "sghmc": Row("SGHMC, frozen RMSProp, after Adam (T = 1)", "ensemble"),
}
#: Step sizes on the mean loss, the smaller of the paper's two; ours of RMSspectral and pSGLD at
#: T = 1.
STEP = {
    "psgld-published": 1e-3,
    "psgld-chosen": 3e-4,
    "psgld": 3e-4,
    "sgld-published": 0.1,
    "sgld": 0.1,
    "rmsprop": 1e-3,
    "rmsspectral": 3e-5,
    "sgd": 0.1,
}
#: Step sizes to choose from: the paper's, "via grid search", and smaller ones, at T = 1 and where
#: the first steps of the paper's leave channels without any activation.
GRID = {
    "psgld-published": (3e-4, 1e-3, 2e-3),
    "psgld": (1e-4, 3e-4),
    "sgld-published": (0.1, 0.2),
    "sgld": (0.03, 0.1),
    "rmsprop": (3e-4, 1e-3, 2e-3),
    "rmsspectral": (1e-5, 3e-5, 1e-4),
    "sgd": (0.1, 0.2),
}
HELD_OUT = 10_000


def protocol(column: str) -> Protocol:
    """Return the paper's protocol for its networks, a fifth of it for the reduced one."""
    if column == "reduced":
        return Protocol(epochs=4, decay=2, repetitions=1)
    epochs, decay = (20, 10) if column == "text" else (100, 20)
    return Protocol(epochs=epochs, decay=decay, repetitions=networks.repetitions())


def cells() -> list[Cell]:
    """Return the cells of every column."""
    return [cell(column, method, protocol(column)) for column in COLUMNS for method in ROWS]


def cell(column: str, method: str, length: Protocol) -> Cell:
    """Return a method's run.

    Args:
        column: Of ``COLUMNS``.
        method: Of ``ROWS``.
        length: How long.
    """
    overrides = (f"--model.net.hidden={HIDDEN[column]}", *networks.common(length))
    if method == "sghmc":
        overrides += ("--data.scale=unit",)
    if method == "psgld-chosen":
        run = networks.published_psgld(length, STEP[method], 1.0)
    else:
        run = networks.compared(method, length, STEP)
    return Cell(f"{column}-{method}", CONFIG, (*overrides, *run))


def choices() -> list[Cell]:
    """Return the runs to choose steps from, on 10,000 held-out training examples."""
    length = protocol("reduced").with_data(60_000 - HELD_OUT)
    found = []
    for method, steps in GRID.items():
        for lr in steps:
            run = cell("reduced", method, length)
            tried = (f"--data.num_val={HELD_OUT}", f"--model.sampler.lr={lr}")
            found.append(Cell(f"trial-{method}-{lr:g}", CONFIG, (*run.overrides, *tried)))
    return found


def left_out() -> tuple[list[str], str]:
    """Return the cells that this machine is too slow for, or need not run, and why."""
    return networks.left_out(cells(), "an hour or more each, half a day of the appendix's,")


def render(results: report.Results, chosen_from: bool) -> str:
    """Return the paper's tables beside ours, and what each run of ours was."""
    if chosen_from:
        return report.render_choices(results)
    return "\n".join(report.render(results, ROWS, COLUMNS, PAPER))


def figures(results: dict[str, dict[str, Any] | None], out: Path) -> dict[str, Figure]:
    """Return learning curves: Figures 5 and 8."""
    return drawn.curves(results, out, ROWS, COLUMNS)
