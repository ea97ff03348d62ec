"""The directions of weight space along which a target is stiffest for a metric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from lightning_sgmcmc.common.vectors import flatten, joined_mask, unflatten
from lightning_sgmcmc.noise import NoiseStream
from lightning_sgmcmc.preconditioners import Preconditioner
from lightning_sgmcmc.target import Batch, Target


@dataclass(frozen=True)
class Directions:
    """Directions v_i with covectors a_i = C^-1 v_i, orthonormal: a_i' v_j = 1 if i = j, else 0.

    Moving along v_i changes the coordinate a_i' theta alone. For eigenvectors of C H the chain's
    coordinates a_i' theta are independent on a quadratic, with curvature lambda_i each.

    Attributes:
        eigenvalues: lambda_i of C^(1/2) H C^(1/2), largest magnitude first, [m]; [K, m] for K
            stacked chains, in units of 1/lr.
        vectors: v_i over all weights as :func:`~lightning_sgmcmc.common.vectors.flatten` joins
            them, [m, d] or [K, m, d].
        covectors: a_i, shaped alike.
    """

    eigenvalues: Tensor
    vectors: Tensor
    covectors: Tensor


def leading_directions(
    target: Target,
    preconditioner: Preconditioner,
    batches: Sequence[Batch],
    count: int = 8,
    *,
    iterations: int | None = None,
    masks: Sequence[Tensor] | None = None,
) -> Directions:
    """Return the eigenvectors of C^(1/2) H C^(1/2) of largest eigenvalues, H the Hessian of U/N.

    They are found by Lanczos from a random vector. Where the Krylov space ends early it goes on
    from a new one, so that multiple eigenvalues are found as well.

    Args:
        target: The potential.
        preconditioner: The matrix C.
        batches: Equally large minibatches that stand for the data.
        count: m, at most the number of weights.
        iterations: Number of Hessian products, by default 2 m + 4. Each takes the memory of two
            copies of the weights.
        masks: Zero where a weight is held at zero.

    Returns:
        The directions, fewer than ``count`` if there are fewer weights.

    Raises:
        ValueError: If ``count`` is not positive or the curvature is not finite.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    steps = iterations if iterations is not None else 2 * count + 4
    space = _krylov(target, preconditioner, batches, steps, masks)
    order = space.values.abs().argsort(dim=-1, descending=True)[..., :count]
    shape = (*space.basis.shape[:-1], order.shape[-1])
    rows = space.basis.gather(-1, order.unsqueeze(-2).expand(shape)).mT.to(space.vectors.dtype)
    return Directions(space.values.gather(-1, order), rows @ space.vectors, rows @ space.covectors)


def spectrum(
    target: Target,
    preconditioner: Preconditioner,
    batches: Sequence[Batch],
    covector: Tensor,
    *,
    iterations: int = 12,
    masks: Sequence[Tensor] | None = None,
    flat: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Return of what curvatures a covector a is made, for sums over them: Gauss quadrature.

    a' C f(H C) a / (a' C a) is close to sum_k w_k f(theta_k), exact for polynomials of degree
    2 n - 1 in n iterations of Lanczos from C a (Golub and Meurant 2010, section 6.2). With
    f(x) = 1/x it is a' H^-1 a over a' C a.

    What n iterations do not resolve at the lower end is put at the largest curvature times
    ``flat``, if all theta lie above (Gauss-Radau, section 6.3): then the sum is exact for degree
    2 n, and for f(x) = 1/x not below a' H^-1 a, provided that no curvature is lower.

    Args:
        target: The potential.
        preconditioner: The matrix C.
        batches: Equally large minibatches that stand for the data.
        covector: a, [d] or [K, d]; a random one in place of zero.
        iterations: n, the number of Hessian products.
        masks: Zero where a weight is held at zero.
        flat: The lowest curvature, a part of the largest; 0 for Gauss quadrature.

    Returns:
        theta in units of 1/lr, and w, which sums to 1, [n] or [K, n]; with ``flat`` n + 1 of each.

    Raises:
        ValueError: If the curvature is not finite.
    """
    space = _krylov(target, preconditioner, batches, iterations, masks, covector)
    values, basis = space.values, space.basis
    if flat:
        lowest = flat * values.abs().amax(-1)
        # The matrix in one more vector of the space, with the entry that gives it that eigenvalue.
        beta = torch.where(values.amin(-1) > lowest, space.left, 0.0)
        distance = torch.where(beta[..., None] > 0, values - lowest[..., None], 1.0)
        last = lowest + beta**2 * (basis[..., -1, :] ** 2 / distance).sum(-1)
        matrix = functional.pad((basis * values.unsqueeze(-2)) @ basis.mT, (0, 1, 0, 1))
        matrix[..., -2, -1] = matrix[..., -1, -2] = beta
        matrix[..., -1, -1] = last
        values, basis = torch.linalg.eigh(matrix)
    return values, basis[..., 0, :].square()


class _Krylov(NamedTuple):
    """A Krylov space of A = C H with its Ritz values, [n] or [K, n], and A's form in it.

    ``left`` is the norm of what A makes of the last vector outside of the space.
    """

    values: Tensor
    basis: Tensor
    vectors: Tensor
    covectors: Tensor
    left: Tensor


@torch.no_grad()
def _krylov(
    target: Target,
    preconditioner: Preconditioner,
    batches: Sequence[Batch],
    iterations: int,
    masks: Sequence[Tensor] | None,
    covector: Tensor | None = None,
) -> _Krylov:
    """Return a Krylov space by Lanczos on A = C H, symmetric in the inner product of C^-1.

    With every vector q its covector p = C^-1 q is kept, so that neither a root nor the inverse of C
    is needed: A q has the covector H q and the vector C H q. All vectors are orthogonalised against
    all earlier ones (Golub and Van Loan 2013, section 10.3). The first vector is that of
    ``covector``, a random one if there is none.
    """
    chain_dims, params = preconditioner.chain_dims, target.params
    mask = joined_mask(params, masks, chain_dims)
    steps = min(iterations, int(mask.sum(-1).min()))
    stream = NoiseStream(params, seed=0)

    def random() -> Tensor:
        return flatten([z.clone() for z in stream.normal()], chain_dims)

    def metric(covector: Tensor) -> Tensor:
        return preconditioner.apply_joined(covector, params) * mask

    def product(vector: Tensor) -> Tensor:
        parts = unflatten(vector, params, chain_dims)
        return flatten(target.curvature(parts, batches), chain_dims) * mask

    p = (random() if covector is None else covector) * mask
    q = metric(p)
    # The basis and its covectors [..., steps, d], and the upper triangle of A in the basis.
    q_all = q.new_zeros(*q.shape[:-1], steps, q.shape[-1])
    p_all = torch.zeros_like(q_all)
    matrix = torch.zeros(*q.shape[:-1], steps, steps, dtype=torch.float64, device=q.device)
    for j in range(steps):
        p, q, norm = _normalised(p, q)
        lost = norm <= torch.finfo(q.dtype).eps * _scale(matrix) * 8
        if bool(lost.any()):
            z = _orthogonal(random() * mask, p_all, q_all)
            new = _normalised(z, metric(z))
            p = torch.where(lost[..., None], new[0], p)
            q = torch.where(lost[..., None], new[1], q)
        q_all[..., j, :], p_all[..., j, :] = q, p
        p = product(q)
        matrix[..., j] = _coefficients(q_all, p)
        p = _orthogonal(p, p_all, q_all)
        # Not orthogonalised beside p: p - C^-1 q would grow by a factor at every product.
        q = metric(p)
    if not bool(torch.isfinite(matrix).all()):
        raise ValueError("the curvature of the potential is not finite")
    values, basis = torch.linalg.eigh(matrix, UPLO="U")
    return _Krylov(values, basis, q_all, p_all, _norm(p, q))


def _coefficients(basis: Tensor, vector: Tensor) -> Tensor:
    """Return the inner products of [..., m, d] with [..., d] in float64, [..., m]."""
    return (basis @ vector.unsqueeze(-1)).squeeze(-1).double()


def _orthogonal(p: Tensor, p_all: Tensor, q_all: Tensor) -> Tensor:
    """Return a covector without its part in a basis; twice, against rounding."""
    for _ in range(2):
        p = p - (_coefficients(q_all, p).to(p.dtype).unsqueeze(-2) @ p_all).squeeze(-2)
    return p


def _normalised(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return a covector and its vector with p' q = 1, and the norm that they had."""
    norm = _norm(p, q)
    factor = (1 / norm.clamp_min(torch.finfo(torch.float64).tiny)).to(p.dtype).unsqueeze(-1)
    return p * factor, q * factor, norm


def _scale(matrix: Tensor) -> Tensor:
    """Return the largest entry of a matrix so far, [...]."""
    return matrix.abs().amax((-2, -1))


def _norm(p: Tensor, q: Tensor) -> Tensor:
    """Return the norm of a vector q with the covector p in float64, [...]."""
    squared: Tensor = torch.linalg.vecdot(p.double(), q.double())
    return squared.clamp_min(0).sqrt()
