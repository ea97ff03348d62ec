"""Stochastic-gradient Langevin dynamics with any constant or adapting metric."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lightning_sgmcmc.samplers.base import Sampler


class SGLD(Sampler):
    """Preconditioned stochastic-gradient Langevin dynamics (Euler-Maruyama).

    theta <- theta - lr * C (grad mean NLL + grad(-log p)/N) + lr * T/N * Gamma
             + sqrt(2 * lr * T/N) * C^(1/2) z,   z ~ N(0, I)

    Target: exp(-U/T) with U = N * mean NLL - log p, up to O(lr), for a constant C or with
    Gamma_i = sum_j dC_ij/dtheta_j. On a Gaussian with precision A and constant C the stationary
    covariance is (A - (h/2) A C A)^-1 with h = lr/N. Stable while
    lr * lambda_max(C^(1/2) H C^(1/2)) < 2, H the Hessian of U/N. T = 0 with a flat prior is
    ``torch.optim.SGD`` (``RMSprop`` with the ``RMSProp`` preconditioner).

    The papers' steps: lr = epsilon N / 2 for SGLD and pSGLD in epsilon on the sum (Welling and
    Teh 2011; Li et al. 2016, Algorithm 1), lr = eta for natural Langevin dynamics
    (Marceau-Caron and Ollivier 2017, Algorithm 1), which is this class in full generality.

    The arguments are those of :class:`~lightning_sgmcmc.samplers.base.Sampler`.
    """

    def _move(self, grads: list[Tensor]) -> None:
        assert self.num_data is not None
        lr, scale = self.lr, self.temperature / self.num_data
        gamma = None
        if scale and self.target is not None:
            gamma = self.preconditioner.gamma(self.target, grads, self.stream)
        drift = self.drift(grads)
        torch._foreach_add_(self.params, drift, alpha=-lr)
        if gamma is not None:
            torch._foreach_add_(self.params, self._masked(gamma), alpha=lr * scale)
        if scale:
            torch._foreach_add_(self.params, self.noise(), alpha=math.sqrt(2 * lr * scale))
