"""How much too wide a step and its minibatches make a chain, where it is stiff and predicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_sgmcmc.adaptation.directions import Directions
from lightning_sgmcmc.adaptation.excess import BatchLaw
from lightning_sgmcmc.chain import Chain
from lightning_sgmcmc.chain.checks import sampling_of
from lightning_sgmcmc.common.vectors import flatten, joined_mask, per_chain, unflatten
from lightning_sgmcmc.noise import NoiseStream
from lightning_sgmcmc.samplers import ChainsInTurn, Sampler
from lightning_sgmcmc.target import Batch, Target
from lightning_sgmcmc.target.hessian import (
    difference_step,
    math_attention,
    once_only,
    refuse_once_only,
)

# Outputs of the network whose noise is looked at.
_PREDICTIONS = 8
# Directions of law N(0, C) that stand for all weights.
_RANDOM = 2
# In equilibrium the energy N g^2 / lambda of none of eight directions is beyond that many T.
_EQUILIBRIUM = 10.0
# A spread over examples is known to sqrt(2 / 256) = 9 % from so many.
EXAMPLES = 256

#: Returns v' grad NLL of each example of a batch for directions [m, d]: [m, B] or [K, m, B].
Scores = Callable[[Tensor, Batch], Tensor]


@dataclass(frozen=True)
class Worst:
    """The largest relative error of a variance, and where it is."""

    value: float
    where: str


@dataclass(frozen=True)
class Heating:
    """What decides the stationary variance of a chain's coordinates on a quadratic.

    A coordinate with curvature lambda (an eigenvalue of C^(1/2) H C^(1/2), in units of 1/lr) has
    the variance T / (N lambda) under the target. Under minibatches whose mean gradient has the
    variance s along it, the chain's is larger by the relative excess

        e = h^2 s G(h lambda) N lambda / T + b(f) - c / (1 - f),

    with mu and h of :meth:`Sampler.recursion` (h = lr for all samplers but the microcanonical),
    G of :meth:`BatchLaw.gain`, b the sampler's own bias at the fraction f = h lambda /
    (2 (1 + mu)) of the stability limit, and c the share of the injected noise that the sampler
    leaves out because it counts on the minibatches' (SGFS). For independent minibatches the first
    term is h N s / (2 T (1 - mu) (1 - f)).

    A prediction with Jacobian J moves by the sum over coordinates of J v_i; its variance is larger
    by the mean of the e_i with weights (J v_i)^2 / lambda_i. What the leading directions leave of J
    is one more coordinate, to which the smallest of their curvatures is given: that bounds its
    noise from above, and its share of the variance from below.

    A thermostat (SGNHT's, or a velocity of constant length, SMILE's) takes the mean kinetic heat of
    all weights out of every direction alike:

        kappa = h N s_mean / T (1 + mu^2) / (1 + mu) G_v,

    G_v the gain of a velocity that keeps mu a step. Its e_i are (e_i - kappa) / (1 + kappa), and a
    direction without noise is too cold by kappa / (1 + kappa).

    Attributes:
        curvature: lambda_i, [m].
        variance: Of one example's score v_i' grad NLL over the data, [m].
        leading: How many of them are leading directions; the rest are what these leave of
            predictions.
        shares: Of every coordinate in the variance of each prediction, [P, m].
        law: Of the minibatches.
        typical_variance: tr(C V) / d, V the covariance of one example's gradient.
        whole: Whether the leading directions are all that there are, none of which is unseen.
        energy: Largest of N g^2 / lambda over the leading directions, g the gradient of U/N along
            them less three of its standard errors; about T and below in equilibrium.
        far: Factor by which the noise may be larger than by T, above 1 on the way to a mode.
    """

    curvature: NDArray[np.float64]
    variance: NDArray[np.float64]
    leading: int
    shares: NDArray[np.float64]
    law: BatchLaw
    typical_variance: float = 0.0
    energy: float = 0.0
    far: float = 1.0
    whole: bool = False

    def on_the_way(self, temperature: float) -> Heating:
        """Return the same with its noise set beside the energy that a chain still has to lose.

        Far from a mode examples differ most, and a step bounded by T would take that much longer to
        get there. Noise that adds a small part of the energy does not keep the chain away.
        """
        return replace(self, far=max(1.0, self.energy / (_EQUILIBRIUM * temperature)))

    def cooling(self, sampler: Sampler, lr: float) -> float:
        """Return kappa, 0 for a sampler without a thermostat."""
        if not sampler.has_thermostat:
            return 0.0
        mu, h = sampler.recursion(lr)
        noise = float(self.law.of_batch(self.typical_variance)) * h * self.law.num_data
        velocity = float(self.law.gain(1 - mu))
        return noise / (sampler.temperature * self.far) * (1 + mu**2) / (1 + mu) * velocity

    def excess(self, sampler: Sampler, lr: float) -> NDArray[np.float64]:
        """Return e of every coordinate, [m]."""
        mu, h = sampler.recursion(lr)
        u = np.minimum(h * self.curvature, 1.99 * (1 + mu))
        temperature = sampler.temperature * self.far
        noise = h * self.law.of_batch(self.variance) * self.law.num_data / temperature
        fraction = u / (2 * (1 + mu))
        bias = np.array([sampler.variance_bias(float(f)) for f in fraction])
        counted = sampler.counted_noise(lr) / (1 - fraction)
        found: NDArray[np.float64] = noise * u * self.law.gain(u, mu) + bias - counted
        cooling = self.cooling(sampler, lr)
        return (found - cooling) / (1 + cooling)

    def worst(self, sampler: Sampler, lr: float) -> Worst:
        """Return the largest error over leading directions and predictions."""
        excess = self.excess(sampler, lr)
        directions, predictions = np.abs(excess[: self.leading]), np.abs(self.shares @ excess)
        cooling = self.cooling(sampler, lr)
        cooling = 0.0 if self.whole else cooling / (1 + cooling)
        i = int(directions.argmax())
        if cooling > max([directions[i], *predictions]):
            return Worst(cooling, "in the soft directions, which the thermostat cools")
        if len(predictions) and predictions.max() > directions[i]:
            return Worst(float(predictions.max()), "in a prediction")
        return Worst(float(directions[i]), f"along leading direction {i + 1}")

    def bounded(self, sampler: Sampler, lr: float, bound: float) -> float:
        """Return the largest step up to ``lr`` at which no error exceeds a bound."""
        if self.worst(sampler, lr).value <= bound:
            return lr
        low, high = 0.0, 1.0
        for _ in range(60):  # halves the factor's logarithm, which lies between 0 and -14
            middle = (low + high) / 2
            ok = self.worst(sampler, lr * 1e-14**middle).value <= bound
            low, high = (low, middle) if ok else (middle, high)
        return lr * float(1e-14**high)

    def noiseless(self) -> Heating:
        """Return the same under gradients of all the data."""
        return replace(self, variance=np.zeros_like(self.variance), typical_variance=0.0)


def batch_law(chain: Chain, examples: int) -> BatchLaw:
    """Return how a chain's minibatches are drawn.

    A ``DataLoader`` may reshuffle too; any other order is taken for one of independent minibatches.

    Args:
        chain: The chain, bound to its data.
        examples: In a minibatch of this process, where the loader does not tell.
    """
    sampler, loader = chain.sampler, chain.loader
    assert sampler.num_data is not None
    size = sampler.batch_size or examples * chain.processes.size
    law = sampling_of(loader) if chain.stream is None else chain.stream.sampling
    return BatchLaw(sampler.num_data, min(size, sampler.num_data), law == "reshuffled")


def jacobian(chain: Chain, batch: Batch) -> Tensor:
    """Return the gradients of a few predictions for a batch, [P, d] or [K, P, d].

    Processes that share a batch return the same, those that one process with all of it would.
    """
    assert chain.target is not None
    rank, size = chain.processes.rank, chain.processes.size
    dims, params = chain.target.chain_dims, chain.target.params
    with torch.enable_grad():
        predictions = chain.evaluate("predictive", batch, chain.own_batches)
        flat = predictions.reshape(*predictions.shape[:dims], -1)
        own = flat.shape[-1]
        places = torch.linspace(0, own * size - 1, min(_PREDICTIONS, own * size)).long()
        rows = [
            torch.autograd.grad(
                flat[..., i].sum(), params, retain_graph=True, materialize_grads=True
            )
            if 0 <= i < own
            else [torch.zeros_like(p) for p in params]  # another process's
            for i in (places - rank * own).tolist()
        ]
    J = size * torch.stack([flatten(list(row), dims) for row in rows], -2)
    chain.target.reduced([J])
    return J * joined_mask(params, chain.sampler.masks, dims).unsqueeze(-2)


def measure(
    chain: Chain, directions: Directions, J: Tensor, batches: Sequence[Batch], scores: Scores
) -> Heating:
    """Measure what minibatches do along leading directions and in predictions.

    Args:
        chain: The chain, bound to its data.
        directions: Of its target at its weights.
        J: See :func:`jacobian`.
        batches: Minibatches over whose examples the spread of scores is taken.
        scores: See :data:`Scores`.

    Returns:
        The mean over chains of all that differs between them.
    """
    target = chain.target
    assert target is not None
    rest, parts = _of_predictions(chain, directions, J)
    random = _of_all_weights(chain)
    vectors = torch.cat([directions.vectors, rest, random], -2)
    found = [scores(vectors, batch).double() for batch in batches]
    count = sum(f.shape[-1] for f in found) * chain.processes.size
    # Deviations from a batch's mean would lose a part of the variance; from the first one's none.
    shift = found[0].mean(-1, keepdim=True)
    target.reduced([shift])
    first = torch.stack([(f - shift).mean(-1) for f in found]).mean(0)
    second = torch.stack([(f - shift).square().mean(-1) for f in found]).mean(0)
    target.reduced([first, second])
    variance = second - first.square()
    curvature = directions.eigenvalues.abs().double()
    smallest = curvature[..., -1:]
    curvature = torch.cat([curvature, smallest.expand(*smallest.shape[:-1], rest.shape[-2])], -1)
    shares = parts.double() / curvature.unsqueeze(-2)
    shares = shares / shares.sum(-1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    m = curvature.shape[-1]
    force = first + shift.squeeze(-1) + _prior_forces(target, vectors)
    force = (force.abs() - 3 * (variance / count).sqrt()).clamp_min(0)
    leading = directions.eigenvalues.shape[-1]
    energy = target.num_data * force[..., :leading].square() / curvature[..., :leading]
    whole = leading == directions.vectors.shape[-1]
    seen = variance[..., :leading] if whole or not random.shape[-2] else variance[..., m:]
    typical, variance = seen.mean(), variance[..., :m]
    return Heating(
        curvature.reshape(-1, m).mean(0).cpu().numpy(),
        variance.reshape(-1, m).mean(0).cpu().numpy(),
        leading,
        shares.reshape(-1, shares.shape[-2], m).mean(0).cpu().numpy(),
        batch_law(chain, found[0].shape[-1]),
        float(typical),
        float(energy.reshape(-1, leading).mean(0).max()),
        whole=whole,
    )


def _prior_forces(target: Target, vectors: Tensor) -> Tensor:
    """Return v' grad(-log p) / N, [m] or [K, m]."""
    forces = [torch.zeros_like(p) for p in target.params]
    with torch.no_grad():
        target.prior.add_gradient_(forces, target.params, 1 / target.num_data)
        flat = flatten(forces, target.chain_dims)
        return (vectors @ flat.unsqueeze(-1)).squeeze(-1).double()


def _of_all_weights(chain: Chain) -> Tensor:
    """Return directions v of law N(0, C / d), so that E v' A v = tr(C A) / d, [R, d] or [K, R, d].

    There are none where each chain's sampler draws for itself.
    """
    sampler = chain.sampler
    dims = sampler.chain_dims
    flat = flatten([p.detach() for p in sampler.params], dims).unsqueeze(-2)
    if isinstance(sampler, ChainsInTurn):
        return flat[..., :0, :]
    stream = NoiseStream(sampler.params, seed=0, num_chains=sampler.num_chains)
    mask = joined_mask(sampler.params, sampler.masks, dims)
    with torch.no_grad():
        rows = [flatten(sampler.preconditioner.noise(stream), dims) * mask for _ in range(_RANDOM)]
        size = mask.sum(-1, keepdim=True).unsqueeze(-2).clamp_min(1)
        return torch.stack([row.clone() for row in rows], -2) / size.sqrt()


@torch.no_grad()
def _of_predictions(chain: Chain, directions: Directions, J: Tensor) -> tuple[Tensor, Tensor]:
    """Return what the leading directions leave of predictions, and each prediction's parts.

    Returns:
        Directions C r / sqrt(r' C r), [P, d] or [K, P, d], with r = J - sum_i (J v_i) a_i; and the
        squared moves of each prediction along all directions, [P, m + P] or [K, P, m + P].
    """
    metric, params = chain.sampler.preconditioner, chain.sampler.params
    along = J @ directions.vectors.mT
    rest = J - along @ directions.covectors
    rows = [metric.apply_joined(row.contiguous(), params) for row in rest.unbind(-2)]
    moved = torch.stack(rows, -2)
    square = (rest * moved).sum(-1).clamp_min(0)
    tiny = torch.finfo(square.dtype).tiny
    vectors = moved / square.clamp_min(tiny).sqrt().unsqueeze(-1)
    return vectors, torch.cat([along.square(), torch.diag_embed(square)], -1)


def scores_of(target: Target) -> Scores:
    """Return the scores of plain minibatches.

    v' grad NLL of every example comes from the derivative, by the weights w of the examples, of
    v' grad sum_b w_b NLL_b: one graph serves all directions, and no example's gradient is held.
    Where an operation of the network differentiates only once, it is the central difference of
    NLL_b, by the step of :class:`~lightning_sgmcmc.target.hessian.HessianProduct`.
    """
    dims, differences = target.chain_dims, False

    def scores(vectors: Tensor, batch: Batch) -> Tensor:
        nonlocal differences
        if not differences:
            try:
                return twice(vectors, batch)
            except RuntimeError as error:
                if not once_only(error):
                    raise
                differences = True
        return torch.stack([difference(v, batch) for v in vectors.unbind(-2)], -2)

    def difference(vector: Tensor, batch: Batch) -> Tensor:
        theta = [p.detach().clone() for p in target.params]
        parts = unflatten(vector, target.params, dims)
        step = difference_step(theta, parts, dims)
        moves = [v * per_chain(step, v).to(v.dtype) for v in parts]
        ends = []
        for sign in (1.0, -1.0):
            with target.holding(torch._foreach_add(theta, moves, alpha=sign)), torch.no_grad():
                ends.append(target.nll(batch).detach())
        return (ends[0] - ends[1]) / per_chain(2 * step, ends[0]).to(ends[0].dtype)

    def twice(vectors: Tensor, batch: Batch) -> Tensor:
        with torch.enable_grad(), math_attention():
            nll = target.nll(batch)
            weights = torch.ones_like(nll, requires_grad=True)
            grads = torch.autograd.grad(
                nll, target.params, weights, create_graph=True, materialize_grads=True
            )
            refuse_once_only(grads)
            rows: list[Tensor] = []
            for vector in vectors.unbind(-2):
                parts = unflatten(vector, target.params, dims)
                along = torch.stack([(g * v).sum() for g, v in zip(grads, parts, strict=True)])
                rows += torch.autograd.grad(along.sum(), weights, retain_graph=True)
        return torch.stack(rows, -2).detach()

    return scores


def scores_about(target: Target, centre: Sequence[Tensor], here: Sequence[Tensor]) -> Scores:
    """Return the scores of minibatches with a control variate, away from a centre.

    Args:
        target: The potential.
        centre: Where the control variate's own gradient is taken.
        here: Where the chain is.
    """
    plain = scores_of(target)

    def scores(vectors: Tensor, batch: Batch) -> Tensor:
        with target.holding(here):
            found = plain(vectors, batch)
        with target.holding(centre):
            return found - plain(vectors, batch)

    return scores
