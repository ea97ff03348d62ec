"""Exact draws of a linear regression under a product of Laplace and Gaussian factors."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tasks.experiments.loop import Array


def gibbs(
    x: Tensor,
    y: Tensor,
    variance: Tensor,
    kink: Tensor,
    curvature: Tensor,
    draws: int,
    burn_in: int = 200,
    seed: int = 0,
) -> tuple[Array, Array]:
    """Return mean and standard deviation, [K, p], of theta by Gibbs sampling.

    The density is proportional to

        exp(-|y - x theta|^2 / (2 variance) - sum_j kink_j |theta_j| - curvature_j theta_j^2 / 2).

    A Laplace factor is a mixture of N(0, 1/w_j) with w_j given theta inverse Gaussian of mean
    kink_j / |theta_j| and shape kink_j^2 (Park and Casella 2008), and given w theta is Gaussian:
    two exact steps, with no step size, independent of every sampler here.

    Args:
        x: Inputs [K, n, p] of K independent problems.
        y: Responses [K, n].
        variance: Noise variances [K].
        kink: Inverse Laplace scales [K, p], positive.
        curvature: Gaussian precisions [K, p].
        draws: Draws averaged.
        burn_in: Draws before those.
        seed: Of the draws.
    """
    rng = np.random.default_rng(seed)
    gram = (x.mT @ x) / variance[:, None, None]
    moment = (x.mT @ y.unsqueeze(-1)) / variance[:, None, None]
    rate = kink.clamp_min(1e-8)  # the mixture needs one; exp(-1e-8 |theta|) is 1
    weights = torch.ones_like(rate)
    total, squares = torch.zeros_like(rate), torch.zeros_like(rate)
    for step in range(burn_in + draws):
        root = torch.linalg.cholesky(gram + torch.diag_embed(curvature + weights))
        z = torch.from_numpy(rng.standard_normal(tuple(moment.shape)))
        half = torch.linalg.solve_triangular(root, moment, upper=False)
        theta = torch.linalg.solve_triangular(root.mT, half + z, upper=True).squeeze(-1)
        mean = (rate / theta.abs()).numpy()
        weights = torch.from_numpy(rng.wald(mean, (rate**2).numpy()))
        if step >= burn_in:
            total += theta
            squares += theta**2
    found = total / draws
    return found.numpy(), (squares / draws - found**2).sqrt().numpy()
