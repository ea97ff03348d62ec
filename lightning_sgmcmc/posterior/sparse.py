"""Tensors with many zeros as the values that are not zero and a bit an entry."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

_BITS, _SHAPE = ":nonzero", ":shape"
#: Fraction of zeros from which a tensor is packed.
_MANY = 0.25


def packed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors to store: weights of which a quarter or more is zero, without the zeros.

    A weight of z zeros in n entries of b bytes takes (n - z) b + n / 8 bytes. Only weights of two
    or more dimensions are packed, as only these are pruned. The sign of a zero is lost.
    """
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        size = tensor.numel()
        if tensor.dim() < 2 or not size or int(tensor.count_nonzero()) > (1 - _MANY) * size:
            found[name] = tensor
            continue
        kept = tensor != 0
        bits = np.packbits(kept.cpu().numpy().reshape(-1))
        found[name] = tensor[kept]
        found[name + _BITS] = torch.from_numpy(bits)
        found[name + _SHAPE] = torch.tensor(tensor.shape)
    return found


def unpacked(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors that :func:`packed` was given."""
    found: dict[str, Tensor] = {}
    for name, values in stored.items():
        if name.endswith((_BITS, _SHAPE)):
            continue
        if name + _BITS not in stored:
            found[name] = values
            continue
        shape = torch.Size(stored[name + _SHAPE].tolist())
        bits = np.unpackbits(stored[name + _BITS].numpy(), count=shape.numel())
        tensor = torch.zeros(shape, dtype=values.dtype)
        found[name] = tensor.masked_scatter_(torch.from_numpy(bits).bool().view(shape), values)
    return found
