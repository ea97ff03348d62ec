"""A U-Net from MONAI, from fields on cells to velocities on edges or to values on cells."""

from __future__ import annotations

from importlib import import_module
from typing import Literal

import torch
from torch import Tensor, nn

from tasks.nets.arguments import check_name, check_sizes
from tasks.nets.conservation import join_edges
from tasks.nets.places import with_places

#: Cells in each direction that four poolings by two take.
SMALLEST = 16


class UNet(nn.Module):
    """MONAI's ``BasicUNet`` (Falk et al. 2019), [B, 1, ny, nx] to [B, E] or to [B, ny nx].

    It sees the field and the two coordinates of each cell and gives each cell the velocities
    through its four edges, of which two cells that share an edge take the mean; or one value.
    Groups of channels are normalised, which needs no statistics of a batch, as a sampled network
    must not have.

    Args:
        features: Channels of the five levels, then those before the last convolution.
        groups: Groups of the normalisation; they part every one of ``features``.
        places: What it gives values for, ``edges`` or ``cells``.

    Raises:
        ImportError: Without MONAI (``pip install 'lightning-sgmcmc[unet]'``).
        ValueError: If there are not six numbers of channels, groups do not part them, or there
            are no such places.
    """

    def __init__(
        self,
        features: tuple[int, int, int, int, int, int] = (16, 32, 64, 128, 128, 16),
        groups: int = 8,
        places: Literal["edges", "cells"] = "edges",
    ) -> None:
        super().__init__()
        check_name("places", places, ("edges", "cells"))
        check_sizes(groups=groups)
        self.places = places
        if len(features) != 6 or any(f < 1 or f % groups for f in features):
            raise ValueError(
                f"features must be six multiples of groups = {groups}, got {tuple(features)}"
            )
        try:
            networks = import_module("monai.networks.nets")
        except ImportError as error:
            raise ImportError(
                "UNet is made of MONAI's layers: pip install 'lightning-sgmcmc[unet]'"
            ) from error
        self.net: nn.Module = networks.BasicUNet(
            spatial_dims=2,
            in_channels=3,
            out_channels=4 if places == "edges" else 1,
            features=tuple(features),
            act="swish",
            norm=("group", {"num_groups": groups}),
            upsample="nontrainable",
        )

    def forward(self, field: Tensor) -> Tensor:
        """Map fields [B, 1, ny, nx] to values at the places, [B, E] or [B, ny nx]."""
        ny, nx = field.shape[-2:]
        if min(nx, ny) < SMALLEST:
            raise ValueError(
                f"four poolings by two need a grid of {SMALLEST}x{SMALLEST} cells, got {nx}x{ny}"
            )
        found: Tensor = self.net(_channels_last(with_places(field)))
        if self.places == "cells":
            return found.flatten(-3)
        left, right, below, above = found.unbind(-3)
        return join_edges(_meet(right, left, -1), _meet(above, below, -2))


def _channels_last(cells: Tensor) -> Tensor:
    """Return the same values in the layout in which convolutions are fastest."""
    return cells.contiguous(memory_format=torch.channels_last)


def _meet(before: Tensor, after: Tensor, dim: int) -> Tensor:
    """Return edge values along ``dim``: the mean of both sides, at the ends that of the one side.

    Args:
        before: What the cell before an edge gives it.
        after: What the cell after an edge gives it.
        dim: Number of the axis.
    """
    n = before.shape[dim]
    inner = (before.narrow(dim, 0, n - 1) + after.narrow(dim, 1, n - 1)) / 2
    return torch.cat([after.narrow(dim, 0, 1), inner, before.narrow(dim, n - 1, 1)], dim=dim)
