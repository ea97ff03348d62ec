"""Burn-in by an optimizer: the chain starts at a mode that a torch optimizer found."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer

from lightning_sgmcmc.chain.schedules import WarmupCosine
from lightning_sgmcmc.common.arguments import check_optimizer


@dataclass(frozen=True)
class OptimizerBurnIn:
    """The first steps of a run, taken by an optimizer on U/N instead of by the sampler.

    The sampler's preconditioner sees the gradients of these steps too, so that C fits the place
    where the chain starts. The step size warms up linearly and falls along a cosine.

    Args:
        optimizer: Called with the parameters, for instance ``partial(Adam, lr=1e-3)``.
        steps: Number of steps, at least 1.
        warmup: Fraction of the steps that warms up.
        final: Last step size as a fraction of the largest.

    Raises:
        ValueError: If ``steps`` is not positive.
    """

    optimizer: Callable[[Iterable[Any]], Optimizer]
    steps: int
    warmup: float = 0.02
    final: float = 0.003

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"burn-in by an optimizer needs steps >= 1, got {self.steps}")

    def build(self, params: Iterable[Any]) -> tuple[Optimizer, WarmupCosine]:
        """Return the optimizer and its schedule.

        Raises:
            ValueError: If a step of the optimizer evaluates a closure.
        """
        optimizer = self.optimizer(params)
        check_optimizer(optimizer)
        return optimizer, WarmupCosine(optimizer, self.steps, self.warmup, self.final)
