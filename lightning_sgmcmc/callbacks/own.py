"""What a task adds to the callbacks of any Trainer that fits it."""

from __future__ import annotations

import lightning as L
from lightning.pytorch.callbacks import (
    Checkpoint,
    ModelCheckpoint,
    RichProgressBar,
    TQDMProgressBar,
)
from lightning.pytorch.trainer.states import TrainerFn

from lightning_sgmcmc.callbacks.checkpoint import ChainCheckpoint
from lightning_sgmcmc.callbacks.draws import KeepDraws
from lightning_sgmcmc.callbacks.finish import Finish
from lightning_sgmcmc.callbacks.freed_memory import KeepFreedMemory
from lightning_sgmcmc.callbacks.guard import ChainGuard
from lightning_sgmcmc.callbacks.progress import ChainProgress
from lightning_sgmcmc.callbacks.subnormals import FlushSubnormals


def own_callbacks(trainer: L.Trainer, budget: int, dtype: str) -> list[L.Callback]:
    """Return the callbacks of a run that a Trainer does not have yet.

    A run keeps draws, stops where it diverges, takes subnormal numbers for zero, keeps the memory
    that its steps free and is summed up. Where the Trainer checkpoints, the chain's checkpoints
    take the place of Lightning's default ``ModelCheckpoint``, which would write one at the end of
    every epoch; one with settings of its own stays. Where it shows progress, the chain's bar takes
    the place of Lightning's, which counts epochs. Lightning's validation before the first step is
    left out: the held-out sets are read and the task is checked where training starts. A
    ``fast_dev_run`` leaves no file, and a ``barebones`` run takes steps alone.

    Args:
        trainer: The Trainer; what gives way is taken from its callbacks.
        budget: See :class:`KeepDraws`.
        dtype: See :class:`KeepDraws`.
    """
    given: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    fitting, dry = trainer.state.fn == TrainerFn.FITTING, bool(trainer.fast_dev_run)  # type: ignore[attr-defined]
    if fitting:
        trainer.num_sanity_val_steps = 0
    of_steps: list[L.Callback] = [FlushSubnormals(), KeepFreedMemory()]
    if trainer.barebones:
        return of_steps
    # Also where checkpoints are tested, of which they have a part.
    own: list[L.Callback] = [KeepDraws(budget, dtype), ChainGuard(), *of_steps]
    if fitting and not dry:
        own.append(Finish())
    if fitting and not dry and any(isinstance(callback, Checkpoint) for callback in given):
        own.append(ChainCheckpoint())
    if fitting and any(type(callback) in _BARS for callback in given):
        own.append(ChainProgress())
    if fitting:
        given[:] = [c for c in given if not _gives_way(c)]
    return [c for c in own if not any(isinstance(g, type(c)) for g in given)]


_BARS = (RichProgressBar, TQDMProgressBar)


def _gives_way(callback: L.Callback) -> bool:
    if type(callback) is ModelCheckpoint:
        return callback.state_key == ModelCheckpoint().state_key and not (
            callback.dirpath or callback.filename or callback.save_last or callback.save_top_k != 1
        )
    return type(callback) in _BARS
