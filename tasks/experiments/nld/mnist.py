"""Table 1 of natural Langevin dynamics (Marceau-Caron and Ollivier 2017): ten rows on MNIST.

A 784-400-400-10 ReLU network, minibatches of 100, steps halved every 10,000 updates, a draw every
100 after 500, C with gamma_t = 1/sqrt(t) and 1e-4 on its diagonal. The last 10,000 training images
validate, as in the published code; N = 50,000. The paper gives no number of updates; here there are
50,000. T = 1 as in its equations: a footnote there says that pSGLD's code had T = 1/N.

The ensembles are run as published, with a C that adapts until the end, and with a C that is frozen
where burn-in ends. The network of the posterior mean (PostMean) belongs to the same run.
``qdop-chains``, beyond the paper, has three chains.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tasks.experiments.experiment import Cell, Experiment
from tasks.experiments.overrides import OPTIMIZED, component, gaussian, ours, sampler, schedule
from tasks.experiments.sheet import sheet
from tasks.experiments.tables import Results, Row, Table

CONFIG = "mnist.yaml"
STEPS, BURN_IN = 50_000, 500
VARIANCE = 0.1
#: Chains whose draws predict together, beyond the paper.
CHAINS = 3
SHEET = sheet("nld")
LABELS, POINTS = SHEET.labels, SHEET.settings["points"]
STEP, GRID, VARIANCES = (SHEET.settings[name] for name in ("step", "grid", "variances"))
#: The samplers and their metrics, as published where they adapt. RMSProp's root is of the sum,
#: D + eps, in the paper; sqrt D + eps here, with a constant memory, is pSGLD's.
METRICS: dict[str, tuple[str, dict[str, Any]]] = {
    "euclidean": ("SGLD", {}),
    "rmsprop": ("SGLD", {"preconditioner": ours("RMSProp", eps=1e-2)}),
    "dop": ("SGLD", {"preconditioner": ours("DiagonalFisher", eps=1e-4, power=0.5)}),
    "qdop": ("NaturalLangevin", {"eps": 1e-4, "power": 0.5}),
}
#: The metric that DOP has after 500 updates bears no larger step (2.4e-4 at that place).
FROZEN_STEP = STEP | {"dop": 2e-4}
FROZEN = [metric for metric in METRICS if metric != "euclidean"]
SUFFIXES = {"": "", "-chains": ", several chains", "-frozen": ", C frozen after burn-in"}
NAMES = {*METRICS, "qdop-chains", *(f"{metric}-frozen" for metric in FROZEN)}


def cells() -> list[Cell]:
    """Return the runs of the table, several chains of the best, then those with a frozen C."""
    found = [point(kind, STEP[kind]) for kind in POINTS]
    found += [langevin(metric, STEP[metric], VARIANCE) for metric in METRICS]
    found.append(found[-1].but("qdop-chains", {"model.num_chains": CHAINS}))
    return found + [langevin(m, FROZEN_STEP[m], VARIANCE, frozen=True) for m in FROZEN]


def choices() -> list[Cell]:
    """Return the grid of the paper."""
    found = [point(kind, lr).but(f"{kind}-lr{lr:g}", {}) for kind in POINTS for lr in GRID[kind]]
    return found + [
        langevin(metric, lr, variance).but(f"{metric}-lr{lr:g}-variance{variance:g}", {})
        for metric in METRICS
        for lr in GRID[metric]
        for variance in VARIANCES
    ]


def point(kind: str, lr: float) -> Cell:
    """Return a run of SGD without a prior, with dropout or without; its last iterate predicts."""
    overrides = _run(STEPS - 1, 1, dropout=0.5 * (kind == "dropout"))
    return Cell(kind, CONFIG, overrides | sampler(OPTIMIZED, lr, ours("FlatPrior")))


def langevin(metric: str, lr: float, variance: float, frozen: bool = False) -> Cell:
    """Return a run of Langevin dynamics with one of the metrics."""
    name, settings = METRICS[metric]
    overrides = _run(BURN_IN, 100) | sampler(name, lr, gaussian(variance), **settings)
    overrides["model.freeze_preconditioner"] = frozen
    return Cell(metric + "-frozen" * frozen, CONFIG, overrides)


def _run(burn_in: int, thinning: int, dropout: float = 0.0) -> dict[str, Any]:
    net = {"hidden": [400, 400], "activation": "relu", "outputs": 10, "dropout": dropout}
    return schedule("BlockDecay", every=10_000) | {
        "name": "nld",
        "model.net": component("tasks.nets.fan_in_mlp.FanInMLP", **net),
        "model.burn_in": burn_in,
        "model.thinning": thinning,
        "trainer.max_steps": STEPS,
        "data.num_val": 10_000,
        "data.val_from": "last",
        "data.measure_train": 10_000,
    }


def report(results: Results) -> Iterable[str | Table]:
    """Return the paper's table and ours."""
    yield SHEET.intro
    columns = SHEET.made(SHEET.columns)
    rows = SHEET.paper(columns)
    rows += [row for name, label in POINTS.items() for row in _rows(results, name, label)]
    for suffix, note in SUFFIXES.items():
        for part, of in (("ensemble", "Ensemble"), ("posterior_mean", "PostMean")):
            for name, label in LABELS.items():
                if name + suffix in NAMES and (part, suffix) != ("posterior_mean", "-chains"):
                    rows += _rows(results, name + suffix, f"{of}, {label}{note}", part)
    yield Table(SHEET.heading, columns, rows)


def _rows(results: Results, name: str, label: str, part: str = "ensemble") -> list[Row]:
    """Return a run's row; of several chains another for their draws together.

    Of single chains a run measures the test set alone. The mean over chains of different starts is
    nobody's network: there is no row for it.
    """
    run = results.get(name)
    if run is None or run["num_chains"] == 1:
        return [Row([label], name, part=part)]
    if part == "posterior_mean":
        return []
    each = {"metrics": {"ensemble": run["task_details"]["chains"]["metrics"]}}
    together = f"{label}, {run['num_chains']} together"
    return [Row([f"{label}, each chain"], record=each), Row([together], name)]


def _parts(name: str) -> tuple[str, str]:
    return name.split("-lr")[0], name


EXPERIMENT = Experiment(
    cells, report, SHEET.choices(choices, "Most accurate: {}.", _parts, entry="{name}")
)
