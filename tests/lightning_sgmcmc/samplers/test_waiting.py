"""A step on a GPU waits for nothing: the host reads no number of the device, and copies none to it.

There is more than one way to see that without a GPU. Fake tensors on ``cuda`` have no numbers, so
that whatever reads one or mixes devices raises. A dispatch mode counts the reads of a step on the
CPU with its looks put off. Where there is a GPU, torch itself refuses to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from lightning_sgmcmc import (
    HASGLD,
    HMC,
    PSGLD,
    SGFS,
    SGHMC,
    SGLD,
    SGNHT,
    DecayingRMSProp,
    DiagonalFisher,
    GaussianPrior,
    NaturalLangevin,
    RMSProp,
    Sampler,
    SpikeAndSlabPrior,
)
from lightning_sgmcmc.noise import NoiseStream
from lightning_sgmcmc.samplers import base, free_weights, watch
from lightning_sgmcmc.samplers.base import Stacked
from tests.lightning_sgmcmc.problem import Problem
from tests.lightning_sgmcmc.reads import Reads

CASES: dict[str, Callable[..., Sampler]] = {
    "SGLD": SGLD,
    "SGLD-matched": lambda p, **kw: SGLD(p, increments="moment-matched", **kw),
    "PSGLD": PSGLD,
    "PSGLD-floor": lambda p, **kw: PSGLD(p, floor=0.1, **kw),
    "SGLD-NLD": lambda p, **kw: SGLD(p, preconditioner=DecayingRMSProp(), **kw),
    "SGHMC": SGHMC,
    "SGHMC-RMSProp": lambda p, **kw: SGHMC(p, preconditioner=RMSProp(), **kw),
    "SGNHT": SGNHT,
    "SGNHT-RMSProp": lambda p, **kw: SGNHT(p, preconditioner=RMSProp(), **kw),
    "HASGLD-frozen": HASGLD,
}
#: These learn from per-example gradients, which fake tensors on ``cuda`` have no backward pass for.
PER_EXAMPLE: dict[str, Callable[..., Sampler]] = {
    "NaturalLangevin": NaturalLangevin,
    "SGLD-DOP": lambda p, **kw: SGLD(p, preconditioner=DiagonalFisher(), **kw),
    "SGFS-diagonal": lambda p, **kw: SGFS(p, variant="diagonal", **kw),
}
#: What reads a number of the device in every step, and why.
EXCEPTIONS: dict[str, Callable[..., Sampler]] = {
    # A pair of length zero is passed over, and which operators are replaced is the host's choice;
    # once C is frozen nothing of the kind is left.
    "HASGLD-adapting": HASGLD,
    # It goes by whether a trajectory is alive, and counts what was accepted.
    "HMC": HMC,
}
PRIORS = {"gaussian": GaussianPrior, "spike-slab": SpikeAndSlabPrior}


class FakeStream(NoiseStream):
    """Noise without a generator, which only a real device has."""

    def __init__(self, like: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__([torch.empty(1)], 0)
        self._like, self.device, self.backend = list(like), like[0].device, "torch"
        self._torch = [torch.Generator()]

    def normal(self) -> list[Tensor]:
        return [torch.randn_like(t, requires_grad=False) for t in self._like]

    increments = normal

    def add_increments_(self, tensors: Any, scale: float) -> None:
        torch._foreach_add_(list(tensors), self.normal(), alpha=scale)


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tensors that say they lie on a GPU, and hold nothing."""
    for module in (base, free_weights):
        monkeypatch.setattr(module, "NoiseStream", FakeStream)
    with FakeTensorMode():
        yield


def weights(chains: int | None) -> list[Tensor]:
    shapes = [(5, 4), (5,)] if chains is None else [(chains, 5, 4), (chains, 5)]
    return [torch.ones(shape, device="cuda", requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("chains", [None, 3])
@pytest.mark.parametrize("name", CASES)
def test_a_step_on_a_gpu_reads_no_number_of_it(
    fake_cuda: None, name: str, chains: int | None, prior: str
) -> None:
    if name == "HASGLD-frozen" and chains:
        pytest.skip("chains of it cannot be stacked")
    params = weights(chains)
    given: Any = Stacked(params) if chains else params
    sampler = CASES[name](given, lr=1e-3, num_data=50, prior=PRIORS[prior]())
    if name == "HASGLD-frozen":
        sampler.freeze()
    with Reads() as reads:
        for _ in range(3):
            for p in params:
                p.grad = torch.ones_like(p)
            sampler.step()
    assert reads.found == []
    assert {p.device.type for p in params} == {"cuda"}
    with pytest.raises(Exception, match="_local_scalar_dense"):  # what a read would have met
        float(params[0].sum())


def reads_in_steps(build: Callable[..., Sampler], freeze: bool = False) -> list[str]:
    """Return the host's reads in five steps, after five others, on the CPU."""
    problem = Problem()
    sampler = build(problem.params, lr=1e-3, num_data=40, prior=GaussianPrior())
    sampler.attach(problem.target(sampler.prior))
    problem.run(sampler, 5)
    if freeze:
        sampler.freeze()
        problem.run(sampler, 1)
    with Reads() as reads:
        problem.run(sampler, 5)
    return reads.found


@pytest.mark.parametrize("name", [*CASES, *PER_EXAMPLE])
def test_steps_with_their_gradients_read_no_number(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = (CASES | PER_EXAMPLE)[name]
    freeze = name.endswith("frozen")
    assert len(reads_in_steps(build, freeze)) >= 5  # on the CPU each gradient is looked at
    monkeypatch.setitem(watch._STEPS, "cpu", 1000)
    assert reads_in_steps(build, freeze) == []


@pytest.mark.parametrize("name", EXCEPTIONS)
def test_the_exceptions_are_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(watch._STEPS, "cpu", 1000)
    assert len(reads_in_steps(EXCEPTIONS[name])) >= 5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", [*CASES, *PER_EXAMPLE])
def test_torch_sees_no_wait_on_a_gpu(name: str) -> None:
    problem = Problem(torch.float32, device=torch.device("cuda"))
    sampler = (CASES | PER_EXAMPLE)[name](
        problem.params, lr=1e-3, num_data=40, prior=GaussianPrior()
    )
    sampler.attach(problem.target(sampler.prior))
    problem.run(sampler, 5)
    if name.endswith("frozen"):
        sampler.freeze()
    problem.run(sampler, 1)
    torch.cuda.set_sync_debug_mode("error")
    try:
        problem.run(sampler, 5)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    sampler.look_back()
