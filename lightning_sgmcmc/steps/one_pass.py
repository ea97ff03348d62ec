"""Langevin steps in plain torch that read each vector once less than the formula does."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lightning_sgmcmc.common.vectors import flatten, unflatten
from lightning_sgmcmc.preconditioners import (
    AveragedLBFGS,
    DiagonalFisher,
    Identity,
    QuasiDiagonalFisher,
    RMSProp,
)
from lightning_sgmcmc.steps.registry import faster_move

NAME = "torch, one pass"


def whole(sampler: Any, grads: list[Tensor]) -> bool:
    """Return whether every weight moves, and the noise is large enough to divide by.

    A step that is colder still would divide by what rounding takes for 0.
    """
    return sampler.masks is None and sampler.noise_size() > 1e-12 * sampler.lr


def _diagonal(sampler: Any, grads: list[Tensor]) -> None:
    """Theta += r (size z - lr r gradient), with C = diag(r^2)."""
    lr, size, root = sampler.lr, sampler.noise_size(), sampler.preconditioner.root()
    sampler.prior.add_gradient_(grads, sampler.params, 1 / sampler.num_data)
    z = sampler.stream.increments()
    torch._foreach_addcmul_(z, grads, root, value=-lr / size)
    torch._foreach_addcmul_(sampler.params, z, root, value=size)


#: The methods that make C of the diagonal metrics.
RMSPROP = ("apply_", "noise", "root")
FISHER = ("apply_", "noise", "root", "inverse", "_make")

for _metric, _methods in ((RMSProp, RMSPROP), (DiagonalFisher, FISHER)):
    faster_move(NAME, "SGLD", _metric, _methods, whole)(_diagonal)


@faster_move(NAME, "SGLD", QuasiDiagonalFisher, FISHER, whole)
def _quasi_diagonal(sampler: Any, grads: list[Tensor]) -> None:
    """Theta += A (size z - lr A' gradient), with C = A A'."""
    metric, lr, size = sampler.preconditioner, sampler.lr, sampler.noise_size()
    sampler.prior.add_gradient_(grads, sampler.params, 1 / sampler.num_data)
    root = metric.root()
    metric.off_biases_(grads)
    z = sampler.stream.increments()
    torch._foreach_addcmul_(z, grads, root, value=-lr / size)
    torch._foreach_mul_(z, root)
    torch._foreach_add_(sampler.params, metric.onto_biases_(z), alpha=size)


def _of_operators(sampler: Any, grads: list[Tensor]) -> bool:
    return sampler.preconditioner.matrix is None and whole(sampler, grads)


@faster_move(NAME, "SGLD", AveragedLBFGS, ("apply_", "noise"), _of_operators)
def _lbfgs(sampler: Any, grads: list[Tensor]) -> None:
    """Theta += sum_j (sqrt(w_j) size S_j z_j - w_j lr G_j gradient)."""
    metric, lr, size, chain_dims = (
        sampler.preconditioner,
        sampler.lr,
        sampler.noise_size(),
        sampler.chain_dims,
    )
    sampler.prior.add_gradient_(grads, sampler.params, 1 / sampler.num_data)
    vector, z, result = metric.buffers()
    flatten(grads, chain_dims, vector)
    for i, (weight, operator) in enumerate(metric.weighted_operators()):
        flatten(sampler.stream.increments(), chain_dims, z)
        out = None if i else result
        step = operator.step(vector, z, weight * lr, weight**0.5 * size, out)
        if i:
            result.add_(step)
    torch._foreach_add_(sampler.params, unflatten(result, sampler.params, chain_dims))


def _matched(sampler: Any, grads: list[Tensor]) -> bool:
    return whole(sampler, grads) and sampler.increments == "moment-matched"


@faster_move(NAME, "SGLD", Identity, ("apply_", "noise"), _matched)
def _identity(sampler: Any, grads: list[Tensor]) -> None:
    """Theta += size z - lr gradient, z scaled where it is added."""
    sampler.prior.add_gradient_(grads, sampler.params, 1 / sampler.num_data)
    torch._foreach_add_(sampler.params, grads, alpha=-sampler.lr)
    sampler.stream.add_increments_(sampler.params, sampler.noise_size())
