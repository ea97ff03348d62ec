"""MNIST by a 20-30-10 network (Ahn, Korattikara and Welling 2012, section 5.2.2, Figure 3 right).

940 weights are few enough for SGFS-f. Minibatches of 2,000, alpha = 2, lambda = .001, and
epsilon_t = 1 / (1000 + t) for SGD and SGLD, where epsilon acts on the sum over N examples as in the
paper's eq. 1: lr = epsilon N / 2, 30 at first. The projection and the figure's numbers are not
given. The paper's epsilon ends at 1e-7, after 1e7 iterations; here it ends after 10,000. The same
SGD and SGLD with the first lr divided by 30 stand beside.

The paper's SGFS adapts its Fisher matrix until the end. It also runs here with the matrix frozen
where burn-in ends.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lightning_sgmcmc.callbacks.report.figures import new_figure
from tasks.experiments.drawing import STYLES, draw_lines
from tasks.experiments.experiment import Experiment
from tasks.experiments.sheet import sheet
from tasks.experiments.tables import Result, Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _error_after(run: Result, step: int) -> str:
    """Return the error at the last draw not after a step, ``-`` if the run was shorter."""
    trace = run["task_details"]["trace"]
    known = [e for s, e in zip(trace["steps"], trace["error_percent"], strict=True) if s <= step]
    return f"{known[-1]:.2f}" if known and trace["steps"][-1] >= step else "-"


SHEET = sheet(
    "sgfs_mnist",
    after_1000=lambda run: _error_after(run, 1000),
    after_2000=lambda run: _error_after(run, 2000),
)
LABELS = SHEET.built()


def figures(results: Results, out: Path) -> dict[str, Figure]:
    """Return the test error of the ensemble so far over the iterations."""
    figure = new_figure(7, 4.5)
    axes = figure.subplots()
    traces = {label: _trace(results.get(name)) for name, label in LABELS.items()}
    looks = [{"ls": style, "color": shade} for shade in ("0.0", "0.55") for style in STYLES]
    draw_lines(axes, traces, looks)
    axes.set(xlabel="iteration", ylabel="test error of the ensemble so far, %")
    axes.legend(frameon=False, fontsize="small")
    return {"sgfs_mnist": figure}


def _trace(run: Result | None) -> list[tuple[float, float]]:
    if run is None:
        return []
    trace = run["task_details"]["trace"]
    return list(zip(trace["steps"], trace["error_percent"], strict=True))


EXPERIMENT = Experiment(SHEET.runs, [SHEET.intro, SHEET.table()], figures=figures)
