"""What every sampler promises: T = 0, masks, exact resume, its own randomness, clear errors."""

from __future__ import annotations

import copy
import io
import math
import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

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
    BlockFisher,
    DiagonalFisher,
    FullFisher,
    GaussianPrior,
    NaturalLangevin,
    QuasiDiagonalFisher,
    RMSProp,
    Sampler,
)
from lightning_sgmcmc.common.vectors import flatten
from tests.lightning_sgmcmc.problem import N, Problem

Build = Callable[..., Sampler]

SAMPLERS: dict[str, Build] = {
    "SGLD": lambda p, **kw: SGLD(p, 1e-2, **kw),
    "PSGLD": lambda p, **kw: PSGLD(p, 1e-3, eps=0.1, **kw),
    "PSGLD-gamma": lambda p, **kw: PSGLD(p, 1e-3, eps=0.1, gamma_probes=2, **kw),
    "SGHMC": lambda p, **kw: SGHMC(p, 1e-2, momentum=0.9, **kw),
    "SGHMC-RMSProp": lambda p, **kw: SGHMC(
        p, 1e-3, preconditioner=RMSProp(eps=0.1, start_at_gradient=True), **kw
    ),
    "SGNHT": lambda p, **kw: SGNHT(p, 1e-2, momentum=0.9, **kw),
    "SGNHT-RMSProp": lambda p, **kw: SGNHT(p, 1e-3, preconditioner=RMSProp(eps=0.1), **kw),
    "MCLMC": lambda p, **kw: MCLMC(p, 1e-2, **kw),
    "MCLMC-RMSProp": lambda p, **kw: MCLMC(
        p, 1e-3, length=2.0, target_energy_variance=None, preconditioner=RMSProp(eps=0.1), **kw
    ),
    "SMILE-DiagonalFisher": lambda p, **kw: SMILE(
        p, 1e-3, preconditioner=DiagonalFisher(eps=0.1, centred=True), **kw
    ),
    "HMC": lambda p, **kw: HMC(p, 1e-3, leapfrog_steps=3, target_acceptance=0.99, **kw),
    "HMC-RMSProp": lambda p, **kw: HMC(
        p, 1e-4, leapfrog_steps=3, target_acceptance=None, preconditioner=RMSProp(eps=0.1), **kw
    ),
    "NaturalLangevin": lambda p, **kw: NaturalLangevin(p, 1e-3, eps=0.1, **kw),
    "NaturalLangevin-model": lambda p, **kw: NaturalLangevin(
        p, 1e-3, eps=0.1, labels="model", memory=0.9, **kw
    ),
    "SGLD-DiagonalFisher": lambda p, **kw: SGLD(
        p, 1e-3, preconditioner=DiagonalFisher(eps=0.1), **kw
    ),
    "SGLD-FullFisher": lambda p, **kw: SGLD(p, 1e-3, preconditioner=FullFisher(eps=0.1), **kw),
    "SGHMC-BlockFisher": lambda p, **kw: SGHMC(
        p, 1e-4, preconditioner=BlockFisher(eps=0.1, blocks="unit"), **kw
    ),
    "SGFS": lambda p, **kw: SGFS(p, 1e-2, floor=0.1, **kw),
    "SGFS-diagonal": lambda p, **kw: SGFS(p, 1e-2, variant="diagonal", **kw),
    "SGFS-block": lambda p, **kw: SGFS(p, 1e-2, variant="block", b=0.5, floor=0.1, **kw),
    "HAMCMC": lambda p, **kw: HAMCMC(p, 1e-2, **kw),
    "HASGLD": lambda p, **kw: HASGLD(p, 1e-2, **kw),
    "HASGLD-slots": lambda p, **kw: HASGLD(p, 1e-2, slots=3, memory=3, **kw),
    "HASGLD-all": lambda p, **kw: HASGLD(p, 1e-2, slots=None, **kw),
    "HASGLD-paper": lambda p, **kw: HASGLD(p, 1e-2, paper_mode=True, **kw),
}
each_sampler = pytest.mark.parametrize("name", SAMPLERS)


def chain(name: str, problem: Problem, **kw: Any) -> Sampler:
    settings: dict[str, Any] = {"num_data": N, "prior": GaussianPrior(0.5), "seed": 3} | kw
    sampler = SAMPLERS[name](problem.params, **settings)
    sampler.attach(problem.target(settings["prior"]))
    return sampler


# T = 0


def test_cold_sgld_is_sgd() -> None:
    ours, theirs = Problem(), Problem()
    sampler = SGLD(ours.params, 0.2, num_data=N, temperature=0.0)
    found = ours.run(sampler, 50)
    expected = theirs.run(torch.optim.SGD(theirs.params, 0.2), 50)
    assert torch.allclose(found, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_cold_sghmc_is_sgd_with_momentum(momentum: float) -> None:
    ours, theirs = Problem(), Problem()
    sampler = SGHMC(ours.params, 0.05, momentum=momentum, num_data=N, temperature=0.0)
    found = ours.run(sampler, 50)
    expected = theirs.run(torch.optim.SGD(theirs.params, 0.05, momentum=momentum), 50)
    assert torch.allclose(found, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize(("alpha", "eps"), [(0.99, 1e-5), (0.9, 1e-2)])
def test_cold_psgld_is_rmsprop(alpha: float, eps: float) -> None:
    ours, theirs = Problem(), Problem()
    sampler = PSGLD(ours.params, 1e-2, alpha=alpha, eps=eps, num_data=N, temperature=0.0)
    found = ours.run(sampler, 50)
    optimizer = torch.optim.RMSprop(theirs.params, 1e-2, alpha=alpha, eps=eps)
    assert torch.allclose(found, theirs.run(optimizer, 50), rtol=1e-11, atol=1e-13)


def test_a_gaussian_prior_is_weight_decay() -> None:
    ours, theirs = Problem(), Problem()
    sampler = SGLD(ours.params, 0.2, num_data=N, temperature=0.0, prior=GaussianPrior(0.25))
    optimizer = torch.optim.SGD(theirs.params, 0.2, weight_decay=1 / (N * 0.25))
    found, expected = ours.run(sampler, 50), theirs.run(optimizer, 50)
    assert torch.allclose(found, expected, rtol=1e-12, atol=1e-14)


def test_prior_gradient_for_a_torch_optimizer() -> None:
    """add_prior_gradient_ makes p.grad the gradient of U / N."""
    problem = Problem()
    prior = GaussianPrior(0.3, 0.1)
    sampler = SGLD(problem.params, 0.1, num_data=N, prior=prior)
    batch = (problem.x, problem.y)
    problem.nll(batch).mean().backward()
    with torch.no_grad():
        sampler.add_prior_gradient_()
    found = flatten([p.grad for p in problem.params])
    potential = problem.target(prior).potential(batch)
    expected = flatten(torch.autograd.grad(potential, problem.params)) / N
    assert torch.allclose(found, expected, rtol=1e-11)


# Masks


@each_sampler
@pytest.mark.parametrize("frozen", [False, True])
def test_masked_weights_stay_zero(name: str, frozen: bool) -> None:
    problem = Problem()
    sampler = chain(name, problem)
    problem.run(sampler, 4)
    generator = torch.Generator().manual_seed(0)
    masks = [(torch.rand(p.shape, generator=generator) > 0.5).double() for p in problem.params]
    sampler.set_masks(masks)
    if frozen:
        sampler.freeze()
    free = flatten(masks).bool()
    before = problem.weights()
    for _ in range(6):
        weights = problem.run(sampler, 1)
        assert not weights[~free].any()
        assert (weights[free] != before[free]).all()
        before = weights
    with torch.no_grad():
        noise = flatten(sampler.noise())
        drift = flatten(sampler.drift([torch.ones_like(p) for p in problem.params]))
    assert not noise[~free].any()
    assert not drift[~free].any()
    state = sampler.state_dict()["chain"]
    if "velocity" in state:
        assert not flatten(state["velocity"])[~free].any()
    sampler.set_masks(None)
    assert problem.run(sampler, 1)[~free].all()


@pytest.mark.parametrize("metric", [FullFisher(), QuasiDiagonalFisher()])
def test_masked_kinetic_temperature_is_unknown_where_c_ties_weights(metric: Any) -> None:
    """w' C^-1 w of what is free is no sum over weights then."""
    problem = Problem()
    sampler = SGHMC(problem.params, 1e-3, momentum=0.9, preconditioner=metric, num_data=N)
    sampler.attach(problem.target())
    problem.run(sampler, 5)
    assert sampler.kinetic_temperature() is not None
    masks = [torch.ones_like(p) for p in problem.params]
    masks[0][:, ::2] = 0
    sampler.set_masks(masks)
    problem.run(sampler, 2)
    assert sampler.kinetic_temperature() is None


def test_paper_mode_of_stacked_chains_is_that_of_each_alone() -> None:
    """With c1 = inf only the newest operator counts, and chains are stacked."""

    def chain(start: Tensor, **given: Any) -> Tensor:
        p = start.clone().requires_grad_()
        options: dict[str, Any] = {"paper_mode": True, "omega": (math.inf, 1.0, 1.0)}
        sampler = HASGLD([p], 1e-2, num_data=10, seed=4, **options, **given)
        if p.dim() == 2:
            sampler.stack()

        def closure() -> Tensor:
            sampler.zero_grad()
            loss = (p.square() * torch.arange(1.0, 5.0)).sum(-1)
            loss.sum().backward()
            return loss.detach()

        for _ in range(6):
            sampler.step(closure)
        return p.detach()

    start = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    together = chain(start)
    for k in range(3):
        torch.testing.assert_close(together[k], chain(start[k], chain=k))


def test_b_of_another_type_is_that_of_the_weights() -> None:
    found = []
    for dtype in (torch.float32, torch.float64):
        problem = Problem()
        size = sum(p.numel() for p in problem.params)
        sampler = SGFS(problem.params, 1e-3, b=torch.eye(size, dtype=dtype), num_data=N)
        sampler.attach(problem.target())
        sampler.batch_size = 8
        problem.run(sampler, 3)
        found.append(flatten(problem.params).clone())
    assert torch.equal(*found)


def test_masked_kinetic_temperature_counts_free_weights() -> None:
    """Half of 40,000 velocities are held at zero, the rest have temperature 1 (5 errors)."""
    theta = torch.zeros(40_000, requires_grad=True)
    sampler = SGHMC([theta], 1e-3, num_data=1)
    sampler.set_masks([(torch.arange(40_000) % 2).float()])
    for _ in range(3):
        theta.grad = theta.detach().clone()
        sampler.step()
    assert sampler.kinetic_temperature() == pytest.approx(1, abs=5 * math.sqrt(2 / 20_000))


# Resume


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@each_sampler
@pytest.mark.parametrize("when", ["start", "adapting", "frozen", "just frozen", "masked"])
def test_resumes_to_the_bit(name: str, when: str) -> None:
    problem = Problem()
    sampler = chain(name, problem)
    if when != "start":
        problem.run(sampler, 5)
    if when == "masked":
        sampler.set_masks([(torch.arange(p.numel()).view(p.shape) % 3 > 0) for p in sampler.params])
        problem.run(sampler, 1)
    if "frozen" in when:
        sampler.freeze()
    if when == "frozen":
        problem.run(sampler, 2)
    state = through_a_file(sampler.state_dict())
    other = problem.twin()
    expected = problem.run(sampler, 5)

    resumed = chain(name, other, seed=99, num_data=7)
    resumed.load_state_dict(state)
    assert resumed.num_data == N
    assert resumed.steps_taken == sampler.steps_taken - 5
    assert torch.equal(other.run(resumed, 5), expected)
    assert resumed.gradients == sampler.gradients


@each_sampler
def test_a_copy_goes_on_as_the_chain_does(name: str) -> None:
    """With parameters of its own; torch's optimizers would copy the parameters alone."""
    problem = Problem()
    sampler = chain(name, problem)
    problem.run(sampler, 5)
    other, copied = copy.deepcopy((problem, sampler))
    assert copied.params[0] is other.params[0]
    assert copied.params[0] is not sampler.params[0]
    expected = problem.run(sampler, 5)
    assert torch.equal(other.run(copied, 5), expected)
    with pytest.raises(TypeError, match="cannot be pickled: save its state_dict"):
        pickle.dumps(sampler)


@each_sampler
def test_a_used_sampler_takes_over_another_state(name: str) -> None:
    """A frozen, masked sampler that loads an adapting state forgets its own."""
    problem = Problem()
    sampler = chain(name, problem)
    problem.run(sampler, 3)
    state = through_a_file(sampler.state_dict())
    other = problem.twin()
    resumed = chain(name, other, seed=11)
    strange = other.twin()
    used = chain(name, strange, seed=12)
    strange.run(used, 4)
    used.set_masks([torch.zeros_like(p) for p in used.params])
    used.freeze()
    strange.run(used, 2)
    with torch.no_grad():
        for p, q in zip(strange.params, other.params, strict=True):
            p.copy_(q)
    strange.step_number = other.step_number
    resumed.load_state_dict(state)
    used.load_state_dict(state)
    expected = problem.run(sampler, 4)
    assert torch.equal(other.run(resumed, 4), expected)
    assert torch.equal(strange.run(used, 4), expected)


def test_a_state_of_another_sampler_is_refused() -> None:
    problem = Problem()
    state = chain("SGLD", problem).state_dict()
    before = problem.weights()
    with pytest.raises(ValueError, match="that of SGLD, not of PSGLD"):
        chain("PSGLD", problem).load_state_dict(state)
    for other in ({"preconditioner": RMSProp()}, {"prior": None}):
        with pytest.raises(ValueError, match="that of a chain with Identity and GaussianPrior"):
            chain("SGLD", problem, **other).load_state_dict(state)
    with pytest.raises(ValueError, match="that of a torch optimizer, not of SGLD"):
        chain("SGLD", problem).load_state_dict(torch.optim.SGD(problem.params).state_dict())
    assert torch.equal(problem.weights(), before)


# Randomness


def global_states() -> tuple[Any, ...]:
    numpy_state = np.random.get_state()  # noqa: NPY002
    words = numpy_state[1].tolist()
    return torch.get_rng_state().tolist(), words, numpy_state[2:], random.getstate()


@each_sampler
def test_touches_no_global_generator(name: str) -> None:
    problem = Problem()
    before = global_states()
    sampler = chain(name, problem)
    problem.run(sampler, 5)
    sampler.freeze()
    problem.run(sampler, 5)
    assert global_states() == before


@each_sampler
def test_the_seed_alone_decides(name: str) -> None:
    """Replicas under different global seeds agree to the bit; chains and seeds differ."""
    weights = []
    for global_seed, kw in enumerate(({}, {}, {"seed": 4}, {"chain": 1})):
        torch.manual_seed(global_seed)
        np.random.seed(global_seed)  # noqa: NPY002
        problem = Problem()
        weights.append(problem.run(chain(name, problem, **kw), 6))
    assert torch.equal(weights[0], weights[1])
    for i, j in ((0, 2), (0, 3), (2, 3)):
        assert (weights[i] != weights[j]).all()


# Errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lr": 0.0}, 'lr must be a positive number or "auto", got 0.0'),
        ({"lr": -1.0}, "got -1.0"),
        ({"lr": math.nan}, "got nan"),
        ({"lr": math.inf}, "got inf"),
        ({"lr": "fast"}, "got 'fast'"),
        ({"temperature": -0.1}, "temperature must be finite and not negative, got -0.1"),
        ({"temperature": math.nan}, "temperature must be finite and not negative, got nan"),
        ({"temperature": math.inf}, "temperature must be finite and not negative, got inf"),
        ({"temperature": "1"}, "temperature must be finite and not negative, got '1'"),
        ({"seed": -1}, "seed must be a whole number, not negative, got -1"),
        ({"seed": 1.5}, "seed must be a whole number, not negative, got 1.5"),
        ({"num_data": 0}, "num_data must be positive, got 0"),
        ({"num_data": 0.5}, "num_data must be positive, got 0.5"),
        ({"num_data": -3}, "num_data must be positive, got -3"),
    ],
)
@pytest.mark.parametrize("kind", [SGLD, PSGLD, SGHMC, HASGLD])
def test_arguments_out_of_range(
    kind: type[Sampler], arguments: dict[str, Any], message: str
) -> None:
    theta = torch.zeros(2, requires_grad=True)
    with pytest.raises(ValueError, match=message):
        kind([theta], **({"lr": 0.1, "num_data": 5} | arguments))


@pytest.mark.parametrize("momentum", [-0.1, 1.0, math.nan])
def test_momentum_out_of_range(momentum: float) -> None:
    with pytest.raises(ValueError, match=r"momentum must lie in \[0, 1\)"):
        SGHMC([torch.zeros(1, requires_grad=True)], 0.1, momentum=momentum)


def test_options_of_a_group_that_would_change_nothing_are_refused() -> None:
    p = torch.zeros(2, requires_grad=True)
    with pytest.raises(ValueError, match="group's momentum, weight_decay would change nothing"):
        SGHMC([{"params": [p], "momentum": 0.5, "weight_decay": 0.1}], 0.1)
    with pytest.raises(ValueError, match=r'lr is "auto" and 0\.3 in the group'):
        SGLD([{"params": [p], "lr": 0.3}], "auto")
    assert SGLD([{"params": [p], "lr": 0.3}], 0.1).lr == 0.3


def test_one_parameter_group() -> None:
    groups = [{"params": [torch.zeros(1, requires_grad=True)]} for _ in range(2)]
    with pytest.raises(ValueError, match="one parameter group, got another"):
        SGLD(groups, 0.1)
    sampler = SGLD(groups[:1], 0.1)
    with pytest.raises(ValueError, match="one parameter group, got another"):
        sampler.add_param_group({"params": [torch.zeros(1, requires_grad=True)]})


def test_paper_mode_has_no_automatic_step() -> None:
    with pytest.raises(ValueError, match='lr="auto" has no meaning'):
        HASGLD([torch.zeros(1, requires_grad=True)], "auto", paper_mode=True)


def unmoved(problem: Problem, sampler: Sampler, message: str, closure: Any = None) -> None:
    """Assert that a step raises and changes neither weights, nor metric, nor noise."""
    before = problem.weights()
    kept = through_a_file(sampler.state_dict())["chain"]
    with pytest.raises(RuntimeError, match=message):
        sampler.step(closure)
    assert torch.equal(problem.weights(), before)
    after = sampler.state_dict()["chain"]
    assert after["steps_taken"] == kept["steps_taken"]
    assert _equal(after["noise"], kept["noise"])
    assert _equal(after["preconditioner"], kept["preconditioner"])


@each_sampler
def test_nothing_moves_before_an_error(name: str) -> None:
    problem = Problem()

    def filled() -> None:
        for p in problem.params:
            p.grad = torch.ones_like(p)

    filled()
    unmoved(problem, chain(name, problem, num_data=None), "num_data is not set")
    auto = chain(name, problem)
    auto.param_groups[0]["lr"] = math.nan
    unmoved(problem, auto, 'lr="auto" is not decided yet')
    sampler = chain(name, problem)
    problem.params[1].grad = None
    unmoved(problem, sampler, "1 of 4 parameters have no gradient", lambda: 0.0)
    filled()
    if "second_gradient" in sampler.needs:
        unmoved(problem, sampler, "needs a second gradient .* closure that returns the loss")
        unmoved(problem, sampler, "needs a second gradient", lambda: None)
    if "per_example" in sampler.needs:
        unmoved(problem, sampler, "no per-example gradients were recorded")
    if sampler.needs & {"target", "per_example"}:
        sampler.target = None
        unmoved(problem, sampler, r"needs sampler.attach\(target\)")


@each_sampler
def test_a_step_size_that_no_argument_states_is_checked_too(name: str) -> None:
    sampler = chain(name, Problem(), num_data=N)
    before = sampler.lr
    for lr in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="lr must be finite and not negative, got"):
            sampler.set_lr(lr)
    assert sampler.lr == before
    sampler.set_lr(0.0)
    with pytest.raises(ValueError, match="lr must be positive and finite, got -5"):
        SGLD([{"params": [torch.zeros(1, requires_grad=True)], "lr": -5.0}], 0.1)


@each_sampler
def test_a_draw_weighs_as_much_as_its_time(name: str) -> None:
    """Time is lr for an overdamped chain and sqrt(lr) with a velocity; HMC's law has no step."""
    sampler = chain(name, Problem(), num_data=N)
    before = sampler.draw_weight()
    sampler.set_lr(sampler.lr / 4)
    kind = name.partition("-")[0]
    expected = {"HMC": 1.0, "SGHMC": 0.5, "SGNHT": 0.5, "MCLMC": 0.5, "SMILE": 0.5}.get(kind, 0.25)
    assert sampler.draw_weight() / before == pytest.approx(expected)


def test_num_data_may_come_later() -> None:
    problem = Problem()
    sampler = SGLD(problem.params, "auto")
    sampler.num_data = N
    assert math.isnan(sampler.lr)
    sampler.set_lr(0.1)
    assert sampler.lr == 0.1
    before = problem.weights()
    assert (problem.run(sampler, 1) != before).all()


def test_mixed_types_are_refused_before_anything_moves() -> None:
    params = [torch.zeros(2, requires_grad=True), torch.zeros(2, requires_grad=True)]
    sampler = SGLD(params, 0.1, num_data=5)
    params[1].data = params[1].data.double()
    for p in params:
        p.grad = torch.ones_like(p)
    with pytest.raises(ValueError, match="one device and one floating-point type"):
        sampler.step()
    assert not any(p.any() for p in params)


def test_masks_must_match() -> None:
    problem = Problem()
    sampler = chain("SGLD", problem)
    before = problem.weights()
    for masks in ([torch.ones(1)], [torch.zeros(1) for _ in problem.params]):
        with pytest.raises(ValueError, match="masks must have the shapes of the parameters"):
            sampler.set_masks(masks)
    assert torch.equal(problem.weights(), before)
    assert sampler.masks is None


@each_sampler
def test_needs_end_with_burn_in(name: str) -> None:
    problem = Problem()
    sampler = chain(name, problem)
    pairs = {"second_gradient"} if name.startswith(("HAMCMC", "HASGLD")) else set()
    first = {"PSGLD-gamma": {"target"}}.get(name, pairs)
    if "Fisher" in name or name.startswith(("SGFS", "NaturalLangevin")):
        first = {"per_example"}
    assert sampler.needs == first
    sampler.freeze()
    if name == "HASGLD-paper":
        assert sampler.needs == {"second_gradient"}
    else:
        assert not sampler.needs & {"second_gradient", "per_example"}


def test_step_returns_the_loss_at_the_old_weights() -> None:
    problem = Problem()
    sampler = chain("HASGLD", problem)
    batch = problem.batch(0)
    before = problem.nll(batch).mean().item()

    def closure() -> Tensor:
        sampler.zero_grad()
        loss = problem.nll(batch).mean()
        loss.backward()
        return loss.detach()

    assert float(sampler.step(closure)) == before
    assert sampler.gradients == 2


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)
