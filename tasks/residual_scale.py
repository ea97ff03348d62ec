"""Sigma, the noise scale of a regression, by the residuals of its network."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from lightning_sgmcmc.callbacks.run import received
from lightning_sgmcmc.chain import Chain

#: Training examples from whose residuals sigma is fixed, where all of them are on disk.
_FROM_DISK = 4096
_BATCH = 256


class Scaled(Protocol):
    """A task with a noise scale: what of :class:`~tasks.regression.RegressionTask` is needed."""

    chain: Chain
    trainer: Any
    noise: Any
    log_noise: Tensor
    noise_profile: Tensor

    @property
    def device(self) -> torch.device:
        """Where the task is."""

    @property
    def active_columns(self) -> Tensor | slice:
        """The outputs that are not zero in all data."""

    def latest_residual(self) -> Tensor | None:
        """Return the residuals of the last minibatch, [B, D]; None if not known."""


@dataclass(frozen=True)
class ResidualScale:
    """Finds sigma such that a central band of a given probability holds that part of residuals.

    During burn-in sigma follows the residuals of the minibatches; where burn-in ends it is fixed by
    those of a whole set. Outliers move a quantile less than they move the root mean square.

    Attributes:
        quantile: The band's probability, in (0, 1).
        held_out: Whether the set is the data module's validation split, and not the training set.
        by_output: Whether the profile p is found too, by :func:`output_profile`.

    Raises:
        ValueError: If the quantile lies outside its range.
    """

    quantile: float
    held_out: bool
    by_output: bool

    def __post_init__(self) -> None:
        """Check the quantile."""
        if not 0 < self.quantile < 1:
            raise ValueError(f"noise_quantile must lie in (0, 1), got {self.quantile}")

    @property
    def described(self) -> str:
        """Where sigma is from, in words."""
        of = "residuals of held-out training data" if self.held_out else "training residuals"
        return f"the {100 * self.quantile:g} % quantile of the {of} where burn-in ended"

    def of(self, residual: Tensor) -> Tensor:
        """Return sigma of residuals of any shape, []."""
        flat = residual.abs().reshape(-1)
        order = max(1, round(self.quantile * flat.numel()))
        quantile = flat.kthvalue(order).values
        probability = torch.tensor(self.quantile, dtype=torch.float64)
        normal = math.sqrt(2) * float(torch.erfinv(probability))
        return (quantile / normal).clamp_min(torch.finfo(flat.dtype).tiny)

    def check(self, task: Scaled) -> None:
        """Raise ValueError if the data lack what sigma is to be found from.

        Args:
            task: In a trainer, with its profile where p is to be found.
        """
        if self.by_output and not task.noise_profile.numel():
            raise ValueError("noise_by_output needs training data in a BatchStream")
        if self.held_out and not _validation(task):
            raise ValueError(
                'noise "held_out" needs a validation split: set --data.num_val, or noise to '
                '"residuals"'
            )

    def follow(self, task: Scaled) -> None:
        """Take log sigma a tenth of the way to that of the last minibatch's residuals.

        It stands still where the sampler adapts its step to the potential's changes.

        Raises:
            ValueError: If the residuals of several chains cannot be had.
        """
        chain = task.chain
        if chain.sampling_now and chain.sampler.batches == "full":
            return
        residual = task.latest_residual()
        if residual is None:
            raise ValueError(
                f'noise "{task.noise}" of several chains needs a BatchStream: give noise a number, '
                'or let it be "learned"'
            )
        residual = residual[:, task.active_columns]
        few = residual[:, :: min(16, -(-residual.shape[1] // 16))]  # spread over the outputs
        scale = [self.of(few)]
        assert chain.target is not None
        chain.target.reduced(scale)
        task.log_noise.lerp_(scale[0].log().to(task.log_noise), 0.1)

    @torch.no_grad()
    def fix(self, task: Scaled) -> None:
        """Fix sigma, and p, by the residuals of the whole set.

        Of training data on disk they are those of 4,096 examples, spread evenly; sigma stays as it
        is where training data come from no BatchStream.
        """
        chain, columns = task.chain, task.active_columns
        batches = list(self._batches(task))
        if not batches:
            return
        parts = [
            chain.evaluate("residual", (x.to(task.device), y.to(task.device))) for x, y in batches
        ]
        residual = torch.cat([part[..., columns].flatten(0, -2) for part in parts])
        if not chain.processes.data_parallel:  # one sigma for the chains of all processes
            residual = chain.processes.gather(residual).flatten(0, 1)
        if self.by_output:
            profile = output_profile(residual)
            residual = residual / profile
            task.noise_profile[columns] = profile.to(task.noise_profile)
        task.log_noise.copy_(self.of(residual).log())

    def _batches(self, task: Scaled) -> Iterable[Any]:
        stream = task.chain.stream
        if self.held_out:
            return (received(task.trainer, batch) for batch in _validation(task))
        if stream is None:
            return []
        x, y = stream.spread(_FROM_DISK) if stream.on_disk else stream.tensors
        return ((x[i : i + _BATCH], y[i : i + _BATCH]) for i in range(0, len(x), _BATCH))


def _validation(task: Scaled) -> Iterable[Any]:
    data = task.trainer.datamodule
    batches: Iterable[Any] = data.val_dataloader() if data is not None else []
    return batches


def output_profile(residual: Tensor) -> Tensor:
    """Return how residuals are spread over the outputs, p of geometric mean 1, [D].

    log p_j = w (log s_j - mean log s), with s_j the root mean square of output j's n residuals. The
    sampling variance of log s_j is v = (kurtosis - 1) / (4 n), with the residuals' mean kurtosis.
    The empirical Bayes shrinkage w = 1 - v / variance of log s_j, at least 0 (Efron and Morris
    1975), keeps the profile of equal outputs flat where examples are few.

    Args:
        residual: Of n examples, [n, D].
    """
    squares = residual.double().square().clamp_min(torch.finfo(torch.float32).tiny)
    means = squares.mean(0)
    kurtosis = ((squares / means) ** 2).mean()
    logs = means.log() / 2
    logs = logs - logs.mean()
    spread = float((logs**2).mean())
    known = float((kurtosis - 1) / (4 * len(squares)))
    weight = max(0.0, 1 - known / spread) if spread else 0.0
    profile: Tensor = (weight * logs).exp()
    return profile.to(residual)
