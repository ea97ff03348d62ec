"""How long runs of pSGLD's network experiments are, and their methods as overrides.

Every method returns what makes a run of ``configs/papers`` one of it. Steps are those of the
authors' code, ``lr`` on the mean loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
#: Noise-free pSGLD, for the optimizers that the paper compares.
_OPTIMIZERS = {
    "sgd": component("torch.optim.SGD"),
    "rmsprop": component("torch.optim.RMSprop", alpha=0.99, eps=1e-5),
    # RMSprop whose V starts at the first squared gradient, as pSGLD's does, not at 0.
    "rmsprop-corrected": component("torch.optim.Adam", betas=[0.0, 0.99], eps=1e-5),
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

    def draws(self, burn_in: int, thinning: int | None = None) -> dict[str, Any]:
        """Return the override that states which states are draws."""
        return {"model.burn_in": burn_in, "model.thinning": thinning or self.thinning}

    def early(self) -> dict[str, Any]:
        """Return the draws of the authors' code, from step 300 on, earlier in short runs."""
        return self.draws(min(300, self.steps // 10))

    def halved(self) -> dict[str, Any]:
        """Return the override for a step that is halved every ``decay`` epochs."""
        return schedule("BlockDecay", every=self.decay * self.epoch)


def published(protocol: Protocol, lr: float, **metric: Any) -> dict[str, Any]:
    """Return SGLD as in the authors' code: T = 1/N, the step is halved."""
    prior, T = metric.pop("prior", gaussian(1.0)), 1 / protocol.num_data
    return (
        sampler("SGLD", lr, prior, temperature=T, **metric) | protocol.halved() | protocol.early()
    )


def published_psgld(protocol: Protocol, lr: float, variance: float = 1.0) -> dict[str, Any]:
    """Return pSGLD as in the authors' code: T = 1/N, C adapts all along, the step is halved."""
    metric = ours("RMSProp", start_at_gradient=True)
    adapting = {"model.freeze_preconditioner": False}
    return published(protocol, lr, prior=gaussian(variance), preconditioner=metric) | adapting


def posterior(protocol: Protocol, name: str, lr: float, variance: float = 1.0) -> dict[str, Any]:
    """Return SGLD or PSGLD with the posterior for its law: C freezes after a fifth of the run."""
    drawn = sampler(name, lr, gaussian(variance), temperature=1.0)
    return drawn | protocol.draws(protocol.steps // 5)


def sghmc(protocol: Protocol) -> dict[str, Any]:
    """Return underdamped Langevin dynamics after Adam; nothing bounds the minibatches' noise."""
    adam = {"optimizer": component("torch.optim.Adam", lr=1e-3), "steps": protocol.steps // 4}
    metric = ours("RMSProp", eps=1e-12, floor=0.5)
    return (
        sampler(
            "SGHMC", "auto", gaussian(0.1), momentum=0.99, temperature=1.0, preconditioner=metric
        )
        | {"model.step_fraction": 0.02, "model.burn_in_optimizer": adam}
        | {"model.max_gradient_noise": None, "model.gradients": None}
        | protocol.draws(3 * protocol.steps // 8)
    )


def optimized(
    protocol: Protocol, name: str, lr: float, *, averaged: bool = False
) -> dict[str, Any]:
    """Return an optimizer, its step halved; weight decay 1/N.

    The last iterate predicts, or the mean over those that :func:`published` averages, with the
    same weights.
    """
    drawn = sampler(OPTIMIZED, lr, gaussian(1.0), optimizer=_OPTIMIZERS[name])
    last = protocol.draws(protocol.steps - 1, 1)
    along = protocol.early() | {"model.draw_weights": "time"}
    return drawn | protocol.halved() | (along if averaged else last)


def deep_ensemble(protocol: Protocol, lr: float, networks: int) -> dict[str, Any]:
    """Return networks fitted by Adam, each from its own start; weight decay 1/N."""
    return (
        optimized(protocol, "adam", lr)
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


_RECIPES = (
    published,
    published_psgld,
    posterior,
    sghmc,
    optimized,
    deep_ensemble,
    bayes_by_backprop,
)
#: The functions above by their names, as the experiments' files state them.
RECIPES: Mapping[str, Any] = {recipe.__name__: recipe for recipe in _RECIPES}
