"""The largest step at which a chain is stable, from the curvature of its target."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_sgmcmc.common.vectors import inner, per_chain
from lightning_sgmcmc.noise import NoiseStream
from lightning_sgmcmc.preconditioners import Preconditioner
from lightning_sgmcmc.target import Batch, Target


def largest_eigenvalue(
    target: Target,
    preconditioner: Preconditioner,
    batches: Sequence[Batch],
    iterations: int = 8,
    masks: Sequence[Tensor] | None = None,
) -> float:
    """Return lambda_max(C^(1/2) H C^(1/2)), H the Hessian of U/N, by Lanczos.

    A = C H is symmetric in the inner product of C^-1. Every vector q is kept with its covector
    p = C^-1 q, so that neither a root nor the inverse of C is needed: A q has the covector H q. The
    largest eigenvalue of the tridiagonal matrix comes from below, to some percent in 8 iterations
    from a random start, as in 12 of a power iteration. It holds the last two vectors alone, where
    :func:`~lightning_sgmcmc.adaptation.directions.leading_directions` holds all: those that
    rounding brings back repeat eigenvalues that were found (Golub and Van Loan 2013, section 10.3).

    Args:
        target: The potential.
        preconditioner: The matrix C.
        batches: Equally large minibatches that stand for the data.
        iterations: Number of Hessian products.
        masks: Zero where a weight is held at zero.

    Returns:
        The eigenvalue of largest magnitude, in units of 1/lr; the largest of all for stacked
        chains.

    Raises:
        ValueError: If it comes out not finite.
    """
    chain_dims = preconditioner.chain_dims
    diagonal, beside = list[Tensor](), list[Tensor]()
    with torch.no_grad():
        p = [z.clone() for z in NoiseStream(target.params, seed=0).normal()]
        p_before = [torch.zeros_like(x) for x in p]
        for _ in range(iterations):
            _mask(p, masks)
            q = preconditioner.apply_([x.clone() for x in p])
            _mask(q, masks)
            norm = inner(p, q, chain_dims).clamp_min(0).sqrt()
            found = torch.stack([*diagonal, *beside[1:], torch.zeros_like(norm)]).abs().amax(0)
            ended = norm <= 8 * torch.finfo(p[0].dtype).eps * found  # all eigenvalues are found
            scale = torch.where(ended, 0.0, 1 / norm)
            scales = [per_chain(scale.to(x.dtype), x) for x in p]
            torch._foreach_mul_(p, scales)
            torch._foreach_mul_(q, scales)
            new = target.curvature(q, batches)
            beside.append(torch.where(ended, 0.0, norm))
            diagonal.append(inner(q, new, chain_dims))
            torch._foreach_addcmul_(new, p, [per_chain(-diagonal[-1].to(x.dtype), x) for x in p])
            if len(beside) > 1:
                torch._foreach_addcmul_(
                    new, p_before, [per_chain(-beside[-1].to(x.dtype), x) for x in p]
                )
            p, p_before = new, p
        matrix = torch.diag_embed(torch.stack(diagonal, -1))
        matrix += torch.diag_embed(torch.stack(beside, -1)[..., 1:], -1)
    value = math.nan
    if bool(matrix.isfinite().all()):
        value = float(torch.linalg.eigvalsh(matrix).abs().max())
    if not value > 0:
        raise ValueError(f"the curvature of the potential came out as {value}")
    return value


def _mask(vectors: list[Tensor], masks: Sequence[Tensor] | None) -> None:
    if masks is not None:
        torch._foreach_mul_(vectors, list(masks))
