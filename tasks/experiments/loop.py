"""A sampling loop for studies on small targets: stacked chains, no trainer."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from lightning_sgmcmc import Sampler

Array = NDArray[np.float64]
#: Gradient of the mean NLL, or the mean NLL itself ([K]), at theta [K, d] on the minibatch of a
#: step. A step may be asked for twice, and has to use the same minibatch then.
Function = Callable[[Tensor, int], Tensor]


def sample(
    sampler: Sampler,
    *,
    steps: int,
    gradient: Function | None = None,
    nll: Function | None = None,
    burn_in: int = 0,
    thinning: int = 1,
    freeze: bool = True,
    label: str = "sampling",
) -> Array:
    """Run chains and return their draws.

    Args:
        sampler: Over one parameter, theta: [K, d] of stacked chains, or [d] of a single one.
        steps: Steps in all, burn-in included.
        gradient: Gradient of the mean NLL, like theta; or
        nll: the mean NLL, [K] or [], whose gradient autograd takes. Exactly one of the two.
        burn_in: Steps before the first draw.
        thinning: Steps between draws.
        freeze: Freeze the preconditioner where burn-in ends.
        label: Name of the progress bar, which shows only on a terminal.

    Returns:
        The draws, [K, draws, d]; K = 1 for a single chain.

    Raises:
        ValueError: If no draw would be kept, or not exactly one function is given.
    """
    if (gradient is None) == (nll is None):
        raise ValueError("give either gradient or nll")
    count = (steps - burn_in) // thinning
    if count < 1:
        raise ValueError(f"no draw in {steps} steps with burn_in {burn_in}, thinning {thinning}")
    (theta,) = sampler.params
    draws = np.empty((count, *theta.shape))
    zero = torch.zeros(theta.shape[: sampler.chain_dims], dtype=theta.dtype)
    step = 0

    def closure() -> Tensor:
        if gradient is not None:
            theta.grad = gradient(theta.detach(), step)
            return zero
        assert nll is not None
        loss = nll(theta, step)
        (theta.grad,) = torch.autograd.grad(loss.sum(), [theta])
        return loss.detach()

    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task(label, total=steps)
        for step in range(steps):
            if step == burn_in and freeze:
                sampler.freeze()
            sampler.step(closure)
            kept, rest = divmod(step + 1 - burn_in, thinning)
            if kept > 0 and rest == 0:
                draws[kept - 1] = theta.detach().numpy()
            if step % 200 == 199:
                progress.update(task, completed=step + 1)
    return np.moveaxis(draws, 0, 1) if sampler.chain_dims else draws[None]
