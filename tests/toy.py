"""A small task for tests of runs: Bayesian linear regression, whose posterior is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_sgmcmc import PSGLD, BatchStream, GaussianPrior, Sampler
from lightning_sgmcmc.callbacks import ChainCheckpoint, Finish
from lightning_sgmcmc.callbacks.log import CSVLog
from lightning_sgmcmc.module import SGMCMCModule
from tests.device import trainer_settings

NUM_DATA, NUM_FEATURES, NOISE = 64, 3, 0.5


def toy_data(seed: int = 0, size: int = NUM_DATA) -> tuple[Tensor, Tensor]:
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((size, NUM_FEATURES))
    y = x @ np.array([1.0, -2.0, 0.5]) + NOISE * generator.standard_normal(size)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)


class ToyData(L.LightningDataModule):
    """Training, validation and test sets, in memory."""

    def __init__(self, batch_size: int = 16, sampling: Any = "auto") -> None:
        super().__init__()
        self.batch_size, self.sampling = batch_size, sampling

    def train_dataloader(self) -> BatchStream:
        return BatchStream(toy_data(), self.batch_size, self.sampling)

    def val_dataloader(self) -> Any:
        return DataLoader(TensorDataset(*toy_data(1, 20)), batch_size=8)

    def test_dataloader(self) -> Any:
        return DataLoader(TensorDataset(*toy_data(2, 30)), batch_size=8)


class Toy(SGMCMCModule):
    """y ~ N(w x, NOISE^2) with a linear net, or any other."""

    def __init__(
        self,
        sampler: Callable[[Iterable[nn.Parameter]], Sampler] | None = None,
        net: nn.Module | None = None,
        **chain: Any,
    ) -> None:
        if sampler is None:
            sampler = partial(PSGLD, lr=1e-3, prior=GaussianPrior(variance=4.0))
        if net is None:
            net = nn.Linear(NUM_FEATURES, 1, bias=False)
        super().__init__(net, sampler, **chain)

    def nll(self, batch: Any) -> Tensor:
        x, y = batch
        residual = (y - self(x).squeeze(-1)) / NOISE
        return 0.5 * residual**2 + 0.5 * float(np.log(2 * np.pi * NOISE**2))

    def draw_labels(self, batch_and_uniforms: Any) -> Any:
        (x, _), uniforms = batch_and_uniforms
        z = torch.special.ndtri(uniforms[..., 0]).to(x.dtype)
        return x, self(x).squeeze(-1) + NOISE * z

    def predictive(self, batch: Any) -> Tensor:
        return self(batch[0]).squeeze(-1)


def exact_posterior(prior_variance: float = 4.0) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and covariance of the weights."""
    x, y = (t.double().numpy() for t in toy_data())
    precision = x.T @ x / NOISE**2 + np.eye(NUM_FEATURES) / prior_variance
    covariance = np.linalg.inv(precision)
    return covariance @ x.T @ y / NOISE**2, covariance


class NotSummedUp(Finish):
    """Leaves a run without results and figures, of which most tests look at none."""

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        pass


def trainer(folder: Any, max_steps: int, callbacks: Any = (), **kwargs: Any) -> L.Trainer:
    """Return a quiet trainer on the tests' device whose run lies in ``folder``."""
    settings: dict[str, Any] = {
        **trainer_settings(),
        "max_steps": max_steps,
        "logger": [CSVLog(folder)],
        "callbacks": [*callbacks, NotSummedUp()],
        "enable_checkpointing": any(isinstance(c, ChainCheckpoint) for c in callbacks),
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "log_every_n_steps": 1,
    }
    return L.Trainer(**(settings | kwargs))
