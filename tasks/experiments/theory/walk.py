"""Stacked chains with decaying steps, and fits of the powers that theorems state."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from lightning_sgmcmc import Sampler
from tasks.experiments.loop import Array, Function

#: Groups of chains, each of which is left out in turn for the standard errors of fits and ratios.
GROUPS = 50


def walk(
    sampler: Sampler,
    *,
    steps: int,
    gradient: Function,
    each: Callable[[int, Tensor], None],
    burn_in: int = 0,
    freeze: bool = True,
    schedule: Callable[[Sampler], LRScheduler] | None = None,
) -> None:
    """Run stacked chains and hand over every state after burn-in.

    Args:
        sampler: Over one parameter, theta [K, ...].
        steps: Steps in all, burn-in included.
        gradient: Gradient of the mean NLL at theta, on the minibatch of a step.
        each: Called with the number of a step after burn-in, from 1, and the state it made.
        burn_in: Steps of constant size before that.
        freeze: Freeze the metric halfway through burn-in, so that the chains forget how it was
            learned.
        schedule: Builds the step sizes from where burn-in ends.
    """
    (theta,) = sampler.params
    loss = torch.zeros(theta.shape[0], dtype=theta.dtype)
    decay: LRScheduler | None = None
    for step in range(steps):
        if freeze and step == burn_in // 2:
            sampler.freeze()
        if schedule is not None and step == burn_in:
            decay = schedule(sampler)

        def closure(step: int = step) -> Tensor:
            theta.grad = gradient(theta.detach(), step)
            return loss

        sampler.step(closure)
        if step >= burn_in:
            each(step - burn_in + 1, theta.detach())
        if decay is not None:
            decay.step()


def jackknife(statistic: Callable[..., Array], *samples: Array) -> tuple[Array, Array]:
    """Return a statistic of independent repetitions, and its standard error by the jackknife.

    Args:
        statistic: Called with ``samples``, or with a part of their repetitions.
        samples: Each [..., K], of the same K repetitions.
    """
    parts = np.array_split(np.arange(samples[0].shape[-1]), GROUPS)
    left = np.array([statistic(*(np.delete(s, part, -1) for s in samples)) for part in parts])
    error: Array = np.sqrt((GROUPS - 1) * left.var(0))
    return statistic(*samples), error


def fitted(x: Sequence[float], samples: Array) -> tuple[float, float]:
    """Return p of mean ~ x^p by least squares in logarithms, and its standard error.

    Args:
        x: The values that the means belong to, [L].
        samples: Independent repetitions of what is averaged, [L, K].
    """
    value, error = jackknife(lambda s: np.array(power(x, s.mean(1))), samples)
    return float(value), float(error)


def power(x: Sequence[float], y: Array) -> float:
    """Return p of y ~ x^p by least squares in logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def mean_and_error(samples: Array) -> tuple[float, float]:
    """Return the mean of independent samples [K] and its standard error."""
    return float(samples.mean()), float(samples.std(ddof=1)) / math.sqrt(len(samples))
