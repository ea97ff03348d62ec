"""Where a cell lies, as inputs of a convolutional network."""

from __future__ import annotations

import torch
from torch import Tensor


def with_places(field: Tensor) -> Tensor:
    """Return fields [..., 1, ny, nx] with x and y of each place, from -1 to 1, [..., 3, ny, nx]."""
    ny, nx = field.shape[-2:]
    x, y = (torch.linspace(-1, 1, n).to(field) for n in (nx, ny))
    places = torch.stack([x.expand(ny, nx), y[:, None].expand(ny, nx)])
    return torch.cat([field, places.expand(*field.shape[:-3], 2, ny, nx)], dim=-3)
