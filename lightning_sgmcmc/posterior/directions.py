"""Directions of weight space that are followed over all draws, for verdicts on predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_sgmcmc.adaptation import Directions, leading_directions
from lightning_sgmcmc.chain import Chain
from lightning_sgmcmc.common.vectors import dot, flatten, unflatten
from lightning_sgmcmc.noise import NoiseStream
from lightning_sgmcmc.target import Batch

#: Directions of each kind that are followed.
COUNTS = {"leading": 6, "random": 4, "predictions": 6}
#: Predictions that a combination counts.
PROBES = 128
# Numbers that all vectors and covectors may take together.
_MEMORY = 2**26
_SOLVER_STEPS = 8
_SOLVED = 1e-4

Vector = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class FollowedDirections:
    """Vectors v_i and covectors a_i of K chains, [K, m, d] each, kind by kind.

    ``leading`` are the eigenvectors of C H of largest eigenvalues, ``random`` have v = C z for
    normal z; both have a_i' v_i = 1. ``predictions`` have a_j = J' u_j for random combinations
    u_j of predictions with Jacobian J, and v_j close to H^-1 a_j / N. H is the Hessian of U/N.

    Attributes:
        vectors: v_i.
        covectors: a_i.
        kinds: Kinds with their numbers of directions, in order.
        eigenvalues: Of the leading ones, [K, m].
    """

    vectors: Tensor
    covectors: Tensor
    kinds: dict[str, int]
    eigenvalues: Tensor

    def coordinates(self, weights: Sequence[Tensor], chain_dims: int) -> Tensor:
        """Return a_i' theta of each chain in float64 on the CPU, [K, m]."""
        return self._products(self.covectors, weights, chain_dims)

    def forces(self, gradient: Sequence[Tensor], chain_dims: int) -> Tensor:
        """Return v_i' grad U of each chain in float64 on the CPU, [K, m]."""
        return self._products(self.vectors, gradient, chain_dims)

    def variances(self) -> Tensor:
        """Return a_i' v_i in float64 on the CPU, [K, m]."""
        return torch.linalg.vecdot(self.covectors.double(), self.vectors.double()).cpu()

    def _products(self, rows: Tensor, tensors: Sequence[Tensor], chain_dims: int) -> Tensor:
        flat = flatten([t.detach() for t in tensors], chain_dims).reshape(len(rows), -1, 1)
        return (rows @ flat).squeeze(-1).double().cpu()

    def state_dict(self) -> dict[str, Any]:
        """Return everything, as tensors and plain values."""
        return {
            "vectors": self.vectors,
            "covectors": self.covectors,
            "kinds": self.kinds,
            "eigenvalues": self.eigenvalues,
        }


def find_directions(
    chain: Chain, batches: Sequence[Batch], probes: Batch | None
) -> FollowedDirections:
    """Return the directions to follow, from a chain's weights and C as they stand.

    The solution v of H v = a starts from its part in the leading directions and goes on by
    conjugate gradients with C as preconditioner, few steps, to the first direction of negative
    curvature. Temperatures are right for any v; the closer v is, the more of them is about
    predictions.

    Args:
        chain: The chain, bound to its data.
        batches: Equally large minibatches that stand for the data.
        probes: A batch whose predictions count, the same for all chains; None takes the first of
            ``batches``.
    """
    target, sampler = chain.target, chain.sampler
    assert target is not None
    dims, params, metric = sampler.chain_dims, sampler.params, sampler.preconditioner
    free = flatten([torch.ones_like(p) for p in params] if sampler.masks is None else
                   [m.expand_as(p) for m, p in zip(sampler.masks, params, strict=True)], dims)

    def apply(covector: Tensor) -> Tensor:
        parts = [p.clone() for p in unflatten(covector, params, dims)]
        return flatten(metric.apply_(parts), dims) * free

    def curvature(vector: Tensor) -> Tensor:
        return flatten(target.curvature(unflatten(vector, params, dims), batches), dims) * free

    counts = _affordable(free)
    with torch.no_grad():
        try:
            leading: Directions | None = leading_directions(
                target, metric, batches, counts["leading"], masks=sampler.masks
            )
        except (RuntimeError, ValueError):  # no second derivative, or an infinite one
            leading = None
        stream = NoiseStream(params, seed=1)
        covectors = [] if leading is None else list(leading.covectors.unbind(-2))
        vectors = [] if leading is None else list(leading.vectors.unbind(-2))
        for _ in range(counts["random"]):
            z = flatten([x.clone() for x in stream.normal()], dims) * free
            v = apply(z)
            scale = dot(z, v).rsqrt()
            covectors.append(z * scale)
            vectors.append(v * scale)
        kinds = {"leading": len(vectors) - counts["random"], "random": counts["random"]}
        for a in _gradients_of_predictions(chain, probes, batches[0], counts["predictions"]):
            a = a * free
            v = apply(a) if leading is None else _solve(a, apply, curvature, leading)
            if not bool(((dot(a, v) > 0) & torch.isfinite(dot(a, v))).all()):
                continue
            covectors.append(a)
            vectors.append(v / target.num_data)
        kinds["predictions"] = len(vectors) - sum(kinds.values())
    eigenvalues = leading.eigenvalues if leading is not None else torch.zeros(0)
    return FollowedDirections(
        _stacked(vectors, dims), _stacked(covectors, dims), kinds, eigenvalues
    )


def _stacked(rows: list[Tensor], dims: int) -> Tensor:
    joined = torch.stack(rows, dim=-2)
    return joined if dims else joined[None]


def _affordable(free: Tensor) -> dict[str, int]:
    """Return how many directions of each kind fit into memory and into the weights."""
    size = int(free.reshape(-1, free.shape[-1]).sum(-1).min())
    part = min(1.0, _MEMORY / (2 * free.numel() * sum(COUNTS.values())))
    return {
        kind: max(1, min(size, int(count * part))) if kind == "leading" else max(1, int(count * part))
        for kind, count in COUNTS.items()
    }


def _gradients_of_predictions(
    chain: Chain, probes: Batch | None, batch: Batch, count: int
) -> list[Tensor]:
    """Return J' u of random combinations u of predictions, [d] or [K, d] each."""
    sampler = chain.sampler
    own = probes is None and chain.own_batches
    training = chain.task.training
    chain.task.eval()
    try:
        with torch.enable_grad():
            predictions = chain.evaluate("predictive", batch if probes is None else probes, own)
            shape = (predictions.shape[0], -1) if sampler.chain_dims else (1, -1)
            flat = predictions.reshape(shape)[:, :PROBES]
            if not flat.requires_grad:
                return []
            generator = torch.Generator().manual_seed(0)
            rows = []
            for _ in range(count):
                u = torch.randn(flat.shape[1], generator=generator, dtype=torch.float64)
                combined = (flat * u.to(flat)).sum()
                grads = torch.autograd.grad(
                    combined, sampler.params, retain_graph=True, materialize_grads=True
                )
                rows.append(flatten(list(grads), sampler.chain_dims))
    finally:
        chain.task.train(training)
    return rows


def _solve(a: Tensor, apply: Vector, curvature: Vector, leading: Directions) -> Tensor:
    """Return v with H v close to a, [d] or [K, d]: see :func:`find_directions`."""
    part = torch.linalg.vecdot(leading.vectors, a.unsqueeze(-2))
    values = leading.eigenvalues.to(a.dtype)
    part = torch.where(values > 0, part / values, torch.zeros_like(part))
    v = (part.unsqueeze(-2) @ leading.vectors).squeeze(-2)
    first = dot(a, apply(a))
    residual = a - curvature(v)
    step = apply(residual)
    square = dot(residual, step)
    going = torch.ones_like(square, dtype=torch.bool)
    for _ in range(_SOLVER_STEPS):
        image = curvature(step)
        curved = dot(step, image)
        going = going & (curved > 0) & (square > _SOLVED * first)
        if not bool(going.any()):
            break
        length = torch.where(going, square / curved, torch.zeros_like(square))
        v = v + length * step
        residual = residual - length * image
        scaled = apply(residual)
        new = dot(residual, scaled)
        step = scaled + torch.where(going, new / square, torch.zeros_like(square)) * step
        square = new
    return v

