"""Linear regressions of stacked chains on minibatches, whose posterior is a Gaussian."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from lightning_sgmcmc import BatchStream, Sampler, Target
from lightning_sgmcmc.chain import Sampling
from lightning_sgmcmc.target import PerExample
from tasks.experiments.loop import Array


class Regressions:
    """y = x theta + N(0, 1) with a flat prior: theta ~ N(m, (X'X)^-1), for each of K chains.

    Args:
        theta: The weights, [K, 1, D], that chains move.
        x: Inputs, [N, D] of one data set for all chains, or [K, N, D].
        y: Responses, [N] or [K, N].
        batch_size: Examples in a minibatch, drawn with replacement.
        sampling: How minibatches are drawn.
        seed: Of the minibatches.
    """

    def __init__(
        self,
        theta: Tensor,
        x: Array,
        y: Array,
        batch_size: int,
        sampling: Sampling = "independent",
        seed: int = 0,
    ) -> None:
        chains, self.theta = len(theta), theta
        self.x = torch.from_numpy(x).expand(chains, *x.shape[-2:])
        self.y = torch.from_numpy(y).expand(chains, y.shape[-1])
        self.chain = torch.arange(chains).unsqueeze(1)
        self.stream = BatchStream(torch.arange(x.shape[-2]), batch_size, sampling)
        self.stream.bind(torch.device("cpu"), seed=seed, num_chains=chains)
        self.net = nn.Linear(x.shape[-1], 1, bias=False, dtype=theta.dtype)
        self.target = Target(self._together, [theta], x.shape[-2], chain_dims=1)
        self.target.per_example = PerExample(
            self.net, ["weight"], [theta], self._alone, chain_dims=1
        )
        self.sampler: Sampler | None = None

    def attach(self, sampler: Sampler) -> None:
        """Give a stacked sampler the likelihood, for metrics that ask for single examples."""
        self.sampler = sampler
        sampler.attach(self.target)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the minibatches of a step, [K, n, D] and [K, n]."""
        rows = self.stream.at(step)
        return self.x[self.chain, rows], self.y[self.chain, rows]

    def gradient(self, theta: Tensor, step: int) -> Tensor:
        """Return the gradient of the mean NLL, [K, 1, D], and record examples if asked to."""
        batch = self.batch(step)
        if self.sampler is not None and "per_example" in self.sampler.needs:
            self.target.use(batch)
            with self.target.recording():
                (found,) = self.target.gradient(batch)
            return found
        x, y = batch
        residual = torch.einsum("knd,kd->kn", x, theta[:, 0]) - y
        return torch.einsum("kn,knd->kd", residual, x).div(x.shape[1]).unsqueeze(1)

    def _alone(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        residual: Tensor = self.net(batch[0]).squeeze(-1) - batch[1]
        return residual.square() / 2

    def _together(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        residual = torch.einsum("knd,kd->kn", batch[0], self.theta[:, 0]) - batch[1]
        return residual.square() / 2


def posterior(x: Array, y: Array) -> tuple[Array, Array]:
    """Return m and X'X of data [..., N, D] and [..., N]."""
    precision: Array = np.swapaxes(x, -1, -2) @ x
    mean = np.linalg.solve(precision, np.swapaxes(x, -1, -2) @ y[..., None])[..., 0]
    return np.asarray(mean, dtype=np.float64), precision


def draws(generator: np.random.Generator, mean: Array, precision: Array, count: int) -> Array:
    """Return draws of N(mean, precision^-1), [count, D]."""
    root = np.linalg.cholesky(np.linalg.inv(precision))
    found: Array = mean + generator.standard_normal((count, len(mean))) @ root.T
    return found
