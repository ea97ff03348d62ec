"""How many weights of a chain move, and whether their velocities have a length in its metric."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lightning_sgmcmc.noise import NoiseStream

if TYPE_CHECKING:
    from lightning_sgmcmc.samplers.base import Sampler


def count_free(sampler: Sampler) -> Tensor:
    """Return d, the weights of a chain that are not masked, [] or [K] in float64.

    Raises:
        RuntimeError: If w' C^-1 w is not at hand, or not the sum of its parts on masked and
            free weights.
    """
    first, metric, dims = sampler.params[0], sampler.preconditioner, sampler.chain_dims
    shape, stream = first.shape[:dims], NoiseStream(sampler.params, seed=0)
    v = [z.clone() for z in stream.normal()]
    norm = metric.inverse_norm(v)
    if norm is None:
        raise RuntimeError(
            f"{sampler.name} measures w' C^-1 w, which {metric!r} does not have: choose "
            "another preconditioner, or SGHMC"
        )
    if sampler.masks is None:
        return torch.full(shape, sampler.num_parameters, dtype=torch.float64, device=first.device)
    kept = list(torch._foreach_mul(v, sampler.masks))
    lost = list(torch._foreach_sub(v, kept))
    parts = [metric.inverse_norm(x) for x in (kept, lost)]
    if not torch.allclose(parts[0] + parts[1], norm, rtol=1e-3):  # type: ignore[operator]
        raise RuntimeError(
            f"{sampler.name} cannot mask weights that {metric!r} ties to free ones: choose "
            "a diagonal preconditioner, or SGHMC"
        )
    ones = [m.reshape(*m.shape[:dims], -1).sum(-1, dtype=torch.float64) for m in sampler.masks]
    return torch.stack(ones).sum(0)
