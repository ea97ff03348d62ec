"""Gradient estimators: their laws by enumeration and in closed form, their centres, their cost."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from lightning_sgmcmc import (
    HASGLD,
    HMC,
    SGFS,
    SGHMC,
    SGLD,
    SGNHT,
    SVRG,
    BatchStream,
    ControlVariate,
    GaussianPrior,
    GradientEstimator,
    Minibatch,
)
from lightning_sgmcmc.callbacks import ChainCheckpoint
from lightning_sgmcmc.chain import Chain, OptimizerBurnIn
from scripts.bench.estimators import problem, variances
from tests.toy import NOISE, NUM_FEATURES, Toy, ToyData, toy_data, trainer

FLAT = partial(SGLD, lr=0.1, temperature=0.0)
LAW: dict[str, Callable[[], GradientEstimator]] = {
    "minibatch": Minibatch,
    "control variate": ControlVariate,
    "svrg": partial(SVRG, 5),
}


def bound(module: Toy, stream: BatchStream) -> Chain:
    """Return a module's chain, ready for its first step."""
    chain = module.chain
    chain.select()
    chain.place()
    chain.build()
    chain.bind(stream)
    return chain


def small(size: int = 6) -> tuple[Tensor, Tensor]:
    x, y = toy_data(size=size)
    return x.double(), y.double()


def linear() -> nn.Module:
    return nn.Linear(NUM_FEATURES, 1, bias=False).double()


def move(chain: Chain, by: Tensor) -> None:
    with torch.no_grad():
        chain.sampler.params[0] += by


# Laws.


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("name", LAW)
def test_mean_and_covariance_over_all_batches(name: str, replacement: bool) -> None:
    """Enumerated, against the linear model's: grad_i(w) = x_i (x_i' w - y_i) / NOISE^2."""
    x, y = small()
    N, n = len(x), 2
    chain = bound(Toy(FLAT, linear(), gradients=LAW[name]()), BatchStream((x, y), n, "independent"))
    assert chain.target is not None
    centre = chain.sampler.params[0].detach().clone()
    chain.target.estimate((x[:n], y[:n]))  # takes the centre
    move(chain, torch.tensor([0.5, -1.0, 2.0]))
    every = itertools.product if replacement else itertools.combinations
    rows = [list(r) for r in (every(range(N), repeat=n) if replacement else every(range(N), n))]  # type: ignore[operator,call-arg]
    found = torch.stack([chain.target.estimate((x[r], y[r]))[0][0] for r in rows]).detach().numpy()

    X, w, c = x.numpy(), chain.sampler.params[0].detach().numpy()[0], centre.numpy()[0]
    each = X * (X @ w - y.numpy())[:, None] / NOISE**2
    np.testing.assert_allclose(found.mean(0), each.mean(0), rtol=1e-12)
    parts = each if name == "minibatch" else X * (X @ (w - c))[:, None] / NOISE**2
    expected = np.cov(parts.T, bias=True) / n * (1 if replacement else (N - n) / (N - 1))
    np.testing.assert_allclose(np.cov(found.T, bias=True), expected, rtol=1e-10)


@pytest.mark.parametrize("name", ["control variate", "svrg"])
def test_at_its_centre_the_gradient_is_exact(name: str) -> None:
    x, y = small()
    chain = bound(Toy(FLAT, linear(), gradients=LAW[name]()), BatchStream((x, y), 2))
    assert chain.target is not None
    whole = chain.target.gradient((x, y))[0]
    for step in range(3):
        torch.testing.assert_close(chain.target.estimate(chain.minibatch(step))[0], whole)


class Logistic(Toy):
    """y in {0, 1}, logit w'x."""

    def nll(self, batch: Any) -> Tensor:
        x, y = batch
        logit = self(x).squeeze(-1)
        return functional.binary_cross_entropy_with_logits(logit, y, reduction="none")


def test_noise_grows_with_the_squared_distance() -> None:
    """The trace of the covariance over all single examples: a rate of 2 near the centre."""
    x, y = small(40)
    y = (y > 0).double()
    chain = bound(
        Logistic(FLAT, linear(), gradients=ControlVariate()), BatchStream((x, y), 1, "independent")
    )
    assert chain.target is not None
    direction = torch.tensor([0.6, 0.0, -0.8])
    chain.target.estimate((x[:1], y[:1]))
    distances, traces = [1e-3, 1e-2, 1e-1], []
    last = 0.0
    for distance in distances:
        move(chain, (distance - last) * direction)
        last = distance
        rows = [chain.target.estimate((x[i : i + 1], y[i : i + 1]))[0][0] for i in range(40)]
        traces.append(float(torch.stack(rows).var(0, correction=0).sum()))
    rates = np.diff(np.log(traces)) / np.diff(np.log(distances))
    np.testing.assert_allclose(rates, 2.0, atol=0.05)


def test_a_control_variate_takes_nine_tenths_of_the_heat_away() -> None:
    """Under momentum, where minibatch noise heats most; three standard errors of three seeds."""
    seeds = range(3)
    runs = [
        partial(variances, problem(s), fraction=0.02, chains=60, steps=250, seed=s) for s in seeds
    ]
    whole = [run(Minibatch(), "full")[0] for run in runs]

    def excess(make: Callable[[], GradientEstimator]) -> np.ndarray:
        found = [run(make(), "independent")[0] for run in runs]
        return np.array([float((v / w).mean()) - 1 for v, w in zip(found, whole, strict=True)])

    plain = excess(Minibatch)
    assert (plain > 2).all()
    # A centre on the chain is farther from it than the mode is, and as hot as the chain.
    for make, most in ((ControlVariate, 0.1), (partial(SVRG, 20), 0.2)):
        left = excess(make) / plain
        assert left.mean() + 3 * left.std(ddof=1) / np.sqrt(len(seeds)) < most


# The centre.


def after_adam(steps: int, lr: float, gradients: GradientEstimator, **chain: Any) -> Toy:
    return Toy(
        partial(SGHMC, lr=0.02, momentum=0.9, prior=GaussianPrior(4.0)),
        burn_in_optimizer=OptimizerBurnIn(partial(torch.optim.Adam, lr=lr), steps),
        gradients=gradients,
        **chain,
    )


def centres(module: Toy, steps: int) -> list[Tensor | None]:
    """Return the centre that each step has used."""
    chain, found = bound(module, ToyData().train_dataloader()), []
    for _ in range(steps):
        chain.advance(chain.minibatch())
        centre = getattr(chain.gradients, "centre")  # noqa: B009
        found.append(None if centre is None else centre[0].clone())
    return found


@pytest.mark.parametrize("num_chains", [1, 3])
def test_the_centre_stays_at_a_mode(num_chains: int) -> None:
    torch.manual_seed(0)
    found = centres(
        after_adam(300, 0.05, ControlVariate(), burn_in=320, num_chains=num_chains), 325
    )
    assert found[:300] == [None] * 300
    assert all(c is not None and torch.equal(c, found[300]) for c in found[300:])  # type: ignore[arg-type]


def test_the_centre_moves_where_the_optimizer_had_not_arrived() -> None:
    """Chain 0 starts at the mode, the others far away: the centres of those alone move."""
    torch.manual_seed(0)
    module = after_adam(1, 1e-6, ControlVariate(), burn_in=60, num_chains=3, starts="prior")
    x, y = toy_data()
    with torch.no_grad():
        module.net.weight.copy_(torch.linalg.lstsq(x, y[:, None]).solution.T)
    found = centres(module, 65)
    before, after = found[58], found[62]
    assert before is not None
    assert after is not None
    assert torch.equal(found[1], before)  # type: ignore[arg-type]
    assert [torch.equal(b, a) for b, a in zip(before, after, strict=True)] == [True, False, False]
    # Of Adam's step, twice 64 others, a pass for the first centre and two where burn-in ends.
    assert module.chain.num_gradients == 1 + 2 * 64 + 3 * 4


@pytest.mark.parametrize("shares", [1, 2])
def test_each_chain_s_centre_is_where_its_potential_is_lower(shares: int) -> None:
    """Of two random places of 64 chains, by likelihood and prior together; with its gradient.

    Two processes that share the data, four examples and two, find the same.
    """
    x, y = small()
    prior, K = 0.05, 64
    make = partial(SGLD, lr=0.1, prior=GaussianPrior(prior))
    chain = bound(
        Toy(make, linear(), gradients=ControlVariate(), num_chains=K), BatchStream((x, y), 2)
    )
    theta, target = chain.sampler.params[0], chain.target
    assert target is not None
    rng = np.random.default_rng(0)
    places = np.array([1.0, -2.0, 0.5]) + rng.standard_normal((2, K, NUM_FEATURES))
    each = [t.expand(K, *t.shape) for t in (x, y)]  # chains have minibatches of their own
    others: list[list[Tensor]] = []

    def with_others(tensors: list[Tensor]) -> None:
        for own, other in zip(tensors, others.pop(0), strict=True):
            own.add_(other).div_(2)

    def noted(tensors: list[Tensor]) -> None:
        others.append([t.clone() for t in tensors])

    rows = [slice(4, 6), slice(0, 4)] if shares == 2 else [slice(0, 6)]
    for i, own in enumerate(rows):
        estimator = ControlVariate()
        target._reduce = (noted, with_others)[i] if shares == 2 else None
        estimator.bind(target, lambda own=own: iter([(each[0][:, own], each[1][:, own])]), 1)  # type: ignore[misc]
        for step, place in enumerate(places):
            with torch.no_grad():
                theta.copy_(torch.tensor(place)[:, None])
            estimator.prepare(step=4 + step, start=4, burn_in=5)
    residual = places @ x.numpy().T - y.numpy()
    terms = (residual**2).sum(-1) / (2 * NOISE**2), (places**2).sum(-1) / (2 * prior)
    lower = [potential[1] < potential[0] for potential in (terms[0], terms[1], sum(terms))]
    assert all((lower[2] != other).sum() > 5 for other in lower[:2])
    expected = np.where(lower[2][:, None], places[1], places[0])
    assert estimator.centre is not None
    np.testing.assert_array_equal(estimator.centre[0][:, 0], expected)
    gradient = (expected @ x.numpy().T - y.numpy()) @ x.numpy() / (len(x) * NOISE**2)
    np.testing.assert_allclose(estimator.gradient[0][:, 0], gradient, rtol=1e-9)


def test_masked_weights_are_zero_at_the_centre() -> None:
    """Those that are pruned after the centre was taken, too, where burn-in ends."""
    chain = bound(Toy(FLAT, linear(), gradients=ControlVariate()), BatchStream(small(), 2))
    estimator, theta = chain.gradients, chain.sampler.params[0]
    assert isinstance(estimator, ControlVariate)
    estimator.prepare(step=1, start=1, burn_in=5)
    mask = torch.tensor([[1.0, 0.0, 1.0]]).double()
    expected = theta.detach() * mask
    chain.sampler.set_masks([mask])
    move(chain, 100 * mask)  # where the potential is higher
    estimator.prepare(5, 1, 5, chain.sampler.masks)
    assert estimator.centre is not None
    assert torch.equal(estimator.centre[0], expected)


def test_without_an_optimizer_the_centre_is_where_burn_in_ends() -> None:
    found = centres(Toy(FLAT, gradients=ControlVariate(), burn_in=4), 8)
    assert [c is None for c in found] == [True] * 4 + [False] * 4
    assert len({tuple(c.flatten().tolist()) for c in found[4:]}) == 1  # type: ignore[union-attr]


def test_svrg_takes_a_new_centre_every_so_many_steps_and_where_burn_in_ends() -> None:
    found = centres(Toy(partial(SGLD, lr=0.1), gradients=SVRG(5), burn_in=12), 30)
    changes = [
        i
        for i in range(1, 30)
        if not torch.equal(found[i], found[i - 1])  # type: ignore[arg-type]
    ]
    assert changes == [5, 10, 12, 17, 22, 27]


def test_a_likelihood_that_changes_in_burn_in_is_measured_anew(tmp_path: Path) -> None:
    class Rescaled(Toy):
        scale = 1.0

        def nll(self, batch: Any) -> Tensor:
            return self.scale * super().nll(batch)

        def on_burn_in_end(self) -> None:
            self.scale = 0.5

    module = Rescaled(
        partial(SGLD, lr=0.01, prior=GaussianPrior(4.0)),
        gradients=ControlVariate(),
        burn_in=8,
        burn_in_optimizer=OptimizerBurnIn(partial(torch.optim.Adam, lr=0.01), 4),
    )
    trainer(tmp_path, 12).fit(module, datamodule=ToyData())
    target, estimator = module.chain.target, module.chain.gradients
    assert target is not None
    assert isinstance(estimator, ControlVariate)
    assert estimator.centre is not None
    with target.holding(estimator.centre):
        expected = target.gradient(toy_data())
    torch.testing.assert_close(estimator.gradient, expected)


# Steps and their cost.


@pytest.mark.parametrize("name", LAW)
def test_a_step_takes_the_estimate(name: str) -> None:
    """At T = 0 and with a flat prior it moves by -lr times the estimate, and counts its cost."""
    x, y = small(50)
    chain = bound(Toy(FLAT, linear(), gradients=LAW[name]()), BatchStream((x, y), 8))
    assert chain.target is not None
    passes = 0
    for step in range(11):
        batch = chain.minibatch()
        before = chain.sampler.params[0].detach().clone()
        estimate = chain.target.estimate(batch)[0]
        plain = chain.target.mean_nll(batch)
        loss = chain.advance(batch)
        torch.testing.assert_close(chain.sampler.params[0].detach(), before - 0.1 * estimate)
        torch.testing.assert_close(loss, plain.detach())
        passes += step % 5 == 0 if name == "svrg" else step == 0
    expected = 11 if name == "minibatch" else 22 + 7 * passes  # ceil(50 / 8) = 7
    assert chain.num_gradients == expected


def test_a_second_gradient_on_the_same_batch_needs_no_second_correction(tmp_path: Path) -> None:
    module = Toy(
        partial(HASGLD, lr=0.05, prior=GaussianPrior(4.0)), burn_in=19, gradients=SVRG(100)
    )
    trainer(tmp_path, 20).fit(module, datamodule=ToyData())
    assert module.chain.sampler.gradients == 2 * 19 + 1
    assert module.chain.num_gradients == 2 * 19 + 1 + 20 + 4 + 4


def test_one_estimator_serves_many_chains() -> None:
    given = ControlVariate()
    chain = bound(Toy(FLAT, linear(), gradients=given), BatchStream(small(), 2))
    chain.advance(chain.minibatch())
    assert chain.gradients is not given
    assert given.centre is None


def test_a_chain_goes_on_with_another_estimator(tmp_path: Path) -> None:
    """Its centre is where the chain continues; what the other one cost stays counted."""

    def run(folder: Path, steps: int, gradients: GradientEstimator, **more: Any) -> Toy:
        module = Toy(gradients=gradients, burn_in=2)
        trainer(folder, steps, [ChainCheckpoint(5)]).fit(module, datamodule=ToyData(), **more)
        return module

    first = run(tmp_path, 10, SVRG(100))
    last = {"ckpt_path": str(tmp_path / "checkpoints" / "last.ckpt"), "weights_only": True}
    again = run(tmp_path, 15, Minibatch(), **last)
    assert again.chain.num_gradients == first.chain.num_gradients + 5
    third = run(tmp_path, 20, ControlVariate(), **last)
    assert third.chain.num_gradients == again.chain.num_gradients + 10 + 4
    assert torch.equal(third.chain.gradients.centre[0], again.chain.sampler.params[0])  # type: ignore[attr-defined]


# What is refused.


@pytest.mark.parametrize(
    ("sampler", "stream", "message"),
    [
        (partial(SGLD, lr=1.0), DataLoader(TensorDataset(*small())), "train on a BatchStream"),
        (partial(SGLD, lr=1.0), BatchStream(small(), 2, "full"), "no noise to take away"),
        (partial(HMC, lr=1.0), BatchStream(small(), 2), "no noise to take away"),
        (partial(SGFS, lr=0.1), BatchStream(small(), 2), "SGFS counts the noise of plain"),
    ],
)
def test_refusals(sampler: Any, stream: Any, message: str) -> None:
    module = Toy(sampler, linear(), gradients=ControlVariate())
    with pytest.raises(ValueError, match=message):
        bound(module, stream)


def test_random_layers_are_refused() -> None:
    net = nn.Sequential(nn.Dropout(0.5), nn.Linear(NUM_FEATURES, 1)).double()
    stream = BatchStream(small(), 6)
    with pytest.raises(ValueError, match="take dropout and other random layers out"):
        bound(Toy(FLAT, net, gradients=ControlVariate()), stream)
    bound(Toy(FLAT, net.eval(), gradients=ControlVariate()), stream)
    with pytest.raises(ValueError, match="recentre must be at least 1, got 0"):
        SVRG(0)


def test_a_thermostat_takes_what_noise_is_left(tmp_path: Path) -> None:
    module = Toy(partial(SGNHT, lr=0.01), gradients=ControlVariate(), burn_in=1)
    trainer(tmp_path, 4).fit(module, datamodule=ToyData())
    assert module.chain.num_gradients == 1 + 3 * 2 + 4
