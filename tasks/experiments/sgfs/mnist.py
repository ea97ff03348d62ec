"""MNIST by a 20-30-10 network (Ahn, Korattikara and Welling 2012, section 5.2.2, Figure 3 right).

940 weights are few enough for SGFS-f. Minibatches of 2,000, alpha = 2, lambda = .001, and
epsilon_t = 1 / (1000 + t) for SGD and SGLD, where epsilon acts on the sum over N examples as in the
paper's eq. 1: lr = epsilon N / 2, 30 at first. The projection, the number of iterations of the
figure and its numbers are not given. The same SGD and SGLD with the first lr divided by 30 stand
beside.

The paper's SGFS adapts its Fisher matrix until the end. It also runs here with the matrix frozen
where burn-in ends.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_sgmcmc import SGFS
from lightning_sgmcmc.figures import new_figure
from tasks.experiments.experiment import Cell
from tasks.experiments.tables import mean_and_spread, repeated

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CONFIG = "sgfs_mnist.yaml"
N, BATCH, ALPHA = 60_000, 2000, 2.0
#: b of epsilon_t = 1 / (b + t).
B = 1000.0
LABELS = {
    "sgd": "SGD",
    "sgld": "SGLD",
    "sgd-small": "SGD, lr 1 at first",
    "sgld-small": "SGLD, lr 1 at first",
    "sgfs-d": "SGFS-d",
    "sgfs-f": "SGFS-f",
    "sgfs-d-frozen": "SGFS-d, frozen after burn-in",
    "sgfs-f-frozen": "SGFS-f, frozen after burn-in",
}


def cells() -> list[Cell]:
    """Return the runs."""
    first = N / B / 2
    found = [annealed(kind, kind, first) for kind in ("sgd", "sgld")]
    found += [annealed(kind, f"{kind}-small", first / 30) for kind in ("sgd", "sgld")]
    for suffix in ("", "-frozen"):
        found += [fisher(kind, f"sgfs-{kind}{suffix}", bool(suffix)) for kind in ("d", "f")]
    return found


def annealed(kind: str, name: str, lr: float) -> Cell:
    """Return a run of SGD or SGLD whose step decays from ``lr`` as 1 / (1 + t / b)."""
    overrides = [
        f"--model.sampler.lr={lr:g}",
        "--model.schedule=lightning_sgmcmc.schedules.PolynomialDecay",
        f"--model.schedule.b={B:g}",
        "--model.schedule.gamma=1.0",
    ]
    if kind == "sgd":
        overrides.insert(0, "--model.sampler=lightning_sgmcmc.baselines.Optimized")
    return Cell(name, CONFIG, tuple(overrides))


def fisher(kind: str, name: str, frozen: bool) -> Cell:
    """Return a run of SGFS-d or SGFS-f."""
    overrides = (
        "--model.sampler=lightning_sgmcmc.SGFS",
        f"--model.sampler.variant={'diagonal' if kind == 'd' else 'full'}",
        f"--model.sampler.lr={SGFS.step_size(ALPHA, N, BATCH):.6g}",
        f"--model.freeze_preconditioner={str(frozen).lower()}",
    )
    return Cell(name, CONFIG, overrides)


def render(results: dict[str, dict[str, Any] | None], chosen_from: bool) -> str:
    """Return the test errors as Markdown; unfinished runs are hyphens."""
    lines = [
        "Test error in percent of the ensemble so far after 1,000, 2,000 and all iterations (of "
        "several chains: of all together; in the end mean +- standard deviation of each one's), of "
        "the last draw, and the NLL of the ensemble. The paper gives a figure only.",
        "",
        "| method | after 1,000 | after 2,000 | in the end | last draw | NLL | steps | minutes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, label in LABELS.items():
        lines.append(f"| {label} | {' | '.join(_row(results.get(name)))} |")
    return "\n".join(lines)


def _row(run: dict[str, Any] | None) -> list[str]:
    if run is None:
        return ["-"] * 7
    metrics, trace = run["metrics"], run["task_details"]["trace"]
    return [
        *(_at(trace, step) for step in (1000, 2000)),
        mean_and_spread(repeated([run], "error_percent"), 2),
        f"{metrics['last']['error_percent']:.2f}",
        f"{metrics['ensemble']['nll']:.4f}",
        f"{run['num_gradients']:,}",
        f"{run['wall_seconds'] / 60:.1f}",
    ]


def _at(trace: dict[str, list[float]], step: int) -> str:
    """Return the error at the last draw not after a step, ``-`` if the run was shorter."""
    known = [e for s, e in zip(trace["steps"], trace["error_percent"], strict=True) if s <= step]
    return f"{known[-1]:.2f}" if known and trace["steps"][-1] >= step else "-"


def figures(results: dict[str, dict[str, Any] | None], out: Path) -> dict[str, Figure]:
    """Return the test error of the ensemble so far over the iterations."""
    figure = new_figure(7, 4.5)
    axes = figure.subplots()
    styles = ("-", "--", ":", "-.")
    for i, (name, label) in enumerate(LABELS.items()):
        run = results.get(name)
        if run is not None:
            trace = run["task_details"]["trace"]
            shade = str(0.55 * (i // len(styles)))
            axes.plot(
                trace["steps"],
                trace["error_percent"],
                ls=styles[i % len(styles)],
                color=shade,
                label=label,
            )
    axes.set(xlabel="iteration", ylabel="test error of the ensemble so far, %")
    axes.legend(frameon=False, fontsize="small")
    return {"sgfs_mnist": figure}
