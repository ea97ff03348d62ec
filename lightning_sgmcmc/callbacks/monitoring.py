"""What ``EarlyStopping`` and ``ModelCheckpoint`` may monitor of the draws, and from when on."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import lightning as L
import numpy as np
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from lightning_sgmcmc.chain import Task
from lightning_sgmcmc.diagnostics.mixing import MIN_DRAWS, rhat
from lightning_sgmcmc.posterior.held_out import MEASURED
from lightning_sgmcmc.posterior.kept import KeptDraws

#: The R-hat below which 95 % of the predictions on the first held-out examples lie.
RHAT = "predictions/rhat"
#: How much the number of draws rises from one measurement of R-hat to the next.
_RISE = 1.1
#: The method by which each of Lightning's callbacks decides that nothing is to be done yet.
_SKIPS: dict[type, str] = {
    EarlyStopping: "_should_skip_check",
    ModelCheckpoint: "_should_skip_saving_checkpoint",
}


def rhat_of_predictions(trainer: L.Trainer, kept: KeptDraws) -> dict[str, float]:
    """Return :data:`RHAT` where it is monitored and due, which all processes ask together.

    It is measured from 8 draws on, whenever they have grown by a tenth, so that all measurements
    together cost eleven of the last one. Nothing is returned where no prediction varies.
    """
    callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    due = kept.num_draws >= MIN_DRAWS and _times(kept.num_draws) > _times(kept.num_draws - 1)
    monitored = any(getattr(callback, "monitor", None) == RHAT for callback in callbacks)
    if not (due and monitored and kept.held_out):
        return {}
    chain = kept.chain
    traces = chain.processes.of_all_chains(kept.probes.trace("predictions"), chain.device)
    value = math.nan
    if traces.size:
        found = rhat(traces)
        found = found[~np.isnan(found)]
        if found.size:
            value = float(np.quantile(found, 0.95, method="nearest"))
    value = chain.processes.broadcast(value)
    return {} if math.isnan(value) else {RHAT: value}


def _times(num_draws: int) -> int:
    return math.floor(math.log(num_draws) / math.log(_RISE))


def wait_for_draws(trainer: L.Trainer, task: Task) -> None:
    """Let callbacks that monitor the draws do nothing until there is what they monitor.

    Lightning ends a run whose callbacks monitor what is not there, as all of the draws is not
    during burn-in. From the 8th draw on it does so again, for a name that is none.
    """
    callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    for callback in callbacks:
        for kind, method in _SKIPS.items():
            name = getattr(callback, "monitor", None)
            if isinstance(callback, kind) and of_draws(name):
                skips = getattr(type(callback), method).__get__(callback)
                setattr(callback, method, _waits(str(name), skips, task))


def of_draws(name: str | None) -> bool:
    """Return whether a monitored value is one of the draws'."""
    return name in ("draws", RHAT) or str(name).startswith(
        tuple(f"{held_out}/ensemble_" for held_out in MEASURED)
    )


def _waits(name: str, skips: Callable[[Any], bool], task: Task) -> Callable[[Any], bool]:
    def skips_or_waits(trainer: L.Trainer) -> bool:
        kept = getattr(task, "kept", None)
        early = kept is None or kept.num_draws < MIN_DRAWS
        return (early and name not in trainer.callback_metrics) or skips(trainer)

    return skips_or_waits
