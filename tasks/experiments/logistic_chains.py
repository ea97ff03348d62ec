"""Stacked stochastic-gradient chains of a logistic regression, without a trainer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_sgmcmc import BatchStream, GaussianPrior, Sampler
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
    theta = torch.zeros(chains, x.shape[1], requires_grad=True)
    sampler = make([theta], lr=lr, num_data=len(x), prior=GaussianPrior(prior_variance))
    sampler.stack(one_generator)
    data = (torch.from_numpy(x).float(), torch.from_numpy(y).float())
    stream = BatchStream(data, batch_size, "independent")
    stream.bind(torch.device("cpu"), seed=0, num_chains=chains)

    def gradient(theta: Tensor, step: int) -> Tensor:
        return mean_gradient(theta, *stream.at(step))

    return sample(
        sampler,
        steps=steps,
        gradient=gradient,
        burn_in=burn_in,
        thinning=thinning,
        freeze=freeze,
        label=label,
    )
