"""The temperature of a chain from its weights and the gradients of its potential."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from lightning_sgmcmc.diagnostics.mixing import MIN_DRAWS, Array, as_traces
from lightning_sgmcmc.target import Batch, Target

#: Blocks of successive draws that a chain is cut into.
BLOCKS = 8


@dataclass(frozen=True)
class Temperature:
    """An estimated temperature.

    Attributes:
        value: The estimate.
        standard_error: Its standard deviation, from blocks of draws.
        num_weights: Number of weights that move; the others say nothing.
    """

    value: float
    standard_error: float
    num_weights: int


@dataclass(frozen=True)
class ConfigurationalTemperature:
    """The configurational temperature of all weights, and of each layer."""

    total: Temperature
    layers: dict[str, Temperature]


def configurational_temperature(
    weights: ArrayLike, gradients: ArrayLike, layers: Mapping[str, int] | None = None
) -> ConfigurationalTemperature:
    """Return T = <(theta - c)' grad U(theta)> / d, which holds under exp(-U / T) for constant c.

    Integration by parts; c = <theta> makes the variance small. Each chain is cut into eight blocks
    of successive draws, and the c of a block is the mean of the chain's other blocks: with c from
    all draws the estimate would lack a part 1 / ESS. A stochastic gradient serves as well, if its
    minibatch played no part in how the chain came to theta. Leimkuhler and Matthews 2015
    (Molecular Dynamics) call it the configurational temperature.

    The number sees the step: SGLD at h = lr/N on a Gaussian of precision A has
    tr(A P) / d with P its discretised covariance (A - (h/2) A C A)^-1, above T, and more with
    gradient noise. It is below T where a chain has not yet explored what it would: the directions
    that are slower than the chain is long.

    Args:
        weights: Draws [C, D, W], of all weights or of some.
        gradients: grad U = N grad(mean NLL) + grad(-log p) there, [C, D, W].
        layers: Names and numbers of weights of consecutive parts of the last axis.

    Returns:
        The temperatures, NaN with fewer than 8 draws a chain or where no weight moves.

    Raises:
        ValueError: If shapes disagree or the layers do not add up.
    """
    theta, gradient = as_traces(weights), as_traces(gradients)
    if theta.ndim != 3 or theta.shape != gradient.shape:
        raise ValueError(
            f"weights and gradients are [chains, draws, weights], got shapes {theta.shape} and "
            f"{gradient.shape}"
        )
    sizes = dict(layers or {})
    if layers is not None and sum(sizes.values()) != theta.shape[2]:
        raise ValueError(
            f"the layers have {sum(sizes.values())} weights together, the draws {theta.shape[2]}"
        )
    moves = np.ptp(theta, axis=1) > 0  # chains may be pruned each in its own places
    virial = block_virials(theta, gradient)
    parts, start = {}, 0
    for name, size in sizes.items():
        parts[name] = _temperature(virial, moves, slice(start, start + size))
        start += size
    return ConfigurationalTemperature(_temperature(virial, moves, slice(None)), parts)


def mean_temperature(values: ArrayLike) -> Temperature:
    """Return the mean of a temperature that was measured at successive draws.

    Its error comes from eight blocks of successive draws; it is NaN with fewer than 8 draws.

    Args:
        values: [D].
    """
    measured = np.asarray(values, dtype=np.float64)
    if len(measured) < MIN_DRAWS:
        return Temperature(float(measured.mean()), float("nan"), 0)
    blocks = in_blocks(measured[None, :, None]).mean(2).ravel()
    error = blocks.std(ddof=1) / np.sqrt(BLOCKS)
    return Temperature(float(measured.mean()), float(error), 0)


def gradient_of_potential(target: Target, batches: Sequence[Batch]) -> list[Tensor]:
    """Return grad U = N grad(mean NLL) + grad(-log p) at the current weights.

    Args:
        target: The potential.
        batches: Equally large minibatches; the training set alone for the exact gradient.

    Returns:
        Tensors shaped like the parameters.
    """
    total = target.gradient(batches[0])
    for batch in batches[1:]:
        torch._foreach_add_(total, target.gradient(batch))
    torch._foreach_mul_(total, target.num_data / len(batches))
    with torch.no_grad():
        target.prior.add_gradient_(total, target.params, 1.0)
    return total


def in_blocks(trace: Array) -> Array:
    """Return [C, D, q] as [C, blocks, draws, q], without the first draws that are left over."""
    chains, draws, count = trace.shape
    length = draws // BLOCKS
    return trace[:, draws - BLOCKS * length :].reshape(chains, BLOCKS, length, count)


def block_virials(theta: Array, gradient: Array) -> Array:
    """Return the mean of (theta - c) * grad U over each block, [C, blocks, W]."""
    chains, draws, count = theta.shape
    if draws < MIN_DRAWS:
        return np.full((chains, 0, count), np.nan)
    x, g = in_blocks(theta), in_blocks(gradient)
    means = x.mean(2)
    others = (means.sum(1, keepdims=True) - means) / (BLOCKS - 1)
    virial: Array = ((x - others[:, :, None]) * g).mean(2)
    return virial


def _temperature(virial: Array, moves: Array, part: slice) -> Temperature:
    moving = moves[:, part]
    count, own = int(moving.any(0).sum()), moving.sum(1)
    if not count or not virial.shape[1]:
        return Temperature(float("nan"), float("nan"), count)
    sums = (virial[..., part] * moving[:, None]).sum(-1)
    values = (sums[own > 0] / own[own > 0, None]).reshape(-1)
    error = values.std(ddof=1) / np.sqrt(len(values))
    return Temperature(float(values.mean()), float(error), count)
