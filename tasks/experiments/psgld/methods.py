"""What pSGLD's network experiments share: how long a run is, and its methods as overrides.

Every function returns the part of a command line that makes a run of ``configs/papers`` one of the
method. Steps are those of the authors' code, ``lr`` on the mean loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from tasks.experiments.experiment import Cell, Study

#: Examples in a minibatch, in the configuration files of all experiments.
BATCH = 100
_OPTIMIZED = "lightning_sgmcmc.baselines.Optimized"
#: Noise-free pSGLD, for the optimizers that the paper compares.
_OPTIMIZERS = {
    "sgd": ("torch.optim.SGD",),
    "rmsprop": ("torch.optim.RMSprop", "alpha=0.99", "eps=1e-5"),
    "rmsspectral": ("lightning_sgmcmc.baselines.RMSspectral", "alpha=0.99", "eps=1e-5"),
    "adam": ("torch.optim.Adam",),
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


def on_gpu() -> bool:
    """Return whether runs are on a GPU."""
    return torch.cuda.is_available()


def repetitions() -> int:
    """Return the chains of a run by the full protocol on this machine."""
    return 10 if on_gpu() else 3


def left_out(cells: Sequence[Cell | Study], cost: str) -> tuple[list[str], str]:
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


def common(protocol: Protocol) -> tuple[str, ...]:
    """Return what every run says: its length, its repetitions and what it writes."""
    return (
        f"--trainer.max_steps={protocol.steps}",
        f"--model.num_chains={protocol.repetitions}",
        f"--checkpoint_every={protocol.epoch}",
        "--trainer.callbacks+=tasks.experiments.learning_curve.LearningCurve",
        f"--trainer.callbacks.every={protocol.epoch}",
    )


def published_psgld(protocol: Protocol, lr: float, variance: float) -> tuple[str, ...]:
    """Return pSGLD as in the authors' code: T = 1/N, C adapts all along, the step is halved."""
    return (
        f"--model.sampler.lr={lr}",
        f"--model.sampler.temperature={1 / protocol.num_data!r}",
        f"--model.sampler.prior.variance={variance}",
        "--model.sampler.preconditioner=lightning_sgmcmc.RMSProp",
        "--model.sampler.preconditioner.start_at_gradient=true",
        "--model.freeze_preconditioner=false",
        *_halved(protocol),
        *_along_the_way(protocol, min(300, protocol.steps // 10)),
    )


def published_sgld(protocol: Protocol, lr: float) -> tuple[str, ...]:
    """Return SGLD as in the authors' code: T = 1/N, the step is halved."""
    return (
        f"--model.sampler.lr={lr}",
        f"--model.sampler.temperature={1 / protocol.num_data!r}",
        *_halved(protocol),
        *_along_the_way(protocol, min(300, protocol.steps // 10)),
    )


def psgld(
    protocol: Protocol, lr: float, variance: float, temperature: float = 1.0
) -> tuple[str, ...]:
    """Return pSGLD with the posterior for its law: C freezes after a fifth of the run."""
    return (
        "--model.sampler=lightning_sgmcmc.PSGLD",
        f"--model.sampler.lr={lr}",
        f"--model.sampler.temperature={temperature!r}",
        f"--model.sampler.prior.variance={variance}",
        *_along_the_way(protocol, protocol.steps // 5),
    )


def sgld(protocol: Protocol, lr: float) -> tuple[str, ...]:
    """Return SGLD at T = 1 with a constant step; a fifth of the run is burn-in."""
    return (
        f"--model.sampler.lr={lr}",
        "--model.sampler.temperature=1.0",
        *_along_the_way(protocol, protocol.steps // 5),
    )


def sghmc(protocol: Protocol, temperature: float = 1.0) -> tuple[str, ...]:
    """Return underdamped Langevin dynamics after Adam, the recipe of ``configs/mnist.yaml``."""
    return (
        "--model.sampler=lightning_sgmcmc.SGHMC",
        "--model.sampler.lr=auto",
        "--model.sampler.momentum=0.99",
        f"--model.sampler.temperature={temperature!r}",
        "--model.sampler.prior.variance=0.1",
        "--model.sampler.preconditioner=lightning_sgmcmc.RMSProp",
        "--model.sampler.preconditioner.eps=1e-12",
        "--model.sampler.preconditioner.floor=0.5",
        "--model.step_fraction=0.02",
        "--model.burn_in_optimizer.optimizer=torch.optim.Adam",
        "--model.burn_in_optimizer.optimizer.lr=1e-3",
        f"--model.burn_in_optimizer.steps={protocol.steps // 4}",
        *_along_the_way(protocol, 3 * protocol.steps // 8),
    )


def optimized(protocol: Protocol, optimizer: str, lr: float) -> tuple[str, ...]:
    """Return an optimizer whose last iterate is kept, its step halved; weight decay 1/N."""
    return (*_optimizer(optimizer, lr), *_halved(protocol), *_last(protocol))


def compared(method: str, protocol: Protocol, step: Mapping[str, float]) -> tuple[str, ...]:
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
    if method == "psgld":
        return psgld(protocol, lr, 1.0)
    if method == "sgld-published":
        return published_sgld(protocol, lr)
    if method == "sgld":
        return sgld(protocol, lr)
    return optimized(protocol, method, lr)


def deep_ensemble(protocol: Protocol, networks: int = 5) -> tuple[str, ...]:
    """Return networks fitted by Adam, each from its own start; weight decay 1/N.

    Comes after :func:`common`.
    """
    return (
        *_optimizer("adam", 1e-3),
        "--model.schedule=lightning_sgmcmc.schedules.WarmupCosine",
        f"--model.schedule.steps={protocol.steps}",
        f"--model.num_chains={networks}",
        *_last(protocol),
    )


def bayes_by_backprop(protocol: Protocol, lr: float, prior: tuple[str, ...]) -> tuple[str, ...]:
    """Return Bayes by Backprop, fitted for 19/20 of the run, then 100 draws of q.

    Args:
        protocol: How long.
        lr: Step size of Adam on the mean loss.
        prior: The prior's class, and arguments such as ``variance=1.0``.
    """
    drawing = protocol.steps // 20
    return (
        "--model.sampler=lightning_sgmcmc.baselines.BayesByBackprop",
        f"--model.sampler.lr={lr}",
        f"--model.sampler.prior=lightning_sgmcmc.{prior[0]}",
        *(f"--model.sampler.prior.{argument}" for argument in prior[1:]),
        *_halved(protocol),
        f"--model.burn_in={protocol.steps - drawing}",
        f"--model.thinning={max(1, drawing // 100)}",
    )


def _optimizer(name: str, lr: float) -> tuple[str, ...]:
    path, *arguments = _OPTIMIZERS[name]
    return (
        f"--model.sampler={_OPTIMIZED}",
        f"--model.sampler.lr={lr}",
        f"--model.sampler.optimizer={path}",
        *(f"--model.sampler.optimizer.{argument}" for argument in arguments),
    )


def _halved(protocol: Protocol) -> tuple[str, ...]:
    return (
        "--model.schedule=lightning_sgmcmc.schedules.BlockDecay",
        f"--model.schedule.every={protocol.decay * protocol.epoch}",
    )


def _along_the_way(protocol: Protocol, burn_in: int) -> tuple[str, ...]:
    return (f"--model.burn_in={burn_in}", f"--model.thinning={protocol.thinning}")


def _last(protocol: Protocol) -> tuple[str, ...]:
    return (f"--model.burn_in={protocol.steps - 1}", "--model.thinning=1")
