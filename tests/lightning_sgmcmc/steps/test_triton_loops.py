"""The kernels for a GPU take the formula's step, on a GPU or by Triton's interpreter.

Without a GPU `test_interpreted.py` runs this file with TRITON_INTERPRET=1.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lightning_sgmcmc import (
    SGHMC,
    SGLD,
    SGNHT,
    FlatPrior,
    GaussianPrior,
    Identity,
    LaplacePrior,
    RMSProp,
    Sampler,
    kernels,
    steps,
)
from lightning_sgmcmc.noise import NoiseStream
from lightning_sgmcmc.noise.philox import MATCHED, NORMAL, Philox
from lightning_sgmcmc.samplers.base import Stacked

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
if not (INTERPRETED or torch.cuda.is_available()):
    pytest.skip("needs a GPU or Triton's interpreter", allow_module_level=True)
tl = pytest.importorskip("triton.language")
triton_noise = pytest.importorskip("lightning_sgmcmc.kernels.triton_noise")

#: Tensors that begin at no multiple of 4.
SHAPES = [(3,), (2, 4)]
#: More weights than a program serves.
LARGE = [(3,), (2, 515)]
#: One weight more than a program serves.
ONE_LEFT = [(3,), (2, 511)]
SAMPLERS: dict[str, tuple[type[Sampler], dict[str, Any]]] = {
    "SGLD": (SGLD, {}),
    "SGLD, moment-matched": (SGLD, {"increments": "moment-matched"}),
    "SGHMC": (SGHMC, {"momentum": 0.8}),
    "SGNHT": (SGNHT, {"momentum": 0.8, "thermostat": 2.0}),
}
METRICS: dict[str, Callable[[], Any]] = {
    "Identity": Identity,
    "RMSProp": lambda: RMSProp(eps=0.1),
    "RMSProp, from a gradient": lambda: RMSProp(eps=0.1, start_at_gradient=True),
    "RMSProp, floor": lambda: RMSProp(eps=1e-3, floor=0.5),
}
PRIOR = GaussianPrior(0.5, 0.3)
#: Sampler, metric and chains; None is a single one.
CASES = [
    *((sampler, metric, 2) for sampler in SAMPLERS for metric in ("Identity", "RMSProp")),
    ("SGLD", "RMSProp, floor", None),
    ("SGLD", "RMSProp, from a gradient", None),
    ("SGHMC", "RMSProp", None),
    ("SGNHT", "Identity", None),
]


def chain(
    monkeypatch: pytest.MonkeyPatch,
    backend: kernels.Backend,
    sampler: str,
    metric: str,
    chains: int | None,
    prior: Any = PRIOR,
    masked: bool = False,
    shapes: list[tuple[int, ...]] = SHAPES,
    temperature: float = 0.7,
    one_generator: bool = False,
) -> tuple[Tensor, list[str], Sampler]:
    """Take four steps, C frozen from the third on; return weights, implementations, sampler."""
    monkeypatch.setattr(kernels, "chosen", lambda *_: backend)
    generator = torch.Generator().manual_seed(1)
    lead = () if chains is None else (chains,)
    start = [torch.randn(*lead, *shape, generator=generator) for shape in shapes]
    params = [nn.Parameter(p.to(DEVICE)) for p in start]
    kind, more = SAMPLERS[sampler]
    common = {"num_data": 10, "prior": prior, "seed": 3, "noise": "philox"}
    built: Any = kind(
        Stacked(params) if lead else params,
        1e-2,
        preconditioner=METRICS[metric](),
        temperature=temperature,
        **common,
        **more,
    )
    if one_generator:
        built.stack(one_generator=True)
    if masked:
        built.set_masks([(p > 0).float() for p in params])
    used = []
    for step in range(4):
        if step == 2:
            built.freeze()
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator).to(DEVICE)
        built.step()
        used.append(built.implementation)
    return torch.cat([p.detach().flatten() for p in params]).cpu(), used, built


def noise(tensors: list[Tensor], keys: Tensor, matched: bool = False) -> list[Tensor]:
    """Add the noise of draw 7 to tensors, in place, by a step without a gradient."""
    triton_steps = pytest.importorskip("lightning_sgmcmc.kernels.triton_steps")
    zeros = [torch.zeros_like(t) for t in tensors]
    triton_steps.langevin_(tensors, zeros, None, (keys, 7), matched, 0.0, 1.0, (0.0, 0.0))
    return tensors


@pytest.mark.parametrize(("sampler", "metric", "chains"), CASES)
def test_it_is_the_formula(
    sampler: str, metric: str, chains: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While C adapts and when it is frozen; of the thermostat the friction, too."""
    found, used, fast = chain(monkeypatch, "triton", sampler, metric, chains)
    expected, formula, plain = chain(monkeypatch, "torch", sampler, metric, chains)
    # A velocity is drawn at the first step and where C is frozen, by the formula.
    own = ["torch", "triton"] * 2 if sampler in ("SGHMC", "SGNHT") else ["triton"] * 4
    assert used == own
    assert "triton" not in formula
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=2e-6)
    if isinstance(fast, SGNHT) and isinstance(plain, SGNHT):
        torch.testing.assert_close(fast.friction, plain.friction, rtol=1e-6, atol=1e-6)
        assert float((fast.friction + torch.tensor(0.8).log()).abs().min()) > 1e-3
    drawn = [s.stream.state_dict()["philox"] for s in (fast, plain)]
    assert torch.equal(*drawn)


@pytest.mark.parametrize("shapes", [LARGE, ONE_LEFT])
def test_a_tensor_of_several_pieces(
    shapes: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _, _ = chain(monkeypatch, "triton", "SGLD", "Identity", None, shapes=shapes)
    expected, _, _ = chain(monkeypatch, "torch", "SGLD", "Identity", None, shapes=shapes)
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("sampler", "prior"),
    [("SGLD", FlatPrior()), ("SGLD", LaplacePrior(0.7)), ("SGHMC", LaplacePrior(0.7))],
)
def test_any_prior(sampler: str, prior: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One without a pull adds its own gradient; the pull of another would be seen."""
    found, used, _ = chain(monkeypatch, "triton", sampler, "RMSProp", None, prior)
    expected, _, _ = chain(monkeypatch, "torch", sampler, "RMSProp", None, prior)
    assert used[-1] == "triton"
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=2e-6)
    other, _, _ = chain(monkeypatch, "torch", sampler, "RMSProp", None, PRIOR)
    assert float((found - other).abs().max()) > 1e-4


@pytest.mark.parametrize("sampler", ["SGLD", "SGNHT"])
def test_masks_take_the_formula(sampler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, used, built = chain(monkeypatch, "triton", sampler, "Identity", None, masked=True)
    assert set(used) <= {steps.FORMULA, "torch, one pass"}
    assert built.masks is not None
    masks = torch.cat([m.flatten() for m in built.masks]).cpu()
    assert torch.equal(found == 0, masks == 0)


@pytest.mark.parametrize("increments", ["gaussian", "moment-matched"])
def test_the_noise_is_torch_s(increments: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One launch for K chains; matched increments to the bit, normals to rounding."""
    found = []
    for backend in ("triton", "torch"):
        monkeypatch.setattr(kernels, "chosen", lambda *_, backend=backend: backend)
        like = [torch.empty(2, *shape, device=DEVICE) for shape in LARGE]
        more = {"increments": increments, "generator": "philox"}
        stream = NoiseStream(like, 6, 4, 2, **more)
        state = stream.state_dict()
        state["philox"][:, 1] = 2**32 + 9
        stream.load_state_dict(state)
        found.append(torch.cat([z.flatten() for z in stream.increments()]).cpu())
    tolerance = 0.0 if increments == "moment-matched" else 2e-6
    torch.testing.assert_close(*found, rtol=0, atol=tolerance)


@pytest.mark.parametrize("sampler", ["SGLD", "SGHMC", "SGNHT"])
def test_a_step_without_noise_takes_the_formula(
    sampler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, used, _ = chain(monkeypatch, "triton", sampler, "Identity", None, temperature=0.0)
    assert "triton" not in used


def test_noise_far_along_a_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of weights 2^40, 2^40 + 1, ..., beyond 2^32 blocks of either kind."""
    triton_tables = pytest.importorskip("lightning_sgmcmc.kernels.triton_tables")
    pieces, far = triton_tables._pieces, 2**40
    shift = torch.tensor([0, far, far, 0], device=DEVICE)
    monkeypatch.setattr(triton_tables, "_pieces", lambda *args: pieces(*args) + shift)
    source = Philox([np.random.SeedSequence(3)], 16, DEVICE, "torch")
    words = source.words(NORMAL, 7, far // 4, 4)[0].cpu()
    radius = (-2 * ((words[:, 0::2] + 0.5) / 2**32).log()).sqrt()
    angle = words[:, 1::2] * (math.pi / 2**31)
    normals = torch.stack((radius * angle.cos(), radius * angle.sin()), dim=-1).flatten()
    matched = source.words(MATCHED, 7, far // 16, 1).flatten().cpu()
    odd = torch.stack([(matched >> bits).to(torch.int8) | 1 for bits in (0, 8, 16, 24)], dim=-1)
    increments = odd.flatten() * math.sqrt(3 / (128**2 - 1))
    for exact, kind in ((normals, False), (increments, True)):
        found = noise([torch.zeros(16, device=DEVICE)], source.keys, kind)[0].cpu()
        torch.testing.assert_close(found, exact.float(), rtol=0, atol=2e-6)


@triton_noise.jit()
def pairs(words, out, COUNT: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, COUNT)
    length, turn = tl.load(words + at).to(tl.uint32), tl.load(words + COUNT + at).to(tl.uint32)
    cosine, sine = triton_noise._pair(length, turn)
    tl.store(out + at, cosine)
    tl.store(out + COUNT + at, sine)


def test_normals_at_the_ends_of_the_words() -> None:
    """The least and the largest radius are finite, at angles of a quarter turn each."""
    turns = torch.tensor([0, 2**30, 2**31, 3 * 2**30] * 2)
    words = torch.stack([torch.tensor([0, 2**32 - 1]).repeat_interleave(4), turns])
    out = torch.empty(2, 8, device=DEVICE)
    pairs[(1,)](words.to(DEVICE), out, COUNT=8)
    radius = (-2 * ((words[0] + 0.5) / 2**32).log()).sqrt()
    angle = turns * (math.pi / 2**31)
    exact = torch.stack((radius * angle.cos(), radius * angle.sin()))
    torch.testing.assert_close(out.cpu(), exact.float(), rtol=0, atol=2e-5)


def test_nothing_is_written_beside_a_tensor() -> None:
    keys = torch.tensor([5], device=DEVICE)
    memory = torch.full((40,), 9.0, device=DEVICE)
    noise([memory[4:7], memory[12:23]], keys)
    triton_noise.fill(memory[28:36].view(1, 8), keys, 0, False)
    changed = (memory != 9).nonzero().flatten().tolist()
    assert changed == [*range(4, 7), *range(12, 23), *range(28, 36)]


@pytest.mark.parametrize("sampler", ["SGHMC", "SGNHT"])
def test_one_generator_for_all_chains(sampler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch has a row a generator then, and a friction for each chain takes the formula."""
    given: tuple[Any, ...] = (sampler, "Identity", 3)
    found, used, fast = chain(monkeypatch, "triton", *given, one_generator=True)
    expected, _, plain = chain(monkeypatch, "torch", *given, one_generator=True)
    assert ("triton" in used) == (sampler == "SGHMC")
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=2e-6)
    if isinstance(fast, SGNHT) and isinstance(plain, SGNHT):
        torch.testing.assert_close(fast.friction, plain.friction, rtol=1e-6, atol=1e-6)
        assert len(set(fast.friction.tolist())) == 3


@pytest.mark.parametrize("which", ["weights", "gradient"])
def test_tensors_that_are_not_contiguous_take_the_formula(
    which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "chosen", lambda *_: "triton")
    across = torch.arange(12.0, device=DEVICE).reshape(3, 4).T
    along = across.contiguous()
    metric = RMSProp(start_at_gradient=True)
    theta = nn.Parameter(across.clone() if which == "weights" else along.clone())
    sampler = SGLD([theta], 1e-2, num_data=10**12, noise="philox", preconditioner=metric)
    for _ in range(2):
        theta.grad = along if which == "weights" else across
        sampler.step()
    assert sampler.implementation == "torch, one pass"
    torch.testing.assert_close(sampler.preconditioner.square_avg[0], across**2)


def test_a_tensor_that_moves_in_memory_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients lie elsewhere at each step."""
    monkeypatch.setattr(kernels, "chosen", lambda *_: "triton")
    theta = nn.Parameter(torch.zeros(5, device=DEVICE))
    sampler = SGLD([theta], 0.5, num_data=10**12, noise="philox")
    kept = []
    for value in (1.0, 2.0, 4.0):
        kept.append(torch.full((5,), value, device=DEVICE))
        theta.grad = kept[-1]
        sampler.step()
    assert sampler.implementation == "triton"
    torch.testing.assert_close(theta.detach().cpu(), torch.full((5,), -3.5), rtol=0, atol=1e-4)
