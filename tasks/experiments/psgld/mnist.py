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

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.experiments.experiment import Cell, Study
from tasks.experiments.psgld import figures as drawn
from tasks.experiments.psgld import methods as networks
from tasks.experiments.psgld import report
from tasks.experiments.psgld.methods import Protocol
from tasks.experiments.psgld.report import Row
from tasks.experiments.psgld.students import distilled, mc_dropout

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CONFIG = "mnist.yaml"
COLUMNS = {
    "400": "400-400",
    "800": "800-800",
    "1200": "1200-1200",
    "reduced": "400-400, 20 epochs",
}
WIDTHS = {"400": 400, "800": 800, "1200": 1200, "reduced": 400}
#: Table 2: test error in percent at 400-400, 800-800 and 1200-1200; * from Blundell et al. 2015.
PAPER = {
    "pSGLD (sigma^2 = 100)": (1.40, 1.26, 1.14),
    "pSGLD (sigma^2 = 1)": (1.45, 1.32, 1.24),
    "distilled pSGLD": (1.44, 1.40, 1.41),
    "SGLD": (1.64, 1.41, 1.40),
    "RMSprop": (1.59, 1.43, 1.39),
    "RMSspectral": (1.65, 1.56, 1.46),
    "SGD": (1.72, 1.47, 1.47),
    "BPB, Gaussian*": (1.82, 1.99, 2.04),
    "BPB, scale mixture*": (1.32, 1.34, 1.32),
    "SGD, dropout*": (1.51, 1.33, 1.36),
}
ROWS = {
    "psgld-published-100": Row(
        "pSGLD, sigma^2 = 100, published code (T = 1/N)", "ensemble", "pSGLD (sigma^2 = 100)"
    ),
    "psgld-100": Row(
        "pSGLD, sigma^2 = 100, posterior (T = 1)", "ensemble", "pSGLD (sigma^2 = 100)"
    ),
    "psgld-published-1": Row(
        "pSGLD, sigma^2 = 1, published code (T = 1/N)", "ensemble", "pSGLD (sigma^2 = 1)"
    ),
    "psgld-1": Row("pSGLD, sigma^2 = 1, posterior (T = 1)", "ensemble", "pSGLD (sigma^2 = 1)"),
    "distilled": Row("distilled pSGLD, sigma^2 = 1, published code", paper="distilled pSGLD"),
    "sgld-published": Row("SGLD, published code (T = 1/N)", "ensemble", "SGLD"),
    "sgld": Row("SGLD, posterior (T = 1)", "ensemble", "SGLD"),
    "rmsprop": Row("RMSprop", "network", "RMSprop"),
    "rmsspectral": Row("RMSspectral", "network", "RMSspectral"),
    "sgd": Row("SGD", "network", "SGD"),
    "bbb-gaussian": Row("Bayes by Backprop, Gaussian", "network", "BPB, Gaussian*"),
    "bbb-mixture": Row("Bayes by Backprop, scale mixture", "network", "BPB, scale mixture*"),
    "dropout": Row("SGD, dropout", "network", "SGD, dropout*"),
    "mc-dropout": Row("SGD, MC dropout, 100 masks"),
    "sghmc": Row("SGHMC, frozen RMSProp, after Adam (T = 1)", "ensemble"),
    "deep-ensemble": Row("deep ensemble of 5 (Adam)", together=True),
}
#: Runs of one repetition each.
SEEDS = 3
#: Step sizes, on the mean loss: the paper's; where it has none, and at T = 1, those that --choose
#: found best.
STEP = {
    "psgld": 5e-4,
    "sgld-published": 0.5,
    "sgld": 0.1,
    "rmsprop": 5e-4,
    "rmsspectral": 3e-5,
    "sgd": 0.5,
    "bbb-gaussian": 1e-3,
    "bbb-mixture": 3e-3,
    "dropout": 0.5,
}
#: e^0 and e^-6 are of the paper's grid.
BBB_PRIOR = {
    "bbb-gaussian": ("GaussianPrior", "variance=1.0"),
    "bbb-mixture": ("ScaleMixturePrior", "pi=0.5", "std1=1.0", "std2=0.0025"),
}
#: Step sizes to choose from.
GRID = {
    "psgld-1": (1e-4, 5e-4, 2e-3),
    "sgld": (0.1, 0.5, 2.0),
    "rmsspectral": (1e-5, 3e-5, 1e-4),
    "dropout": (0.1, 0.5),
    "bbb-gaussian": (3e-4, 1e-3, 3e-3),
    "bbb-mixture": (3e-4, 1e-3, 3e-3),
}
HELD_OUT = 10_000
TEMPERED = ("sghmc", "psgld-1")
#: Temperatures below 1 and above 1/N, which is 2e-5 with these examples held out.
TEMPERATURES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
#: Of the sweep alone: at .02 the noise of minibatches heats cold chains, at 1/N they diverge.
TEMPERED_OPTIONS = {"sghmc": ("--model.step_fraction=0.005",)}
#: Weight histograms: Figure 4a.
HISTOGRAM = ("psgld-published-100", "psgld-published-1", "sgld-published", "rmsprop", "sgd")


def protocol(column: str) -> Protocol:
    """Return the paper's protocol for its networks, a fifth of it for the reduced one."""
    if column == "reduced":
        return Protocol(epochs=20, decay=4, repetitions=2)
    return Protocol(epochs=100, decay=20, repetitions=networks.repetitions())


def cells() -> list[Cell | Study]:
    """Return the cells of every column, then those at other temperatures."""
    found: list[Cell | Study] = []
    for column in COLUMNS:
        for method in ROWS:
            found += _cells(column, method)
    return found + temperatures()


def _cells(column: str, method: str) -> list[Cell | Study]:
    """Return a method's runs, and what collects them."""
    name = f"{column}-{method}"
    if method == "mc-dropout":
        collect = partial(mc_dropout, name=f"{column}-dropout")
        return [Study(name, partial(collect, seeds=_seeds(column)))]
    if method not in ("dropout", "distilled"):
        return [cell(column, method, protocol(column))]
    found: list[Cell | Study] = [
        cell(column, method, protocol(column), seed) for seed in range(_seeds(column))
    ]
    if method == "distilled":
        found.append(Study(name, partial(distilled, name=name, seeds=_seeds(column))))
    return found


def _seeds(column: str) -> int:
    return 1 if column == "reduced" else SEEDS


def cell(column: str, method: str, length: Protocol, seed: int | None = None) -> Cell:
    """Return a method's run.

    Args:
        column: Of ``COLUMNS``.
        method: Of ``ROWS``, but for ``mc-dropout``.
        length: How long.
        seed: Of a run that is one repetition.
    """
    width = WIDTHS[column]
    overrides = [f"--model.net.hidden=[{width},{width}]", *networks.common(length)]
    if method != "sghmc":
        overrides += ["--model.net=tasks.nets.fan_in_mlp.FanInMLP", "--data.scale=126"]
    name = f"{column}-{method}"
    if seed is not None:
        name += f"-seed{seed}"
        overrides += [f"--seed_everything={seed}", "--model.num_chains=1"]
    return Cell(name, CONFIG, (*overrides, *_method(method, length, width)))


def _method(method: str, length: Protocol, width: int) -> tuple[str, ...]:
    variance = 100.0 if method.endswith("-100") else 1.0
    if method == "distilled":
        return (*networks.published_psgld(length, STEP["psgld"], 1.0), *_student(width))
    if method.startswith("psgld-published"):
        return networks.published_psgld(length, STEP["psgld"], variance)
    if method.startswith("psgld"):
        return networks.psgld(length, STEP["psgld"], variance)
    if method == "deep-ensemble":
        return networks.deep_ensemble(length)
    if method in BBB_PRIOR:
        return networks.bayes_by_backprop(length, STEP[method], BBB_PRIOR[method])
    if method == "dropout":
        net = ("--model.net.dropout=0.5", "--model.draw_budget=1")
        return (*net, *networks.optimized(length, "sgd", STEP["dropout"]))
    return networks.compared(method, length, STEP)


def _student(width: int) -> tuple[str, ...]:
    return (
        "--trainer.callbacks+=lightning_sgmcmc.callbacks.Distillation",
        "--trainer.callbacks.student=tasks.nets.fan_in_mlp.FanInMLP",
        f"--trainer.callbacks.student.hidden=[{width},{width}]",
        "--trainer.callbacks.student.inputs=784",
        "--trainer.callbacks.student.outputs=10",
        "--trainer.callbacks.optimizer=torch.optim.Adam",
        "--trainer.callbacks.optimizer.lr=1e-4",
        "--trainer.callbacks.noise_std=0.1",
        "--trainer.callbacks.prior_precision=0.1",
    )


def temperatures() -> list[Cell | Study]:
    """Return the runs at several temperatures, measured on held-out training examples too."""
    length = protocol("reduced").with_data(60_000 - HELD_OUT)
    found: list[Cell | Study] = []
    for method in TEMPERED:
        for value in (1 / length.num_data, *TEMPERATURES):
            run = cell("reduced", method, length)
            tempered = (f"--data.num_val={HELD_OUT}", f"--model.sampler.temperature={value!r}")
            name = f"temperature-{method}-{value:g}"
            options = (*run.overrides, *tempered, *TEMPERED_OPTIONS.get(method, ()))
            found.append(Cell(name, CONFIG, options))
    return found


def choices() -> list[Cell | Study]:
    """Return the runs to choose steps from: one chain, 10,000 held-out training examples."""
    length = replace(protocol("reduced"), repetitions=1).with_data(60_000 - HELD_OUT)
    found: list[Cell | Study] = []
    for method, steps in GRID.items():
        for lr in steps:
            run = cell("reduced", method, length, 0 if method == "dropout" else None)
            tried = (f"--data.num_val={HELD_OUT}", f"--model.sampler.lr={lr}")
            found.append(Cell(f"trial-{method}-{lr:g}", CONFIG, (*run.overrides, *tried)))
    return found + temperatures()


def left_out() -> tuple[list[str], str]:
    """Return the cells that this machine is too slow for, or need not run, and why."""
    return networks.left_out(cells(), "half an hour to some hours each")


def render(results: report.Results, chosen_from: bool) -> str:
    """Return the paper's table beside ours, and what each run of ours was."""
    if chosen_from:
        return report.render_choices(results)
    lines = report.render(results, ROWS, COLUMNS, PAPER)
    tempered = report.temperature_table(results, TEMPERED, ROWS)
    return "\n".join([*lines, *(["", *tempered] if tempered else [])])


def figures(results: dict[str, dict[str, Any] | None], out: Path) -> dict[str, Figure]:
    """Return learning curves (Figures 4b and 7), weights (Figure 4a) and the temperature curve."""
    found = drawn.curves(results, out, ROWS, COLUMNS)
    for column in ("1200", "reduced"):
        found |= drawn.weights(results, out, column, {name: ROWS[name] for name in HISTOGRAM})
    return found | drawn.temperature_figure(results, TEMPERED, ROWS)
