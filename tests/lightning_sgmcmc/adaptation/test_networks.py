"""lr: auto on the networks that people have, for every sampler."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch

from lightning_sgmcmc import (
    HAMCMC,
    HASGLD,
    HMC,
    MCLMC,
    PSGLD,
    SGFS,
    SGHMC,
    SGLD,
    SGNHT,
    SMILE,
    BatchStream,
    FanInGaussianPrior,
    GaussianPrior,
    NaturalLangevin,
    RMSProp,
)
from lightning_sgmcmc.adaptation import Adaptation, StepSize
from lightning_sgmcmc.chain import Chain, OptimizerBurnIn
from lightning_sgmcmc.chain.schedules import DrawSchedule
from lightning_sgmcmc.preconditioners import BlockFisher, DiagonalFisher, QuasiDiagonalFisher
from tests.lightning_sgmcmc.networks import (
    CLASSES,
    KINDS,
    SEQUENCE_KINDS,
    Classifier,
    examples,
    network,
)

BATCH = 60
BURN_IN = 20
SAMPLERS: dict[str, Any] = {
    "sgld": SGLD,
    # Weights without gradients, dead units and a key's bias, hold the step down without a floor.
    "psgld": partial(PSGLD, floor=0.1),
    "natural": NaturalLangevin,
    "diagonal": lambda p, **kw: SGLD(p, preconditioner=DiagonalFisher(), **kw),
    "quasi": lambda p, **kw: SGHMC(p, preconditioner=QuasiDiagonalFisher(), **kw),
    "block": lambda p, **kw: SGLD(p, preconditioner=BlockFisher(blocks="unit"), **kw),
    "sghmc": SGHMC,
    "sghmc_rmsprop": lambda p, **kw: SGHMC(p, preconditioner=RMSProp(), **kw),
    "sgnht": SGNHT,
    "sgfs": partial(SGFS, variant="diagonal", floor=0.1),
    "hasgld": HASGLD,
    "hamcmc": HAMCMC,
    "mclmc": MCLMC,
    "smile": SMILE,
    "hmc": partial(HMC, leapfrog_steps=3),
}


def chain_of(kind: str, make: Any, optimizer: int = 0, count: int = 1) -> tuple[Chain, Adaptation]:
    burn_in = OptimizerBurnIn(partial(torch.optim.Adam, lr=1e-2), optimizer) if optimizer else None
    prior = FanInGaussianPrior() if kind == "adapted" else GaussianPrior(variance=0.1)
    chain = Chain(
        Classifier(network(kind)),
        partial(make, lr="auto", prior=prior),
        DrawSchedule(optimizer + BURN_IN, 1, None, optimizer),
        burn_in_optimizer=burn_in,
        num_chains=count,
    )
    chain.select()
    chain.place()
    chain.build()
    chain.bind(BatchStream(examples(kind), BATCH))
    return chain, Adaptation(chain, StepSize(curvature_batches=1, max_gradient_noise=None))


def run(chain: Chain, adaptation: Adaptation, steps: int) -> float:
    """Return the mean NLL of the data in the end, the largest of the chains'."""
    adaptation.after_step()
    for _ in range(steps):
        chain.advance(chain.minibatch())
        adaptation.after_step()
    with torch.no_grad():
        return float(
            chain.evaluate("nll", chain.stream.spread(chain.stream.num_data)).mean(-1).max()
        )


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize(
    ("kind", "optimizer"), [(kind, steps) for kind in KINDS for steps in (0, 20)]
)
def test_ends_below_chance(kind: str, optimizer: int, name: str) -> None:
    chain, adaptation = chain_of(kind, SAMPLERS[name], optimizer)
    steps = 5 if name == "hmc" else 30
    assert run(chain, adaptation, optimizer + BURN_IN + steps) < math.log(CLASSES)


@pytest.mark.parametrize(("name", "shown"), [("psgld", 100), ("natural", 10), ("hasgld", 1)])
def test_c_sees_gradients_before_the_first_step(name: str, shown: int) -> None:
    """They count, an optimizer's count as well, and C is then what it is a step later."""
    chain, adaptation = chain_of("mlp", SAMPLERS[name])
    start = [p.detach().clone() for p in chain.sampler.params]
    adaptation.after_step()
    assert chain.num_gradients == shown
    assert chain.steps == 0
    assert all(torch.equal(p, q) for p, q in zip(chain.sampler.params, start, strict=True))
    after, adaptation = chain_of("mlp", SAMPLERS[name], optimizer=4)
    for _ in range(4):
        adaptation.after_step()
        after.advance(after.minibatch())
    adaptation.after_step()
    assert after.num_gradients == max(shown, 4)


@pytest.mark.parametrize("name", ["psgld", "natural", "diagonal", "block", "sghmc_rmsprop"])
@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_the_first_largest_stable_step_still_holds_at_the_next(kind: str, name: str) -> None:
    """Before any gradient, on C = I or V = 0, it is off by factors of 7 to 10,000."""
    chain, adaptation = chain_of(kind, SAMPLERS[name])
    adaptation.after_step()
    first = adaptation.stability["largest_stable_lr"]
    chain.advance(chain.minibatch())
    adaptation.after_step()
    assert 0.2 < adaptation.stability["largest_stable_lr"] / first < 5


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("kind", KINDS)
def test_several_chains(kind: str) -> None:
    chain, adaptation = chain_of(kind, SGHMC, count=2)
    assert run(chain, adaptation, BURN_IN + 30) < math.log(CLASSES)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("kind", SEQUENCE_KINDS)
def test_sequences_with_a_padding_mask(kind: str, name: str) -> None:
    """Two chains of a transformer, all of it or adapters and head, on dict batches."""
    chain, adaptation = chain_of(kind, SAMPLERS[name], count=2)
    assert run(chain, adaptation, BURN_IN + (5 if name == "hmc" else 30)) < math.log(CLASSES)
