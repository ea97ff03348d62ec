"""A sampling loop for studies on small targets: stacked chains, no trainer."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from lightning_sgmcmc import HMC, Sampler
from lightning_sgmcmc.diagnostics import ess, rhat

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
) -> tuple[Array, float]:
    """Run chains, and return their draws and the processor seconds after burn-in.

    Args:
        sampler: Over one parameter, theta: [K, ...] of stacked chains, or [...] of a single one.
        steps: Steps in all, burn-in included.
        gradient: Gradient of the mean NLL, like theta; None differentiates ``nll``.
        nll: The mean NLL, [K] or []; None where the sampler does not need its value.
        burn_in: Steps before the first draw.
        thinning: Steps between draws.
        freeze: Freeze the preconditioner where burn-in ends.
        label: Name of the progress bar, which shows only on a terminal.

    Returns:
        The draws, [K, draws, ...], with K = 1 for a single chain; and seconds.

    Raises:
        ValueError: If no draw would be kept, or no function is given.
    """
    count = (steps - burn_in) // thinning
    if count < 1:
        raise ValueError(f"no draw in {steps} steps with burn_in {burn_in}, thinning {thinning}")
    (theta,) = sampler.params
    draws = np.empty((count, *theta.shape))

    def keep(step: int, theta: Tensor) -> None:
        kept, rest = divmod(step, thinning)
        if rest == 0:
            draws[kept - 1] = theta.numpy()

    seconds = walk(
        sampler,
        steps=steps,
        each=keep,
        gradient=gradient,
        nll=nll,
        burn_in=burn_in,
        freeze_at=burn_in if freeze else None,
        label=label,
    )
    return np.moveaxis(draws, 0, 1) if sampler.chain_dims else draws[None], seconds


def walk(
    sampler: Sampler,
    *,
    steps: int,
    each: Callable[[int, Tensor], None],
    gradient: Function | None = None,
    nll: Function | None = None,
    burn_in: int = 0,
    freeze_at: int | None = None,
    schedule: Callable[[Sampler], LRScheduler] | None = None,
    label: str = "sampling",
) -> float:
    """Run chains, hand over every state after burn-in, and return the processor seconds after it.

    Args:
        sampler: As for :func:`sample`.
        steps: Steps in all, burn-in included.
        each: Called with the number of a step after burn-in, from 1, and the state it made, which
            the next step overwrites.
        gradient: As for :func:`sample`.
        nll: As for :func:`sample`.
        burn_in: Steps before the first state that is handed over.
        freeze_at: Step before which the preconditioner is frozen; None never does.
        schedule: Builds the step sizes from where burn-in ends; constant before that.
        label: As for :func:`sample`.

    Raises:
        ValueError: If no function is given.
    """
    if gradient is None and nll is None:
        raise ValueError("give gradient or nll")
    (theta,) = sampler.params
    loss = torch.zeros(theta.shape[: sampler.chain_dims], dtype=theta.dtype)
    step, began = 0, 0.0
    decay: LRScheduler | None = None

    def closure() -> Tensor:
        nonlocal loss
        if nll is not None:
            with torch.set_grad_enabled(gradient is None):
                loss = nll(theta, step)
        if gradient is not None:
            theta.grad = gradient(theta.detach(), step)
        else:
            (theta.grad,) = torch.autograd.grad(loss.sum(), [theta])
        return loss.detach()

    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task(label, total=steps)
        for step in range(steps):
            if step == freeze_at:
                sampler.freeze()
            if step == burn_in:
                decay = schedule(sampler) if schedule is not None else None
                began = time.process_time()
            sampler.step(closure)
            if step >= burn_in:
                each(step + 1 - burn_in, theta.detach())
            if decay is not None:
                decay.step()
            if step % 200 == 199:
                progress.update(task, completed=step + 1)
    return time.process_time() - began


@dataclass(frozen=True)
class Reference:
    """Draws of the posterior, and how they were made.

    Attributes:
        draws: Weights [K, draws, D].
        acceptance: Fraction of trajectories accepted after burn-in.
        divergences: Divergent ones among them.
        gradients: Full-data gradients of each chain.
    """

    draws: Array
    acceptance: float
    divergences: int
    gradients: int

    def quality(self) -> dict[str, float]:
        """Return what says how far the draws are to be trusted."""
        return {
            "acceptance": self.acceptance,
            "divergences": self.divergences,
            "min_ess": float(ess(self.draws).min()),
            "max_rhat": float(rhat(self.draws).max()),
        }


def whitened_hmc(
    potential: Callable[[Tensor], Tensor],
    mode: Tensor,
    root: Tensor,
    start: Tensor,
    *,
    num_data: int,
    time_step: float,
    leapfrog_steps: int,
    target_acceptance: float,
    burn_in: int,
    draws: int,
    seed: int = 0,
) -> Reference:
    """Run K stacked chains of HMC with mass (R R')^-1: they move z where theta = m + R z.

    Args:
        potential: Returns U / N at theta [K, d], the prior included, [K].
        mode: m, [d].
        root: R, [d, d], such that about z the potential is that of a standard normal.
        start: First z, [K, d].
        num_data: N.
        time_step: First leapfrog step squared; about 1 is the limit where U is |z|^2 / 2.
        leapfrog_steps: Gradients in a trajectory.
        target_acceptance: Mean acceptance that the step adapts to in burn-in.
        burn_in: Trajectories before the first draw.
        draws: Draws of each chain.
        seed: Of the noise.
    """
    z = start.clone().contiguous().requires_grad_()
    sampler = HMC(
        [z],
        num_data * time_step,
        leapfrog_steps=leapfrog_steps,
        target_acceptance=target_acceptance,
        num_data=num_data,
        seed=seed,
    )
    sampler.stack()
    found, _ = sample(
        sampler,
        steps=burn_in + draws,
        nll=lambda z, step: potential(mode + z @ root.mT),
        burn_in=burn_in,
        label="HMC",
    )
    theta = mode.numpy() + found @ root.numpy().T
    return Reference(theta, sampler.acceptance, sampler.divergences, sampler.gradients)
