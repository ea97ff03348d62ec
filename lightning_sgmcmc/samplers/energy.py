"""The potential at a chain's weights, from the loss that its closure returns."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from lightning_sgmcmc.samplers.base import Sampler


def mean_nll(sampler: Sampler, returned: Any) -> Tensor:
    """Return the mean NLL that a closure returned, [] or [K], averaged over the ranks of a chain.

    Raises:
        RuntimeError: If the closure returned nothing, or no loss for each chain.
    """
    loss = torch.as_tensor(returned if returned is not None else math.nan).detach()
    shape = sampler.params[0].shape[: sampler.chain_dims]
    if returned is None or loss.shape != shape:
        found = "nothing" if returned is None else f"a loss of shape {list(loss.shape)}"
        raise RuntimeError(
            f"the closure returned {found}: {sampler.name} needs the mean NLL, of shape "
            f"{list(shape)}"
        )
    loss = loss.to(sampler.params[0].device)
    return loss if sampler.target is None else sampler.target.reduced([loss.clone()])[0]


def potential(sampler: Sampler, loss: Tensor) -> Tensor:
    """Return U at the current weights, whose mean NLL is ``loss``, [] or [K] in float64."""
    assert sampler.num_data is not None
    density = sampler.prior.log_density([p.double() for p in sampler.params])
    return sampler.num_data * loss.double() - density
