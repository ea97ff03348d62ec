"""What a loaded posterior predicts is what its run reported."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_sgmcmc import PSGLD, BatchStream, BlockDecay, GaussianPrior, load_posterior
from lightning_sgmcmc.callbacks.report.results import measure
from lightning_sgmcmc.kernels import VARIABLE
from lightning_sgmcmc.posterior import predict
from lightning_sgmcmc.posterior.fused import fused
from tasks.classification import Classification
from tasks.regression import RegressionTask
from tests.toy import trainer

OUTPUTS = 4
SAMPLER = partial(PSGLD, lr=3e-3, prior=GaussianPrior(variance=1.0))
COMMON: dict[str, Any] = {
    "burn_in": 20,
    "thinning": 3,
    # Draws of very different weights.
    "schedule": partial(BlockDecay, every=10),
}


class Wavy(L.LightningDataModule):
    """y_j = sin(j x_0) + (1 + |x_0|) j N(0, .1^2), or the largest of the four."""

    def __init__(self, labels: bool = False) -> None:
        super().__init__()
        self.labels = labels

    def rows(self, count: int, seed: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(count, 2, generator=generator)
        j = torch.arange(1, OUTPUTS + 1)
        noise = 0.1 * j * torch.randn(count, OUTPUTS, generator=generator)
        y = (j * x[:, :1]).sin() + (1 + x[:, :1].abs()) * noise
        return x, y.argmax(1) if self.labels else y

    def train_dataloader(self) -> BatchStream:
        return BatchStream(self.rows(60, 0), 20)

    def val_dataloader(self) -> Any:
        return DataLoader(TensorDataset(*self.rows(16, 2)), batch_size=16)

    def test_dataloader(self) -> Any:
        return DataLoader(TensorDataset(*self.rows(50, 1)), batch_size=16)


class Growing(RegressionTask):
    """n(x) = 1 + |x_0|."""

    def noise_shape(self, x: Tensor) -> Tensor:
        return 1 + x[:, :1].abs()


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, OUTPUTS))


CASES: dict[str, dict[str, Any]] = {
    "fixed": {"noise": 0.3},
    "residuals": {"noise": "residuals"},
    "by output": {"noise": "residuals", "noise_by_output": True},
    "learned": {"noise": "learned"},
    "learned, 3 chains": {"noise": "learned", "num_chains": 3, "starts": "prior"},
    "by output, 2 chains": {"noise": "residuals", "noise_by_output": True, "num_chains": 2},
}


@pytest.mark.parametrize("case", CASES)
def test_a_loaded_posterior_has_the_runs_bands(tmp_path: Path, case: str) -> None:
    """Of all draws: coverage, widths, densities and scores are those of results.json."""
    task = Growing(net(), SAMPLER, **CASES[case], **COMMON)
    trainer(tmp_path, 80).fit(task, datamodule=Wavy())
    reported = measure(task)["ensemble"]
    posterior = load_posterior(tmp_path, Growing(net(), SAMPLER, **CASES[case], **COMMON))
    x, y = Wavy().rows(50, 1)
    prediction = posterior.predict(x)
    for percent in (50, 90, 95):
        lower, upper = prediction.interval(percent / 100)
        held = ((lower <= y) & (y <= upper)).double().mean()
        assert reported[f"coverage_{percent}"] == pytest.approx(float(held), abs=1.5 / y.numel())
    lower, upper = prediction.interval(0.9)
    assert reported["width_90"] == pytest.approx(float((upper - lower).mean()), rel=1e-5)
    density = float(prediction.log_density(y).mean())
    assert reported["nll"] == pytest.approx(-density, rel=1e-5)
    assert reported["weights_share_of_variance"] < 0.9  # the noise is there
    again = posterior.module.metrics(posterior.predictive((x, y)), (x, y))
    assert again == pytest.approx(reported, rel=1e-4, abs=1.5 / len(y))


def test_noise_of_a_draw_is_the_draws_own(tmp_path: Path) -> None:
    """With sigma sampled, the variance of noise is the mean of sigma^2 over the draws."""
    arguments = CASES["learned, 3 chains"] | COMMON
    task = Growing(net(), SAMPLER, **arguments)
    trainer(tmp_path, 80).fit(task, datamodule=Wavy())
    posterior = load_posterior(tmp_path, Growing(net(), SAMPLER, **arguments))
    x, _ = Wavy().rows(50, 1)
    squares = torch.tensor([module.sigma**2 for module in posterior], dtype=torch.float64)
    assert float(squares.std() / squares.mean()) > 0.1
    expected = (posterior.weights.to(squares) @ squares) * (1 + x[:, :1].double().abs()) ** 2
    prediction = posterior.predict(x)
    torch.testing.assert_close(prediction.noise, expected, rtol=1e-5, atol=0)
    total = (prediction.epistemic_std**2 + expected).sqrt()
    torch.testing.assert_close(prediction.std, total, rtol=1e-6, atol=0)
    details = task.describe(task.kept)
    assert details["noise_scale"] == pytest.approx(
        float((posterior.weights.to(squares) @ squares).sqrt())
    )


@pytest.mark.parametrize("case", ["fixed", "by output"])
def test_compiled_loops_give_the_same_law(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    pytest.importorskip("numba", reason="numba is in the extra fast")
    task = Growing(net(), SAMPLER, **CASES[case], **COMMON)
    trainer(tmp_path, 80).fit(task, datamodule=Wavy())
    posterior = load_posterior(tmp_path, Growing(net(), SAMPLER, **CASES[case], **COMMON))
    x, _ = Wavy().rows(50, 1)
    monkeypatch.setattr(predict, "_FUSE_FROM", 0)
    looped = posterior.predict(x)
    assert fused(posterior.module, "moments", posterior.loads[0](), x) is not None
    monkeypatch.setenv(VARIABLE, "off")
    plain = posterior.predict(x)
    for name in ("mean", "epistemic_std", "noise", "std"):
        torch.testing.assert_close(
            getattr(looped, name), getattr(plain, name), rtol=1e-4, atol=1e-6
        )


def test_class_probabilities_are_the_mean(tmp_path: Path) -> None:
    arguments = COMMON | {"num_chains": 2}
    task = Classification(net(), SAMPLER, **arguments)
    trainer(tmp_path, 80).fit(task, datamodule=Wavy(labels=True))
    reported = measure(task)["ensemble"]
    posterior = load_posterior(tmp_path, Classification(net(), SAMPLER, **arguments))
    x, y = Wavy(labels=True).rows(50, 1)
    prediction = posterior.predict(x)
    p = prediction.mean
    with torch.no_grad():
        each = torch.stack([module(x).softmax(-1) for module in posterior]).double()
    torch.testing.assert_close(
        p, torch.tensordot(posterior.weights.to(p), each, 1), rtol=1e-5, atol=1e-7
    )
    torch.testing.assert_close(prediction.std, (p * (1 - p)).sqrt())
    assert bool((prediction.epistemic_std < prediction.std).all())
    density = prediction.log_density(y)
    torch.testing.assert_close(density, p.gather(1, y[:, None])[:, 0].log(), rtol=1e-5, atol=1e-6)
    assert reported["nll"] == pytest.approx(-float(density.mean()), rel=1e-5)
    with pytest.raises(TypeError, match="labels have no interval"):
        prediction.interval(0.9)
    labels = prediction.sample(4000, torch.Generator().manual_seed(0))
    assert labels.shape == (4000, 50)
    shares = nn.functional.one_hot(labels, OUTPUTS).double().mean(0)
    # 200 shares, of which the largest deviation passes 4.5 by chance once in 700.
    assert float(((shares - p) / (p * (1 - p) / 4000).sqrt()).abs().max()) < 4.5
