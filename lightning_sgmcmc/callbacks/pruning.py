"""Gradual magnitude pruning of a chain's weights during burn-in."""

from __future__ import annotations

from typing import Any, Literal

import lightning as L
import torch
from torch import Tensor

from lightning_sgmcmc.callbacks.run import task_of
from lightning_sgmcmc.chain import Chain


class GradualPruning(L.Callback):
    """Set the smallest weights to zero, more and more of them, and hold them there.

    After ``t`` steps the sparse rate is ``rate * (1 - (1 - (t - start) / (stop - start))^3)``
    (Zhu and Gupta 2017, eq. 1). A mask is persistent: a pruned weight is zero for gradients,
    drift and noise, and never comes back, so the chain samples the posterior of the pruned
    network. Only weights of two or more dimensions are pruned, biases are not. Wang, Deng, Lin
    (2020, Algorithm 2) prune by magnitude without naming a schedule.

    Args:
        rate: Final fraction of pruned weights, in [0, 1).
        start: Step of the first pruning.
        stop: Step at which the rate is reached; not after burn-in.
        every: Steps between prunings.
        scope: Compare magnitudes within a ``"layer"`` or over the ``"network"``.

    Raises:
        ValueError: If a value lies outside its range.
    """

    def __init__(
        self,
        rate: float,
        start: int,
        stop: int,
        every: int = 50,
        scope: Literal["layer", "network"] = "layer",
    ) -> None:
        if not 0 <= rate < 1:
            raise ValueError(f"the sparse rate must lie in [0, 1), got {rate}")
        if not 0 <= start < stop:
            raise ValueError(f"pruning needs 0 <= start < stop, got {start} and {stop}")
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every}")
        if scope not in ("layer", "network"):
            raise ValueError(f'scope must be "layer" or "network", got {scope!r}')
        self.rate, self.start, self.stop, self.every = rate, start, stop, every
        self.scope = scope

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Refuse pruning that would go on after burn-in."""
        if stage == "fit":
            self.check(task_of(pl_module).chain)

    def check(self, chain: Chain) -> None:
        """Refuse pruning that would go on after burn-in.

        Raises:
            ValueError: If ``stop`` lies after the end of burn-in, or a head is integrated out.
        """
        if chain.collapse_head:
            raise ValueError("a head that is integrated out cannot be pruned: drop one of the two")
        burn_in = chain.draws.burn_in
        if self.stop > burn_in:
            raise ValueError(
                f"pruning must end before draws are kept: stop = {self.stop} lies after burn_in = "
                f"{burn_in}"
            )

    def rate_at(self, step: int) -> float:
        """Return the sparse rate that is due after ``step`` steps."""
        progress = min(1.0, max(0.0, (step - self.start) / (self.stop - self.start)))
        return self.rate * (1 - (1 - progress) ** 3)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        """Prune where it is due."""
        chain = task_of(pl_module).chain
        step = chain.steps
        due = self.start < step <= self.stop
        if not due or ((step - self.start) % self.every and step != self.stop):
            return
        sampler = chain.sampler
        rate = self.rate_at(step)
        if not sampler.chain_dims:
            sampler.set_masks(self.masks(sampler.params, rate))
            return
        rows = [self.masks([p[k] for p in sampler.params], rate) for k in range(chain.num_chains)]
        sampler.set_masks([torch.stack(parts) for parts in zip(*rows, strict=True)])

    @torch.no_grad()
    def masks(self, params: list[Tensor], rate: float) -> list[Tensor]:
        """Return a mask per parameter that zeroes the smallest ``rate`` of the weights."""
        prunable = [p for p in params if p.dim() > 1]
        if self.scope == "network" and prunable:
            magnitudes = torch.cat([p.abs().reshape(-1) for p in prunable])
            thresholds = [_quantile(magnitudes, rate)] * len(prunable)
        else:
            thresholds = [_quantile(p.abs().reshape(-1), rate) for p in prunable]
        limits = iter(thresholds)
        return [
            (p.abs() > next(limits)).to(p.dtype) if p.dim() > 1 else torch.ones_like(p)
            for p in params
        ]


def _quantile(magnitudes: Tensor, rate: float) -> float:
    """Return the magnitude that ``rate`` of the weights do not exceed, -1 for none of them."""
    count = round(rate * magnitudes.numel())
    return float(magnitudes.kthvalue(count).values) if count else -1.0
