"""Subnormal numbers are zero on every thread while a chain runs, and only then."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch

from lightning_sgmcmc.callbacks.subnormals import flush, flushed
from tests.toy import NotSummedUp, Toy, ToyData


@pytest.fixture(autouse=True)
def two_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot")
    flush(False)
    yield
    flush(False)
    torch.set_num_threads(before)


def subnormal() -> float:
    """Return the fraction of subnormal products, over numbers that both threads compute."""
    small = torch.full((1_000_000,), 1e-20)
    return float((small * small != 0).double().mean())


class Watch(L.Callback):
    def __init__(self, fail: bool = False) -> None:
        self.fail = fail
        self.seen: set[float] = set()

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        self.seen.add(subnormal())
        if self.fail:
            raise ArithmeticError


def fit(watch: Watch) -> None:
    trainer = L.Trainer(
        max_steps=3, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[watch, NotSummedUp()],
    )  # fmt: skip
    trainer.fit(Toy(burn_in=1), ToyData())


def test_while_a_chain_runs() -> None:
    watch = Watch()
    assert subnormal() == 1
    fit(watch)
    assert watch.seen == {0}
    assert subnormal() == 1


def test_after_an_error_as_before() -> None:
    with pytest.raises(ArithmeticError):
        fit(Watch(fail=True))
    assert subnormal() == 1


def test_a_process_that_did_so_before_goes_on() -> None:
    flush(True)
    fit(Watch())
    assert flushed()
    assert subnormal() == 0
