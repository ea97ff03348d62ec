"""Parameter lists as one vector, and the one reduction that samplers use."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """Join a list of tensors into one new vector [d]."""
    return torch.cat([t.reshape(-1) for t in tensors])


def unflatten(vector: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Split a vector [d] into views shaped like the tensors of ``like``."""
    parts = torch.split(vector, [t.numel() for t in like])
    return [part.view(t.shape) for part, t in zip(parts, like, strict=True)]


def dot(x: Tensor, y: Tensor) -> Tensor:
    """Return the inner product over the last axis, which stays with length one.

    Leading axes are kept, so that the same formulas serve many chains at once.
    """
    product: Tensor = torch.linalg.vecdot(x, y)
    return product.unsqueeze(-1)
