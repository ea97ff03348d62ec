"""What pSGLD's network experiments share: how long a run is, and its methods as overrides.

Every function returns what makes a run of ``configs/papers`` one of the method. Steps are those of
the authors' code, ``lr`` on the mean loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tasks.experiments.experiment import Cell, Cells
from tasks.experiments.overrides import (
    OPTIMIZED,
    Component,
    component,
    gaussian,
    ours,
    sampler,
    schedule,
)

#: Examples in a minibatch, in the configuration files of all experiments.
BATCH = 100
#: Training examples that are held out where something is chosen.
HELD_OUT = 10_000
#: Noise-free pSGLD, for the optimizers that the paper compares.
_OPTIMIZERS = {
    "sgd": component("torch.optim.SGD"),
    "rmsprop": component("torch.optim.RMSprop", alpha=0.99, eps=1e-5),
    "rmsspectral": ours("baselines.RMSspectral", alpha=0.99, eps=1e-5),
    "adam": component("torch.optim.Adam"),
}


@dataclass(frozen=True)
class Protocol:
    """How long a run is and how often it is repeated.

    Attributes:
        epochs: Passes through the training set.
        decay: L, the epochs after which a step that decays is halved.
        repetitions: Chains of a run, which differ in start, minibatches and noise.
        num_data: N, the number of training examples.
    """

    epochs: int
    decay: int
    repetitions: int
    num_data: int = 60_000

    @property
    def epoch(self) -> int:
        """Steps in an epoch."""
        return -(-self.num_data // BATCH)

    @property
    def steps(self) -> int:
        """Steps of a run."""
        return self.epochs * self.epoch

    @property
    def thinning(self) -> int:
        """Steps between draws: 300, as in the authors' code, or less in short runs."""
        return max(1, min(300, self.steps // 32))

    def with_data(self, num_data: int) -> Protocol:
        """Return the same protocol for another number of training examples."""
        return replace(self, num_data=num_data)

    def draws(self, burn_in: int, thinning: int | None = None) -> dict[str, Any]:
        """Return the override that states which states are draws."""
        return {"model.burn_in": burn_in, "model.thinning": thinning or self.thinning}

    def halved(self) -> dict[str, Any]:
        """Return the override for a step that is halved every ``decay`` epochs."""
        return schedule("BlockDecay", every=self.decay * self.epoch)


def on_gpu() -> bool:
    """Return whether runs are on a GPU."""
    return torch.cuda.is_available()


def repetitions() -> int:
    """Return the chains of a run by the full protocol on this machine."""
    return 10 if on_gpu() else 3


def left_out(cells: Cells, cost: str) -> tuple[list[str], str]:
    """Return the cells that this machine is too slow for, or need not run, and why.

    Args:
        cells: All; names of short ones start with ``reduced`` or ``temperature``.
        cost: Of a long one without a GPU.
    """
    names = [cell.name for cell in cells]
    if on_gpu():
        return [name for name in names if name.startswith("reduced")], (
            "the reduced cells are left out: a GPU runs the paper's protocol"
        )
    long = [name for name in names if not name.startswith(("reduced", "temperature"))]
    return long, (
        f"{len(long)} cells by the paper's protocol are left out: {cost} without a GPU; ask for "
        "one with --cell NAME"
    )


def common(protocol: Protocol, callbacks: Sequence[Component] = ()) -> dict[str, Any]:
    """Return what every run says: its length, its repetitions and what it writes."""
    curve = component("tasks.experiments.learning_curve.LearningCurve", every=protocol.epoch)
    return {
        "trainer.max_steps": protocol.steps,
        "model.num_chains": protocol.repetitions,
        "checkpoint_every": protocol.epoch,
        "trainer.callbacks": [curve, *callbacks],
    }


def trials(runs: Mapping[str, Cell], grid: Mapping[str, Sequence[float]]) -> list[Cell]:
    """Return each method's run at the step sizes to choose from, on held-out examples."""
    return [
        runs[method].but(
            f"trial-{method}-{lr:g}", {"data.num_val": HELD_OUT, "model.sampler.lr": lr}
        )
        for method, steps in grid.items()
        for lr in steps
    ]


def published(protocol: Protocol, lr: float, **metric: Any) -> dict[str, Any]:
    """Return SGLD as in the authors' code: T = 1/N, the step is halved."""
    prior, T = metric.pop("prior", gaussian(1.0)), 1 / protocol.num_data
    return (
        sampler("SGLD", lr, prior, temperature=T, **metric)
        | protocol.halved()
        | protocol.draws(min(300, protocol.steps // 10))
    )


def published_psgld(protocol: Protocol, lr: float, variance: float) -> dict[str, Any]:
    """Return pSGLD as in the authors' code: T = 1/N, C adapts all along, the step is halved."""
    metric = ours("RMSProp", start_at_gradient=True)
    adapting = {"model.freeze_preconditioner": False}
    return published(protocol, lr, prior=gaussian(variance), preconditioner=metric) | adapting


def posterior(protocol: Protocol, name: str, lr: float, variance: float = 1.0) -> dict[str, Any]:
    """Return SGLD or PSGLD with the posterior for its law: C freezes after a fifth of the run."""
    drawn = sampler(name, lr, gaussian(variance), temperature=1.0)
    return drawn | protocol.draws(protocol.steps // 5)


def sghmc(protocol: Protocol) -> dict[str, Any]:
    """Return underdamped Langevin dynamics after Adam, the recipe of ``configs/mnist.yaml``."""
    adam = {"optimizer": component("torch.optim.Adam", lr=1e-3), "steps": protocol.steps // 4}
    metric = ours("RMSProp", eps=1e-12, floor=0.5)
    return (
        sampler(
            "SGHMC", "auto", gaussian(0.1), momentum=0.99, temperature=1.0, preconditioner=metric
        )
        | {"model.step_fraction": 0.02, "model.burn_in_optimizer": adam}
        | protocol.draws(3 * protocol.steps // 8)
    )


def optimized(protocol: Protocol, optimizer: str, lr: float) -> dict[str, Any]:
    """Return an optimizer whose last iterate is kept, its step halved; weight decay 1/N."""
    drawn = sampler(OPTIMIZED, lr, gaussian(1.0), optimizer=_OPTIMIZERS[optimizer])
    return drawn | protocol.halved() | protocol.draws(protocol.steps - 1, 1)


def compared(method: str, protocol: Protocol, step: Mapping[str, float]) -> dict[str, Any]:
    """Return one of the methods that all experiments have.

    Args:
        method: ``psgld``, ``sgld``, both also with ``-published``; ``rmsprop``, ``rmsspectral``,
            ``sgd`` or ``sghmc``.
        protocol: How long.
        step: Step sizes by the method's name; of ``-published`` also by the name without that.
    """
    if method == "sghmc":
        return sghmc(protocol)
    lr = step[method if method in step else method.removesuffix("-published")]
    if method == "psgld-published":
        return published_psgld(protocol, lr, 1.0)
    if method == "sgld-published":
        return published(protocol, lr)
    if method in ("psgld", "sgld"):
        return posterior(protocol, method.upper(), lr)
    return optimized(protocol, method, lr)


def deep_ensemble(protocol: Protocol, networks: int = 5) -> dict[str, Any]:
    """Return networks fitted by Adam, each from its own start; weight decay 1/N.

    Comes after :func:`common`.
    """
    return (
        optimized(protocol, "adam", 1e-3)
        | schedule("WarmupCosine", steps=protocol.steps)
        | {"model.num_chains": networks}
    )


def bayes_by_backprop(protocol: Protocol, lr: float, prior: Component) -> dict[str, Any]:
    """Return Bayes by Backprop, fitted by Adam for 19/20 of the run, then 100 draws of q."""
    drawing = protocol.steps // 20
    return (
        sampler("baselines.BayesByBackprop", lr, prior)
        | protocol.halved()
        | protocol.draws(protocol.steps - drawing, max(1, drawing // 100))
    )
