"""What every surrogate of Darcy flow from its permeability shares, whatever its network."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tasks.nets.conservation import join_edges, project_flow, split_edges


class FlowNet(nn.Module):
    """Permeability [B, ny, nx] to velocities on edges [B, E], around a network.

    The network sees z = (log kappa - ``log_mean``) / ``log_std`` as [B, 1, ny, nx] and gives q on
    the edges. With kappa_e the harmonic mean of the two cells at an edge, g the geometric mean of
    all cells and a the ``power``, the velocities are

        u = g (kappa_e / g)^a (e + q),   e = 1 on vertical edges, 0 on horizontal ones,

    the flow from pressure 1 on the left of a unit square to 0 on its right if kappa is constant
    and q zero. With a = 1 this is Darcy's law and e + q the negative gradient of the pressure;
    with a = 0 the network has to learn all that jumps with kappa; a = 1/2 treats gradient and
    velocity alike, whose sizes vary as kappa^(-1/2) and kappa^(1/2) in two dimensions (Keller
    1964, "A theorem on the conductivity of a composite medium"). A field times a number gives a
    flow times that number for the same z. ``log_mean``, ``log_std`` and the ``source`` f are
    buffers that a task sets from its training data.

    Args:
        net: Maps [B, 1, ny, nx] to [B, E], E = ny (nx + 1) + (ny + 1) nx, numbered as by
            :class:`pde.Grid`.
        power: a, from 0 to 1.
        conservative: Project the velocities onto those of divergence ``source`` in every cell and
            without flow through bottom and top (:func:`~tasks.nets.conservation.project_flow`).
        symmetric: Turn every field upside down whose permeability is larger below, and its flow
            back. The map then commutes with that reflection, as the exact one does, and the
            network has half of the fields to learn. The field's halves are compared by log kappa.

    Raises:
        ValueError: If ``power`` lies outside [0, 1].
    """

    log_mean: Tensor
    log_std: Tensor
    source: Tensor

    def __init__(
        self,
        net: nn.Module,
        power: float = 0.0,
        conservative: bool = False,
        symmetric: bool = False,
    ) -> None:
        super().__init__()
        if not 0 <= power <= 1:
            raise ValueError(f"power must lie in [0, 1], got {power}")
        self.net, self.power = net, power
        self.conservative, self.symmetric = conservative, symmetric
        self.register_buffer("log_mean", torch.zeros(()))
        self.register_buffer("log_std", torch.ones(()))
        self.register_buffer("source", torch.zeros(()))

    def network_inputs(self, permeability: Tensor) -> Tensor:
        """Return what the network sees, [B, 1, ny, nx]."""
        logs = permeability.log()
        z = (logs - self.log_mean) / self.log_std
        if self.symmetric:
            z = torch.where(_larger_below(logs), z.flip(-2), z)
        return z.unsqueeze(-3)

    def forward(self, permeability: Tensor) -> Tensor:
        """Map permeabilities [B, ny, nx] to normal velocities on edges [B, E]."""
        ny, nx = permeability.shape[-2:]
        logs = permeability.log()
        vertical, horizontal = split_edges(self.net(self.network_inputs(permeability)), nx, ny)
        if self.symmetric:
            turned = _larger_below(logs)
            vertical = torch.where(turned, vertical.flip(-2), vertical)
            horizontal = torch.where(turned, -horizontal.flip(-2), horizontal)
        g = logs.mean((-2, -1), keepdim=True).exp()
        relative = permeability / g
        vertical = g * _between(relative, -1) ** self.power * (1 + vertical)
        horizontal = g * _between(relative, -2) ** self.power * horizontal
        velocity = join_edges(vertical, horizontal)
        if self.conservative:
            return project_flow(velocity, nx, ny, self.source)
        return velocity


def _larger_below(logs: Tensor) -> Tensor:
    """Return in which fields [..., ny, nx] the lower half has the larger sum, [..., 1, 1]."""
    half = logs.shape[-2] // 2
    below, above = logs[..., :half, :].sum((-2, -1)), logs[..., -half:, :].sum((-2, -1))
    return (below > above)[..., None, None]


def _between(cells: Tensor, dim: int) -> Tensor:
    """Return harmonic means of neighbours along ``dim``, at the ends the value of the one cell."""
    n = cells.shape[dim]
    resistance = 1 / cells
    inner = 2 / (resistance.narrow(dim, 0, n - 1) + resistance.narrow(dim, 1, n - 1))
    return torch.cat([cells.narrow(dim, 0, 1), inner, cells.narrow(dim, n - 1, 1)], dim=dim)
