"""Noise that depends on the input: its density, its posterior, its bands, its runs."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy import integrate, stats
from torch import Tensor, nn

from lightning_sgmcmc import HMC, SGHMC, SGLD, BatchStream, GaussianPrior, load_posterior
from lightning_sgmcmc.callbacks import ChainCheckpoint
from lightning_sgmcmc.chain import OptimizerBurnIn
from lightning_sgmcmc.metrics import Normal, Prediction
from lightning_sgmcmc.posterior import Posterior
from lightning_sgmcmc.run import cli
from tasks.data.uci import UCIData
from tasks.nets.mlp import MLP
from tasks.pde_perm import PDEPerm
from tasks.regression import RegressionTask
from tasks.uci import UCIRegression
from tests.device import DEVICE
from tests.harness import BOUND
from tests.toy import trainer

ROOT = Path(__file__).resolve().parents[2]
QUIET = ("--wandb_project=null", "--trainer.enable_progress_bar=false")
SAMPLER = partial(SGLD, lr=1e-4, prior=GaussianPrior(variance=1.0))


class Scaled(RegressionTask):
    """y = 3 + 2 f(x), n(x) = 1 + |x_0|."""

    def in_units(self, output: Tensor) -> Tensor:
        return 3 + 2 * output

    def noise_shape(self, x: Tensor) -> Tensor:
        return 1 + x[:, :1].abs()


def random(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("floor", [0.0, 0.7])
@pytest.mark.parametrize("own", [None, 1, 3])
def test_the_density_is_that_of_both_outputs(floor: float, own: int | None) -> None:
    """Against the normal density with the scale written out, for a network of its own too."""
    torch.manual_seed(0)
    net = nn.Linear(2, 3 if own else 6)
    task = Scaled(
        net, SAMPLER, noise="input", noise_net=nn.Linear(2, own) if own else None,
        noise_spread=1.7, noise_floor=floor, initial_noise=0.4,
    ).double()  # fmt: skip
    x, y = random(5, 2, seed=1), random(5, 3, seed=2)
    out = net(x)
    f, g = (out, task.noise_net(x)) if task.noise_net else (out[:, :3], out[:, 3:])
    sigma = ((2 * (task.log_noise + 1.7 * g)).exp() + floor**2).sqrt()
    law = torch.distributions.Normal(3 + 2 * f, sigma * (1 + x[:, :1].abs()))
    expected = -law.log_prob(y).sum(1)
    torch.testing.assert_close(task.nll((x, y)), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(-task.law(x).log_density(y), expected, rtol=1e-12, atol=1e-12)
    assert float(task.log_noise.detach().exp()) == pytest.approx(0.4)
    _, drawn = task.draw_labels(((x, y), torch.full((5, 3), 0.975)))
    z = (drawn - law.mean) / law.stddev
    torch.testing.assert_close(z, torch.full_like(y, 1.959964), rtol=1e-6, atol=0)
    for name, parameter in task.named_parameters():  # all are sampled, none by the floor alone
        (gradient,) = torch.autograd.grad(task.nll((x, y)).sum(), parameter)
        assert bool(gradient.abs().max() > 0), name


def straight(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return x ~ U(-1, 1) and y = x + exp(-1 + 1.2 x) e, [N, 1] each."""
    generator = np.random.default_rng(seed)
    x = generator.uniform(-1, 1, (count, 1))
    y = x + np.exp(-1 + 1.2 * x) * generator.standard_normal((count, 1))
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)


def by_quadrature(x: np.ndarray, y: np.ndarray, spread: float, floor: float) -> np.ndarray:
    """Return means and variances of (a, b, c) under N(0, 1) priors and the likelihood.

    y ~ N(a x, exp(2 c + 2 spread b x) + floor^2); sums over a grid whose edges hold no mass.
    """
    axes = [np.linspace(*ends, 80) for ends in ((-0.3, 2.2), (-3, 4.5), (-3, 0.8))]
    a, b, c = np.meshgrid(*axes, indexing="ij")
    log_density = -(a**2 + b**2 + c**2) / 2
    for x_i, y_i in zip(x[:, 0], y[:, 0], strict=True):
        variance = np.exp(2 * (c + spread * b * x_i)) + floor**2
        log_density -= (y_i - a * x_i) ** 2 / variance / 2 + np.log(variance) / 2
    mass = np.exp(log_density - log_density.max())
    mass /= mass.sum()
    edges = [mass.take((0, -1), axis).sum() for axis in range(3)]
    assert max(edges) < 1e-5
    means = np.array([(mass * t).sum() for t in (a, b, c)])
    squares = np.array([(mass * t**2).sum() for t in (a, b, c)])
    return np.concatenate([means, squares])


@pytest.mark.parametrize(("spread", "floor"), [(1.0, 0.0), (0.6, 0.25)])
def test_chains_draw_the_posterior_of_mean_and_log_scale(spread: float, floor: float) -> None:
    """E and E t^2 of slope, slope of log sigma and its level, over chains, against a grid.

    Six scores of standard errors over 128 chains, each beyond the bound once in 10^6.
    """
    x, y = straight(25, 0)
    exact = by_quadrature(x.double().numpy(), y.double().numpy(), spread, floor)
    torch.manual_seed(0)
    sampler = partial(HMC, lr=0.06, leapfrog_steps=6, prior=GaussianPrior(variance=1.0), seed=5)
    chains, burn_in, steps = 128, 60, 80
    task = RegressionTask(
        nn.Linear(1, 2, bias=False), sampler, noise="input", initial_noise=0.4,
        noise_spread=spread, noise_floor=floor, num_chains=chains,
    )  # fmt: skip
    chain = task.chain
    chain.select(), chain.place(), chain.build(), chain.bind(BatchStream((x, y), 25, "full"))
    sums = np.zeros((chains, 6))
    for step in range(burn_in + steps):
        chain.advance(chain.minibatch())
        if step == burn_in:
            chain.sampler.freeze()
        if step < burn_in:
            continue
        states = [chain.state(k) for k in range(chains)]
        weight = torch.stack([s["net.weight"][:, 0] for s in states]).detach().double()
        level = torch.stack([s["log_noise"] for s in states])[:, None].detach().double()
        theta = torch.cat([weight, level], 1).numpy()
        sums += np.concatenate([theta, theta**2], 1) / steps
    assert chain.sampler.acceptance > 0.6  # type: ignore[attr-defined]
    error = sums.std(0, ddof=1) / chains**0.5
    assert (error < 0.05).all()
    assert np.abs((sums.mean(0) - exact) / error).max() < BOUND


def write(path: Path, count: int) -> Path:
    x, y = (t.double().numpy() for t in straight(count, 3))
    z = np.random.default_rng(1).normal(size=(count, 1))
    np.savetxt(path, np.hstack([x, z, 100 * y + 7]), "%.9g", ",", header="x,z,y", comments="")
    return path


def test_bands_hold_where_noise_is_small_and_where_it_is_large(tmp_path: Path) -> None:
    """1,000 rows, a tenth for testing; then 4,000 further ones, of which thirds by x are counted.

    Coverage of a third has a standard error of .008. Bands of one width would hold 99 % of the
    first third and 73 % of the last.
    """
    csv = write(tmp_path / "table.csv", 1000)
    prior = GaussianPrior(variance=1.0)
    sampler = partial(SGHMC, lr="auto", momentum=0.9, prior=prior, seed=1)
    torch.manual_seed(0)
    task = UCIRegression(
        nn.Linear(2, 2), sampler, noise="input", burn_in=150, thinning=5, num_chains=2,
        burn_in_optimizer=OptimizerBurnIn(partial(torch.optim.Adam, lr=0.05), 100),
        collapse_head="auto",
    )  # fmt: skip
    run = trainer(tmp_path / "run", 450, limit_val_batches=0)
    run.fit(task, datamodule=UCIData(file=str(csv)))
    x, y = straight(4000, 9)
    truth = 100 * y.double() + 7
    posterior = load_posterior(
        tmp_path / "run", UCIRegression(nn.Linear(2, 2), sampler, noise="input")
    )
    prediction = posterior.predict(torch.cat([x, 0 * x], 1).double())
    lower, upper = prediction.interval(0.9)
    inside = ((lower <= truth) & (truth <= upper))[:, 0].double()
    third = torch.bucketize(x[:, 0], torch.tensor([-1 / 3, 1 / 3]))
    held = [float(inside[third == i].mean()) for i in range(3)]
    assert all(0.86 < share < 0.94 for share in held), held
    assert prediction.noise is not None
    ratio = prediction.noise.sqrt() / (100 * torch.exp(-1 + 1.2 * x.double()))
    assert 0.85 < float(ratio.quantile(0.05)) < float(ratio.quantile(0.95)) < 1.15
    check_report(task, posterior)


def check_report(task: UCIRegression, posterior: Posterior) -> None:
    """Compare a run's numbers with those of its stored draws, and of the test rows."""
    data, kept = task._data(), task.kept
    x, y = (t.to(DEVICE) for t in data.tensors("test"))
    ensemble = task.metrics(kept.ensemble("test"), (x, y))
    scale = data.tensors("train")[1].numpy().std()
    prediction = posterior.predict(x)
    assert prediction.noise is not None
    details = task.describe(kept)
    assert details["noise_scale"] == pytest.approx(float(prediction.noise.mean().sqrt()), rel=1e-4)
    assert "function of the input" in details["noise_scale_from"]
    nll = -float(prediction.log_density(y).mean())
    assert ensemble["nll"] == pytest.approx(nll, rel=1e-4)
    assert ensemble["nll_standardised"] == pytest.approx(nll - np.log(scale), rel=1e-3)
    law = stats.norm(prediction.mean.numpy() / scale, prediction.std.numpy() / scale)
    gaussian = -law.logpdf(y.numpy() / scale).mean()
    assert ensemble["nll_gaussian_standardised"] == pytest.approx(gaussian, rel=1e-5)
    assert ensemble["nll_gaussian_standardised"] != ensemble["nll_standardised"]
    assert ensemble["rmse_standardised"] == pytest.approx(ensemble["rmse"] / scale, rel=1e-6)
    assert list(task.progress()) == ["error", "nll"]  # there is no one sigma to show
    (axes,) = task.figures(kept)["predictions"].axes
    (arms,) = axes.containers[0].lines[2]
    drawn = np.array([np.ptp(arm[:, 0]) for arm in arms.get_segments()])
    z = stats.norm.ppf(0.95)
    np.testing.assert_allclose(drawn, 2 * z * prediction.std.numpy()[:, 0], rtol=1e-4)


def test_crps_is_the_integral_of_each_examples_own_law() -> None:
    torch.manual_seed(0)
    task = RegressionTask(nn.Linear(2, 2), SAMPLER, noise="input").double()
    x, y = random(4, 2, seed=3), random(4, 1, seed=4)
    with torch.no_grad():
        law = task.law(x)
    noise = law.noise
    assert noise is not None
    nll = -law.log_density(y)
    prediction = Prediction(Normal, law.mean, torch.zeros_like(y), noise, nll)
    found = task.metrics(prediction, (x, y))
    expected = []
    for mean, variance, truth in zip(law.mean.flatten(), noise.flatten(), y.flatten(), strict=True):
        own, t = stats.norm(float(mean), float(variance) ** 0.5), float(truth)
        below = integrate.quad(lambda z, own=own: own.cdf(z) ** 2, -20, t)[0]
        expected.append(below + integrate.quad(lambda z, own=own: own.sf(z) ** 2, t, 20)[0])
    assert found["crps"] == pytest.approx(np.mean(expected), rel=1e-6)
    assert noise.std() > 0.1 * noise.mean()  # the law's scale differs between the examples


def test_a_run_continues_to_the_bit(tmp_path: Path) -> None:
    """Two chains, stopped while they are sampled, from other starts of the program's generator."""
    csv = write(tmp_path / "table.csv", 60)
    sampler = partial(SGHMC, lr="auto", momentum=0.9, prior=GaussianPrior(1.0), seed=3)
    draws = []
    for name, parts in (("whole", [30]), ("parts", [19, 30])):
        for i, steps in enumerate(parts):
            torch.manual_seed(i)
            task = UCIRegression(
                MLP([4], "tanh", outputs=2), sampler, noise="input", num_chains=2, burn_in=10,
                thinning=4, collapse_head="auto",
            )  # fmt: skip
            last = str(tmp_path / name / "checkpoints" / "last.ckpt") if i else None
            trainer(tmp_path / name, steps, [ChainCheckpoint(10**6)], limit_val_batches=0).fit(
                task, datamodule=UCIData(file=str(csv)), ckpt_path=last, weights_only=True
            )
        files = sorted((tmp_path / name).glob("samples/chain*/step_*.safetensors"))
        draws.append([load_file(path) for path in files])
    assert len(draws[0]) == len(draws[1]) == 10
    for a, b in zip(*draws, strict=True):
        assert {"log_noise", "net.layers.2.weight"} < set(a)
        assert all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model.net.outputs=1"], 'outputs with noise "input", f and log scale for each of 1'),
        (["--model.net.outputs=2", "--model.collapse_head=true"], "collapse_head needs a noise"),
        (
            ["--model.noise=learned", "--model.noise_net=tasks.nets.mlp.MLP"],
            "noise_net needs noise",
        ),
        (["--model.net.outputs=2", "--model.noise_spread=0"], "noise_spread must be positive"),
        (["--model.noise_net=tasks.nets.mlp.MLP", "--model.noise_net.outputs=3"], "one log scale"),
    ],
)
def test_what_does_not_fit_is_one_line(
    tmp_path: Path, capsys: Any, options: list[str], message: str
) -> None:
    csv = write(tmp_path / "table.csv", 60)
    command = ["--task=uci_regression", f"--data.file={csv}", f"--out={tmp_path / 'run'}"]
    command.append("--model.noise=input")
    with pytest.raises(SystemExit) as stop:
        cli.main(ROOT / "configs", [*command, *options, *QUIET])
    error = capsys.readouterr().err.strip()
    assert stop.value.code == 2
    assert message in error.splitlines()[-1]
    assert "Traceback" not in error


def test_a_surrogate_has_a_scale_of_each_field() -> None:
    """A network of its own sees what the flow's network sees, and gives one scale a field."""
    torch.manual_seed(0)
    edges = 2 * 4 * 5
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, edges))
    scale = nn.Sequential(nn.Flatten(), nn.Linear(16, 1))
    task = PDEPerm(net, SAMPLER, noise="input", noise_net=scale, noise_floor=1e-3).double()
    task.flow.log_mean.fill_(0.5), task.flow.log_std.fill_(2.0)
    kappa = random(3, 4, 4, seed=5).exp()
    law = task.law(kappa)
    g = scale((kappa.log() - 0.5) / 2)
    n = kappa.log().mean((1, 2), keepdim=True)[..., 0].exp()
    expected = (n * ((2 * g).exp() + 1e-6).sqrt()).expand(3, edges)
    assert law.noise is not None
    torch.testing.assert_close(law.noise.sqrt().expand(3, edges), expected)
    task._fit_networks(kappa, edges)  # both fit the data
    assert task.noise_net is not None
    task.noise_net[1] = nn.Linear(16, 2).double()
    with pytest.raises(ValueError, match="one log scale for all"):
        task._fit_networks(kappa, edges)


def test_a_network_of_the_scale_may_have_open_sizes() -> None:
    """log sigma = log_noise + noise_spread g."""
    task = RegressionTask(
        MLP([4]), SAMPLER, noise="input", noise_net=MLP([3], outputs=None),
        noise_spread=0.7, initial_noise=0.4,
    )  # fmt: skip
    task._fit_networks(torch.randn(6, 5), 1)
    x = torch.randn(6, 5)
    found = task.outputs(x)[1]
    assert found.shape == (6, 1)
    assert task.noise_net is not None
    torch.testing.assert_close(found, 0.7 * task.noise_net(x) + math.log(0.4))
