"""Precisions of a Trainer: those that bias a chain are refused, before anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_sgmcmc.callbacks.settings import refuse_biasing_settings
from tests.toy import Toy, ToyData, trainer


@pytest.mark.parametrize(
    ("precision", "reason"),
    [
        ("16-mixed", "skips steps"),
        ("16-true", "rounding is larger than a chain's steps"),
        ("bf16-true", "rounding is larger than a chain's steps"),
    ],
)
def test_precisions_that_bias_are_refused(tmp_path: Path, precision: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=f'precision "{precision}" .*{reason}'):
        refuse_biasing_settings(precision, None, 1, [])
    if precision == "16-mixed" and not torch.cuda.is_available():
        return  # without a GPU, Lightning takes another one in its place
    with pytest.raises(ValueError, match=reason):
        trainer(tmp_path, 3, precision=precision).fit(Toy(burn_in=1), datamodule=ToyData())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("precision", [None, 32, "32", "32-true", 64, "64-true", "bf16-mixed"])
def test_others_are_not(precision: Any) -> None:
    refuse_biasing_settings(precision, None, 1, [])
