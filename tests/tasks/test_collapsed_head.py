"""Chains whose head is integrated out draw the posterior of all weights."""

from __future__ import annotations

import copy
import logging
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_sgmcmc import (
    HMC,
    SGFS,
    SGHMC,
    SGLD,
    BatchStream,
    FanInGaussianPrior,
    GaussianPrior,
    LaplacePrior,
    LayerwiseGaussianPrior,
    RMSProp,
    load_posterior,
)
from lightning_sgmcmc.callbacks import ChainCheckpoint, GradualPruning
from lightning_sgmcmc.chain import Chain, OptimizerBurnIn
from lightning_sgmcmc.chain.processes import Processes
from lightning_sgmcmc.posterior.directions import find_directions
from tasks.nets.mlp import MLP
from tasks.regression import RegressionTask
from tests.harness import BOUND
from tests.toy import trainer

PRIOR = LayerwiseGaussianPrior({"net.layers.2.weight": 0.5, "*.bias": 2.0}, default=1.0)
HEAD = ("net.layers.2.weight", "net.layers.2.bias")


class Scaled(RegressionTask):
    """y = 3 + 2 f(x), with noise sigma (1 + |x_0|)."""

    def in_units(self, output: Tensor) -> Tensor:
        return 3 + 2 * output

    def noise_shape(self, x: Tensor) -> Tensor:
        return 1 + x[:, :1].abs()


class CurveData(L.LightningDataModule):
    """A curve with noise, y [N, D]."""

    def __init__(self, outputs: int = 2, sampling: Any = "full") -> None:
        super().__init__()
        generator = np.random.default_rng(0)
        x = generator.uniform(-1, 1, (24, 1))
        y = np.sin(3 * x + np.arange(outputs)) + 0.2 * generator.standard_normal((24, outputs))
        self.rows = tuple(torch.tensor(t, dtype=torch.float32) for t in (x, y))
        self.sampling = sampling

    def train_dataloader(self) -> BatchStream:
        return BatchStream(self.rows, 24 if self.sampling == "full" else 6, self.sampling)

    def val_dataloader(self) -> Any:
        return self.test_dataloader()

    def test_dataloader(self) -> Any:
        return DataLoader(TensorDataset(*self.rows), batch_size=10)


def net(outputs: int = 2, units: int = 4) -> MLP:
    torch.manual_seed(1)
    return MLP((units,), "tanh", inputs=1, outputs=outputs)


def started(task: RegressionTask, data: CurveData, head: str = "net.layers.2") -> Chain:
    """Return a task's chain, ready for its first step without a trainer."""
    task.head = head
    chain = task.chain
    chain.select()
    chain.place()
    chain.build()
    chain.bind(data.train_dataloader())
    return chain


@pytest.mark.parametrize("noise", ["learned", "input"])
def test_potential_is_that_of_y_without_the_head(noise: Any) -> None:
    """Against the dense Gaussian of all of y, shifted, scaled and with noise by example."""
    data = CurveData(outputs=3)
    x, y = data.rows
    sampler = partial(SGLD, lr=1e-3, prior=PRIOR)
    task = Scaled(net(3), sampler, noise=noise, initial_noise=0.3, num_chains=2,
                  noise_net=nn.Linear(1, 1) if noise == "input" else None, noise_spread=0.7,
                  collapse_head=True)  # fmt: skip
    chain = started(task, data)
    assert chain.target is not None
    potential = chain.target.potential(data.rows).detach()
    assert potential.dtype == torch.float64  # as HMC's Metropolis test needs it
    for k in range(2):
        state = {name: value.double().numpy() for name, value in chain.state(k).items()}
        hidden = x.double().numpy() @ state["net.layers.0.weight"].T + state["net.layers.0.bias"]
        phi = 2 * np.concatenate([np.tanh(hidden), np.ones((24, 1))], 1)
        covariance = phi @ np.diag([0.5] * 4 + [2.0]) @ phi.T
        noise = np.exp(state["log_noise"]) * (1 + np.abs(x[:, 0].double().numpy()))
        if task.noise_net is not None:
            g = x.double().numpy() @ state["noise_net.weight"].T + state["noise_net.bias"]
            noise *= np.exp(0.7 * g[:, 0])
        law = stats.multivariate_normal(np.full(24, 3.0), covariance + np.diag(noise**2))
        expected = -law.logpdf(y.double().numpy().T).sum()
        moving = [("net.layers.0.weight", 1), ("net.layers.0.bias", 2)]
        moving += [("noise_net.weight", 1), ("noise_net.bias", 2)] if task.noise_net else []
        for name, variance in moving:
            expected -= stats.norm(0, variance**0.5).logpdf(state[name]).sum()
        expected -= stats.norm().logpdf(state["log_noise"])
        assert float(potential[k]) == pytest.approx(expected, rel=1e-5)


def test_the_variance_of_predictions_given_the_other_weights_is_that_of_the_dense_gaussian() -> (
    None
):
    """Of combinations of the first two outputs of five examples, for two chains."""
    data = CurveData(outputs=3)
    x = data.rows[0]
    sampler = partial(SGLD, lr=1e-3, prior=PRIOR)
    task = Scaled(net(3), sampler, noise="learned", initial_noise=0.3, num_chains=2,
                  collapse_head=True)  # fmt: skip
    chain = started(task, data)
    factors = torch.randn(4, 5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    assert chain.head is not None
    found = chain.head.variances(data.rows, tuple(t[:5] for t in data.rows), factors)
    for k in range(2):
        state = {name: value.double().numpy() for name, value in chain.state(k).items()}
        hidden = x.double().numpy() @ state["net.layers.0.weight"].T + state["net.layers.0.bias"]
        scale = 1 + np.abs(x.double().numpy())
        phi = 2 * np.concatenate([np.tanh(hidden), np.ones((24, 1))], 1) / scale
        prior = phi @ np.diag([0.5] * 4 + [2.0]) @ phi.T
        noise = np.exp(2 * state["log_noise"]) * np.eye(24)
        given = prior - prior @ np.linalg.solve(prior + noise, prior)
        u = factors.numpy()
        expected = np.einsum("qbc,bB,qBc->q", u, given[:5, :5], u)
        np.testing.assert_allclose(found[k].numpy(), expected, rtol=1e-4)


def test_predictions_count_in_deviations_with_the_heads_own() -> None:
    """The variance of the mean over four chains, and the mean of the head's, prediction by one."""
    data = CurveData()
    sampler = partial(SGLD, lr=1e-3, prior=PRIOR)
    chain = started(Scaled(net(), sampler, num_chains=4, collapse_head=True), data)
    probes = tuple(t[:5] for t in data.rows)
    combinations = find_directions(chain, [data.rows], probes).combinations
    assert chain.head is not None
    means = chain.head.expected(data.rows, probes, slice(None)).detach().flatten(1)
    exact = chain.head.variances(data.rows, probes, torch.eye(10).reshape(10, 5, 2))
    deviation = (means.double().var(0) + exact.double().mean(0)).sqrt()
    assert float(exact.double().mean(0).max() / means.double().var(0).min()) > 1
    raw = torch.randn(6, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(combinations * deviation, raw, rtol=1e-4, atol=1e-4)


class Fixed(nn.Module):
    """Features without weights that matter, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = nn.Parameter(torch.zeros(1))
        self.head = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(torch.cat([x, x**2], 1) + 0 * self.idle)
        return result


def test_draws_of_a_head_alone_are_independent_and_exact() -> None:
    data = CurveData()
    x, y = (t.double().numpy() for t in data.rows)
    task = RegressionTask(
        Fixed(), partial(SGLD, lr=1e-3, prior=GaussianPrior(0.5)), noise=0.4, collapse_head=True
    )
    chain = started(task, data, "net.head")
    rows = []
    for _ in range(800):
        chain.advance(chain.minibatch())
        chain.complete()
        state = chain.state(0)
        rows.append(torch.cat([state["net.head.weight"], state["net.head.bias"][:, None]], 1))
    draws = torch.stack(rows).double().numpy()
    phi = np.concatenate([x, x**2, np.ones_like(x)], 1)
    covariance = np.linalg.inv(phi.T @ phi / 0.4**2 + np.eye(3) / 0.5)
    mean = covariance @ phi.T @ y / 0.4**2
    white = (draws - mean.T) @ np.linalg.inv(np.linalg.cholesky(covariance)).T
    white = white.reshape(800, 6)
    scores = [white.mean(0) * 800**0.5]
    products = white[:, :, None] * white[:, None, :] - np.eye(6)
    scores.append(products.mean(0) / products.std(0) * 800**0.5)
    lagged = white[1:, :, None] * white[:-1, None, :]
    scores.append(lagged.mean(0) * 799**0.5)
    assert max(np.abs(s).max() for s in scores) < BOUND


def test_chains_and_seeds_draw_heads_of_their_own() -> None:
    """Heads of the same features differ from their mean independently of one another: 5 sigma."""
    data, heads = CurveData(), []
    for seed in (0, 1):
        sampler = partial(SGLD, lr=1e-3, prior=GaussianPrior(0.5), seed=seed)
        task = RegressionTask(
            Fixed(), sampler, noise=0.4, num_chains=3, starts="same", collapse_head=True
        )
        chain = started(task, data, "net.head")
        rows = []
        for _ in range(300):
            chain.advance(chain.minibatch())
            chain.complete()
            rows.append(torch.stack([chain.state(k)["net.head.weight"][0, 0] for k in range(3)]))
        heads.append(torch.stack(rows).double())
    correlations = np.corrcoef(torch.cat(heads, 1).numpy().T)
    assert np.abs(correlations - np.eye(6)).max() < 5 / 300**0.5


def test_networks_are_measured_with_a_head_of_their_weights(tmp_path: Path) -> None:
    """Also where burn-in ends, before any draw, and at a last step that makes none.

    Near the least squares of the features, with N(0, 100) a priori and noise of .01; the head that
    the network starts from is far away.
    """
    data = CurveData()
    sampler = partial(SGLD, lr=1e-9, prior=GaussianPrior(100.0))
    task = RegressionTask(
        Fixed(), sampler, noise=0.01, burn_in=2, thinning=3, num_chains=2, starts="same",
        collapse_head=True,
    )  # fmt: skip
    task.head = "net.head"
    trainer(tmp_path, 6).fit(task, datamodule=data)
    x, y = (t.double().numpy() for t in data.rows)
    phi = np.concatenate([x, x**2, np.ones_like(x)], 1)
    expected = np.sqrt(np.mean((phi @ np.linalg.lstsq(phi, y, rcond=None)[0] - y) ** 2))
    assert task.kept.num_draws == 1
    assert task.kept.reference["test"]["rmse"] == pytest.approx(expected, rel=0.01)
    for k in range(2):  # as weights that have moved on since the last draw
        task.chain.state(k)["net.head.weight"].zero_()
    assert task.kept.measure_network("test")["rmse"] == pytest.approx(expected, rel=0.01)


def function_moments(collapse: bool, noise_net: bool) -> np.ndarray:
    """Return E f, E f^2 at three inputs, E log_noise and E W^2 of each of many HMC chains."""
    data = CurveData(outputs=1)
    chains = 128
    sampler = partial(HMC, lr=0.02, leapfrog_steps=6, prior=PRIOR, seed=3 + collapse)
    task = RegressionTask(
        net(1, 3), sampler, noise="input" if noise_net else "learned", initial_noise=0.3,
        noise_net=nn.Linear(1, 1) if noise_net else None, num_chains=chains, collapse_head=collapse,
    )  # fmt: skip
    chain = started(task, data)
    inputs = torch.tensor([[-1.0], [0.3], [1.5]])
    sums = np.zeros((chains, 9))
    burn_in, steps = 200, 60
    for step in range(burn_in + steps):
        chain.advance(chain.minibatch())
        if step == burn_in:
            chain.sampler.freeze()
        if step < burn_in:
            continue
        chain.complete()
        f = chain.evaluate("predictive", (inputs, None))[..., 0]
        states = [chain.state(k) for k in range(chains)]
        log_sigma = torch.stack([s["log_noise"] for s in states])[:, None]
        weights = torch.stack([(s[HEAD[0]] ** 2).sum() for s in states])[:, None]
        bias = torch.stack([s[HEAD[1]] for s in states]) ** 2
        sums += torch.cat([f, f**2, log_sigma, weights, bias], 1).detach().double().numpy() / steps
    assert chain.sampler.acceptance > 0.6
    return sums


@pytest.mark.parametrize("noise_net", [False, True])
def test_joint_law_is_that_of_hmc_over_all_weights(noise_net: bool) -> None:
    """Means over independent chains, whose spread gives the standard error."""
    ours, whole = function_moments(True, noise_net), function_moments(False, noise_net)
    error = np.sqrt(ours.var(0, ddof=1) / len(ours) + whole.var(0, ddof=1) / len(whole))
    scores = (ours.mean(0) - whole.mean(0)) / error
    assert np.abs(scores).max() < BOUND
    assert (error < 0.2 * np.abs(whole.mean(0)) + 0.05).all()


RUNS: dict[str, Any] = {
    "SGHMC": partial(SGHMC, lr="auto", prior=PRIOR, preconditioner=RMSProp(floor=0.5)),
    "HMC": partial(HMC, lr="auto", leapfrog_steps=3, prior=PRIOR),
}


def task(name: str, num_chains: int = 1, steps: int = 5, **kwargs: Any) -> Scaled:
    burn_in = OptimizerBurnIn(partial(torch.optim.Adam, lr=1e-2), steps) if steps else None
    settings = {"noise": 0.2, "burn_in": 9, "thinning": 3, "burn_in_optimizer": burn_in} | kwargs
    return Scaled(
        net(),
        partial(RUNS[name], chain=settings.pop("chain", 0)),
        num_chains=num_chains,
        collapse_head=True,
        **settings,
    )


@pytest.mark.parametrize("name", RUNS)
def test_chains_together_are_each_alone(tmp_path: Path, name: str) -> None:
    fixed = {"target_acceptance": None} if name == "HMC" else {}  # chains together share a step
    sampler = partial(RUNS[name], lr=1e-3, **fixed)
    settings: dict[str, Any] = {"noise": 0.2, "burn_in": 3, "thinning": 2, "collapse_head": True}
    both = Scaled(net(), sampler, num_chains=2, starts="same", **settings)
    trainer(tmp_path / "both", 7).fit(both, datamodule=CurveData())
    for k in range(2):
        alone = Scaled(net(), partial(sampler, chain=k), **settings)
        trainer(tmp_path / str(k), 7).fit(alone, datamodule=CurveData())
        for key, value in alone.chain.state(0).items():
            torch.testing.assert_close(both.chain.state(k)[key], value, rtol=2e-3, atol=2e-4)
    ends = [both.chain.state(k)[HEAD[0]] for k in range(2)]
    assert not torch.allclose(*ends, atol=1e-2)


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("num_chains", [1, 2])
def test_resume_is_to_the_bit(tmp_path: Path, name: str, num_chains: int) -> None:
    def run(folder: Path, steps: int, resume: bool = False) -> Scaled:
        module = task(name, num_chains)
        trainer(folder, steps, [ChainCheckpoint(5)]).fit(
            module,
            datamodule=CurveData(),
            ckpt_path=str(folder / "checkpoints" / "last.ckpt") if resume else None,
            weights_only=True,
        )
        return module

    whole = run(tmp_path / "whole", 25)
    run(tmp_path / "parts", 15)
    parts = run(tmp_path / "parts", 25, resume=True)
    assert whole.kept.num_draws == parts.kept.num_draws == 5
    for k in range(num_chains):
        for name, value in whole.chain.state(k).items():
            assert torch.equal(value, parts.chain.state(k)[name]), name
    ensembles = [module.kept.ensemble("test") for module in (whole, parts)]
    assert torch.equal(ensembles[0].mean, ensembles[1].mean)
    assert torch.equal(ensembles[0].std, ensembles[1].std)


def test_draws_on_disk_hold_the_head(tmp_path: Path) -> None:
    """Each draw has its own head, and predicts what it predicted while the chain ran."""
    module = task("SGHMC", 2)
    data = CurveData()
    trainer(tmp_path, 25).fit(module, datamodule=data)
    posterior = load_posterior(tmp_path, module=task("SGHMC"))
    heads = torch.stack([one.get_parameter(HEAD[0]).detach().clone() for one in posterior])
    assert len(heads) == 10
    assert (heads.std(0) > 0).all()
    mean = posterior.predict(data.rows[0]).mean
    torch.testing.assert_close(
        mean, module.kept.ensemble("test").mean.to(mean), rtol=1e-4, atol=1e-4
    )


BAD: list[tuple[str, dict[str, Any]]] = [
    ('let it be "learned"', {"noise": "residuals"}),
    ("Gaussian prior of mean 0", {"prior": LaplacePrior(1.0)}),
    ("Gaussian prior of mean 0", {"prior": GaussianPrior(1.0, mean=0.5)}),
    ("Gaussian prior of mean 0", {"prior": None}),
    ("temperature 1", {"temperature": 0.5}),
    ("all of the head sampled", {"sample": ["net.layers.0.*", HEAD[1]]}),
    ("no weight is left", {"sample": list(HEAD)}),
    ("matches no parameter", {"prior": LayerwiseGaussianPrior({"net.9.*": 1.0}, default=1.0)}),
]


@pytest.mark.parametrize(("message", "change"), BAD)
def test_refused(tmp_path: Path, message: str, change: dict[str, Any]) -> None:
    settings = {"noise": 0.2, "prior": FanInGaussianPrior(), "temperature": 1.0} | change
    sampler = partial(
        SGLD, lr=1e-3, prior=settings.pop("prior"), temperature=settings.pop("temperature")
    )
    module = Scaled(net(), sampler, collapse_head=True, **settings)
    with pytest.raises(ValueError, match=message):
        trainer(tmp_path, 3).fit(module, datamodule=CurveData())


def test_refused_with_minibatches_processes_and_pruning(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match='sampling="full"'):
        trainer(tmp_path, 12).fit(task("SGHMC"), datamodule=CurveData(sampling="reshuffled"))
    with pytest.raises(ValueError, match="cannot be pruned"):
        trainer(tmp_path, 12, [GradualPruning(0.3, 0, 5)]).fit(task("SGHMC"), CurveData())
    fisher = Scaled(net(), partial(SGFS, lr=0.1, prior=PRIOR), noise=0.2, collapse_head=True)
    with pytest.raises(ValueError, match="gradients of single ones"):
        trainer(tmp_path, 12).fit(fisher, datamodule=CurveData())
    shared = task("SGHMC")
    shared.head = "net.layers.2"
    shared.chain.select()
    shared.chain.place(Processes(size=2))
    shared.chain.build()
    with pytest.raises(ValueError, match="data-parallel"):
        shared.chain.bind(CurveData().train_dataloader())


def kept_head(module: RegressionTask, folder: Path, data: CurveData) -> tuple[str, ...]:
    """Fit, and return the names of the weights that were integrated out."""
    trainer(folder, 3).fit(module, datamodule=data)
    return tuple(module.chain.head.names) if module.chain.head is not None else ()


def test_auto_integrates_out_where_it_can(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"noise": 0.2, "burn_in": 1}
    sampler = partial(SGLD, lr=1e-3, prior=PRIOR)
    auto = Scaled(net(), sampler, collapse_head="auto", **settings)
    assert kept_head(auto, tmp_path / "auto", CurveData()) == HEAD
    told = Scaled(net(), sampler, collapse_head=True, **settings)
    kept_head(told, tmp_path / "told", CurveData())
    for name, value in told.chain.state(0).items():
        assert torch.equal(value, auto.chain.state(0)[name]), name


def test_auto_integrates_out_where_the_sampler_takes_the_whole_data(tmp_path: Path) -> None:
    """Batches that the data leave open are then those of the sampler."""
    hmc = partial(HMC, lr=1e-3, leapfrog_steps=2, prior=PRIOR)
    for sampler, expected in ((hmc, HEAD), (partial(SGLD, lr=1e-3, prior=PRIOR), ())):
        module = Scaled(net(), sampler, noise=0.2, burn_in=1, collapse_head="auto")
        assert (
            kept_head(module, tmp_path / sampler.func.__name__, CurveData(sampling="auto"))
            == expected
        )


WITHOUT: list[tuple[str, dict[str, Any]]] = [
    ("the whole data at every step", {"sampling": "reshuffled"}),
    (
        "no head to integrate out",
        {
            "net": nn.Sequential(nn.Linear(1, 2), nn.Tanh()),
            "sampler": partial(SGLD, lr=1e-3, prior=GaussianPrior(1.0)),
        },
    ),
    ("gradients of single ones", {"sampler": partial(SGFS, lr=0.1, prior=PRIOR)}),
    ("temperature 1", {"sampler": partial(SGLD, lr=1e-3, prior=PRIOR, temperature=0.5)}),
    ("Gaussian prior of mean 0", {"sampler": partial(SGLD, lr=1e-3, prior=LaplacePrior(1.0))}),
    ('let it be "learned"', {"noise": "residuals"}),
    (
        "one set of labels for all chains",
        {
            "sampler": partial(SGLD, lr=1e-3, prior=GaussianPrior(1.0)),
            "starts": "randomised_map",
            "num_chains": 2,
            "burn_in_optimizer": OptimizerBurnIn(partial(torch.optim.Adam, lr=1e-2), 1),
        },
    ),
]


@pytest.mark.parametrize(("message", "change"), WITHOUT)
def test_auto_samples_all_weights_elsewhere(
    tmp_path: Path, caplog: Any, message: str, change: dict[str, Any]
) -> None:
    """To the bit as without the option, and a note says why."""
    settings: dict[str, Any] = {"noise": 0.2, "burn_in": 1, "net": net(), "sampling": "full"}
    settings |= {"sampler": partial(SGLD, lr=1e-3, prior=PRIOR)} | change
    data = CurveData(sampling=settings.pop("sampling"))
    found = []
    for collapse in ("auto", False):
        module = Scaled(**copy.deepcopy(settings), collapse_head=collapse)
        with caplog.at_level(logging.INFO):
            assert kept_head(module, tmp_path / str(collapse), data) == ()
        found.append(module.chain.state(0))
        assert message in caplog.text
    for name, value in found[0].items():
        assert torch.equal(value, found[1][name]), name


def test_refused_without_a_head(tmp_path: Path) -> None:
    layers = nn.Sequential(nn.Linear(1, 2), nn.Tanh())
    module = Scaled(layers, RUNS["SGHMC"], noise=0.2, burn_in=1, collapse_head=True)
    with pytest.raises(ValueError, match="no head to integrate out"):
        trainer(tmp_path, 3).fit(module, datamodule=CurveData())
