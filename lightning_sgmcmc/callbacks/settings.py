"""Trainer settings under which the draws are not of the target."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import lightning as L
from lightning.pytorch import callbacks as lightning_callbacks

_OVERWRITING = tuple(
    getattr(lightning_callbacks, name)
    for name in ("StochasticWeightAveraging", "WeightAveraging", "EMAWeightAveraging")
    if hasattr(lightning_callbacks, name)
)
# Those that hold the weights in 32 or 64 bits, and scale no gradient.
_PRECISIONS = ("32-true", "32", "64-true", "64", "bf16-mixed", "bf16")


def refuse_biasing_settings(
    precision: Any, gradient_clip_val: Any, accumulate_grad_batches: int, callbacks: Iterable[Any]
) -> None:
    """Raise ValueError for Trainer settings under which the draws are not of the target."""
    if str(precision) in ("16-mixed", "16"):
        raise ValueError(
            'precision "16-mixed" skips steps when a gradient overflows, which biases a chain: '
            'use "32-true" or "bf16-mixed"'
        )
    if precision is not None and str(precision) not in _PRECISIONS:
        raise ValueError(
            f'precision "{precision}" holds the weights in 16 bits or fewer, whose rounding is '
            'larger than a chain\'s steps: use "32-true", "64-true" or "bf16-mixed"'
        )
    if gradient_clip_val:
        raise ValueError(
            "gradient_clip_val changes the drift and so the target of a chain: remove it, and "
            "lower lr if the chain diverges"
        )
    if accumulate_grad_batches != 1:
        raise ValueError("accumulate_grad_batches does not apply to a chain: raise batch_size")
    for callback in callbacks:
        if isinstance(callback, _OVERWRITING):
            raise ValueError(
                f"{type(callback).__name__} overwrites the weights of a chain: remove it, the "
                "posterior ensemble averages already"
            )


def refuse_biasing_trainer(trainer: L.Trainer) -> None:
    """Raise ValueError for a Trainer under which the draws are not of the target."""
    if trainer.overfit_batches:  # type: ignore[attr-defined]
        raise ValueError(
            "overfit_batches trains on a few minibatches, which are taken for all the data: give "
            "the chain a smaller training set instead"
        )
    refuse_biasing_settings(
        trainer.precision,
        trainer.gradient_clip_val,
        trainer.accumulate_grad_batches,
        trainer.callbacks,  # type: ignore[attr-defined]
    )
