"""Parameter lists as one vector, and the reductions that samplers use.

Where many chains run as one computation, every tensor carries them along its first axis.
``chain_dims`` is the number of such axes: 0 for one chain, 1 for many. Reductions keep them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# Numbers that are joined sooner than summed tensor by tensor.
_FEW = 2**17


def flatten(tensors: Sequence[Tensor], chain_dims: int = 0, out: Tensor | None = None) -> Tensor:
    """Join a list of tensors into one vector [d], or [K, d] for K chains, new unless given."""
    parts = [t.reshape(*t.shape[:chain_dims], -1) for t in tensors]
    return torch.cat(parts, dim=-1) if out is None else torch.cat(parts, dim=-1, out=out)


def rows(tensors: Sequence[Tensor], chain_dims: int = 0) -> Tensor:
    """Join a list of tensors into one vector a chain, [K, d], [1, d] for one chain."""
    flat = flatten(tensors, chain_dims)
    return flat if chain_dims else flat[None]


def unflatten(vector: Tensor, like: Sequence[Tensor], chain_dims: int = 0) -> list[Tensor]:
    """Split a vector [d] or [K, d] into views shaped like the tensors of ``like``."""
    parts = torch.split(vector, [t.shape[chain_dims:].numel() for t in like], dim=-1)
    return [part.view(t.shape) for part, t in zip(parts, like, strict=True)]


def joined_mask(
    params: Sequence[Tensor], masks: Sequence[Tensor] | None, chain_dims: int = 0
) -> Tensor:
    """Return 1 for the weights that move and 0 for masked ones, [d] or [K, d]."""
    free = [torch.ones_like(p, requires_grad=False) for p in params]
    if masks is not None:
        torch._foreach_mul_(free, list(masks))
    return flatten(free, chain_dims)


def dot(x: Tensor, y: Tensor) -> Tensor:
    """Return the inner product over the last axis, which stays with length one.

    Leading axes are kept, so that the same formulas serve many chains at once.
    """
    product: Tensor = torch.linalg.vecdot(x, y)
    return product.unsqueeze(-1)


def inner(xs: Sequence[Tensor], ys: Sequence[Tensor], chain_dims: int = 0) -> Tensor:
    """Return the inner product of two lists of tensors in float64, [] or [K] for K chains."""
    products = torch._foreach_mul(list(xs), list(ys))
    if sum(p.numel() for p in products) < _FEW:  # a sum takes less than a call for each tensor
        return flatten(products, chain_dims).sum(-1, dtype=torch.float64)
    sums = [p.reshape(*p.shape[:chain_dims], -1).sum(-1, dtype=torch.float64) for p in products]
    return torch.stack(sums).sum(0)


def per_chain(values: Tensor, like: Tensor) -> Tensor:
    """Give a value a chain, [] or [K], trailing axes with which it broadcasts against ``like``."""
    return values.reshape(values.shape + (1,) * (like.dim() - values.dim()))
