"""Stochastic-gradient Langevin dynamics with any constant or adapting metric."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor

from lightning_sgmcmc.noise import Increments
from lightning_sgmcmc.samplers.base import Sampler
from lightning_sgmcmc.samplers.common import CommonAndMetric, Unpack


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

    With ``increments="moment-matched"`` z has independent entries with the first three moments of
    a normal, out of 128 values (:meth:`~lightning_sgmcmc.noise.NoiseStream.increments`), at a
    third of the cost. The chain is then of weak order 1, as it is with normals: averages are off
    by O(lr), and the covariance on a Gaussian is the one above. It is **not** meant for large
    steps, at which the law of a draw shows the uniform steps that it is made of, nor for tests of
    an exact law.

    Args:
        params: Parameters, as for any torch optimizer.
        lr: Step size on the mean loss, or ``"auto"``.
        increments: What z is, ``"gaussian"`` or ``"moment-matched"``.
        **common: See :class:`~lightning_sgmcmc.samplers.Sampler`.

    Raises:
        ValueError: If a value lies outside its range or ``increments`` is unknown.
    """

    adds_gamma = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Literal["auto"],
        *,
        increments: Increments = "gaussian",
        **common: Unpack[CommonAndMetric],
    ) -> None:
        if increments not in ("gaussian", "moment-matched"):
            raise ValueError(f"increments must be gaussian or moment-matched, got {increments!r}")
        super().__init__(params, lr, **common)
        self.increments = increments

    @property
    def overdamped(self) -> bool:
        """Whether ``SGHMC`` in the same metric has the same target, and moves faster."""
        return not self.preconditioner.adaptive

    def noise_size(self) -> float:
        """Return the standard deviation of a step's noise where C = 1, sqrt(2 lr T/N)."""
        assert self.num_data is not None
        return math.sqrt(2 * self.lr * (self.temperature / self.num_data))

    def formula(self, grads: list[Tensor]) -> None:
        """Theta <- theta - lr C (grad mean NLL + grad(-log p)/N) + sqrt(2 lr T/N) C^(1/2) z."""
        torch._foreach_add_(self.params, self.drift(grads), alpha=-self.lr)
        size = self.noise_size()
        if size:
            torch._foreach_add_(self.params, self.noise(), alpha=size)

    def _move(self, grads: list[Tensor]) -> None:
        """Take the step, and add lr T/N Gamma at the weights before it."""
        assert self.num_data is not None
        gamma, scale = None, self.temperature / self.num_data
        if scale and self.target is not None:
            gamma = self.preconditioner.gamma(self.target, grads, self.stream)
        super()._move(grads)
        if gamma is not None:
            torch._foreach_add_(self.params, self._masked(gamma), alpha=self.lr * scale)
