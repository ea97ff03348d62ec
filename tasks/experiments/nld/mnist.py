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

from typing import Any

import numpy as np

from tasks.experiments.experiment import Cell
from tasks.experiments.tables import mean_and_spread, repeated

CONFIG = "mnist.yaml"
STEPS, BURN_IN = 50_000, 500
VARIANCE = 0.1
#: Chains whose draws predict together, beyond the paper.
CHAINS = 3
#: Rows of the paper: NLL and accuracy (%) on the training set, then on the test set.
PUBLISHED = {
    "SGD": (0.0003, 100.00, 0.0584, 98.24),
    "Dropout": (0.0006, 100.00, 0.0519, 98.61),
    "Ensemble, Euclidean": (0.0357, 99.63, 0.0726, 98.10),
    "Ensemble, RMSProp": (0.0415, 99.47, 0.0742, 98.17),
    "Ensemble, DOP": (0.0292, 99.69, 0.0660, 98.13),
    "Ensemble, QDOP": (0.0229, 99.85, 0.0591, 98.38),
    "PostMean, Euclidean": (0.0281, 99.12, 0.1240, 97.16),
    "PostMean, RMSProp": (0.0299, 99.07, 0.1134, 97.21),
    "PostMean, DOP": (0.0243, 99.20, 0.1389, 97.20),
    "PostMean, QDOP": (0.0292, 99.60, 0.3429, 98.14),
}
LABELS = {"euclidean": "Euclidean", "rmsprop": "RMSProp", "dop": "DOP", "qdop": "QDOP"}
POINTS = {"sgd": "SGD", "dropout": "Dropout"}
#: The samplers' metrics, as published where they adapt. RMSProp's root is of the sum, D + eps, in
#: the paper; sqrt D + eps here, with a constant memory, is pSGLD's.
METRICS = {
    "euclidean": (),
    "rmsprop": (
        "--model.sampler.preconditioner=lightning_sgmcmc.RMSProp",
        "--model.sampler.preconditioner.eps=1e-2",
    ),
    "dop": (
        "--model.sampler.preconditioner=lightning_sgmcmc.DiagonalFisher",
        "--model.sampler.preconditioner.eps=1e-4",
        "--model.sampler.preconditioner.power=0.5",
    ),
    "qdop": (
        "--model.sampler=lightning_sgmcmc.NaturalLangevin",
        "--model.sampler.eps=1e-4",
        "--model.sampler.power=0.5",
    ),
}
#: Step sizes and prior variances that the paper chose from, by accuracy on the validation set.
GRID = {
    "euclidean": (0.001, 0.01, 0.1, 1.0),
    "rmsprop": (0.0001, 0.001, 0.01, 0.1),
    "dop": (0.0001, 0.001, 0.01, 0.1),
    "qdop": (0.0001, 0.001, 0.01, 0.1),
    "sgd": (0.001, 0.01, 0.1, 1.0),
    "dropout": (0.001, 0.01, 0.1, 1.0),
}
VARIANCES = (0.01, 0.1, 1.0)
#: The paper does not say which step it chose; --choose found these best (docs/nld.md).
STEP = {"euclidean": 0.1, "rmsprop": 0.01, "dop": 0.001, "qdop": 0.001, "sgd": 0.1, "dropout": 1.0}
#: The metric that DOP has after 500 updates bears no larger step (2.4e-4 at that place).
FROZEN_STEP = STEP | {"dop": 2e-4}
COLUMNS = (("train", "nll"), ("train", "error_percent"), ("test", "nll"), ("test", "error_percent"))


def cells() -> list[Cell]:
    """Return the runs of the table, several chains of the best, then those with a frozen C."""
    found = [point(kind, STEP[kind]) for kind in POINTS]
    found += [langevin(metric, STEP[metric], VARIANCE) for metric in METRICS]
    qdop = langevin("qdop", STEP["qdop"], VARIANCE)
    found.append(_named(qdop, "qdop-chains", f"--model.num_chains={CHAINS}"))
    frozen = [metric for metric in METRICS if metric != "euclidean"]
    return found + [langevin(m, FROZEN_STEP[m], VARIANCE, frozen=True) for m in frozen]


def choices() -> list[Cell]:
    """Return the grid of the paper."""
    found = [_named(point(kind, lr), f"{kind}-lr{lr:g}") for kind in POINTS for lr in GRID[kind]]
    return found + [
        _named(langevin(metric, lr, variance), f"{metric}-lr{lr:g}-variance{variance:g}")
        for metric in METRICS
        for lr in GRID[metric]
        for variance in VARIANCES
    ]


def _named(cell: Cell, name: str, *overrides: str) -> Cell:
    return Cell(name, cell.config, (*cell.overrides, *overrides))


def point(kind: str, lr: float) -> Cell:
    """Return a run of SGD without a prior, with dropout or without; its last iterate predicts."""
    overrides = [
        *_common(STEPS - 1, thinning=1),
        "--model.sampler=lightning_sgmcmc.baselines.Optimized",
        "--model.sampler.prior=lightning_sgmcmc.FlatPrior",
        f"--model.sampler.lr={lr:g}",
    ]
    if kind == "dropout":
        overrides.append("--model.net.dropout=0.5")
    return Cell(kind, CONFIG, tuple(overrides))


def langevin(metric: str, lr: float, variance: float, frozen: bool = False) -> Cell:
    """Return a run of Langevin dynamics with one of the metrics."""
    overrides = [
        *_common(BURN_IN, thinning=100),
        *METRICS[metric],
        f"--model.sampler.lr={lr:g}",
        f"--model.sampler.prior.variance={variance:g}",
        f"--model.freeze_preconditioner={str(frozen).lower()}",
    ]
    return Cell(metric + "-frozen" * frozen, CONFIG, tuple(overrides))


def _common(burn_in: int, thinning: int) -> list[str]:
    return [
        "--name=nld",
        "--model.net=tasks.nets.fan_in_mlp.FanInMLP",
        "--model.schedule=lightning_sgmcmc.schedules.BlockDecay",
        "--model.schedule.every=10000",
        f"--model.burn_in={burn_in}",
        f"--model.thinning={thinning}",
        f"--trainer.max_steps={STEPS}",
        "--data.num_val=10000",
        "--data.val_from=last",
        "--data.measure_train=10000",
    ]


def render(results: dict[str, dict[str, Any] | None], chosen_from: bool) -> str:
    """Return the table as Markdown, ours beside the paper's; unfinished runs are hyphens."""
    if chosen_from:
        return _render_choices(results)
    lines = [
        "NLL and accuracy in percent on the first 10,000 training images and on the test set (of "
        "several chains: mean +- standard deviation of each one's ensemble on the test set).",
        "",
        "| method | NLL (train) | accuracy (train) | NLL (test) | accuracy (test) |",
        "|---|---|---|---|---|",
    ]
    for label, numbers in PUBLISHED.items():
        forms = ("{:.4f}", "{:.2f}") * 2
        values = [form.format(n) for form, n in zip(forms, numbers, strict=True)]
        lines.append(f"| *paper*: {label} | {' | '.join(values)} |")
    for name, label in POINTS.items():
        lines += _rows(results[name], "ensemble", label)
    for suffix, note in (
        ("", ""),
        ("-chains", ", several chains"),
        ("-frozen", ", C frozen after burn-in"),
    ):
        for kind, of in (("ensemble", "Ensemble"), ("posterior_mean", "PostMean")):
            for metric, label in LABELS.items():
                if metric + suffix in results and (kind, suffix) != ("posterior_mean", "-chains"):
                    lines += _rows(results[metric + suffix], kind, f"{of}, {label}{note}")
    return "\n".join(lines)


def _rows(run: dict[str, Any] | None, kind: str, label: str) -> list[str]:
    """Return a run's row; of several chains another for their draws together."""
    if run is None:
        return [f"| {label} | - | - | - | - |"]
    if run["num_chains"] == 1:
        return [f"| {label} | {_row(run, kind)} |"]
    if kind == "posterior_mean":
        return []  # the mean over chains of different starts is nobody's network
    return [
        f"| {label}, each chain | {_row(run, kind, together=False)} |",
        f"| {label}, {run['num_chains']} together | {_row(run, kind)} |",
    ]


def _row(run: dict[str, Any], kind: str, together: bool = True) -> str:
    sets = {"train": run["task_details"]["train"], "test": run["metrics"]}
    cells = []
    for where, name in COLUMNS:
        values = [sets[where][kind][name]]
        if not together:  # of single chains a run measures the test set alone
            values = repeated([run], name) if where == "test" else []
        if name == "error_percent":
            values = [100 - v for v in values]
        digits = 2 if name == "error_percent" else 4
        cells.append(mean_and_spread(values, digits) if values else "")
    return " | ".join(cells)


def _render_choices(results: dict[str, dict[str, Any] | None]) -> str:
    lines = [
        "Accuracy in percent and NLL of the ensemble on the last 10,000 training images.",
        "",
        "| run | accuracy | NLL |",
        "|---|---|---|",
    ]
    found: dict[str, dict[str, float]] = {}
    for name, run in results.items():
        values = "- | -"
        if run is not None:
            metrics = run["metrics"]["ensemble_val"]
            accuracy = 100 - metrics["error_percent"]
            found.setdefault(name.split("-lr")[0], {})[name] = accuracy
            values = f"{accuracy:.2f} | {metrics['nll']:.4f}"
        lines.append(f"| {name} | {values} |")
    best = [
        names[int(np.argmax(list(of.values())))] for of in found.values() for names in [list(of)]
    ]
    return "\n".join([*lines, "", f"Most accurate: {', '.join(best)}."])
