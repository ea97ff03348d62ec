"""Regression: a normal density, a noise scale that fits its residuals, bands that hold it."""

from __future__ import annotations

import copy
import math
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_sgmcmc import (
    HMC,
    PSGLD,
    SGLD,
    BatchStream,
    DiagonalFisher,
    GaussianPrior,
    load_posterior,
)
from lightning_sgmcmc.chain import OptimizerBurnIn
from lightning_sgmcmc.chain.processes import Processes
from lightning_sgmcmc.metrics import Normal, Prediction, gaussian_crps
from tasks.regression import RegressionTask
from tasks.residual_scale import ResidualScale, output_profile
from tests.toy import NUM_DATA, toy_data, trainer

OUTPUTS = 5
SAMPLER = partial(PSGLD, lr=1e-4, prior=GaussianPrior(variance=4.0))


class Scaled(RegressionTask):
    """n(x) = 1 + |x_0|."""

    def noise_shape(self, x: Tensor) -> Tensor:
        return 1 + x[:, :1].abs()


class CubedData(L.LightningDataModule):
    """The toy's training set with heavy-tailed y [B, 1], and nothing held out by default."""

    def __init__(self, held_out: tuple[tuple[Tensor, Tensor], ...] = ()) -> None:
        super().__init__()
        self.held_out = list(held_out)

    def train_dataloader(self) -> BatchStream:
        x, y = toy_data()
        return BatchStream((x, y.unsqueeze(1) ** 3), 16)

    def val_dataloader(self) -> Any:
        return self.held_out


def example(noise: Any = 0.3, size: int = 7, **kwargs: Any) -> tuple[Scaled, Tensor, Tensor]:
    torch.manual_seed(0)
    module = Scaled(nn.Linear(3, OUTPUTS), SAMPLER, noise=noise, **kwargs).double()
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(size, 3, generator=generator, dtype=torch.float64)
    y = torch.randn(size, OUTPUTS, generator=generator, dtype=torch.float64)
    return module, x, y


def normal_log_density(module: Scaled, x: Tensor, y: Tensor, sigma: Tensor) -> Tensor:
    law = torch.distributions.Normal(module(x), sigma * module.noise_shape(x))
    return law.log_prob(y).sum(1)


@pytest.mark.parametrize("sigma", [1e-3, 0.3, 40.0])
def test_nll_is_the_normal_density_of_all_outputs(sigma: float) -> None:
    module, x, y = example(sigma)
    expected = -normal_log_density(module, x, y, module.log_noise.exp())
    torch.testing.assert_close(module.nll((x, y)), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(-module.law(x).log_density(y), expected, rtol=1e-12, atol=1e-12)
    assert module.sigma == pytest.approx(sigma, rel=1e-6)


def test_labels_are_perturbed_by_the_density_s_noise() -> None:
    """z = 1 moves each label by its standard deviation, which a fit must not have to find."""
    module, x, y = example(0.3)
    same, moved = module.perturb_labels((x, y), torch.ones_like)
    assert same is x
    expected = (0.3 * module.noise_shape(x)).expand_as(y)
    torch.testing.assert_close(moved - y, expected, rtol=1e-6, atol=0)
    with pytest.raises(ValueError, match="give noise as a number"):
        example("residuals")[0].perturb_labels((x, y), torch.ones_like)


def test_learned_scale_is_sampled_and_has_the_density_s_gradient() -> None:
    module, x, y = example("learned", initial_noise=0.7)
    assert "log_noise" in dict(module.named_parameters())
    (gradient,) = torch.autograd.grad(module.nll((x, y)).mean(), module.log_noise)
    log_sigma = module.log_noise.detach().clone().requires_grad_()
    loss = -normal_log_density(module, x, y, log_sigma.exp()).mean()
    (expected,) = torch.autograd.grad(loss, log_sigma)
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=0)
    squares = ((y - module(x)) / module.noise_shape(x) / 0.7) ** 2
    by_hand = OUTPUTS - squares.detach().sum(1).mean()
    assert float(gradient) == pytest.approx(float(by_hand), rel=1e-6)


@pytest.mark.parametrize("noise", [0.3, "residuals", "held_out"])
def test_other_scales_are_not_sampled(noise: Any) -> None:
    module, _, _ = example(noise)
    assert "log_noise" not in dict(module.named_parameters())
    assert "log_noise" in module.state_dict()  # but belong to the run's state


def test_learned_scale_moves_with_the_chain(tmp_path: Path) -> None:
    module = Scaled(nn.Linear(3, 1), SAMPLER, noise="learned", burn_in=2, thinning=1, draw_budget=0)
    trainer(tmp_path, 5, limit_val_batches=0).fit(module, datamodule=CubedData())
    assert any(p is module.log_noise for p in module.chain.sampler.params)
    assert module.sigma != 1.0


@pytest.mark.parametrize("chains", [1, 3])
def test_what_is_shown_is_the_error_and_sigma_of_the_last_step(tmp_path: Path, chains: int) -> None:
    """Of the minibatch that the last step saw; asking for it leaves the chain as it was."""
    shown: list[dict[str, float]] = []

    class Shown(Scaled):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            if batch_idx and asks:
                shown.append(self.progress())

    def fitted(folder: Path) -> Shown:
        torch.manual_seed(0)
        chain: dict[str, Any] = {"burn_in": 2, "draw_budget": 0, "num_chains": chains}
        module = Shown(nn.Linear(3, 1), partial(SAMPLER, seed=1), noise="learned", **chain)
        trainer(folder, 4, limit_val_batches=0).fit(module, datamodule=CubedData())
        return module

    asks = True
    module = fitted(tmp_path / "asked")
    asks = False
    alone = fitted(tmp_path / "alone")
    for k in range(chains):
        a, b = module.chain.state(k), alone.chain.state(k)
        assert all(torch.equal(a[name], b[name]) for name in a)
    assert len(shown) == 3
    assert module.chain.stream is not None
    x, y = module.chain.stream.at(module.chain.steps - 1)
    squares, sigmas = [], []
    for k in range(chains):
        state = {name: value.detach() for name, value in module.chain.state(k).items()}
        own = slice(None) if x.ndim == 2 else k
        f = x[own] @ state["net.weight"].T + state["net.bias"]
        squares.append((((y[own] - f) / (1 + x[own][:, :1].abs())) ** 2).mean())
        sigmas.append(state["log_noise"].exp())
    found = module.progress()
    assert list(found) == ["error", "sigma", "nll"]
    assert found["sigma"] == pytest.approx(float(torch.stack(sigmas).mean()))
    if chains > 1:  # a single one shows the error before its last move
        assert found["error"] == pytest.approx(float(torch.stack(squares).mean().sqrt()), rel=1e-5)


def test_validation_is_of_the_mean_of_the_chains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = Scaled(nn.Linear(3, 1), SAMPLER, noise=0.3, num_chains=3, burn_in=1, draw_budget=0)
    trainer(tmp_path, 2, limit_val_batches=0).fit(module, datamodule=CubedData())
    x, y = toy_data(3, 10)
    logged: dict[str, float] = {}
    monkeypatch.setattr(module, "log", lambda name, value, **_: logged.update({name: float(value)}))
    with torch.no_grad():
        module.validation_step((x, y.unsqueeze(1)), 0)
    states = [module.chain.state(k) for k in range(3)]
    rows = [x @ state["net.weight"].T + state["net.bias"] for state in states]
    found = torch.stack(rows).detach().mean(0)
    error = 100 * ((found - y.unsqueeze(1)) / y.unsqueeze(1)).abs().mean()
    assert logged["val/relative_l2_mean_percent"] == pytest.approx(float(error), rel=1e-4)


@pytest.mark.parametrize("quantile", [0.3, 0.9])
def test_band_holds_its_fraction_of_the_training_residuals(tmp_path: Path, quantile: float) -> None:
    """Where burn-in ends, exactly, though the residuals are far from normal."""
    seen = []

    class Ended(Scaled):
        def on_burn_in_end(self) -> None:
            super().on_burn_in_end()
            assert self.chain.stream is not None
            x, y = self.chain.stream.tensors
            with torch.no_grad():
                residual = (y - self.net(x)) / self.noise_shape(x)
            band = torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor((1 + quantile) / 2))
            seen.append((self.sigma, int((residual.abs() <= self.sigma * band * (1 + 1e-5)).sum())))

    module = Ended(
        nn.Linear(3, 1), SAMPLER, noise_quantile=quantile, burn_in=8, thinning=2, draw_budget=0
    )
    trainer(tmp_path, 12, limit_val_batches=0).fit(module, datamodule=CubedData())
    ((sigma, inside),) = seen
    assert inside == round(quantile * NUM_DATA)
    assert module.sigma == sigma  # and stays there while the chain is sampled


def test_sigma_follows_the_residuals_of_all_of_a_few_outputs(tmp_path: Path) -> None:
    """By a tenth of the way a step, from 1; a loader's data say no more where burn-in ends."""
    x, y = toy_data()
    y = torch.stack([0.1 * y, 10 * y], 1)
    torch.manual_seed(0)
    module = Scaled(nn.Linear(3, 2), SAMPLER, burn_in=2, draw_budget=0)
    residual = module.residual((x, y)).detach().abs().flatten()
    scale = residual.kthvalue(round(0.9 * len(residual))).values / 1.644854
    loader = DataLoader(TensorDataset(x, y), batch_size=NUM_DATA)
    trainer(tmp_path, 3, limit_val_batches=0).fit(module, loader, loader)
    assert float(module.log_noise) == pytest.approx(0.1 * float(scale.log()), rel=1e-5)


def test_held_out_residuals_decide_where_they_are_to(tmp_path: Path) -> None:
    """Held-out data of ten times the size, in unequal batches; training residuals do not matter."""
    x, y = toy_data()
    x, y = x[:50], 10 * y[:50].unsqueeze(1) ** 3
    batches = ((x[:30], y[:30]), (x[30:], y[30:]))
    seen = []

    class Ended(Scaled):
        def on_burn_in_end(self) -> None:
            before = self.sigma
            super().on_burn_in_end()
            inputs = x.to(self.device)
            residual = ((y.to(inputs) - self.net(inputs)) / self.noise_shape(inputs)).detach()
            band = torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor(0.95))
            inside = int((residual.abs() <= self.sigma * band * (1 + 1e-5)).sum())
            seen.append((before, self.sigma, inside))

    module = Ended(nn.Linear(3, 1), SAMPLER, noise="held_out", burn_in=8, thinning=2, draw_budget=0)
    trainer(tmp_path, 12, limit_val_batches=0).fit(module, datamodule=CubedData(batches))
    ((before, sigma, inside),) = seen
    assert inside == 45
    assert sigma > 2 * before  # which followed the training residuals
    assert "held-out" in module.describe(module.kept)["noise_scale_from"]


def test_chains_of_other_processes_share_sigma(tmp_path: Path) -> None:
    """Stored draws predict with one, as those of chains in one process do."""

    class Two(Processes):
        def gather(self, value: Tensor) -> Tensor:
            return torch.stack([value, 3 * value])

    module = Scaled(nn.Linear(3, 1), SAMPLER, burn_in=1, thinning=1, draw_budget=0)
    trainer(tmp_path, 2, limit_val_batches=0).fit(module, datamodule=CubedData())
    assert module.chain.stream is not None
    own = module.residual(module.chain.stream.tensors).detach().abs().flatten()
    module.chain.processes = Two(data_parallel=False)
    module.on_burn_in_end()
    both = torch.cat([own, 3 * own])
    quantile = both.kthvalue(round(0.9 * 2 * NUM_DATA)).values
    assert module.sigma == pytest.approx(float(quantile) / 1.6448536, rel=1e-5)


class Uneven(L.LightningDataModule):
    """y_j = w_j x + e_j with noise of standard deviation 2^j / 10 in each of five outputs."""

    def __init__(self, held_out: int = 200) -> None:
        super().__init__()
        self.held_out = held_out

    def rows(self, count: int, seed: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(count, 3, generator=generator)
        scale = 0.1 * 2.0 ** torch.arange(OUTPUTS)
        noise = scale * torch.randn(count, OUTPUTS, generator=generator)
        return x, x @ torch.linspace(-1, 1, 3 * OUTPUTS).reshape(3, OUTPUTS) + noise

    def train_dataloader(self) -> BatchStream:
        return BatchStream(self.rows(500, 0), 100)

    def val_dataloader(self) -> Any:
        return DataLoader(TensorDataset(*self.rows(self.held_out, 1)), batch_size=128)

    def test_dataloader(self) -> Any:
        return DataLoader(TensorDataset(*self.rows(2_000, 2)), batch_size=2_000)


@pytest.mark.parametrize("noise", ["held_out", "residuals"])
@pytest.mark.parametrize("by_output", [True, False])
def test_bands_of_every_output_hold_what_they_should(
    tmp_path: Path, noise: Any, by_output: bool
) -> None:
    """With a profile, 90 % bands of each output hold 90 %; with one sigma, some all and some few.

    200 held-out residuals give a deviation to 5 %, that is a coverage to 2 %.
    """
    torch.manual_seed(0)
    sampler = partial(PSGLD, lr=1e-3, prior=GaussianPrior(variance=4.0))
    module = Scaled(
        nn.Linear(3, OUTPUTS), sampler, noise=noise, noise_by_output=by_output,
        burn_in=1000, thinning=100,
    )  # fmt: skip
    module.noise_shape = lambda x: torch.ones(len(x), 1)  # type: ignore[method-assign]
    run = trainer(tmp_path, 1300, log_every_n_steps=100)
    run.fit(module, datamodule=Uneven())
    keep = run.lightning_module.kept
    found = module.metrics(keep.ensemble("test"), keep.held_out["test"].examples)
    spread = [found[f"coverage_90_output_{p}"] for p in ("p05", "p95")]
    if by_output:
        assert 0.84 < spread[0] < spread[1] < 0.95
        ratios = module.noise_profile[1:] / module.noise_profile[:-1]
        torch.testing.assert_close(ratios, torch.full((4,), 2.0), rtol=0.25, atol=0)
        quantiles = module.describe(module.kept)["noise_profile_quantiles"]
        assert quantiles["0"] == pytest.approx(float(module.noise_profile.min()))
        posterior = load_posterior(tmp_path, Scaled(nn.Linear(3, OUTPUTS), sampler))
        assert torch.equal(posterior.module.noise_profile, module.noise_profile)
    else:
        assert spread[0] < 0.75
        assert spread[1] > 0.98
        assert module.noise_profile.numel() == 0


class Stretched(Uneven):
    """The same with outputs of very different sizes."""

    def rows(self, count: int, seed: int) -> tuple[Tensor, Tensor]:
        x, y = super().rows(count, seed)
        return x, y * 10.0 ** torch.arange(OUTPUTS)


def test_a_second_fit_finds_the_profile_anew(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sampler = partial(PSGLD, lr=1e-7, prior=GaussianPrior(variance=4.0))
    module = Scaled(
        nn.Linear(3, OUTPUTS), sampler, noise_by_output=True, burn_in=2, thinning=1, draw_budget=0
    )
    found = []
    for name in "ab":
        trainer(tmp_path / name, 3, limit_val_batches=0).fit(module, datamodule=Stretched())
        found.append(module.noise_profile)
    assert float(found[0][-1] / found[0][0]) > 1000
    torch.testing.assert_close(found[1], found[0], rtol=0.05, atol=0)


def test_targets_of_another_shape_are_refused(tmp_path: Path) -> None:
    """They would broadcast: one f for all outputs, or those of all pairs of examples."""
    x, y = toy_data()

    class Flat(CubedData):
        def train_dataloader(self) -> BatchStream:
            return BatchStream((x, y), 16)

    module = Scaled(nn.Linear(3, 1), SAMPLER, noise=0.3, burn_in=2)
    with pytest.raises(ValueError, match=r"\[64\], not \[N, D\]: give a single one as \[N, 1\]"):
        trainer(tmp_path, 3, limit_val_batches=0).fit(module, datamodule=Flat())
    for targets in (y, torch.stack([y, y], 1)):
        with pytest.raises(ValueError, match=r"the network gives for them \[64, 1\]: let both be"):
            module.nll((x, targets))


@pytest.mark.parametrize("chains", [1, 2])
@pytest.mark.parametrize(
    "given", [{"noise": "held_out"}, {"noise": 0.3, "collapse_head": True}], ids=str
)
def test_fits_in_double_precision(tmp_path: Path, given: dict[str, Any], chains: int) -> None:
    """The second finds the weights in it, and the data not yet."""
    x, y = toy_data()[0], toy_data()[1].unsqueeze(1)

    class Whole(CubedData):
        def train_dataloader(self) -> BatchStream:
            return BatchStream((x, y), NUM_DATA, "full")

    data = Whole(((x[:30], y[:30]), (x[30:], y[30:])))
    sampler = partial(PSGLD, lr=1e-6, prior=GaussianPrior(variance=4.0))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    module = RegressionTask(
        net, sampler, burn_in=1, thinning=1, num_chains=chains, draw_budget=0, **given
    )
    for name in "ab":
        trainer(tmp_path / name, 2, precision="64-true").fit(module, datamodule=data)
    found, (_, target) = module.kept.ensemble("val"), module.kept.held_out["val"].examples
    assert target.dtype == torch.float64
    inside = (target - found.mean).abs() <= 1.6448536 * module.sigma * (1 + 1e-3)
    if given["noise"] == "held_out" and chains == 1:
        assert int(inside.sum()) == 58  # of 64


def test_density_with_a_profile() -> None:
    module, x, y = example(0.3)
    module.noise_profile = torch.tensor([0.5, 1.0, 2.0, 4.0, 0.25], dtype=torch.float64)
    sigma = module.log_noise.exp() * module.noise_profile
    expected = -normal_log_density(module, x, y, sigma)
    torch.testing.assert_close(module.nll((x, y)), expected, rtol=1e-12, atol=1e-12)
    drawn = module.draw_labels(((x, y), torch.full((len(x), OUTPUTS), 0.975)))[1]
    above = (drawn - module(x)) / (sigma * module.noise_shape(x))
    torch.testing.assert_close(above, torch.full_like(above, 1.959964), rtol=1e-6, atol=0)


@pytest.mark.parametrize("log_noise", [-30.0, -2.0, 3.0])
def test_a_learned_noise_has_a_floor(log_noise: float) -> None:
    module, x, y = example("learned", noise_floor=0.1)
    with torch.no_grad():
        module.log_noise.fill_(log_noise)
    sigma = math.hypot(math.exp(log_noise), 0.1)
    known, _, _ = example(sigma, noise_floor=50.0)  # no floor for a noise that is known
    expected = -normal_log_density(known, x, y, torch.tensor(sigma, dtype=torch.float64))
    assert known.sigma == pytest.approx(sigma, rel=1e-6)
    assert module.sigma == pytest.approx(sigma, rel=1e-12)
    assert module._present_sigma() == pytest.approx(sigma, rel=1e-12)
    torch.testing.assert_close(module.nll((x, y)), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(-module.law(x).log_density(y), expected, rtol=1e-12, atol=1e-12)
    module.head = "net"
    assert float(module.head_features((x, y))[1].detach().exp()) == pytest.approx(sigma, rel=1e-12)
    drawn = module.draw_labels(((x, y), torch.full((len(x), OUTPUTS), 0.975)))[1]
    above = (drawn - module(x)) / (sigma * module.noise_shape(x))
    torch.testing.assert_close(above, torch.full_like(above, 1.959964), rtol=1e-6, atol=0)


def test_a_profile_is_found_and_equal_outputs_stay_equal() -> None:
    """100 examples of 2,000 outputs: the error of a deviation is 1 / sqrt(2 n) = 7 %.

    Where deviations differ by 30 %, shrinkage reduces the root mean square error of log p below
    that, to .07 * .3 / sqrt(.07^2 + .3^2); where they are equal, to less than a quarter of it.
    """
    generator = torch.Generator().manual_seed(0)
    logs = 0.3 * torch.randn(2_000, generator=generator)
    z = torch.randn(100, 2_000, generator=generator)
    error = (output_profile(z * logs.exp()).log() - (logs - logs.mean())).square().mean().sqrt()
    assert float(error) == pytest.approx(0.069, rel=0.05)
    assert float(output_profile(z).log().square().mean().sqrt()) < 0.0177
    by_hand = z.square().mean(0).log() / 2
    assert float(by_hand.std()) == pytest.approx(0.0707, rel=0.05)  # without shrinkage
    assert torch.equal(output_profile(torch.zeros(3, 4)), torch.ones(4))


def test_a_profile_needs_residuals_to_follow() -> None:
    with pytest.raises(ValueError, match="noise_by_output needs noise to be one of residuals"):
        Scaled(nn.Linear(3, 2), SAMPLER, noise=0.1, noise_by_output=True)


def test_held_out_scale_needs_held_out_data(tmp_path: Path) -> None:
    module = Scaled(nn.Linear(3, 1), SAMPLER, noise="held_out", burn_in=8)
    with pytest.raises(ValueError, match="needs a validation split"):
        trainer(tmp_path, 12, limit_val_batches=0).fit(module, datamodule=CubedData())


def test_residuals_outlive_the_gradients_of_single_examples(tmp_path: Path) -> None:
    """A Fisher metric traces the NLL for weights of no linear layer, such as ``log_noise``.

    The error that is shown is that of a step's minibatch at the weights before it.
    """
    torch.manual_seed(0)
    nets: list[nn.Module] = []
    shown: list[float] = []

    class Watch(L.Callback):
        def on_train_batch_start(self, trainer: Any, pl_module: Any, *args: Any) -> None:
            nets.append(copy.deepcopy(pl_module.net))

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
            shown.append(pl_module.progress()["error"])

    make = partial(SGLD, lr=1.0, prior=GaussianPrior(4.0), preconditioner=DiagonalFisher())
    module = RegressionTask(nn.Linear(3, 1), make, noise="learned", burn_in=4)
    trainer(tmp_path, 8, [Watch()], limit_val_batches=0).fit(module, datamodule=CubedData())
    stream = module.chain.stream
    assert stream is not None

    @torch.no_grad()
    def error(step: int, net: nn.Module) -> float:
        x, y = stream.at(step)
        return float((y - net(x)).square().mean().sqrt())

    assert len(shown) == 8
    for step, after in zip(range(4, 8), (*nets[5:], module.net), strict=True):
        assert shown[step] == pytest.approx(error(step, nets[step]), rel=1e-6)
        assert shown[step] != pytest.approx(error(step, after), rel=1e-4)


class _Whole(CubedData):
    def train_dataloader(self) -> BatchStream:
        x, y = toy_data()
        return BatchStream((x, y.unsqueeze(1) ** 3), 16, "full")


@pytest.mark.parametrize("freeze", [True, False])
def test_hmc_moves_under_the_sigma_that_burn_in_found(tmp_path: Path, freeze: bool) -> None:
    """It keeps the potential of its weights from step to step, which a new sigma changes."""
    torch.manual_seed(0)
    adam = OptimizerBurnIn(partial(torch.optim.Adam, lr=0.05), 40)
    make = partial(HMC, lr="auto", leapfrog_steps=5, prior=GaussianPrior(4.0))
    module = RegressionTask(
        nn.Linear(3, 1),
        make,
        noise="residuals",
        burn_in=100,
        burn_in_optimizer=adam,
        freeze_preconditioner=freeze,
    )
    trainer(tmp_path, 200, limit_val_batches=0).fit(module, datamodule=_Whole())
    sampler: Any = module.chain.sampler
    assert sampler.acceptance > 0.5
    draws = torch.stack(
        [draw.net.bias.detach().clone() for draw in load_posterior(tmp_path, module)]
    )
    assert len(draws.unique()) > 50
    steps = RegressionTask(nn.Linear(3, 1), make, noise="residuals", burn_in=100)
    with pytest.raises(ValueError, match="HMC adapts its step to the potential"):
        trainer(tmp_path / "b", 120, limit_val_batches=0).fit(steps, datamodule=_Whole())


def test_sigma_is_consistent_for_normal_residuals() -> None:
    """The quantile of 100,000 normal residuals: relative standard error of sigma .003."""
    found = ResidualScale(0.9, held_out=False, by_output=False)
    residual = 0.25 * torch.randn(100_000, generator=torch.Generator().manual_seed(3))
    assert float(found.of(residual)) == pytest.approx(0.25, rel=0.012)


def prediction(module: Scaled, x: Tensor, y: Tensor, spread: float) -> Prediction:
    mean = y + 0.1
    noise = module.law(x).noise.detach()
    nll = module.nll((x, y)).detach()
    return Prediction(Normal, mean, torch.full_like(mean, spread), noise, nll)


def test_bands_hold_the_noise() -> None:
    """All errors are .1; a band is sqrt(spread^2 + (sigma n)^2) wide, so sigma decides."""
    module, x, y = example(0.3)
    n = module.noise_shape(x)
    z90 = 1.6448536269514722
    for sigma in (0.01, 0.05, 0.3):
        module.log_noise.fill_(sigma).log_()
        result = module.metrics(prediction(module, x, y, 0.02), (x, y))
        std = (0.02**2 + (sigma * n) ** 2).sqrt().expand_as(y)
        inside = (z90 * std >= 0.1).double().mean()
        assert result["coverage_90"] == pytest.approx(float(inside))
        assert result["width_90"] == pytest.approx(float(2 * z90 * std.mean()), rel=1e-9)
        assert result["crps"] == pytest.approx(float(gaussian_crps(y, y + 0.1, std).mean()))
        share = 0.02**2 / float((std**2).mean())
        assert result["weights_share_of_variance"] == pytest.approx(share)
    assert result["rmse"] == pytest.approx(0.1)
    sizes = torch.linalg.vector_norm(y, dim=1)
    errors = 100 * 0.1 * OUTPUTS**0.5 / sizes
    assert result["relative_l2_mean_percent"] == pytest.approx(float(errors.mean()))
    assert result["relative_l2_max_percent"] == pytest.approx(float(errors.max()))


def test_bands_leave_out_inactive_outputs() -> None:
    """Outputs that are always zero would be covered for nothing."""
    module, x, y = example(0.3)
    y[:, 3:] = 0
    exact = prediction(module, x, y, 0.0)
    exact.mean = y.clone()
    exact.mean[:, :3] += 100.0
    everything = module.metrics(exact, (x, y))
    module.active = torch.tensor([True, True, True, False, False])
    active = module.metrics(exact, (x, y))
    assert everything["coverage_95"] == pytest.approx(2 / 5)
    assert active["coverage_95"] == 0.0
    assert active["mae"] == pytest.approx(100.0)
    assert active["rmse"] == everything["rmse"]  # errors are of all outputs


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"noise": "guessed"},
            "a number or one of learned, residuals, held_out, input, got 'guessed'",
        ),
        ({"noise": 0.0}, "noise scale must be positive and finite, got 0"),
        ({"noise": -1.0}, "noise scale must be positive and finite, got -1"),
        ({"noise": float("nan")}, "noise scale must be positive and finite, got nan"),
        ({"noise": float("inf")}, "noise scale must be positive and finite, got inf"),
        (
            {"noise": "learned", "initial_noise": 0.0},
            "noise scale must be positive and finite, got 0",
        ),
        ({"noise_quantile": 0.0}, r"noise_quantile must lie in \(0, 1\), got 0"),
        ({"noise_quantile": 1.0}, r"noise_quantile must lie in \(0, 1\), got 1"),
    ],
)
def test_bad_values_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RegressionTask(nn.Linear(3, 1), SAMPLER, **arguments)
