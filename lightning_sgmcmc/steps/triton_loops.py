"""Steps of one launch on a GPU, by the kernels of :mod:`lightning_sgmcmc.kernels`.

They serve single and stacked chains of contiguous float32 tensors whose noise is Philox's, without
masks, where Triton is installed (``stream.kernels_serve``), and make their noise themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_sgmcmc.noise import NoiseStream
from lightning_sgmcmc.preconditioners import Identity, RMSProp
from lightning_sgmcmc.steps.one_pass import RMSPROP, whole
from lightning_sgmcmc.steps.registry import faster_move, faster_update, pull

NAME = "triton"

#: The methods that make C of the metrics.
_METRICS = ((Identity, ("apply_", "noise")), (RMSProp, RMSPROP))


def _root(sampler: Any) -> list[Tensor] | None:
    metric = sampler.preconditioner
    root: list[Tensor] | None = None if isinstance(metric, Identity) else metric.root()
    return root


def _serves(sampler: Any, grads: list[Tensor]) -> bool:
    return whole(sampler, grads) and sampler.stream.kernels_serve(sampler.params, grads)


def _has_velocity(sampler: Any, grads: list[Tensor]) -> bool:
    w = sampler.velocity
    return (
        bool(w)
        and sampler.temperature > 0
        and sampler.masks is None
        and (sampler.stream.kernels_serve(sampler.params, grads, w))
    )


def _has_friction(sampler: Any, grads: list[Tensor]) -> bool:
    """Return whether a launch, which has a row a generator, finds the friction of every chain."""
    return _has_velocity(sampler, grads) and sampler.friction.numel() == sampler.stream.rows


def _langevin(sampler: Any, grads: list[Tensor]) -> None:
    from lightning_sgmcmc.kernels.triton_steps import langevin_

    matched, forces = sampler.increments == "moment-matched", pull(sampler, grads)
    step = (matched, sampler.lr, sampler.noise_size(), forces)
    langevin_(sampler.params, grads, _root(sampler), sampler.stream.place(), *step)


def _parts(sampler: Any, grads: list[Tensor], keys: Tensor) -> Any:
    from lightning_sgmcmc.kernels.triton_steps import Underdamped

    forces, root_eta = pull(sampler, grads), math.sqrt(sampler.eta)
    vectors = (sampler.params, sampler.velocity, grads, _root(sampler))
    return Underdamped(*vectors, keys, root_eta * sampler.num_data, root_eta / 2, forces)


def _baoab(sampler: Any, grads: list[Tensor]) -> None:
    """Take B, A, O and A in one launch."""
    keys, draw = sampler.stream.place()
    mu = sampler.momentum
    size = math.sqrt((1 - mu**2) * sampler.temperature)
    _parts(sampler, grads, keys).baoab_(draw, mu, size)


def _badodab(sampler: Any, grads: list[Tensor]) -> None:
    """Take B and A, D, O and A, and D: the kinetic energy and xi stay on the device."""
    keys, draw = sampler.stream.place()
    parts, w = _parts(sampler, grads, keys), sampler.velocity
    parts.ba_()
    sampler._follow(w)
    damping = torch.stack(sampler.damping(), dim=-1).reshape(-1, 2)
    parts.oa_(draw, damping.to(w[0].dtype))
    sampler._follow(w)


for _metric, _methods in _METRICS:
    _thermal: dict[str, Any] = {"integrator_methods": ("_thermalise",), "rank": 1}
    faster_move(NAME, "SGLD", _metric, _methods, _serves, rank=1)(_langevin)
    faster_move(NAME, "SGHMC", _metric, _methods, _has_velocity, **_thermal)(_baoab)
    faster_move(NAME, "SGNHT", _metric, _methods, _has_friction, **_thermal)(_badodab)


def _updates(
    metric: RMSProp, grads: Sequence[Tensor], params: Sequence[Tensor], stream: NoiseStream
) -> bool:
    started = metric.started and not metric.floor
    return started and stream.kernels_serve(params, grads, metric.square_avg)


@faster_update(NAME, RMSProp, ("update", "_refresh", "root"), _updates)
def _update_rmsprop(metric: RMSProp, grads: Sequence[Tensor]) -> None:
    """V <- alpha V + (1 - alpha) g^2 and C^(1/2), in one launch."""
    from lightning_sgmcmc.kernels.triton_steps import rmsprop_

    rmsprop_(metric.square_avg, metric.root(), grads, metric.alpha, metric.eps)
