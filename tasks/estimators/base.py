"""What the estimators share: the steps of K chains, and predictions by their draws."""

from __future__ import annotations

import logging
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator  # type: ignore[import-untyped]
from sklearn.exceptions import ConvergenceWarning  # type: ignore[import-untyped]
from sklearn.utils import check_random_state  # type: ignore[import-untyped]
from sklearn.utils.validation import check_is_fitted, validate_data  # type: ignore[import-untyped]
from torch import Tensor

from lightning_sgmcmc import SGHMC, BatchStream, LayerwiseGaussianPrior, PriorMetric
from lightning_sgmcmc.callbacks.freed_memory import keep
from lightning_sgmcmc.callbacks.subnormals import flush, flushed
from lightning_sgmcmc.chain import OptimizerBurnIn
from lightning_sgmcmc.module import SGMCMCModule
from lightning_sgmcmc.posterior import KeptDraws, diagnose
from lightning_sgmcmc.posterior.held_out import PROBES, TRAINING, HeldOut
from lightning_sgmcmc.posterior.law import PredictiveLaw
from lightning_sgmcmc.samplers import NonFiniteGradientError
from tasks.nets.mlp import MLP

Array = NDArray[Any]


class BayesianMLP(BaseEstimator):  # type: ignore[misc]
    """Regressor and classifier without their likelihood.

    Weights are N(0, 1 / fan-in) and biases N(0, 1) a priori. Each chain starts at random weights of
    its own and begins with Adam; :class:`~lightning_sgmcmc.SGHMC` follows, in the prior's metric,
    by a step that is a fraction of the largest stable one. All that is kept is in memory.
    """

    #: Adam's step size, and SGHMC's momentum.
    optimizer_lr, momentum = 0.02, 0.99
    #: Parameters that are whole numbers.
    _counts = ("num_chains", "optimizer_steps", "burn_in", "steps", "thinning")

    def __init__(
        self,
        hidden: Sequence[int],
        activation: str,
        num_chains: int,
        optimizer_steps: int,
        burn_in: int,
        steps: int,
        thinning: int,
        batch_size: int | None,
        step_fraction: float,
        device: str | None,
        random_state: Any,
    ) -> None:
        self.hidden = hidden
        self.activation = activation
        self.num_chains = num_chains
        self.optimizer_steps = optimizer_steps
        self.burn_in = burn_in
        self.steps = steps
        self.thinning = thinning
        self.batch_size = batch_size
        self.step_fraction = step_fraction
        self.device = device
        self.random_state = random_state

    def _variances(self) -> dict[str, float]:
        """Return the prior's variances by the names of weights, of which the rest has 1."""
        return {}

    @abstractmethod
    def _task(self, net: MLP, chain: dict[str, Any]) -> SGMCMCModule:
        """Return the task of a network."""

    def _made(self, inputs: int, outputs: int, seed: int) -> Any:
        """Return the task with its network, of weights of the seed."""
        adam = partial(torch.optim.Adam, lr=self.optimizer_lr)
        optimizer = OptimizerBurnIn(adam, self.optimizer_steps) if self.optimizer_steps else None
        prior = LayerwiseGaussianPrior(self._variances(), default=1.0, per_fan_in=True)
        sampler = partial(
            SGHMC,
            lr="auto",
            momentum=self.momentum,
            prior=prior,
            preconditioner=PriorMetric(),
            seed=seed,
        )
        chain = {
            "sampler": sampler,
            "num_chains": self.num_chains,
            "burn_in": self.burn_in,
            "thinning": self.thinning,
            "step_fraction": self.step_fraction,
            "burn_in_optimizer": optimizer,
        }
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            torch.manual_seed(seed)
            net = MLP(tuple(self.hidden), self.activation, inputs, outputs)  # type: ignore[arg-type]
            return self._task(net, chain)

    def _sample(self, task: Any, stream: BatchStream) -> None:
        """Draw the weights from their posterior, and say whether the draws are a sample of it."""
        device = torch.device(self.device or ("cuda" if torch.cuda.is_available() else "cpu"))
        keep(device)
        chain = task.to(device).chain
        chain.select()
        chain.place(stream=stream)
        chain.build()
        chain.bind(stream)
        task.adaptation.after_step()
        rows = HeldOut([stream.spread(PROBES)])
        kept = task.kept = KeptDraws(chain, {TRAINING: rows}, Path(), budget=0)
        draws: list[dict[str, Array]] = []
        try:
            while chain.steps < self.steps:
                chain.advance(chain.minibatch())
                task.adaptation.after_step()
                if not chain.draws.keeps(chain.steps):
                    continue
                kept.keep()
                states = [chain.state(k) for k in range(chain.num_chains)]
                draws += [{n: t.cpu().numpy().copy() for n, t in state.items()} for state in states]
            self.draws_ = {name: np.stack([draw[name] for draw in draws]) for name in draws[0]}
            if not all(np.isfinite(a).all() for a in self.draws_.values()):
                raise NonFiniteGradientError("a draw is not finite")
        except (NonFiniteGradientError, ValueError) as error:
            raise ValueError(
                f"the chains diverged: set burn_in and optimizer_steps higher ({error})"
            ) from error
        weights = np.repeat(kept.draw_weights, chain.num_chains)
        self.weights_ = weights / weights.sum()
        self.diagnostics_ = diagnose(kept, task.adaptation.stability)
        for alarm in self.diagnostics_["alarms"]:
            warnings.warn(alarm, ConvergenceWarning, stacklevel=3)

    def _stream(self, x: Array, y: Array) -> BatchStream:
        """Return the minibatches, of all rows unless ``batch_size`` is smaller.

        Raises:
            TypeError: If a number of steps, units or the like is not whole.
            ValueError: If there are too few rows, or no draw is due.
        """
        for name in self._counts:
            if not isinstance(getattr(self, name), Integral):
                raise TypeError(f"{name} must be a whole number, got {getattr(self, name)!r}")
        if isinstance(self.hidden, str) or not isinstance(self.hidden, Sequence):
            raise TypeError(f"hidden must be a sequence such as (50,), got {self.hidden!r}")
        if not all(isinstance(units, Integral) for units in self.hidden):
            raise TypeError(f"hidden must hold whole numbers, got {self.hidden!r}")
        if len(x) < 2:
            raise ValueError(f"n_samples = {len(x)} is too few: give at least 2 rows")
        size = len(x) if self.batch_size is None else self.batch_size
        if not isinstance(size, Integral):
            raise TypeError(f"batch_size must be a whole number or None, got {size!r}")
        if not 0 <= self.optimizer_steps <= self.burn_in <= self.steps - self.thinning:
            raise ValueError(
                "need 0 <= optimizer_steps <= burn_in <= steps - thinning, got "
                f"{self.optimizer_steps}, {self.burn_in} and {self.steps} - {self.thinning}"
            )
        tensors = _tensor(x), _tensor(y)
        return BatchStream(tensors, min(size, len(x)), "full" if size >= len(x) else "auto")

    def _law_of(self, task: Any, x: Array) -> PredictiveLaw:
        """Return p(y | x, data), in float64: a row's law does not depend on the rows beside it."""
        task = task.double().eval()
        loads = [partial(self._draw, i) for i in range(len(self.weights_))]
        return PredictiveLaw(task, loads, torch.tensor(self.weights_), _tensor(x))

    def _draw(self, i: int) -> dict[str, Tensor]:
        return {n: torch.tensor(a[i], dtype=torch.float64) for n, a in self.draws_.items()}

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _rows(self, X: Any) -> Array:
        check_is_fitted(self)
        rows: Array = validate_data(self, X, dtype=np.float64, reset=False)
        return rows


def check_units(name: str, values: Array) -> None:
    """Raise ValueError if the deviation of a column of values [N, D] is 0 or infinite to float64.

    Args:
        name: What the values are called.
        values: The values; a column that is constant has any deviation.
    """
    with np.errstate(all="ignore"):
        spread = values[:, values.max(0) > values.min(0)].std(0)
    if not ((spread > 0) & np.isfinite(spread)).all():
        raise ValueError(f"{name} is too large or too small to be scaled: change its unit")


@contextmanager
def quiet() -> Iterator[None]:
    """Print no notes, and take subnormal numbers for zero, for a while."""
    logger = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    level, before = logger.level, flushed()
    logger.setLevel(logging.WARNING)
    flush(True)
    try:
        yield
    finally:
        logger.setLevel(level)
        flush(before)


def _tensor(array: Array) -> Tensor:
    """Return a copy of an array, whose strides may be negative."""
    return torch.tensor(np.ascontiguousarray(array))
