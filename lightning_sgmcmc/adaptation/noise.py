"""How much of a chain's noise comes from its minibatches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_sgmcmc.chain import Chain
from lightning_sgmcmc.common.vectors import inner
from lightning_sgmcmc.preconditioners import Preconditioner
from lightning_sgmcmc.target import Batch, Target

# Minibatches that their noise is measured from.
_BATCHES = 8


@dataclass(frozen=True)
class NoiseTemperature:
    """The minibatches' part in a chain's temperature.

    Attributes:
        from_gradients: The temperature that minibatches add, lr N tr(C V) / (2 d).
        injected: T, that of the injected noise.
    """

    from_gradients: float
    injected: float

    @property
    def ratio(self) -> float:
        """Gradient noise over injected noise; infinite at T = 0 with any gradient noise."""
        if not self.injected:
            return float("inf") if self.from_gradients else 0.0
        return self.from_gradients / self.injected

    @property
    def effective(self) -> float:
        """T (1 + ratio)."""
        return self.injected + self.from_gradients


@dataclass(frozen=True)
class GradientNoise:
    """The noise temperature of all weights, and of each parameter tensor."""

    total: NoiseTemperature
    tensors: dict[str, NoiseTemperature]


def gradient_noise(
    target: Target,
    batches: Sequence[Batch],
    preconditioner: Preconditioner,
    lr: float,
    *,
    temperature: float = 1.0,
    momentum: float = 0.0,
    masks: Sequence[Tensor] | None = None,
    names: Sequence[str] | None = None,
) -> GradientNoise:
    """Return the temperature that minibatches add, by tensor and in total, at the current weights.

    A step's drift has the covariance lr^2 C V C, its injected noise 2 lr T/N C, V the covariance of
    the mean gradient as the chain estimates it from a minibatch (:meth:`Target.estimate`). In the
    metric of C^-1 their ratio is

        r = lr N tr(C V) / (2 T d),

    and the chain's effective temperature T (1 + r): on a Gaussian direction with C = g, curvature a
    and N^2 V = v, the variance is (T + h g v / 2) / (a (1 - h g a / 2)) with h = lr/N
    (ALGORITHMS: (1 + eps g v / 4) / (a (1 - eps g a / 4)), eps = 2 h). With momentum mu every
    gradient acts 1 / (1 - mu) times as long, which multiplies r by that in the limit of small
    steps. SGFS counts gradient noise as part of its injected noise; r is not a fault there.

    V is the sample covariance over ``batches``, so draw them as the chain draws its own. A
    reshuffled epoch has less noise than this, as the batches of one epoch cancel.

    Args:
        target: The potential; N is ``target.num_data``.
        batches: At least two minibatches; the ratio's relative error is about
            sqrt(2 / len(batches)) at worst, for noise in a single direction.
        preconditioner: The matrix C.
        lr: Step size on the mean loss.
        temperature: T.
        momentum: mu of SGHMC, 0 for Langevin.
        masks: Zero where a weight is held at zero; those do not count.
        names: Of the parameters; their numbers otherwise.

    Returns:
        The temperatures; with stacked chains the mean over chains.

    Raises:
        ValueError: If there are fewer than two batches, or lr or momentum lies outside its range.
    """
    if len(batches) < 2:
        raise ValueError(f"the noise shows in two minibatches or more, got {len(batches)}")
    if not lr > 0 or not 0 <= momentum < 1:
        raise ValueError(f"need lr > 0 and momentum in [0, 1), got {lr} and {momentum}")
    chain_dims, params = target.chain_dims, target.params
    sizes = [p.shape[chain_dims:].numel() for p in params]
    if masks is not None:
        chains = params[0].shape[0] if chain_dims else 1
        sizes = [int(m.expand_as(p).sum()) // chains for m, p in zip(masks, params, strict=True)]
    with torch.no_grad():
        traces = _traces(target, batches, preconditioner, masks, chain_dims)
    scale = lr * target.num_data / (2 * (1 - momentum))

    def reading(trace: float, size: int) -> NoiseTemperature:
        return NoiseTemperature(scale * trace / size if size else 0.0, temperature)

    labels = list(names) if names is not None else [str(i) for i in range(len(params))]
    return GradientNoise(
        reading(sum(traces), sum(sizes)),
        {n: reading(t, s) for n, t, s in zip(labels, traces, sizes, strict=True)},
    )


def _traces(
    target: Target,
    batches: Sequence[Batch],
    preconditioner: Preconditioner,
    masks: Sequence[Tensor] | None,
    chain_dims: int,
) -> list[float]:
    """Return tr(C V) by tensor: the sum over its rows of (C V)_ii, from deviations d' C d.

    Deviations are taken from the first batch's gradient, which keeps the digits that a difference
    of second moments would lose where the mean gradient is large.
    """
    first = target.estimate(batches[0])
    square = [0.0] * len(first)
    total = [torch.zeros_like(g) for g in first]
    for batch in batches[1:]:
        deviation = list(torch._foreach_sub(target.estimate(batch), first))
        if masks is not None:
            torch._foreach_mul_(deviation, list(masks))
        torch._foreach_add_(total, deviation)
        square = [
            a + b
            for a, b in zip(square, _norms(deviation, preconditioner, chain_dims), strict=True)
        ]
    of_mean = _norms(total, preconditioner, chain_dims)
    count = len(batches)
    return [(s - m / count) / (count - 1) for s, m in zip(square, of_mean, strict=True)]


def _norms(vectors: list[Tensor], preconditioner: Preconditioner, chain_dims: int) -> list[float]:
    """Return v' (C v) over each tensor, the mean over chains."""
    products = preconditioner.apply_([v.clone() for v in vectors])
    return [
        float(inner([v], [p], chain_dims).mean()) for v, p in zip(vectors, products, strict=True)
    ]


def minibatch_noise(chain: Chain, lr: float) -> GradientNoise | None:
    """Measure the minibatches' part in the temperature at a chain's weights.

    Args:
        chain: The chain, bound to its data.
        lr: Step size on the mean loss.

    Returns:
        None where gradients are of all the data, nothing is sampled (T = 0), or the examples behind
        the minibatches are not known.
    """
    sampler, spare, target = chain.sampler, chain.spare, chain.target
    if spare is None or target is None or spare.sampling == "full" or chain.gradients.exact:
        return None
    if not sampler.temperature:
        return None
    mu, h = sampler.recursion(lr)
    return gradient_noise(
        target,
        [spare.at(step) for step in range(chain.steps, chain.steps + _BATCHES)],
        sampler.preconditioner,
        h,
        temperature=sampler.temperature,
        momentum=mu,
        masks=sampler.masks,
        names=chain.sampled,
    )
