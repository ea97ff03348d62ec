"""The directions that draws are followed along, against dense matrices."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from lightning_sgmcmc import HMC, PSGLD, SGHMC, BatchStream, GaussianPrior, Identity
from lightning_sgmcmc.chain import Chain
from lightning_sgmcmc.chain.processes import Processes
from lightning_sgmcmc.chain.schedules import DrawSchedule
from lightning_sgmcmc.common.vectors import flatten, unflatten
from lightning_sgmcmc.diagnostics import (
    Step,
    configurational_temperature,
    directional_temperatures,
    gradient_of_potential,
    predictive_temperature,
    summarise,
)
from lightning_sgmcmc.metrics import Bernoulli
from lightning_sgmcmc.posterior import KeptDraws, diagnose
from lightning_sgmcmc.posterior.directions import FollowedDirections, find_directions
from lightning_sgmcmc.posterior.held_out import HeldOut
from tests.bank import Regression


class Squashed(Regression):
    """A regression whose predictions are the probabilities of a label."""

    def law(self, x: Tensor) -> Bernoulli:
        return Bernoulli(20 * self(x)[:, 0])

    def predictive(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return self.law(batch[0]).mean


def bound(
    net: nn.Module,
    make: Any,
    num_chains: int,
    thinning: int = 80,
    task_class: type[Regression] = Regression,
) -> tuple[Chain, Tensor]:
    """Return chains that have burnt in for five steps on all the data, and probe inputs."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 2, generator=generator, dtype=torch.float64)
    y = torch.sin(x[:, 0]) + x[:, 1]
    task = task_class(net.double(), 0.5)
    chain = Chain(
        task,
        lambda params: make(params, lr=1e-3, prior=GaussianPrior(1.0)),
        DrawSchedule(5, thinning),
        num_chains=num_chains,
    )
    task.chain = chain
    chain.select()
    chain.place()
    chain.build()
    chain.bind(BatchStream((x, y), 30, "full"))
    for _ in range(5):
        chain.advance(chain.minibatch())
    chain.sampler.freeze()
    return chain, torch.randn(7, 2, generator=generator, dtype=torch.float64)


def found(chain: Chain, probes: Tensor) -> FollowedDirections:
    return find_directions(chain, [chain.minibatch()], (probes, torch.zeros(7)))


def flat(chain: Chain, k: int) -> Tensor:
    return torch.cat([t.reshape(-1) for t in chain.state(k).values()])


def functions(chain: Chain, probes: Tensor) -> tuple[Any, Any]:
    """Return U and the predictions of one chain as functions of its weights as one vector."""
    x, y = chain.minibatch()
    like, net = chain.state(0), chain.task.net

    def output(theta: Tensor, inputs: Tensor) -> Tensor:
        parts = theta.split([t.numel() for t in like.values()])
        weights = {
            name.removeprefix("net."): part.view(t.shape)
            for (name, t), part in zip(like.items(), parts, strict=True)
        }
        return functional_call(net, weights, (inputs,))[:, 0]

    def potential(theta: Tensor) -> Tensor:
        return ((output(theta, x) - y) ** 2).sum() / (2 * 0.25) + (theta**2).sum() / 2

    return potential, lambda theta: output(theta, probes)


@pytest.mark.parametrize("make", [SGHMC, PSGLD])
@pytest.mark.parametrize("num_chains", [1, 3])
def test_a_linear_model_s_variances_are_those_of_its_posterior(make: Any, num_chains: int) -> None:
    """v_j = (grad^2 U)^-1 J' u_j and its spread, by a dense solve; force and value are products."""
    chain, probes = bound(nn.Linear(2, 1), make, num_chains)
    followed = found(chain, probes)
    potential, predict = functions(chain, probes)
    gradient = gradient_of_potential(chain.target, [chain.minibatch()])
    noted = followed.record(chain, gradient, (probes, torch.zeros(7)))
    for k in range(num_chains):
        theta = flat(chain, k)
        a = followed.combinations.to(theta) @ jacrev(predict)(theta)
        v = torch.linalg.solve(jacrev(jacrev(potential))(theta), a.T).T
        torch.testing.assert_close(followed.solutions[k], v, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(followed.variances[k], (a * v).sum(1), rtol=1e-6, atol=1e-9)
        force = jacrev(potential)(theta)
        torch.testing.assert_close(noted["fixed_forces"][k], v @ force, rtol=1e-6, atol=1e-6)
        values = followed.combinations.to(theta) @ predict(theta)
        torch.testing.assert_close(noted["values"][k], values, rtol=1e-9, atol=1e-9)
        assert float(noted["bends"][k].abs().max()) == 0


@pytest.mark.parametrize("num_chains", [1, 3])
def test_each_direction_s_coordinate_and_force_are_conjugate(num_chains: int) -> None:
    """Leading and random ones: v = C a and a' v = 1 by the metric as a matrix, and products."""
    chain, probes = bound(nn.Linear(2, 1), PSGLD, num_chains)
    followed = found(chain, probes)
    potential, _ = functions(chain, probes)
    gradient = gradient_of_potential(chain.target, [chain.minibatch()])
    noted = followed.record(chain, gradient, (probes, torch.zeros(7)))
    sampler = chain.sampler
    eye = torch.eye(3, dtype=torch.float64)[:, None].expand(-1, num_chains, -1)
    rows = eye if sampler.chain_dims else eye[:, 0]
    columns = [sampler.preconditioner.apply_joined(e.clone(), sampler.params) for e in rows]
    C = torch.stack(columns, -1).reshape(num_chains, 3, 3)
    assert followed.leading == 3
    assert followed.vectors.shape[1] == 7
    for k in range(num_chains):
        theta, a = flat(chain, k), followed.covectors[k]
        v = a @ C[k]
        torch.testing.assert_close(followed.vectors[k], v, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close((a * v).sum(1), torch.ones(7).double(), rtol=1e-6, atol=0)
        torch.testing.assert_close(noted["coordinates"][k], a @ theta, rtol=1e-9, atol=1e-9)
        force = v @ jacrev(potential)(theta)
        torch.testing.assert_close(noted["forces"][k], force, rtol=1e-6, atol=1e-6)


class Dense(Identity):
    """C = a full matrix."""

    matrix = torch.tensor([[2.0, 0.7, 0.3], [0.7, 1.5, -0.6], [0.3, -0.6, 1.0]]).double()

    def apply_(self, vectors: list[Tensor]) -> list[Tensor]:
        dims = self.chain_dims
        return unflatten(flatten(vectors, dims) @ self.matrix, vectors, dims)


@pytest.mark.parametrize("num_chains", [1, 3])
def test_masked_weights_take_no_part(num_chains: int) -> None:
    """All fields are those of the smaller model, by a dense solve, also where C mixes weights."""
    chain, probes = bound(nn.Linear(2, 1), partial(SGHMC, preconditioner=Dense()), num_chains)
    masks = [torch.tensor([[1.0, 0.0]]).double(), torch.ones(1).double()]
    chain.sampler.set_masks(
        [m.expand_as(p) for m, p in zip(masks, chain.sampler.params, strict=True)]
    )
    followed = found(chain, probes)
    potential, predict = functions(chain, probes)
    gradient = gradient_of_potential(chain.target, [chain.minibatch()])
    noted = followed.record(chain, gradient, (probes, torch.zeros(7)))
    free = [0, 2]
    for k in range(num_chains):
        theta = flat(chain, k)
        assert float(theta[1]) == 0
        J, force = jacrev(predict)(theta)[:, free], jacrev(potential)(theta)[free]
        inverse = torch.linalg.inv(jacrev(jacrev(potential))(theta)[free][:, free])
        a = followed.combinations.to(theta) @ J
        v = a @ inverse
        for kind in ("fixed_forces", "moving_forces"):
            torch.testing.assert_close(noted[kind][k], v @ force, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(noted["spreads"][k], (a * v).sum(1), rtol=1e-6, atol=1e-9)
        weights = (predict(theta) - followed.centre) / followed.deviations**2
        work = weights @ J @ inverse @ force
        torch.testing.assert_close(noted["sums"][k, 0], work, rtol=1e-6, atol=1e-9)
        assert float(followed.vectors[k][:, 1].abs().max()) == 0


@pytest.mark.parametrize(("num_chains", "apart"), [(4, True), (4, False), (3, True), (2, True)])
def test_each_prediction_counts_in_its_own_deviations(
    num_chains: int, apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the spread of four chains, and half of the root mean square where they agree.

    Two chains are here with two of another process.
    """
    chain, probes = bound(nn.Linear(2, 1), SGHMC, num_chains)
    probes[0] *= 100
    probes[1] = probes[1:].mean(0) * 1e-4  # on which chains agree but for the bias
    with torch.no_grad():
        for p in chain.sampler.params:
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(2)))
            if not apart:
                p.copy_(p[:1].expand(p.shape))
        chain.sampler.params[1].mul_(1e-4)
    weight, bias = (p.detach() for p in chain.sampler.params)
    predictions = (probes @ weight.mT + bias[:, None])[..., 0]
    raw = torch.randn(6, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    if num_chains == 2:
        others = predictions + torch.tensor([[1.0], [-2.0]]) * predictions.std(0)
        predictions = torch.cat([predictions, others])
        monkeypatch.setattr(Processes, "of_all_chains", lambda *_: predictions.numpy())
    if apart and len(predictions) == 4:
        variance = predictions.var(0)
        assert float(variance[0] / variance.median()) > 2500
        assert float(variance[1] / variance.median()) < 0.0001
        raw /= variance.clamp_min(0.25 * variance.mean()).sqrt()
    followed = found(chain, probes)
    torch.testing.assert_close(followed.combinations, raw)
    torch.testing.assert_close(followed.centre, predictions.mean(0))


def test_moving_fields_and_their_divergence_on_a_network() -> None:
    """v_j(theta) = M J' u_j / N is symmetric in M, and bends average to tr(M grad^2 u_j' f) / N."""
    torch.manual_seed(1)
    chain, probes = bound(nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)), SGHMC, 1)
    followed = found(chain, probes)
    _, predict = functions(chain, probes)
    gradient = gradient_of_potential(chain.target, [chain.minibatch()])
    theta, batch = flat(chain, 0), (probes, torch.zeros(7))
    d = len(theta)
    eye = torch.eye(d, dtype=torch.float64)[None]
    params = chain.sampler.params
    metric = chain.sampler.preconditioner
    M = torch.stack([followed._metric(metric, params, 0, eye[:, i])[0] for i in range(d)]) / 30
    torch.testing.assert_close(M, M.T, rtol=1e-9, atol=1e-12)
    assert float(torch.linalg.eigvalsh(M).min()) > -1e-12  # 0 where the potential curves downwards
    curvature = jacrev(jacrev(lambda t: followed.combinations.to(t) @ predict(t)))(theta)
    expected = torch.einsum("ij,qij->q", M, curvature)
    rows = []
    for steps in range(1000):
        chain.steps = steps
        rows.append(followed.record(chain, gradient, batch)["bends"][0])
    mean, error = torch.stack(rows).mean(0), torch.stack(rows).std(0) / len(rows) ** 0.5
    assert bool(((mean - expected.to(mean)).abs() < 4.5 * error).all())
    assert float((expected.to(error).abs() / error).max()) > 5
    a = followed.combinations.to(theta) @ jacrev(predict)(theta)
    noted = followed.record(chain, gradient, batch)
    spreads = ((a @ M) * a).sum(1)
    torch.testing.assert_close(noted["spreads"][0], spreads, rtol=1e-6, atol=1e-12)
    force = torch.cat([g.reshape(-1) for g in gradient])
    torch.testing.assert_close(noted["moving_forces"][0], a @ M @ force, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("num_chains", [1, 4])
@pytest.mark.parametrize("probabilities", [False, True])
def test_sums_over_all_predictions_are_those_of_their_fields(
    num_chains: int, probabilities: bool
) -> None:
    """V' grad U, and both parts of V's divergence on average, by dense derivatives of every f_p.

    Fields of probabilities are along those of their logits, .03 from either end.
    """
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    task_class = Squashed if probabilities else Regression
    chain, probes = bound(net, SGHMC, num_chains, task_class=task_class)
    if num_chains > 1:
        with torch.no_grad():
            for p in chain.sampler.params:
                p.add_(0.3 * torch.randn(p.shape, dtype=p.dtype))
    followed = found(chain, probes)
    for _ in range(5):
        chain.advance(chain.minibatch())
    _, output = functions(chain, probes)

    def predict(theta: Tensor) -> Tensor:
        return torch.sigmoid(20 * output(theta)) if probabilities else output(theta)

    def scaled(f: Tensor) -> Tensor:
        return ((f + 0.03) / (1.03 - f)).log() if probabilities else f

    gradient = gradient_of_potential(chain.target, [chain.minibatch()])
    sampler, batch = chain.sampler, (probes, torch.zeros(7))
    drawn = []
    for steps in range(1000):
        chain.steps = steps
        drawn.append(followed.record(chain, gradient, batch)["sums"])
    mean, error = torch.stack(drawn).mean(0), torch.stack(drawn).std(0) / len(drawn) ** 0.5
    every = torch.stack([predict(flat(chain, k)) for k in range(num_chains)])
    if probabilities:
        assert float(every.max()) > 0.9
        assert bool((followed.deviations == 1).all())
    elif num_chains == 4:
        assert float(followed.deviations.min()) > 0
        assert float(followed.deviations.std()) > 0
    for k in range(num_chains):
        theta = flat(chain, k)
        eye = torch.eye(len(theta), dtype=torch.float64)[:, None].expand(-1, num_chains, -1)
        dims = sampler.chain_dims
        apply = partial(followed._metric, sampler.preconditioner, sampler.params, dims)
        M = torch.stack([apply(e)[k] for e in eye]) / 30
        J, along = jacrev(predict)(theta), jacrev(lambda t: scaled(predict(t)))(theta)
        curvature = jacrev(jacrev(lambda t: scaled(predict(t))))(theta)
        each = followed.deviations**-2
        weights = (every[k] - followed.centre) * each
        force = torch.cat([(g[k] if dims else g).reshape(-1) for g in gradient])
        work = weights @ along @ M @ force
        torch.testing.assert_close(mean[k, 0], work, rtol=1e-6, atol=1e-9)
        bend = torch.einsum("p,ij,pij->", weights, M, curvature)
        spread = torch.einsum("pi,ij,pj,p->", J, M, along, each)
        expected = torch.stack([bend, spread])
        assert bool(((mean[k, 1:] - expected).abs() < 4.5 * error[k, 1:]).all())
        assert float((spread / error[k, 2]).min()) > 20


@pytest.mark.parametrize(
    ("make", "thinning", "count"),
    [
        (SGHMC, 1, 1),
        (SGHMC, 36, 3),
        (SGHMC, 1000, 6),
        (partial(HMC, leapfrog_steps=24), 1, 2),
        (partial(HMC, leapfrog_steps=24), 2, 4),
    ],
)
def test_each_twelve_gradients_from_draw_to_draw_pay_for_a_combination(
    make: Any, thinning: int, count: int
) -> None:
    chain, probes = bound(nn.Linear(2, 1), make, 1, thinning)
    gradient = gradient_of_potential(chain.target, [chain.minibatch()])
    noted = found(chain, probes).record(chain, gradient, (probes, torch.zeros(7)))
    assert noted["spreads"].shape == noted["moving_forces"].shape == (1, count)


def nets() -> dict[bool, nn.Module]:
    """Return a network that is linear in its weights, and one that is not."""
    torch.manual_seed(1)
    return {
        True: nn.Linear(2, 1),
        False: nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)),
    }


@pytest.mark.parametrize("linear", [True, False])
def test_a_diagnosis_is_of_the_traces_of_all_draws(
    linear: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At half the temperature, from weights, potentials and predictions that are noted here."""
    given: dict[str, Any] = {}

    def alarms(*_: Any, **verdict: Any) -> list[Any]:
        given.update(verdict)
        return []

    monkeypatch.setattr("lightning_sgmcmc.posterior.diagnosis.alarms", alarms)
    K, draws, thinning = 4, 16, 3
    chain, probes = bound(nets()[linear], partial(SGHMC, temperature=0.5), K, thinning)
    potential, predict = functions(chain, probes)
    kept = KeptDraws(chain, {"test": HeldOut([(probes, torch.zeros(7))])}, tmp_path, budget=0)
    thetas = []
    for draw in range(draws):
        if draw == draws // 2:
            chain.set_lr(chain.sampler.lr / 4)  # of half the weight
        for _ in range(thinning):
            chain.advance(chain.minibatch())
        kept.keep()
        thetas.append(torch.stack([flat(chain, k) for k in range(K)]))
    theta = torch.stack(thetas, 1)
    force = torch.stack([torch.stack([jacrev(potential)(t) for t in row]) for row in theta])
    f = torch.stack([torch.stack([predict(t) for t in row]) for row in theta])
    content = diagnose(kept, {"fraction": 0.1, "largest_stable_lr": 1.0, "gradient_noise": 0.05})

    whole = configurational_temperature(theta.numpy(), force.numpy()).total
    found = content["configurational_temperature"]
    assert found["value"] == pytest.approx(whole.value, rel=1e-6)
    assert given["configurational"].total.value == pytest.approx(whole.value, rel=1e-6)
    mixing = summarise(theta.numpy(), f.numpy(), np.repeat([1.0, 0.5], draws // 2))
    np.testing.assert_equal(content["mixing"], mixing)
    assert content["mixing"]["effective_draws"] == pytest.approx(K * 12**2 / 10)

    followed = kept.probes.directions
    assert followed is not None
    products = [torch.einsum("kdi,kmi->kdm", theta, followed.covectors),
                torch.einsum("kdi,kmi->kdm", force, followed.vectors)]  # fmt: skip
    expected = [t.value for t in directional_temperatures(*products)]
    listed = content["directional_temperatures"]
    values = [[t["value"] for t in listed[kind]] for kind in ("leading", "random")]
    assert values[0] + values[1] == pytest.approx(expected, rel=1e-6)
    assert len(values[1]) == 4
    assert [t.value for t in given["directions"]["random"]] == values[1]

    g = torch.einsum("qp,kdp->kdq", followed.combinations, f)
    if linear:
        moves = torch.einsum("kdi,kqi->kdq", force, followed.solutions)
        right = predictive_temperature(g, moves, followed.variances[:, None], stated=0.5)
    else:
        noted = kept.probes.followed()
        count = noted["bends"].shape[-1]
        moving = [noted[kind] for kind in ("moving_forces", "spreads", "bends")]
        right = predictive_temperature(g[..., :count], *moving, 0.5, sums=noted["sums"])
    measured = content["predictive"]
    assert measured["linear_in_weights"] is linear
    assert measured["temperature"] == pytest.approx(right.temperature.value, rel=1e-6)
    assert measured["deviation_over_true"] == pytest.approx(right.deviation, rel=1e-6)
    assert measured["mean_error_in_deviations"] == pytest.approx(right.mean_error, rel=1e-6)
    assert given["predictive"].temperature.value == measured["temperature"]
    assert given["temperature"] == 0.5
    assert given["step"] == Step(0.1, bounded=True, last=chain.last_lr)
    assert "noise" not in given


def test_state_is_kept_as_it_is() -> None:
    chain, probes = bound(nn.Linear(2, 1), SGHMC, 2)
    followed = found(chain, probes)
    again = FollowedDirections(**followed.state_dict())
    assert all(
        torch.equal(a, b)
        for a, b in zip(vars(followed).values(), vars(again).values(), strict=True)
    )


def test_a_run_that_goes_on_follows_the_same_directions(tmp_path: Path) -> None:
    """Draws after an interruption are along those that were fixed at the first draw."""
    chain, probes = bound(nn.Linear(2, 1), SGHMC, 2)
    sets = {"test": HeldOut([(probes, torch.zeros(7))])}
    kept, again = (KeptDraws(chain, sets, tmp_path / name, budget=0) for name in ("a", "b"))
    kept.keep()
    again.probes.load_state_dict(kept.probes.state_dict(), torch.device("cpu"))
    assert kept.probes.directions is not None
    assert again.probes.directions is not None
    for name, value in vars(kept.probes.directions).items():
        assert torch.equal(vars(again.probes.directions)[name], value)
