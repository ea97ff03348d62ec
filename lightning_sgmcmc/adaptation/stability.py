"""The largest step at which a chain is stable, from the curvature of its target."""

from __future__ import annotations

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
    iterations: int = 12,
    masks: Sequence[Tensor] | None = None,
) -> float:
    """Return lambda_max(C^(1/2) H C^(1/2)), H the Hessian of U/N, by power iteration.

    The iteration v <- C H v needs no root of C: with w = H v, the square of C H v in the inner
    product of C^-1 is w' C w. The ratio of lengths ||C H v|| / ||v|| reaches the eigenvalue from
    below, to some percent in 12 iterations from a random start. A Rayleigh quotient would not: it
    is near 0 where H has eigenvalues of about the same size and either sign, as on the way to a
    mode.

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
    with torch.no_grad():
        v = [z.clone() for z in NoiseStream(target.params, seed=0).normal()]
        _mask(v, masks)
        w_old = [x.clone() for x in v]
        eigenvalue = torch.zeros(())
        for _ in range(iterations):
            norm = inner(v, v, chain_dims).sqrt()
            scales = [per_chain((1 / norm).to(x.dtype), x) for x in v]
            torch._foreach_mul_(v, scales)
            torch._foreach_mul_(w_old, scales)
            w = target.curvature(v, batches)
            _mask(w, masks)
            before = inner(v, w_old, chain_dims)
            w_old = [x.clone() for x in w]
            v = preconditioner.apply_(w)
            _mask(v, masks)
            eigenvalue = (inner(v, w_old, chain_dims) / before).sqrt()
    value = float(eigenvalue.max())
    if not value > 0 or value == float("inf"):
        raise ValueError(f"the curvature of the potential came out as {value}")
    return value


def _mask(vectors: list[Tensor], masks: Sequence[Tensor] | None) -> None:
    if masks is not None:
        torch._foreach_mul_(vectors, list(masks))
