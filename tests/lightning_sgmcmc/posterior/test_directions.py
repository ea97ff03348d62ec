"""The directions that draws are followed along, against dense matrices."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from lightning_sgmcmc import HMC, PSGLD, SGHMC, BatchStream, GaussianPrior
from lightning_sgmcmc.chain import Chain
from lightning_sgmcmc.chain.processes import Processes
from lightning_sgmcmc.chain.schedules import DrawSchedule
from lightning_sgmcmc.diagnostics import gradient_of_potential
from lightning_sgmcmc.posterior.directions import FollowedDirections, find_directions
from tests.bank import Regression


def bound(net: nn.Module, make: Any, num_chains: int, thinning: int = 80) -> tuple[Chain, Tensor]:
    """Return chains that have burnt in for five steps on all the data, and probe inputs."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 2, generator=generator, dtype=torch.float64)
    y = torch.sin(x[:, 0]) + x[:, 1]
    task = Regression(net.double(), 0.5)
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
def test_sums_over_all_predictions_are_those_of_their_fields(num_chains: int) -> None:
    """V' grad U, and both parts of V's divergence on average, by dense derivatives of every f_p."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    chain, probes = bound(net, SGHMC, num_chains)
    if num_chains > 1:
        with torch.no_grad():
            for p in chain.sampler.params:
                p.add_(0.3 * torch.randn(p.shape, dtype=p.dtype))
    followed = found(chain, probes)
    for _ in range(5):
        chain.advance(chain.minibatch())
    _, predict = functions(chain, probes)
    gradient = gradient_of_potential(chain.target, [chain.minibatch()])
    sampler, batch = chain.sampler, (probes, torch.zeros(7))
    drawn = []
    for steps in range(1000):
        chain.steps = steps
        drawn.append(followed.record(chain, gradient, batch)["sums"])
    mean, error = torch.stack(drawn).mean(0), torch.stack(drawn).std(0) / len(drawn) ** 0.5
    every = torch.stack([predict(flat(chain, k)) for k in range(num_chains)])
    if num_chains == 4:
        assert float(followed.deviations.min()) > 0
        assert float(followed.deviations.std()) > 0
    for k in range(num_chains):
        theta = flat(chain, k)
        eye = torch.eye(len(theta), dtype=torch.float64)[:, None].expand(-1, num_chains, -1)
        dims = sampler.chain_dims
        apply = partial(followed._metric, sampler.preconditioner, sampler.params, dims)
        M = torch.stack([apply(e)[k] for e in eye]) / 30
        J, curvature = jacrev(predict)(theta), jacrev(jacrev(predict))(theta)
        weights = (every[k] - followed.centre) / followed.deviations**2
        force = torch.cat([(g[k] if dims else g).reshape(-1) for g in gradient])
        work = weights @ J @ M @ force
        torch.testing.assert_close(mean[k, 0], work, rtol=1e-6, atol=1e-9)
        bend = torch.einsum("p,ij,pij->", weights, M, curvature)
        spread = torch.einsum("pi,ij,pj,p->", J, M, J, followed.deviations**-2)
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


def test_state_is_kept_as_it_is() -> None:
    chain, probes = bound(nn.Linear(2, 1), SGHMC, 2)
    followed = found(chain, probes)
    again = FollowedDirections(**followed.state_dict())
    assert all(
        torch.equal(a, b)
        for a, b in zip(vars(followed).values(), vars(again).values(), strict=True)
    )
