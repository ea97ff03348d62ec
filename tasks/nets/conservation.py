"""Velocities that create no water: the projection onto fields of a given divergence."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional


def split_edges(velocity: Tensor, nx: int, ny: int) -> tuple[Tensor, Tensor]:
    """Return velocities on vertical edges [..., ny, nx + 1] and on horizontal [..., ny + 1, nx].

    Args:
        velocity: [..., E] with E = ny (nx + 1) + (ny + 1) nx, numbered as by :class:`pde.Grid`.
        nx: Cells in x.
        ny: Cells in y.
    """
    lead = velocity.shape[:-1]
    vertical, horizontal = torch.split(velocity, [ny * (nx + 1), (ny + 1) * nx], dim=-1)
    return vertical.reshape(*lead, ny, nx + 1), horizontal.reshape(*lead, ny + 1, nx)


def join_edges(vertical: Tensor, horizontal: Tensor) -> Tensor:
    """Return the velocities [..., E] of the two kinds of edges, the inverse of `split_edges`."""
    return torch.cat([vertical.flatten(-2), horizontal.flatten(-2)], dim=-1)


def project_flow(velocity: Tensor, nx: int, ny: int, source: float | Tensor = 0.0) -> Tensor:
    """Return the nearest flow on the unit square that balances in every cell.

    With D the divergence on an nx by ny grid, no flow through bottom and top and any through left
    and right, this is

        P u = u + D' (D D')^-1 (f - D u),

    the orthogonal projection onto the velocities with D u = f. As the exact flow is one of them, it
    never adds to the root mean square error; and it is affine, so that a mean of projections
    balances too. D D' is the five-point Laplacian, diagonal in the products of the eigenvectors of
    two tridiagonal matrices: four small matrix products.

    Args:
        velocity: [..., E] with E = ny (nx + 1) + (ny + 1) nx, numbered as by :class:`pde.Grid`.
        nx: Cells in x.
        ny: Cells in y.
        source: f, the same everywhere.
    """
    vertical, horizontal = split_edges(velocity, nx, ny)
    inner = horizontal[..., 1:-1, :]
    walls = (0, 0, 1, 1)
    divergence = nx * vertical.diff(dim=-1) + ny * functional.pad(inner, walls).diff(dim=-2)
    bases = _eigenvectors(nx, ny, velocity.dtype, velocity.device)
    potential = _solve(source - divergence, *bases)
    vertical = vertical - nx * functional.pad(potential, (1, 1)).diff(dim=-1)
    inner = inner - ny * potential.diff(dim=-2)
    return join_edges(vertical, functional.pad(inner, walls))


def _solve(excess: Tensor, x: Tensor, y: Tensor, eigenvalues: Tensor) -> Tensor:
    """Return (D D')^-1 of cell values [..., ny, nx]."""
    return y @ ((y.mT @ excess @ x) / eigenvalues) @ x.mT


@lru_cache(maxsize=8)
@torch.inference_mode(False)  # what is kept serves a later fit too
def _eigenvectors(
    nx: int, ny: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Return eigenvectors in x [nx, nx] and y [ny, ny] and the eigenvalues of D D', [ny, nx]."""
    along_x, x = torch.linalg.eigh(_second_difference(nx, 2.0))
    along_y, y = torch.linalg.eigh(_second_difference(ny, 1.0))
    eigenvalues = nx**2 * along_x + ny**2 * along_y[:, None]
    x, y, eigenvalues = (t.to(device, dtype) for t in (x, y, eigenvalues))
    return x, y, eigenvalues


def _second_difference(n: int, end: float) -> Tensor:
    """Return the matrix (-1, 2, -1) with ``end`` in its first and last diagonal places, [n, n]."""
    matrix = 2 * torch.eye(n, dtype=torch.float64)
    matrix[0, 0] = matrix[-1, -1] = end
    if n == 1:
        matrix[0, 0] = 2 * end - 2
    off = torch.ones(n - 1, dtype=torch.float64).diag(1) if n > 1 else torch.zeros(1, 1)
    return matrix - off - off.mT
