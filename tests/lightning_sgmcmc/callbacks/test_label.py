"""A result is labelled by the objects that were built."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from lightning_sgmcmc import (
    HAMCMC,
    HASGLD,
    HMC,
    PSGLD,
    SGHMC,
    SGLD,
    SVRG,
    ControlVariate,
    GaussianPrior,
    Minibatch,
    RMSProp,
)
from lightning_sgmcmc.baselines import SWAG, Optimized
from lightning_sgmcmc.callbacks.report.label import describe
from lightning_sgmcmc.chain.schedules import BlockDecay, ConstantStep, PolynomialDecay
from lightning_sgmcmc.samplers import ChainsInTurn


def params() -> list[Any]:
    return [nn.Parameter(torch.ones(3))]


@pytest.mark.parametrize(
    ("make", "label"),
    [
        (
            lambda p: SGLD(p, 0.01, preconditioner=RMSProp()),
            "SGLD, RMSProp metric (adapting), lr 0.01, FlatPrior()",
        ),
        (
            lambda p: SGLD(p, 0.01, increments="moment-matched", temperature=0.5),
            "SGLD, no metric, lr 0.01, FlatPrior(), T = 0.5, moment-matched increments",
        ),
        (
            lambda p: SGLD(p, 0.01, noise="philox"),
            "SGLD, no metric, lr 0.01, FlatPrior(), philox noise",
        ),
        (
            lambda p: SGHMC(p, 2e-3, momentum=0.9, prior=GaussianPrior(variance=4.0)),
            "SGHMC(momentum=0.9), no metric, lr 0.002, GaussianPrior(variance=4, mean=0)",
        ),
        (
            lambda p: HASGLD(p, 0.1, memory=3, slots=2),
            "HASGLD, AveragedLBFGS metric (M=3, slots=2, adapting), lr 0.1, FlatPrior()",
        ),
        (
            lambda p: HASGLD(p, 0.1, paper_mode=True),
            "HASGLD(paper_mode=True), AveragedLBFGS metric (M=2, slots=all, adapting), lr 0.1, "
            "FlatPrior()",
        ),
        (
            lambda p: HAMCMC(p, 0.1),
            "HAMCMC(memory=3), AveragedLBFGS metric (M=2, slots=1, adapting), lr 0.1, FlatPrior()",
        ),
        (
            lambda p: Optimized(p, 0.1, optimizer=torch.optim.Adam),
            "Optimized(Adam), no metric, lr 0.1, FlatPrior(), T = 0",
        ),
        (
            lambda p: Optimized(p, 0.1, optimizer=partial(torch.optim.Adam, betas=(0.0, 0.99))),
            "Optimized(Adam(betas=(0, 0.99))), no metric, lr 0.1, FlatPrior(), T = 0",
        ),
        (
            lambda p: SWAG(
                p, 0.1, start=8, optimizer=partial(torch.optim.SGD, momentum=0.9, lr=0.3)
            ),
            "SWAG(start=8, every=100, rank=20, optimizer='SGD(momentum=0.9)'), no metric, lr 0.1, "
            "FlatPrior(), T = 0",
        ),
    ],
)
def test_label(make: Callable[[Any], Any], label: str) -> None:
    sampler = make(params())
    assert describe(sampler, ConstantStep(sampler), "reshuffled")["label"] == label


def test_an_estimator_is_named_where_it_is_not_the_minibatch() -> None:
    sampler = SGHMC(params(), 0.1, temperature=0.5)
    for gradients, said in ((ControlVariate(), "ControlVariate()"), (SVRG(8), "SVRG(recentre=8)")):
        found = describe(sampler, ConstantStep(sampler), "reshuffled", gradients)
        assert found["gradients"] == said
        assert found["label"].endswith(f", FlatPrior(), {said}, T = 0.5")
    plain = describe(sampler, ConstantStep(sampler), "reshuffled", Minibatch())
    assert plain == describe(sampler, ConstantStep(sampler), "reshuffled")
    assert "Minibatch" not in plain["label"]


def test_a_frozen_metric_and_a_step_that_was_chosen() -> None:
    sampler = PSGLD(params(), "auto", alpha=0.9, floor=0.5)
    schedule = BlockDecay(sampler, every=2)
    sampler.set_lr(0.25)
    sampler.freeze()
    found = describe(sampler, schedule, "independent")
    assert found["label"] == (
        "PSGLD, RMSProp metric (frozen), lr 0.25 (auto, BlockDecay(every=2, factor=0.5)), "
        "FlatPrior()"
    )
    assert found["metric"]["arguments"] == {
        "alpha": 0.9, "eps": 1e-5, "floor": 0.5, "gamma_probes": None, "start_at_gradient": False,
    }  # fmt: skip
    assert found["class"] == "lightning_sgmcmc.samplers.psgld.PSGLD"
    assert (found["step"]["first"], found["step"]["auto"]) == (0.25, True)
    assert (found["batches"], found["increments"]) == ("independent", "gaussian")
    assert found["noise"] == "sfc64"


def test_the_step_that_hmc_adapted_is_its_step() -> None:
    sampler = HMC(params(), 0.1)
    schedule = ConstantStep(sampler)
    sampler._adaptation.log_step = 1.0
    found = describe(sampler, schedule, "full")
    assert found["step"]["first"] == 0.1
    assert found["lr"] == found["step"]["last"] == sampler.lr != 0.1
    assert f"lr {sampler.lr:.3g}," in found["label"]


def test_chains_in_turn_are_their_sampler() -> None:
    sampler = ChainsInTurn(lambda p: HASGLD(p, 0.1, memory=1), [("w", torch.ones(2, 3))])
    found = describe(sampler, ConstantStep(sampler), "reshuffled")
    assert (found["name"], found["class"].rsplit(".", 1)[-1]) == ("HASGLD", "HASGLD")
    assert found["metric"]["arguments"]["memory"] == 1
    assert found["label"].startswith("HASGLD, AveragedLBFGS metric (M=1, slots=all, adapting)")


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (ConstantStep, {}),
        (BlockDecay, {"every": 3, "factor": 0.25}),
        (PolynomialDecay, {"b": 10, "gamma": 0.75}),
        (torch.optim.lr_scheduler.StepLR, {"step_size": 4, "gamma": 0.5}),
    ],
)
def test_a_schedule_is_named_with_its_arguments(kind: Any, options: dict[str, Any]) -> None:
    sampler = SGLD(params(), 0.1)
    said = describe(sampler, kind(sampler, **options), "full")["step"]["schedule"]
    assert said.startswith(f"{kind.__name__}(")
    for name, value in options.items():
        assert f"{name}={value}" in said
