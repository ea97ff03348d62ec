"""The kinds of gradients that a chain can choose from, with their noise and their cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from lightning_sgmcmc.adaptation.directions import Directions
from lightning_sgmcmc.adaptation.excess import relaxation_time
from lightning_sgmcmc.adaptation.heating import (
    Heating,
    measure,
    scores_about,
    scores_of,
)
from lightning_sgmcmc.chain import Chain
from lightning_sgmcmc.common.vectors import flatten, unflatten
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


@dataclass(frozen=True)
class Plan:
    """A kind of gradients.

    Attributes:
        name: In words.
        make: Returns its estimator.
        cost: Minibatch gradients a step.
        heating: What its noise does to the chain.
    """

    name: str
    make: Callable[[], GradientEstimator]
    cost: float
    heating: Heating

    def price(self, sampler: Sampler, lr: float) -> float:
        """Return the minibatch gradients in which the slowest known direction relaxes."""
        mu, h = sampler.recursion(lr)
        return self.cost * relaxation_time(h * self.heating.slowest, mu)


def plans(chain: Chain, directions: Directions, batches: Sequence[Batch]) -> list[Plan]:
    """Return what a chain can choose from, with the noise measured at its weights.

    A control variate at these weights has no noise here; its noise is measured where a draw may
    be: displaced from its centre by the Gaussian with the variances T / (N lambda_i) along the
    leading directions, and the largest of these along all others.

    Args:
        chain: The chain, bound to its data.
        directions: Of its target at its weights.
        batches: Minibatches over whose examples noise is measured.

    Returns:
        The estimator in use alone, unless it is to be chosen now.
    """
    target, sampler, estimator = chain.target, chain.sampler, chain.gradients
    assert target is not None
    here = [p.detach().clone() for p in target.params]
    if isinstance(estimator, FullGradient | ControlVariate):
        estimator.prepare(chain.steps, chain.optimizer_steps, chain.draws.burn_in, sampler.masks)

    def about(centre: Sequence[Tensor]) -> Heating:
        """Return the noise about a centre, of the chain's place and a likely one, the larger."""
        places = [here]
        move = _move(chain, directions)
        if move is not None:
            places.append(list(torch._foreach_add(list(centre), move)))
        found = [
            measure(chain, directions, batches, scores_about(target, centre, p)) for p in places
        ]
        return replace(
            found[0],
            variance=np.max([f.variance for f in found], axis=0),
            typical_variance=max(f.typical_variance for f in found),
        )

    centre = getattr(estimator, "centre", None)
    if centre is not None:
        return [Plan(repr(estimator), lambda: estimator, 2.0, about(centre))]
    plain = measure(chain, directions, batches, scores_of(target))
    if isinstance(estimator, FullGradient) and estimator.active:
        return [Plan(repr(estimator), lambda: estimator, 1.0, plain.noiseless())]
    found = [Plan("plain minibatches", Minibatch, 1.0, plain)]
    if chain.auto_gradients and _due(chain):
        assert chain.stream is not None
        exact = chain.stream.batches_a_pass + 2.0
        found += [
            Plan("a control variate", ControlVariate, 2.0, about(here)),
            Plan("the whole data", FullGradient, exact, plain.noiseless()),
        ]
    return found


def _due(chain: Chain) -> bool:
    """Return whether gradients of another kind can start at the next step, and may."""
    start, burn_in = chain.optimizer_steps, chain.draws.burn_in
    free = chain.stream is not None and chain.sampler.batches != "independent"
    return (
        free and chain.steps >= (start or burn_in) and not isinstance(chain.sampler, ChainsInTurn)
    )


def _move(chain: Chain, directions: Directions) -> list[Tensor] | None:
    """Return a draw's distance from a mode under the Gaussian that the directions tell of."""
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
        scale = (sampler.temperature / sampler.num_data) ** 0.5
        moved = scale * (last * z + more.squeeze(-2))
        return unflatten(moved, sampler.params, sampler.chain_dims)
