"""Steps by the compiled loops of :mod:`lightning_sgmcmc.kernels`, which read each vector once.

They serve single chains of contiguous float32 tensors on the CPU, without masks, where Numba is
installed (``stream.loops_serve``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from lightning_sgmcmc.noise import NoiseStream
from lightning_sgmcmc.preconditioners import (
    AveragedLBFGS,
    DiagonalFisher,
    Identity,
    QuasiDiagonalFisher,
    RMSProp,
)
from lightning_sgmcmc.steps.one_pass import FISHER, RMSPROP, whole
from lightning_sgmcmc.steps.registry import Start, faster_move, faster_update, pull

NAME = "numba"


def _serves(sampler: Any, grads: list[Tensor]) -> bool:
    return whole(sampler, grads) and sampler.stream.loops_serve(sampler.params, grads)


@faster_move(NAME, "SGLD", Identity, ("apply_", "noise"), _serves, rank=1)
def _langevin_identity(sampler: Any, grads: list[Tensor]) -> None:
    from lightning_sgmcmc.kernels.langevin import identity_, langevin_

    lr, size, stream = sampler.lr, sampler.noise_size(), sampler.stream
    forces = pull(sampler, grads)
    if sampler.increments == "moment-matched":
        numbers, scale = stream.matched_bytes()
        identity_(sampler.params, grads, numbers, lr, size * scale, forces)
    else:
        langevin_(sampler.params, grads, stream.increments(), None, lr, size, forces)


@faster_move(NAME, "SGLD", RMSProp, RMSPROP, _serves, rank=1)
@faster_move(NAME, "SGLD", DiagonalFisher, FISHER, _serves, rank=1)
def _langevin_diagonal(sampler: Any, grads: list[Tensor]) -> None:
    from lightning_sgmcmc.kernels.langevin import langevin_

    forces, root = pull(sampler, grads), sampler.preconditioner.root()
    z = sampler.stream.increments()
    langevin_(sampler.params, grads, z, root, sampler.lr, sampler.noise_size(), forces)


def _has_products(sampler: Any, grads: list[Tensor]) -> bool:
    metric = sampler.preconditioner
    return (
        metric.updates > 0
        and _serves(sampler, grads)
        and sampler.stream.loops_serve(metric.products)
    )


@faster_move(
    NAME,
    "SGLD",
    QuasiDiagonalFisher,
    (*FISHER, "damping", "_each_unit", "off_biases_", "onto_biases_"),
    _has_products,
    rank=1,
)
def _langevin_quasi_diagonal(sampler: Any, grads: list[Tensor]) -> None:
    """Step from J itself."""
    from lightning_sgmcmc.kernels.langevin import langevin_, quasi_diagonal_

    metric, forces = sampler.preconditioner, pull(sampler, grads)
    damping, step = float(metric.damping()), (sampler.lr, sampler.noise_size(), forces)
    vectors = (sampler.params, grads, sampler.stream.increments(), metric.squares)
    if metric.units:
        weights, biases = (
            [[v[i] for v in vectors] for i in side] for side in zip(*metric.units, strict=True)
        )
        quasi_diagonal_(weights, metric.products, biases, damping, *step)
    if metric.alone:
        theta, g, z, squares = ([v[i] for i in metric.alone] for v in vectors)
        langevin_(theta, g, z, [(J + damping).rsqrt_() for J in squares], *step)


def _has_pairs(sampler: Any, grads: list[Tensor]) -> bool:
    operators = sampler.preconditioner.weighted_operators()
    have_pairs = bool(operators) and all(op.rows is not None for _, op in operators)
    return have_pairs and _serves(sampler, grads)


@faster_move(NAME, "SGLD", AveragedLBFGS, ("apply_", "noise"), _has_pairs, rank=1)
def _langevin_lbfgs(sampler: Any, grads: list[Tensor]) -> None:
    """Theta += sum_j (sqrt(w_j) size S_j z_j - w_j lr G_j gradient), two passes an operator."""
    from lightning_sgmcmc.kernels.lbfgs import combine_, project

    forces, params = pull(sampler, grads), sampler.params
    for weight, operator in sampler.preconditioner.weighted_operators():
        lr, size = weight * sampler.lr, weight**0.5 * sampler.noise_size()
        z = sampler.stream.increments()
        on_gradient, on_z = project(params, grads, z, operator.rows, forces)
        coefficients = operator.coefficients(on_gradient, on_z, lr, size)
        gamma = float(operator.gamma)
        rows = operator.rows
        combine_(params, grads, z, rows, coefficients, lr / gamma, size / math.sqrt(gamma))
        forces = (0.0, 0.0)  # the gradient holds it now


def _has_velocity(sampler: Any, grads: list[Tensor]) -> bool:
    w = sampler.velocity
    return (
        bool(w)
        and sampler.temperature > 0
        and sampler.masks is None
        and (sampler.stream.loops_serve(sampler.params, grads, w))
    )


def _baoab(sampler: Any, grads: list[Tensor]) -> None:
    """Take B, A, O and A in one pass."""
    from lightning_sgmcmc.kernels.langevin import baoab_

    metric, mu, root_eta = sampler.preconditioner, sampler.momentum, math.sqrt(sampler.eta)
    root = None if isinstance(metric, Identity) else metric.root()
    forces = pull(sampler, grads)
    z = sampler.stream.increments()
    size = math.sqrt((1 - mu**2) * sampler.temperature)
    kick = root_eta * sampler.num_data
    baoab_(sampler.params, sampler.velocity, grads, z, root, kick, root_eta / 2, mu, size, forces)


for _metric, _methods in (
    (Identity, ("apply_", "noise")),
    (RMSProp, RMSPROP),
    (DiagonalFisher, FISHER),
):
    faster_move(
        NAME,
        "SGHMC",
        _metric,
        _methods,
        _has_velocity,
        integrator_methods=("_thermalise",),
        rank=1,
    )(_baoab)


def _updates(
    metric: RMSProp, grads: Sequence[Tensor], params: Sequence[Tensor], stream: NoiseStream
) -> bool:
    return metric.started and stream.loops_serve(params, grads, metric.square_avg)


@faster_update(NAME, RMSProp, ("update", "_refresh", "root"), _updates)
def _update_rmsprop(metric: RMSProp, grads: Sequence[Tensor]) -> None:
    """V <- alpha V + (1 - alpha) g^2 and C^(1/2), in one pass, or two with a floor."""
    from lightning_sgmcmc.kernels.metrics import rmsprop_, rmsprop_root_

    V, root = metric.square_avg, metric.root()
    if metric.floor:
        rmsprop_(V, root, grads, metric.alpha)
        rmsprop_root_(root, metric.shift(), metric.eps)
    else:
        rmsprop_(V, root, grads, metric.alpha, metric.eps)


def _pairs(
    metric: AveragedLBFGS, grads: Sequence[Tensor], params: Sequence[Tensor], stream: NoiseStream
) -> bool:
    return stream.loops_serve(params, grads)


@faster_update(NAME, AveragedLBFGS, ("observe", "observe_from_"), _pairs, of_pairs=True)
def _observe_lbfgs(
    metric: AveragedLBFGS,
    start: Start,
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    stream: NoiseStream,
) -> None:
    """Make a pair and its products in one pass."""
    from lightning_sgmcmc.kernels.lbfgs import pair

    s, y = metric.memory_for_pair()
    products = pair(start, params, grads, s, y).to(s.dtype)
    metric.take_pair(s, y, (products[:1], products[1:2], products[2:]), stream)
