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

CONFIG = "mnist_cnn.yaml"
COLUMNS = {
    "text": "32-64, 200-200",
    "appendix": "32-64, 500",
    "reduced": "32-64, 200-200, 4 epochs",
}
HIDDEN = {"text": [200, 200], "appendix": [500], "reduced": [200, 200]}
#: Tables 3 and 4: test error in percent. Of Table 4 the text has two numbers.
PAPER = {
    "pSGLD": (0.45, 0.56),
    "SGLD": (0.71, None),
    "RMSprop": (0.65, None),
    "RMSspectral": (0.78, None),
    "SGD": (0.82, 0.81),
}
METHODS = {
    "psgld-published": Method("pSGLD, published code (T = 1/N)", "ensemble", "pSGLD"),
    "psgld-chosen": Method("pSGLD, published code (T = 1/N), step 3e-4", "ensemble", "pSGLD"),
    "psgld": Method("pSGLD, posterior (T = 1)", "ensemble", "pSGLD"),
    "sgld-published": Method("SGLD, published code (T = 1/N)", "ensemble", "SGLD"),
    "sgld": Method("SGLD, posterior (T = 1)", "ensemble", "SGLD"),
    "rmsprop": Method("RMSprop", "network", "RMSprop"),
    "rmsspectral": Method("RMSspectral", "network", "RMSspectral"),
    "sgd": Method("SGD", "network", "SGD"),
    "sghmc": Method("SGHMC, frozen RMSProp, after Adam (T = 1)", "ensemble"),
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
    lambda results: report.report(results, METHODS, COLUMNS, PAPER),
    report.choices(choices),
    lambda: methods.left_out(cells(), "an hour or more each, half a day of the appendix's,"),
    # Learning curves: Figures 5 and 8.
    lambda results, out: figures.curves(results, out, METHODS, COLUMNS),
)
