"""pSGLD's networks on MNIST (Li et al. 2016): Table 2, Figures 4 and 7, and what lies beyond.

Cells, ``COLUMN-METHOD``:

- ``400``, ``800`` and ``1200`` are the paper's networks 784-X-X-10 for the paper's 100 epochs;
- ``reduced`` is 784-400-400-10 for 20 epochs, for a machine without a GPU;
- ``temperature-METHOD-T`` are reduced runs at other temperatures, 10,000 training examples held
  out.

``psgld-published-*`` and ``sgld-published`` follow the authors' code, whose noise is that of the
temperature 1/N; ``psgld-*`` and ``sgld`` sample the posterior. Of ``dropout`` and ``distilled``
repetitions are runs of their own, ``-seed0`` and so on, which ``mc-dropout`` and ``distilled``
collect.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.experiments.experiment import Cell, Experiment, Study
from tasks.experiments.overrides import component, gaussian, ours
from tasks.experiments.psgld import figures as drawn
from tasks.experiments.psgld import methods, report
from tasks.experiments.psgld.methods import HELD_OUT, Protocol, repetitions
from tasks.experiments.psgld.report import Method
from tasks.experiments.psgld.students import distilled, mc_dropout
from tasks.experiments.sheet import sheet
from tasks.experiments.tables import Results, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CONFIG, FAN_IN = "mnist.yaml", "tasks.nets.fan_in_mlp.FanInMLP"
SHEET = sheet("psgld_mnist")
COLUMNS, WIDTHS, STEP, GRID = (SHEET.settings[k] for k in ("columns", "widths", "step", "grid"))
METHODS = {name: Method(**method) for name, method in SHEET.settings["methods"].items()}
#: Runs of one repetition each.
SEEDS = 3
#: e^0 and e^-6 are of the paper's grid.
BBB_PRIOR = {
    "bbb-gaussian": gaussian(1.0),
    "bbb-mixture": ours("ScaleMixturePrior", pi=0.5, std1=1.0, std2=0.0025),
}
TEMPERED = ("sghmc", "psgld-1")
#: Of the sweep alone: at .02 the noise of minibatches heats cold chains, at 1/N they diverge.
TEMPERED_OPTIONS = {"sghmc": {"model.step_fraction": 0.005}}


def protocol(column: str) -> Protocol:
    """Return the paper's protocol for its networks, a fifth of it for the reduced one."""
    if column == "reduced":
        return Protocol(epochs=20, decay=4, repetitions=2)
    return Protocol(epochs=100, decay=20, repetitions=repetitions())


def cells() -> list[Cell | Study]:
    """Return the cells of every column, then those at other temperatures."""
    found: list[Cell | Study] = []
    for column in COLUMNS:
        for method in METHODS:
            found += _cells(column, method)
    return found + temperatures()


def _cells(column: str, method: str) -> list[Cell | Study]:
    """Return a method's runs, and what collects them."""
    name, seeds = f"{column}-{method}", 1 if column == "reduced" else SEEDS
    if method == "mc-dropout":
        return [Study(name, partial(mc_dropout, name=f"{column}-dropout", seeds=seeds))]
    if method not in ("dropout", "distilled"):
        return [cell(column, method, protocol(column))]
    found: list[Cell | Study] = [
        cell(column, method, protocol(column), seed) for seed in range(seeds)
    ]
    if method == "distilled":
        found.append(Study(name, partial(distilled, name=name, seeds=seeds)))
    return found


def cell(column: str, method: str, length: Protocol, seed: int | None = None) -> Cell:
    """Return a method's run.

    Args:
        column: Of ``COLUMNS``.
        method: Of ``METHODS``, but for ``mc-dropout``.
        length: How long.
        seed: Of a run that is one repetition.
    """
    net: dict[str, Any] = {"hidden": [WIDTHS[column]] * 2, "activation": "relu", "outputs": 10}
    callbacks = [_student(net)] if method == "distilled" else []
    overrides = methods.common(length, callbacks) | {"model.net.hidden": net["hidden"]}
    if method != "sghmc":
        net["dropout"] = 0.5 * (method == "dropout")
        overrides.pop("model.net.hidden")
        overrides |= {"model.net": component(FAN_IN, **net), "data.scale": "126"}
    name = f"{column}-{method}"
    if seed is not None:
        name += f"-seed{seed}"
        overrides |= {"seed_everything": seed, "model.num_chains": 1}
    return Cell(name, CONFIG, overrides | _method(method, length))


def _method(method: str, length: Protocol) -> dict[str, Any]:
    variance = 100.0 if method.endswith("-100") else 1.0
    if method == "distilled" or method.startswith("psgld-published"):
        return methods.published_psgld(length, STEP["psgld"], variance)
    if method.startswith("psgld"):
        return methods.posterior(length, "PSGLD", STEP["psgld"], variance)
    if method == "deep-ensemble":
        return methods.deep_ensemble(length)
    if method in BBB_PRIOR:
        return methods.bayes_by_backprop(length, STEP[method], BBB_PRIOR[method])
    if method == "dropout":
        return {"model.draw_budget": 1} | methods.optimized(length, "sgd", STEP[method])
    return methods.compared(method, length, STEP)


def _student(net: dict[str, Any]) -> dict[str, Any]:
    return ours(
        "callbacks.Distillation",
        student=component(FAN_IN, inputs=784, **net),
        optimizer=component("torch.optim.Adam", lr=1e-4),
        noise_std=0.1,
        prior_precision=0.1,
    )


def temperatures() -> list[Cell | Study]:
    """Return the runs at several temperatures, measured on held-out training examples too."""
    length = protocol("reduced").with_data(60_000 - HELD_OUT)
    found: list[Cell | Study] = []
    for method in TEMPERED:
        for value in (1 / length.num_data, *SHEET.settings["temperatures"]):
            tempered = {"data.num_val": HELD_OUT, "model.sampler.temperature": value}
            tempered |= TEMPERED_OPTIONS.get(method, {})
            run = cell("reduced", method, length)
            found.append(run.but(f"temperature-{method}-{value:g}", tempered))
    return found


def choices() -> list[Cell | Study]:
    """Return the runs to choose steps from: one chain, 10,000 held-out training examples."""
    length = replace(protocol("reduced"), repetitions=1).with_data(60_000 - HELD_OUT)
    alone = {"dropout": 0}
    runs = {method: cell("reduced", method, length, alone.get(method)) for method in GRID}
    return [*methods.trials(runs, GRID), *temperatures()]


def left_out() -> tuple[list[str], str]:
    """Return the cells that this machine is too slow for, or need not run, and why."""
    return methods.left_out(cells(), "half an hour to some hours each")


def tables(results: Results) -> Iterator[str | Table]:
    """Yield the paper's table beside ours, what each run of ours was, and the temperatures."""
    yield from report.report(results, METHODS, COLUMNS, SHEET.published)
    yield from report.temperature_table(results, TEMPERED, METHODS)


def figures(results: Results, out: Path) -> dict[str, Figure]:
    """Return learning curves (Figures 4b and 7), weights (Figure 4a) and the temperature curve."""
    found = drawn.curves(results, out, METHODS, COLUMNS)
    for column in ("1200", "reduced"):
        found |= drawn.weights(results, out, column, SHEET.settings["histogram"], METHODS)
    return found | drawn.temperature_figure(results, TEMPERED, METHODS)


EXPERIMENT = Experiment(cells, tables, report.choices(choices), left_out, figures)
