"""A cycle has one clock: the draws it keeps have the law of the steps that made them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch

from lightning_sgmcmc import SGLD, BatchStream, GaussianPrior
from lightning_sgmcmc.baselines import Optimized, RMSspectral
from lightning_sgmcmc.callbacks import ChainCheckpoint
from lightning_sgmcmc.chain import OptimizerBurnIn
from lightning_sgmcmc.chain.schedules import BlockDecay, Cycle, CyclicalCosine
from tests.toy import NUM_DATA, NUM_FEATURES, Toy, ToyData, exact_posterior, toy_data, trainer

CHAINS, LENGTH, SAMPLING = 800, 10, 0.2
SLOW = partial(SGLD, lr=0.01)


class Record(L.Callback):
    """The chains' weights [K, p], and their step size, at the last optimizer step and at draws."""

    def __init__(self) -> None:
        self.states: list[np.ndarray] = []
        self.steps: list[int] = []
        self.start = np.empty(0)

    def on_train_batch_start(self, trainer: Any, module: Any, *args: Any) -> None:
        chain = module.chain
        if chain.steps == chain.optimizer_steps:
            self.start = self.weights(chain)

    def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
        chain = module.chain
        if chain.draws.keeps(chain.steps):
            self.states.append(self.weights(chain))
            self.steps.append(chain.steps)

    def weights(self, chain: Any) -> np.ndarray:
        return np.asarray(chain.stack.weights[0].detach()[:, 0].double().numpy().copy())


@pytest.mark.parametrize(("burn_in", "optimizer_steps"), [(40, 0), (33, 0), (47, 14), (50, 20)])
def test_kept_draws_have_the_law_of_the_cycle(
    tmp_path: Path, burn_in: int, optimizer_steps: int
) -> None:
    """SGLD with exact gradients on a Gaussian: the law of every draw is known from the schedule.

    m <- m - h_t A (m - mu), P <- (I - h_t A) P (I - h_t A) + 2 h_t I, h_t = lr_t / N. A draw that
    was made at .89 of the largest step would have 2.4 times the stiffest direction's variance.
    The mean over 800 chains and 3 directions of a squared deviation has a standard error of 3 %
    (4.5 sigma is the bound), that of a mean is .035 deviations.
    """
    mean, covariance = exact_posterior()
    precision = np.linalg.inv(covariance)
    lr = 1.5 * NUM_DATA / np.linalg.eigvalsh(precision).max()  # stable below 2
    optimizer = OptimizerBurnIn(partial(torch.optim.SGD, lr=1e-3), optimizer_steps or 1)
    module = Toy(
        partial(SGLD, lr=lr, prior=GaussianPrior(variance=4.0)),
        burn_in=burn_in,
        burn_in_optimizer=optimizer if optimizer_steps else None,
        schedule=partial(CyclicalCosine, cycle=LENGTH, sampling=SAMPLING),
        num_chains=CHAINS,
        starts="same",
        draw_budget=0,
    )
    run, record = trainer(tmp_path, burn_in + 3 * LENGTH + 4, log_every_n_steps=1000), Record()
    run.callbacks.append(record)
    run.fit(module, datamodule=ToyData(NUM_DATA, "full"))
    assert len(record.steps) >= 6
    assert module.kept.draw_weights.tolist() == [1.0] * len(record.steps)

    cycle = Cycle(LENGTH, SAMPLING)
    m, P = record.start.mean(0), np.cov(record.start.T)
    ratios, shifts = [], []
    for taken in range(record.steps[-1] - optimizer_steps):
        h = lr * cycle.factor(taken) / NUM_DATA
        M = np.eye(NUM_FEATURES) - h * precision
        m, P = mean + M @ (m - mean), M @ P @ M + 2 * h * np.eye(NUM_FEATURES)
        if taken + 1 + optimizer_steps not in record.steps:
            continue
        assert cycle.factor(taken) < 0.1  # the end of a cycle, whatever the lengths before it
        states = record.states[record.steps.index(taken + 1 + optimizer_steps)]
        found = np.linalg.solve(np.linalg.cholesky(P), (states - m).T)
        ratios.append(np.mean(found**2))
        shifts.append(found.mean(1))
    assert np.abs(np.array(ratios) - 1).max() < 0.13
    assert np.abs(np.array(shifts)).max() < 0.16


def test_a_draw_has_the_weight_of_the_step_that_made_it(tmp_path: Path) -> None:
    """Steps 1 to 4 have lr, 5 to 8 a half, 9 to 12 a quarter."""
    module = Toy(partial(SGLD, lr=0.008), burn_in=2, schedule=partial(BlockDecay, every=4))
    trainer(tmp_path, 10).fit(module, datamodule=ToyData())
    expected = [0.008] * 2 + [0.004] * 4 + [0.002] * 2
    assert module.kept.draw_weights == pytest.approx(expected)
    assert module.chain.draw_weights == "time"


@pytest.mark.parametrize(
    ("sampler", "schedule", "weights"),
    [
        (SLOW, BlockDecay, "equal"),
        (partial(Optimized, lr=0.01), BlockDecay, "time"),
        (partial(Optimized, lr=0.01, optimizer=RMSspectral), BlockDecay, "time"),  # in turn
        (SLOW, CyclicalCosine, "time"),
    ],
)
def test_draws_count_as_they_are_told_to(
    tmp_path: Path, sampler: Any, schedule: Any, weights: Any
) -> None:
    """By default SGLD's count by time, an optimizer's iterates and draws of a cycle alike."""
    make = partial(schedule, **{"every" if schedule is BlockDecay else "cycle": 4})
    module = Toy(
        sampler,
        schedule=make,
        draw_weights=weights,
        num_chains=2,
    )
    trainer(tmp_path, 8).fit(module, datamodule=ToyData())
    plain = SGLD([torch.zeros(1, requires_grad=True)], module.chain.base_lr)
    factor = make(plain).lr_lambdas[0]
    steps = [t for t in range(8) if module.chain.draws.keeps(t + 1)]
    expected = [module.chain.base_lr * factor(t) if weights == "time" else 1.0 for t in steps]
    assert module.kept.draw_weights == pytest.approx(expected)
    assert module.chain.draw_weights == weights


def test_weights_of_draws_are_one_of_three() -> None:
    with pytest.raises(ValueError, match="draw_weights must be auto, time or equal, got 'step'"):
        Toy(SLOW, draw_weights="step")


def test_a_cyclical_run_resumes_with_its_cycle(tmp_path: Path) -> None:
    def make() -> Toy:
        torch.manual_seed(0)
        schedule = partial(CyclicalCosine, cycle=7, sampling=0.5)
        return Toy(partial(SGLD, lr=0.01), burn_in=5, schedule=schedule)

    whole = make()
    trainer(tmp_path / "whole", 40).fit(whole, datamodule=ToyData())
    first = tmp_path / "parts"
    trainer(first, 24, [ChainCheckpoint(24)]).fit(make(), datamodule=ToyData())
    again = make()
    trainer(first, 40, [ChainCheckpoint(100)]).fit(
        again,
        datamodule=ToyData(),
        ckpt_path=first / "checkpoints" / "last.ckpt",
        weights_only=True,
    )
    assert torch.equal(whole.net.weight, again.net.weight)
    assert [row["step"] for row in whole.kept.history] == [r["step"] for r in again.kept.history]


@pytest.mark.parametrize(
    "schedule", [partial(CyclicalCosine, cycle=LENGTH), partial(BlockDecay, every=3)]
)
def test_an_automatic_step_is_not_lowered_with_the_schedule(schedule: Any) -> None:
    """The curvature of a Gaussian is the same everywhere, and so is the step that is chosen.

    It is measured after 1, 2, 4, 8, 16 and 32 steps; a cycle of 10 is near its floor after 8.
    """
    sampler = partial(SGLD, lr="auto", prior=GaussianPrior(variance=4.0))
    module = Toy(sampler, burn_in=40, schedule=schedule, step_fraction=0.1)
    chain, adaptation = module.chain, module.adaptation
    chain.select()
    chain.place()
    chain.build()
    chain.bind(BatchStream(toy_data(), NUM_DATA, "full"))
    adaptation.after_step()
    first = chain.schedule.base_lrs[0]
    for _ in range(40):
        chain.advance(chain.minibatch())
        adaptation.after_step()
        assert chain.schedule.base_lrs[0] == pytest.approx(first, rel=1e-6)


def test_a_step_size_that_is_changed_keeps_its_place_in_the_schedule() -> None:
    """Halved after 3 and 6 steps, and set to .02 after 4: the next step has .01, the 7th .005."""
    module = Toy(partial(SGLD, lr=0.008), burn_in=2, schedule=partial(BlockDecay, every=3))
    chain = module.chain
    chain.select()
    chain.place()
    chain.build()
    chain.bind(BatchStream(toy_data(), NUM_DATA, "full"))
    taken = []
    for step in range(7):
        if step == 4:
            chain.set_lr(0.02)
        chain.advance(chain.minibatch())
        taken.append(chain.last_lr)
    assert taken == pytest.approx([0.008] * 3 + [0.004] + [0.01] * 2 + [0.005])
