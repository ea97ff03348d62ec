"""Step sizes by their formulas, and which states are draws."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import LinearLR

from lightning_sgmcmc import SGLD
from lightning_sgmcmc.chain.schedules import (
    BlockDecay,
    ConstantStep,
    Cycle,
    CyclicalCosine,
    DrawSchedule,
    PolynomialDecay,
    WarmupCosine,
)
from tests.toy import Toy, ToyData, trainer

LR = 0.3


def sampler() -> SGLD:
    theta = torch.zeros(1, requires_grad=True)
    theta.grad = torch.zeros(1)
    return SGLD([theta], LR, num_data=1)


@pytest.mark.parametrize(
    ("make", "formula"),
    [
        (ConstantStep, lambda t: LR),
        (lambda s: BlockDecay(s, 4, 0.5), lambda t: LR * 0.5 ** (t // 4)),
        (lambda s: PolynomialDecay(s, 10.0, 0.6), lambda t: LR * 10**0.6 * (10 + t) ** -0.6),
        (
            lambda s: CyclicalCosine(s, 10, floor=0.01),
            lambda t: max(0.01 * LR, LR / 2 * (1 + math.cos(math.pi * (t % 10) / 10))),
        ),
    ],
    ids=["constant", "block", "polynomial", "cyclical"],
)
def test_step_sizes(make: Callable[[Any], Any], formula: Callable[[int], float]) -> None:
    chain = sampler()
    scheduler = make(chain)
    for t in range(35):
        assert chain.lr == pytest.approx(formula(t), rel=1e-12)
        chain.step()
        scheduler.step()


def test_cyclical_never_stops() -> None:
    chain = sampler()
    scheduler = CyclicalCosine(chain, 1000, floor=0.02)
    smallest = LR
    for _ in range(1000):
        chain.step()
        scheduler.step()
        smallest = min(smallest, chain.lr)
    assert smallest == pytest.approx(0.02 * LR)


def test_warmup_then_cosine() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], LR)
    scheduler = WarmupCosine(optimizer, 100, warmup=0.1, final=0.05)
    found = []
    for _ in range(120):
        found.append(optimizer.param_groups[0]["lr"] / LR)
        optimizer.step()
        scheduler.step()
    assert found[:10] == pytest.approx([(i + 1) / 10 for i in range(10)])
    middle = 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * (55 - 10) / 90))
    assert found[55] == pytest.approx(middle)
    assert found[100:] == pytest.approx([0.05] * 20)


def test_a_schedule_resumes() -> None:
    first, second = sampler(), sampler()
    ahead, behind = PolynomialDecay(first, 5.0), PolynomialDecay(second, 5.0)
    for _ in range(7):
        first.step()
        ahead.step()
    second.load_state_dict(first.state_dict())
    behind.load_state_dict(ahead.state_dict())
    assert second.lr == first.lr
    for _ in range(3):
        for chain, scheduler in ((first, ahead), (second, behind)):
            chain.step()
            scheduler.step()
        assert second.lr == first.lr


@pytest.mark.parametrize(
    "make",
    [
        lambda s: BlockDecay(s, 0),
        lambda s: BlockDecay(s, 3, 0.0),
        lambda s: BlockDecay(s, 3, 1.5),
        lambda s: PolynomialDecay(s, 0.0),
        lambda s: PolynomialDecay(s, math.nan),
        lambda s: PolynomialDecay(s, 1.0, -0.1),
        lambda s: CyclicalCosine(s, 0),
        lambda s: CyclicalCosine(s, 5, 0.0),
        lambda s: CyclicalCosine(s, 5, 1.1),
        lambda s: CyclicalCosine(s, 5, 0.5, 0.0),
        lambda s: WarmupCosine(s, 0),
        lambda s: WarmupCosine(s, 5, 1.0),
        lambda s: WarmupCosine(s, 5, 0.1, -1.0),
    ],
)
def test_schedules_refuse(make: Callable[[Any], Any]) -> None:
    with pytest.raises(ValueError, match=r"need .* got"):
        make(sampler())


def test_draws_after_burn_in_by_thinning() -> None:
    schedule = DrawSchedule(burn_in=10, thinning=3)
    assert [t for t in range(25) if schedule.keeps(t)] == [13, 16, 19, 22]
    assert DrawSchedule().keeps(1)
    assert not DrawSchedule().keeps(0)


def test_draws_in_the_end_of_a_cycle() -> None:
    """The kept states of a cycle of ten are those after its sixth to tenth steps."""
    schedule = DrawSchedule(burn_in=20, cycle=Cycle(10, 0.5))
    assert [t for t in range(41) if schedule.keeps(t)] == [*range(26, 31), *range(36, 41)]


def test_rounding_takes_no_draw_from_a_cycle() -> None:
    """10 (1 - .7) is above 3 in floating point."""
    for length in range(1, 101):
        for due in range(1, length + 1):
            cycle = Cycle(length, due / length)
            assert sum(map(cycle.keeps, range(length))) == due


@pytest.mark.parametrize("thinning", [1, 4])
@pytest.mark.parametrize("cycle", [None, Cycle(7, 0.4)])
def test_count_is_the_number_kept(cycle: Cycle | None, thinning: int) -> None:
    schedule = DrawSchedule(11, thinning, cycle)
    for steps in (0, 11, 12, 60, 101):
        assert schedule.count(steps) == sum(schedule.keeps(t) for t in range(1, steps + 1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"burn_in": -1}, "burn_in must not be negative, got -1"),
        ({"thinning": 0}, "thinning must be at least 1, got 0"),
        ({"burn_in": 3, "optimizer_steps": 4}, "burn_in = 3 counts the optimizer's 4 steps"),
    ],
)
def test_draw_schedule_refuses(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DrawSchedule(**arguments)


def test_a_step_size_that_has_come_down_to_0_gives_no_draw(tmp_path: Path) -> None:
    drop = partial(LinearLR, start_factor=1.0, end_factor=0.0, total_iters=40)
    module = Toy(partial(SGLD, lr=1e-3), burn_in=10, thinning=5, schedule=drop)
    with pytest.raises(
        ValueError, match=r"come down to 0 at step 45.*let the schedule end above 0"
    ):
        trainer(tmp_path, 60).fit(module, datamodule=ToyData())
