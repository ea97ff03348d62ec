"""The kinds of gradients that a chain can choose from, with their noise and their cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from lightning_sgmcmc.adaptation.directions import Directions, spectrum
from lightning_sgmcmc.adaptation.excess import relaxation_time
from lightning_sgmcmc.adaptation.heating import (
    Heating,
    measure,
    scores_about,
    scores_of,
)
from lightning_sgmcmc.chain import Chain
from lightning_sgmcmc.chain.chain import CHOICES
from lightning_sgmcmc.common.vectors import flatten, rows, unflatten
from lightning_sgmcmc.noise import NoiseStream
from lightning_sgmcmc.samplers import ChainsInTurn, Sampler
from lightning_sgmcmc.target import (
    Batch,
    ControlVariate,
    FullGradient,
    GradientEstimator,
    Minibatch,
)

# Curvatures below this part of the largest say nothing of how far a chain goes.
_FLAT = 1e-4
# Part of the variance of predictions that may relax more slowly than in the time looked at.
_SLOWEST = 0.01


@dataclass(frozen=True)
class Plan:
    """A kind of gradients.

    Attributes:
        name: In words.
        kind: Of its estimator.
        cost: Minibatch gradients a step.
        heating: What its noise does to the chain.
    """

    name: str
    kind: type[GradientEstimator]
    cost: float
    heating: Heating

    def price(self, sampler: Sampler, lr: float, slowest: float) -> float:
        """Return the minibatch gradients in which a direction of a curvature relaxes."""
        mu, h = sampler.recursion(lr)
        return self.cost * relaxation_time(h * slowest, mu)


def slowest_curvature(chain: Chain, J: Tensor, batches: Sequence[Batch]) -> float:
    """Return the curvature below which a hundredth of the variance of predictions lies.

    The variance of a combination u' f of predictions with Jacobian J is u' J H^-1 J' u T / N on a
    quadratic; :func:`~lightning_sgmcmc.adaptation.directions.spectrum` tells its parts. What it
    does not resolve counts as the flattest that counts at all.

    Args:
        chain: The chain, bound to its data.
        J: See :func:`~lightning_sgmcmc.adaptation.heating.jacobian`.
        batches: Equally large minibatches that stand for the data.

    Returns:
        For a random combination, over all chains.
    """
    assert chain.target is not None
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(J.shape[-2], generator=generator, dtype=torch.float64).to(J)
    metric, masks = chain.sampler.preconditioner, chain.sampler.masks
    values, parts = spectrum(chain.target, metric, batches, u @ J, masks=masks, flat=_FLAT)
    curvature = values.abs()
    curvature = torch.maximum(curvature, _FLAT * curvature.amax(-1, keepdim=True))
    shares = parts / curvature
    shares = shares / shares.sum(-1, keepdim=True)
    ordered, order = curvature.flatten().sort()
    below = shares.flatten()[order].cumsum(0)
    return float(ordered[int((below < _SLOWEST * below[-1]).sum())])


def plans(chain: Chain, directions: Directions, J: Tensor, batches: Sequence[Batch]) -> list[Plan]:
    """Return what a chain can choose from, with the noise measured at its weights.

    A control variate has no noise at its centre; its noise is measured at the chain, which may
    have gone on from there, and where a draw may be: displaced from the centre by the Gaussian with
    the variances T / (N lambda_i) along the leading directions, and the largest of these along all
    others; twice these variances where the centre is the draw where burn-in ends, as of the
    difference of two draws.

    Args:
        chain: The chain, bound to its data.
        directions: Of its target at its weights.
        J: Gradients of predictions.
        batches: Minibatches over whose examples noise is measured.

    Returns:
        The kind in use, and the others that can start at the next step and may be chosen.
    """
    target, sampler, estimator = chain.target, chain.sampler, chain.gradients
    assert target is not None
    here, dims = [p.detach().clone() for p in target.params], sampler.chain_dims
    chain.prepare(estimator)

    def about(centre: Sequence[Tensor]) -> Heating:
        """Return the noise about a centre, of the chain's place and a likely one, the larger."""
        places = [here]
        fresh = bool((rows(centre, dims) == rows(here, dims)).all(-1).any())
        at_a_draw = fresh and chain.steps >= chain.draws.burn_in > chain.optimizer_steps
        move = _move(chain, directions, 2.0 if at_a_draw else 1.0)
        if move is not None:
            places.append(list(torch._foreach_add(list(centre), move)))
        found = [
            measure(chain, directions, J, batches, scores_about(target, centre, p)) for p in places
        ]
        return replace(
            found[0],
            energy=plain.energy,
            variance=np.max([f.variance for f in found], axis=0),
            typical_variance=max(f.typical_variance for f in found),
        )

    centre = getattr(estimator, "centre", None)
    if centre is not None:
        used: type[GradientEstimator] = ControlVariate
    else:
        exact = isinstance(estimator, FullGradient) and estimator.active
        used = FullGradient if exact else Minibatch
    offered, found = _offered(chain), list[Plan]()
    kinds = offered | {used}
    plain = measure(chain, directions, J, batches, scores_of(target))
    if kinds & {Minibatch, FullGradient}:
        found.append(Plan("plain minibatches", Minibatch, 1.0, plain))
        passes = math.inf if chain.stream is None else chain.stream.batches_a_pass + 2.0
        found.append(Plan("the whole data", FullGradient, passes, plain.noiseless()))
    if ControlVariate in kinds:
        centre = chain.centred_control().centre if ControlVariate in offered else centre
        assert centre is not None
        found.append(Plan("a control variate", ControlVariate, 2.0, about(centre)))
    return [plan for plan in found if plan.kind in kinds]


def _offered(chain: Chain) -> set[type[GradientEstimator]]:
    """Return the kinds of gradients that can start at the next step, and may."""
    independent = chain.sampler.batches == "independent"
    fixed = chain.stream is None or independent or chain.control is None
    first = chain.optimizer_steps or chain.draws.burn_in
    if fixed or chain.steps < first or isinstance(chain.sampler, ChainsInTurn):
        return set()
    return set(CHOICES)


def _move(chain: Chain, directions: Directions, spread: float) -> list[Tensor] | None:
    """Return a vector with so many times the variances of the Gaussian that the directions tell."""
    sampler = chain.sampler
    if isinstance(sampler, ChainsInTurn):
        return None
    assert sampler.num_data is not None
    stream = NoiseStream(sampler.params, seed=1, num_chains=sampler.num_chains)
    with torch.no_grad():
        noise = [z.clone() for z in sampler.preconditioner.noise(stream)]
        if sampler.masks is not None:
            torch._foreach_mul_(noise, list(sampler.masks))
        z = flatten(noise, sampler.chain_dims)
        curvature = directions.eigenvalues.abs()
        curvature = torch.maximum(curvature, _FLAT * curvature[..., :1]).to(z.dtype)
        last = curvature[..., -1:].rsqrt()
        along = (directions.covectors @ z.unsqueeze(-1)).squeeze(-1)
        more = (along * (curvature.rsqrt() - last)).unsqueeze(-2) @ directions.vectors
        scale = (spread * sampler.temperature / sampler.num_data) ** 0.5
        moved = scale * (last * z + more.squeeze(-2))
        return unflatten(moved, sampler.params, sampler.chain_dims)
