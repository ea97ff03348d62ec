"""Step and velocity between the first step of a chain and its first draw."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_sgmcmc import HMC, SGHMC, SGLD, SGNHT, BatchStream, GaussianPrior
from lightning_sgmcmc.adaptation import Adaptation, StepSize, step_size
from lightning_sgmcmc.chain import Chain, OptimizerBurnIn, Task
from lightning_sgmcmc.chain.schedules import DrawSchedule

ROWS, WIDTH, END = 100, 10, 6.0
MEASURED = [0, 1, 2, 4, 8, 16, 20, 24, 28, 32, 40, 48, 50]  # steps, with a burn-in of 50


class Valley(Task):
    """U/N = e^s |w|^2 / 2 + slope (s - END)^2 / 2: the curvature across is e^s, s the way along."""

    def __init__(self, slope: float) -> None:
        super().__init__()
        self.net, self.slope = nn.Module(), slope
        self.net.along = nn.Parameter(torch.zeros(()))
        across = torch.randn(WIDTH, generator=torch.Generator().manual_seed(0))
        self.net.across = nn.Parameter(across)

    @property
    def curvature(self) -> float:
        return math.exp(float(self.net.along.detach()))  # type: ignore[operator]

    def nll(self, batch: Any) -> Tensor:
        along, across = self.net.along, self.net.across
        assert isinstance(along, Tensor)
        assert isinstance(across, Tensor)
        nll = along.exp() * (across**2).sum() + self.slope * (along - END) ** 2
        return 0.5 * nll.expand(len(batch[0]))

    def predictive(self, batch: Any) -> Tensor:
        assert isinstance(self.net.across, Tensor)
        return self.net.across.expand(len(batch[0]), -1)


def adapted(make: Any, burn_in: int, slope: float = 0.01, optimizer: int = 0) -> Adaptation:
    adam = OptimizerBurnIn(partial(torch.optim.Adam, lr=1e-3), optimizer) if optimizer else None
    chain = Chain(
        Valley(slope),
        partial(make, lr="auto", prior=GaussianPrior(1e4)),
        DrawSchedule(optimizer + burn_in, 1, None, optimizer),
        burn_in_optimizer=adam,
    )
    chain.select()
    chain.place()
    chain.build()
    chain.bind(BatchStream((torch.ones(ROWS, 1),), ROWS, "full"))
    return Adaptation(chain, StepSize(0.1))


def known(adaptation: Adaptation, curvatures: dict[int, float], monkeypatch: Any) -> list[int]:
    """Let the curvature be 100 but after some steps; return the steps where it was measured."""
    chain, steps = adaptation.chain, list[int]()

    def measured(*_: Any, **__: Any) -> float:
        steps.append(chain.steps - chain.optimizer_steps)
        return curvatures.get(steps[-1], 100.0)

    monkeypatch.setattr(step_size, "largest_eigenvalue", measured)
    return steps


def relative(chain: Chain) -> float:
    """Return lr over the one that a curvature of 100 allows."""
    return chain.sampler.lr / (0.1 * chain.sampler.max_stable_lr(100.0))


@pytest.mark.parametrize("name", [SGLD, SGHMC, SGNHT])
@pytest.mark.parametrize("optimizer", [0, 5])
@pytest.mark.parametrize(
    ("curvatures", "expected"),
    [
        ({}, [1] * 13),
        (
            dict.fromkeys(range(1, 51), 1.0),  # it falls and stays low: twofold at a time
            [1, 2, 4, 8, 16, 32, 32, 32, 32, 64, 64, 64, 100],
        ),
        ({1: 1.0, 2: 1.0}, [1, 2, 4, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]),  # it rises again
        ({4: 400.0}, [1, 1, 1, 0.25, 0.25, 0.5, 0.5, 0.5, 0.5, 1, 1, 1, 1]),
        # Between the doublings lr is lowered only; the last half of the steps counts.
        ({24: 400.0}, [1, 1, 1, 1, 1, 1, 1, 0.25, 0.25, 0.25, 0.25, 0.25, 1]),
        ({24: 400.0, 28: 1600.0}, [1] * 7 + [0.25] + 5 * [0.0625]),
        ({48: 200.0}, [1] * 11 + [0.5, 0.5]),
        ({50: 200.0}, [1] * 12 + [0.5]),
    ],
)
def test_lr_rises_twofold_at_most_and_falls_at_once(
    name: Any,
    optimizer: int,
    curvatures: dict[int, float],
    expected: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where lr is set or lowered the velocity is drawn anew."""
    adaptation = adapted(name, 50, optimizer=optimizer)
    steps, chain, found = known(adaptation, curvatures, monkeypatch), adaptation.chain, []
    for _ in range(optimizer + 51):
        before = chain.sampler.lr if steps else math.inf
        adaptation.after_step()
        taken = chain.steps - optimizer
        if taken in MEASURED:
            found.append(relative(chain))
        if taken in (0, 1, 2, 4, 8, 16, 32, 50) or chain.sampler.lr < before:
            assert not getattr(chain.sampler, "velocity", [])
        elif taken > 0:
            assert getattr(chain.sampler, "velocity", [1])
        chain.advance(chain.minibatch())
    assert steps == MEASURED
    assert found == pytest.approx(expected)


def test_what_was_measured_survives_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    adaptation = adapted(SGHMC, 100)
    known(adaptation, {40: 400.0}, monkeypatch)
    chain, step = adaptation.chain, adaptation._step_size
    for _ in range(64):
        adaptation.after_step()
        chain.advance(chain.minibatch())
    resumed, forgetful = Adaptation(chain, step), Adaptation(chain, step)
    resumed.load_state_dict(adaptation.state_dict())
    resumed.after_step()
    assert relative(chain) == pytest.approx(0.25)
    forgetful.after_step()
    assert relative(chain) == pytest.approx(0.5)


def test_a_large_fraction_waits_for_the_end_of_burn_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the way the curvature may become four times what it was before the chain diverges."""
    adaptation = Adaptation(adapted(SGHMC, 20).chain, StepSize(0.5))
    known(adaptation, {}, monkeypatch)
    chain = adaptation.chain
    for _ in range(21):
        adaptation.after_step()
        assert relative(chain) == pytest.approx(2.5 if chain.steps < 20 else 5)
        chain.advance(chain.minibatch())


@pytest.mark.parametrize(
    ("make", "bound", "fraction"),
    [
        (SGLD, 0.05, 1 / 21),  # f / (1 - f) = .05
        (SGLD, None, 1 / 21),
        (SGLD, 0.2, 1 / 6),
        (SGLD, 0.5, 0.25),
        (SGHMC, 0.05, 0.25),  # positions are exact on a Gaussian
        (SGNHT, 0.01, 0.25),
    ],
)
def test_the_wanted_fraction_keeps_the_bound_on_the_steps_own_error(
    make: Any, bound: float | None, fraction: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From where burn-in ends; no draw is kept before."""
    adaptation = Adaptation(adapted(make, 20).chain, StepSize(max_gradient_noise=bound))
    known(adaptation, {}, monkeypatch)
    chain = adaptation.chain
    for _ in range(21):
        adaptation.after_step()
        assert relative(chain) == pytest.approx(1 if chain.steps < 20 else 10 * fraction)
        chain.advance(chain.minibatch())
    assert adaptation.stability["step_fraction"] == pytest.approx(fraction)


def test_hmc_measures_at_its_start_and_where_burn_in_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """It adapts its step by itself; the limit at its start does not count later."""
    adaptation = adapted(partial(HMC, leapfrog_steps=3), 20)
    steps = known(adaptation, {20: 1.0}, monkeypatch)
    for _ in range(21):
        adaptation.after_step()
        adaptation.chain.advance(adaptation.chain.minibatch())
    assert steps == [0, 20]
    assert adaptation.stability["largest_stable_lr"] == 4.0


@pytest.mark.parametrize("slope", [0.02, 0.05, 0.1, 0.2])
def test_the_step_stays_stable_where_a_valley_narrows(slope: float) -> None:
    """The largest stable step, 2 (1 + mu) e^-s, falls by two to three orders of magnitude."""
    adaptation = adapted(partial(SGHMC, momentum=0.9), 400, slope)
    chain, worst = adaptation.chain, 0.0
    valley = chain.task
    assert isinstance(valley, Valley)
    for _ in range(401):
        adaptation.after_step()
        worst = max(worst, chain.sampler.lr / chain.sampler.max_stable_lr(valley.curvature))
        chain.advance(chain.minibatch())
    assert valley.curvature > 15
    assert worst < 0.5
