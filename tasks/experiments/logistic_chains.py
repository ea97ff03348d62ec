"""Stacked stochastic-gradient chains of a logistic regression, without a trainer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from lightning_sgmcmc import BatchStream, GaussianPrior, Sampler, Target
from lightning_sgmcmc.samplers import Stacked
from lightning_sgmcmc.target import PerExample
from tasks.experiments.loop import sample
from tasks.logistic import mean_gradient

Array = NDArray[np.float64]


def sample_chains(
    make: Callable[..., Sampler],
    x: Array,
    y: Array,
    *,
    lr: float,
    prior_variance: float,
    batch_size: int,
    chains: int,
    steps: int,
    burn_in: int,
    thinning: int = 1,
    freeze: bool = True,
    one_generator: bool = False,
    label: str = "sampling",
) -> Array:
    """Run K chains from zero on independent minibatches, in float32, and return their draws.

    Args:
        make: Called with the parameters, ``lr``, ``num_data`` and ``prior``.
        x: Features [N, D]; an intercept is a column of ones.
        y: Labels [N], 0 or 1.
        lr: Step size on the mean loss.
        prior_variance: s^2 of the independent N(0, s^2) priors.
        batch_size: Examples in a minibatch of one chain.
        chains: K, each with its own noise and minibatches.
        steps: Steps in all, burn-in included.
        burn_in: Steps before the first draw.
        thinning: Steps between draws.
        freeze: Freeze the preconditioner where burn-in ends.
        one_generator: Serve the noise of all chains from one generator, which is quicker.
        label: Name of the progress bar.

    Returns:
        Weights [K, draws, D].
    """
    theta = torch.zeros(chains, 1, x.shape[1], requires_grad=True)  # weights of a linear layer
    sampler = make(Stacked([theta]), lr=lr, num_data=len(x), prior=GaussianPrior(prior_variance))
    sampler.stack(one_generator)
    target = stacked_target(theta, len(x))
    sampler.attach(target)
    data = (torch.from_numpy(x).float(), torch.from_numpy(y).float())
    stream = BatchStream(data, batch_size, "independent")
    stream.bind(torch.device("cpu"), seed=0, num_chains=chains)

    def gradient(theta: Tensor, step: int) -> Tensor:
        batch = stream.at(step)
        if "per_example" not in sampler.needs:
            return mean_gradient(theta[:, 0], *batch).unsqueeze(1)
        target.use(batch)
        with target.recording():
            (found,) = target.gradient(batch)
        return found

    draws = sample(
        sampler,
        steps=steps,
        gradient=gradient,
        burn_in=burn_in,
        thinning=thinning,
        freeze=freeze,
        label=label,
    )
    return draws[:, :, 0]


def stacked_target(theta: Tensor, num_data: int) -> Target:
    """Return the likelihood of K logistic regressions, with per-example gradients.

    Args:
        theta: Weights [K, 1, D], which the target keeps; batches are x [K, n, D] and y [K, n].
        num_data: N.
    """
    net = nn.Linear(theta.shape[2], 1, bias=False)
    loss = functional.binary_cross_entropy_with_logits

    def alone(batch: tuple[Tensor, Tensor]) -> Tensor:
        return loss(net(batch[0]).squeeze(-1), batch[1], reduction="none")

    def together(batch: tuple[Tensor, Tensor]) -> Tensor:
        def chain(weight: Tensor, x: Tensor, y: Tensor) -> Tensor:
            logits = torch.func.functional_call(net, {"weight": weight}, (x,)).squeeze(-1)
            return loss(logits, y, reduction="none")

        return torch.func.vmap(chain)(theta, *batch)

    target = Target(together, [theta], num_data, chain_dims=1)
    target.per_example = PerExample(net, ["weight"], [theta], alone, chain_dims=1)
    return target
