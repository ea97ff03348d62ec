"""A faster step is the formula's, and is taken only while nothing it stands for is overridden.

`test_interpreted.py` runs a part of this file with TRITON_INTERPRET=1, with the kernels for a GPU.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_sgmcmc import (
    HAMCMC,
    HASGLD,
    MCLMC,
    PSGLD,
    SGFS,
    SGHMC,
    SGLD,
    SGNHT,
    SMILE,
    AveragedLBFGS,
    BlockFisher,
    DiagonalFisher,
    FullFisher,
    GaussianPrior,
    Identity,
    NaturalLangevin,
    QuasiDiagonalFisher,
    RMSProp,
    Sampler,
    kernels,
    steps,
)
from tests.lightning_sgmcmc.problem import N, Problem

METRICS: dict[str, Callable[[], Any]] = {
    "Identity": Identity,
    "RMSProp": lambda: RMSProp(eps=0.1),
    "RMSProp, floor": lambda: RMSProp(eps=1e-3, floor=0.5),
    "DiagonalFisher": lambda: DiagonalFisher(eps=0.1),
    "QuasiDiagonalFisher": lambda: QuasiDiagonalFisher(eps=0.1),
    "BlockFisher": lambda: BlockFisher(eps=0.1),
    "FullFisher": lambda: FullFisher(eps=0.1),
    "AveragedLBFGS": lambda: AveragedLBFGS(memory=2, slots=1),
    "AveragedLBFGS, matrix": lambda: AveragedLBFGS(memory=2, slots=None),
    "AveragedLBFGS, three slots": lambda: AveragedLBFGS(memory=2, slots=3),
}
INTEGRATORS: dict[str, tuple[type[Sampler], dict[str, Any]]] = {
    "SGLD": (SGLD, {"lr": 1e-3}),
    "SGLD, moment-matched": (SGLD, {"lr": 1e-3, "increments": "moment-matched"}),
    "SGHMC": (SGHMC, {"lr": 1e-3, "momentum": 0.8}),
}
READY: dict[str, tuple[type[Sampler], dict[str, Any]]] = {
    "PSGLD": (PSGLD, {"lr": 1e-3, "eps": 0.1}),
    "NaturalLangevin": (NaturalLangevin, {"lr": 1e-3, "eps": 0.1}),
    "HASGLD": (HASGLD, {"lr": 1e-3, "slots": 1}),
    "HAMCMC": (HAMCMC, {"lr": 1e-3}),
    "SGNHT": (SGNHT, {"lr": 1e-3, "momentum": 0.8}),
    "MCLMC": (MCLMC, {"lr": 1e-3, "target_energy_variance": None}),
    "SMILE": (SMILE, {"lr": 1e-3}),
    "SGFS": (SGFS, {"lr": 1e-3, "floor": 0.1}),
    "SGFS, diagonal": (SGFS, {"lr": 1e-3, "floor": 0.1, "variant": "diagonal"}),
}
COMBINATIONS = [
    *((f"{i}+{m}", *INTEGRATORS[i], METRICS[m]) for i in INTEGRATORS for m in METRICS),
    *((name, kind, arguments, None) for name, (kind, arguments) in READY.items()),
]
combinations = pytest.mark.parametrize(
    ("kind", "arguments", "metric"), [c[1:] for c in COMBINATIONS], ids=[c[0] for c in COMBINATIONS]
)
PRIOR = GaussianPrior(0.5, 0.3)
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
BACKENDS = ["triton"] if INTERPRETED else ["torch", "numba"]
# Steps before what is tested; the interpreter takes .1 s for one.
STEPS = 2 if INTERPRETED else 6


@pytest.fixture(params=BACKENDS)
def dtype(request: Any, monkeypatch: pytest.MonkeyPatch) -> torch.dtype:
    """Float64, which no compiled loop serves, and float32 with them."""
    if request.param == "torch":
        return torch.float64
    if request.param == "triton":
        monkeypatch.setattr(kernels, "chosen", lambda *_: "triton")
        return torch.float32
    pytest.importorskip("numba", reason="numba is in the extra fast")
    monkeypatch.delenv(kernels.VARIABLE, raising=False)
    return torch.float32


def chain(
    kind: type[Sampler],
    arguments: dict[str, Any],
    metric: Callable[[], Any] | None,
    dtype: torch.dtype,
    count: int = STEPS,
    **more: Any,
) -> tuple[Problem, Sampler]:
    """Return a chain that has taken some steps."""
    torch.manual_seed(0)
    problem = Problem(dtype)
    settings = {"num_data": N, "prior": PRIOR, "seed": 4} | arguments | more
    if INTERPRETED:
        settings["noise"] = "philox"
    if metric is not None:
        settings["preconditioner"] = metric()
    sampler = kind(problem.params, **settings)
    sampler.attach(problem.target(settings["prior"]))
    problem.run(sampler, count)
    return problem, sampler


def moved(problem: Problem, sampler: Sampler, count: int = 1) -> Tensor:
    before = problem.weights()
    return problem.run(sampler, count) - before


def only_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_sgmcmc.steps.registry._moves_of", lambda *args: ())


@combinations
def test_it_is_the_formula(
    kind: type[Sampler], arguments: Any, metric: Any, dtype: torch.dtype, monkeypatch: Any
) -> None:
    """Ten more steps agree with the formula's to rounding."""
    problem, sampler = chain(kind, arguments, metric, dtype)
    problem.run(sampler, 10)
    used = sampler.implementation
    with monkeypatch.context() as patch:
        only_formula(patch)
        other, plain = chain(kind, arguments, metric, dtype)
        other.run(plain, 10)
        assert plain.implementation == steps.FORMULA
    tolerance = 1e-9 if dtype == torch.float64 else 3e-4
    torch.testing.assert_close(problem.weights(), other.weights(), rtol=tolerance, atol=tolerance)
    if used == steps.FORMULA:
        assert torch.equal(problem.weights(), other.weights())


def test_which_implementation_runs(dtype: torch.dtype) -> None:
    """In float64, in float32 with compiled loops, and with the kernels for a GPU."""
    one_pass = "torch, one pass"
    expected = {
        "SGLD+Identity": ("torch", "numba", "triton"),
        "SGLD+RMSProp": (one_pass, "numba", "triton"),
        "SGLD+QuasiDiagonalFisher": (one_pass, "numba", one_pass),
        "SGLD+AveragedLBFGS": (one_pass, "numba", one_pass),
        "SGLD+AveragedLBFGS, matrix": ("torch", "torch", "torch"),
        "SGLD, moment-matched+Identity": (one_pass, "numba", "triton"),
        "SGHMC+Identity": ("torch", "numba", "triton"),
        "SGHMC+RMSProp, floor": ("torch", "numba", "triton"),
        "SGHMC+DiagonalFisher": ("torch", "numba", "torch"),
        "SGHMC+AveragedLBFGS": ("torch", "torch", "torch"),
        "PSGLD": (one_pass, "numba", "triton"),
        "HASGLD": (one_pass, "numba", one_pass),
        "NaturalLangevin": (one_pass, "numba", one_pass),
        "SGNHT": ("torch", "torch", "triton"),
        "SGFS": ("torch", "torch", "torch"),
    }
    column = 2 if INTERPRETED else int(dtype == torch.float32)
    for name, kind, arguments, metric in COMBINATIONS:
        if name in expected:
            used = chain(kind, arguments, metric, dtype)[1].implementation
            assert used == expected[name][column], name


# Overrides


def halved(self: Any) -> list[Tensor]:
    return [0.5 * z for z in super(type(self), self).noise()]


def no_drift(self: Any, grads: list[Tensor]) -> list[Tensor]:
    return [torch.zeros_like(g) for g in grads]


def without_noise(self: Any, stream: Any) -> list[Tensor]:
    return [torch.zeros_like(z) for z in stream.increments()]


def tripled(self: Any, vectors: list[Tensor]) -> list[Tensor]:
    return list(torch._foreach_mul(super(type(self), self).apply_(vectors), 3.0))


def pushed(self: Any, grads: Any, params: Any, scale: float) -> None:
    torch._foreach_add_(list(grads), 7.0 * scale)


#: What is overridden, on which part of the chain, and by what.
OVERRIDES = {
    "sampler.noise": ("sampler", "noise", halved),
    "sampler.drift": ("sampler", "drift", no_drift),
    "metric.noise": ("metric", "noise", without_noise),
    "metric.apply_": ("metric", "apply_", tripled),
    "prior.add_gradient_": ("prior", "add_gradient_", pushed),
}


@pytest.mark.parametrize("override", OVERRIDES)
@combinations
def test_an_override_acts(
    kind: type[Sampler],
    arguments: Any,
    metric: Any,
    override: str,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A chain of which one part is a subclass with another method moves as its formula does."""
    part, name, replacement = OVERRIDES[override]

    def build(changed: bool) -> tuple[Problem, Sampler]:
        with monkeypatch.context() as patch:
            only_formula(patch)  # until here
            problem, sampler = chain(kind, arguments, metric, dtype)
        if changed:
            parts: dict[str, Any] = {
                "sampler": sampler,
                "metric": sampler.preconditioner,
                "prior": sampler.prior,
            }
            holder = parts[part]
            holder.__class__ = type("Changed", (type(holder),), {name: replacement})
        return problem, sampler

    problem, sampler = build(True)
    found = moved(problem, sampler, 2)
    exact = part != "prior" or sampler.implementation == steps.FORMULA
    if part != "prior":  # a loop may take another prior's gradient as it comes
        assert sampler.implementation == steps.FORMULA
    problem, sampler = build(True)
    with monkeypatch.context() as patch:
        only_formula(patch)
        expected = moved(problem, sampler, 2)
    tolerance = 0.0 if exact else 1e-5
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    problem, sampler = build(False)
    assert not torch.allclose(found, moved(problem, sampler, 2), rtol=1e-3, atol=1e-9)


def called(problem: Problem, sampler: Sampler) -> set[tuple[str, str]]:
    """Return the methods and properties of a chain's parts that one step calls, by part."""
    metric = sampler.preconditioner
    parts = {id(sampler): "sampler", id(metric): "metric", id(sampler.prior): "prior"}
    found = set()

    def note(frame: Any, event: str, argument: Any) -> None:
        part = parts.get(id(frame.f_locals.get("self")))
        name = frame.f_code.co_name
        if event == "call" and part and hasattr(type(frame.f_locals["self"]), name):
            found.add((part, name))

    sys.setprofile(note)
    try:
        problem.run(sampler, 1)
    finally:
        sys.setprofile(None)
    return found


@combinations
def test_what_is_not_called_is_stood_for(
    kind: type[Sampler], arguments: Any, metric: Any, dtype: torch.dtype, monkeypatch: Any
) -> None:
    """Every method that the formula calls is called by what replaces it, or named by it."""
    problem, sampler = chain(kind, arguments, metric, dtype)
    plain = chain(kind, arguments, metric, dtype)
    fast = called(problem, sampler)
    registry = steps.registry
    with monkeypatch.context() as patch:
        only_formula(patch)
        patch.setattr(registry, "_UPDATES", [])
        patch.setattr(registry, "_OBSERVATIONS", [])
        formula = called(*plain)
    stands = {("prior", "add_gradient_"), ("prior", "quadratic")}
    parts = (type(sampler), type(sampler.preconditioner))
    for _, one in registry._moves_of(*parts):
        if one.name == sampler.implementation:
            stands |= {("sampler", name) for name in one.integrator_methods}
            stands |= {("metric", name) for name in one.metric_methods}
    for registered in (registry._UPDATES, registry._OBSERVATIONS):
        for one in registry._learners(registered, sampler.preconditioner):
            stands |= {("metric", name) for name in one.metric_methods}
    assert formula - fast <= stands


def test_the_three_shown_overrides_act(dtype: torch.dtype) -> None:
    """The standard deviation of a move was the same in all these cases once."""

    class Halved(PSGLD):
        def noise(self) -> list[Tensor]:
            return [0.5 * z for z in super().noise()]

    class Free(PSGLD):
        def drift(self, grads: list[Tensor]) -> list[Tensor]:
            return [torch.zeros_like(g) for g in grads]

    class Silent(RMSProp):
        def noise(self, stream: Any) -> list[Tensor]:
            return [torch.zeros_like(z) for z in super().noise(stream)]

    def spread(kind: type[Sampler], temperature: float = 1.0, **more: Any) -> float:
        arguments = {"lr": 1e-3, "temperature": temperature} | more
        return float(moved(*chain(kind, arguments, None, dtype)).std())

    eps = {"eps": 0.1}
    whole, frozen = spread(PSGLD, **eps), spread(PSGLD, 0.0, **eps)
    assert frozen < 0.2 * whole
    assert spread(Halved, **eps) == pytest.approx(0.5 * whole, rel=0.1)
    assert abs(spread(Free, **eps) - whole) > 1e-6 * whole
    silent = float(moved(*chain(SGLD, {"lr": 1e-3}, lambda: Silent(eps=0.1), dtype)).std())
    assert silent < 0.2 * whole


def test_an_instance_s_own_method_acts(dtype: torch.dtype) -> None:
    problem, sampler = chain(PSGLD, {"lr": 1e-3, "eps": 0.1}, None, dtype)
    sampler.noise = lambda: [torch.zeros_like(p) for p in sampler.params]  # type: ignore[method-assign]
    moved(problem, sampler)
    assert sampler.implementation == steps.FORMULA


def test_a_prior_s_own_gradient_acts(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a narrow prior from which this one object takes the pull away."""

    def move() -> Tensor:
        prior = GaussianPrior(1e-4, 0.3)
        problem, sampler = chain(SGLD, {"lr": 1e-5}, METRICS["RMSProp"], dtype, prior=prior)
        sampler.prior.add_gradient_ = lambda *args: None  # type: ignore[method-assign]
        return moved(problem, sampler)

    found = move()
    only_formula(monkeypatch)
    torch.testing.assert_close(found, move(), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(("owner", "name"), [(PSGLD, "noise"), (SGLD, "noise"), (Sampler, "noise")])
def test_a_patched_class_acts(
    owner: type[Sampler], name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is patched after the first step, and where the patched class is our own."""
    problem, sampler = chain(PSGLD, {"lr": 1e-3, "eps": 0.1}, None, dtype)
    assert sampler.implementation != steps.FORMULA
    monkeypatch.setattr(owner, name, lambda self: [torch.zeros_like(p) for p in self.params])
    moved(problem, sampler)
    assert sampler.implementation == steps.FORMULA


def test_an_overridden_update_acts(dtype: torch.dtype) -> None:
    """A metric that learns otherwise does so, whatever loops there are for its parent."""

    class Slow(RMSProp):
        def update(self, grads: Any) -> None:
            super().update([0.0 * g for g in grads])

    _, sampler = chain(SGHMC, {"lr": 1e-3}, lambda: Slow(eps=0.1), dtype)
    metric: Any = sampler.preconditioner
    assert all(float(v.abs().max()) == 0 for v in metric.square_avg)


def test_a_prior_s_quadratic_form_counts_only_with_its_gradient(monkeypatch: Any) -> None:
    class Tilted(GaussianPrior):
        def add_gradient_(self, grads: Any, params: Any, scale: float) -> None:
            super().add_gradient_(grads, params, 2 * scale)

    quadratic = steps.registry.quadratic
    assert quadratic(GaussianPrior(0.5, 0.3)) == (2.0, 0.3)
    assert quadratic(Tilted(0.5, 0.3)) is None
    monkeypatch.setattr(GaussianPrior, "add_gradient_", Tilted.add_gradient_)
    assert quadratic(GaussianPrior(0.5, 0.3)) is None


def test_a_cold_step_stays_finite() -> None:
    """Where the noise is below rounding, the step is the drift."""
    found = []
    for temperature in (0.0, 1e-70):
        problem = Problem()
        sampler = SGLD(
            problem.params,
            1e-2,
            num_data=N,
            preconditioner=RMSProp(eps=0.1),
            temperature=temperature,
        )
        found.append(problem.run(sampler, 1))
    assert torch.equal(*found)
