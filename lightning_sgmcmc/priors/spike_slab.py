"""Spike and slab whose hyper-parameters are learned by stochastic approximation: SGLD-SA."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_sgmcmc.common.arguments import arguments_of, listed
from lightning_sgmcmc.common.vectors import per_chain
from lightning_sgmcmc.priors.base import Prior, positive, total


class SpikeAndSlabPrior(Prior):
    """Laplace spike and Gaussian slab, learned along the chain (SGLD-SA, Deng et al. 2019).

    The model is theta_j ~ gamma_j N(0, sigma^2 v1) + (1 - gamma_j) Laplace(0, sigma v0) with
    gamma_j ~ Bernoulli(delta), delta ~ Beta(a, b), sigma^2 ~ InverseGamma(nu/2, nu lambda/2). As
    in EM, the gamma_j are averaged out of log p(theta, gamma): given the hyper-parameters

        p(theta) = prod_j exp(-kappa0_j |theta_j| / sigma - kappa1_j theta_j^2 / (2 sigma^2)) / Z_j
        grad(-log p) = kappa1 theta / sigma^2 + kappa0 sign(theta) / sigma   (sign(0) = 0)
        Z_j = sqrt(2 pi / c) erfcx(e / sqrt(2 c)),  c = kappa1_j / sigma^2,  e = kappa0_j / sigma

    After each step every hyper-parameter x moves to (1 - omega) x + omega x~, omega =
    min(1, c1 (k + c2)^-power) at the k-th update, where, each with the newest of the others,

        rho~    = N(theta; 0, sigma^2 v1) delta / (the same + Laplace(theta; 0, sigma v0)(1-delta))
        kappa0~ = (1 - rho) / v0,   kappa1~ = rho / v1
        delta~  = (sum_j rho_j + a - 1) / (a + b + p - 2)
        sigma^2~ = r^2, the root of R_a r^2 - R_b r - R_c = 0:  R_a = N + p + nu,
                  R_b = sum_j kappa0_j |theta_j|,  R_c = SSE + sum_j kappa1_j theta_j^2 + nu lambda

    N and SSE, the sum of squared residuals, count where sigma is also the likelihood's noise:
    give them by :meth:`bind_residuals` and let the likelihood use :attr:`noise_variance` of the
    sampler's own prior, ``sampler.prior``. Otherwise sigma is a scale of the prior alone and they
    are 0. r is the mode over log sigma; R_a = N + p + nu + 2 would be that over sigma^2.

    Until :meth:`freeze` draws are of a target that still moves, and stays biased by the last
    steps' omega; after it they are of p(theta | data) at the hyper-parameters where it stopped, a
    point estimate whose own uncertainty is not in the draws. K chains learn K sets of them.

    With a = 1, delta = 0 is a fixed point: rho follows delta down while all weights lie within the
    spike, and once delta is tiny no weight comes back. So let a chain start from weights that fit
    the data, not from zero.

    Args:
        v0: Scale of the spike over sigma, positive.
        v1: Variance of the slab over sigma^2, positive.
        delta: First inclusion probability, in (0, 1); the first rho too.
        a: First parameter of its Beta prior, at least 1.
        b: Second one, at least 1; None takes p, the number of weights of a chain.
        nu: Degrees of freedom of the prior of sigma^2, positive.
        scale: lambda, the scale of the prior of sigma^2, positive.
        variance: First sigma^2, positive.
        omega: (c1, c2, power), power in (1/2, 1].

    Raises:
        ValueError: If an argument lies outside its range.
    """

    adaptive = True

    def __init__(
        self,
        v0: float = 0.1,
        v1: float = 100.0,
        delta: float = 0.5,
        a: float = 1.0,
        b: float | None = None,
        nu: float = 1.0,
        scale: float = 1.0,
        variance: float = 1.0,
        omega: tuple[float, float, float] = (5.0, 10.0, 0.9),
    ) -> None:
        self.v0, self.v1 = positive(v0, "v0"), positive(v1, "v1")
        self.nu, self.scale = positive(nu, "nu"), positive(scale, "scale")
        self.first_variance = positive(variance, "variance")
        if not 0 < delta < 1:
            raise ValueError(f"delta must lie in (0, 1), got {delta}")
        if not a >= 1 or (b is not None and not b >= 1):
            raise ValueError(f"a and b must be at least 1, got {a} and {b}")
        if not (omega[0] > 0 and omega[1] > 0 and 0.5 < omega[2] <= 1):
            raise ValueError(
                f"omega must be (c1 > 0, c2 > 0, power in (1/2, 1]), got {tuple(omega)}"
            )
        self.first_delta, self.a, self.b, self.omega = float(delta), float(a), b, tuple(omega)
        self._residuals: Callable[[], Tensor] | None = None
        self._num_data = 0
        self.updates = 0
        #: rho_j, the probability that theta_j belongs to the slab, shaped like the parameters.
        self.rho: list[Tensor] = []
        self._kappa0: list[Tensor] = []
        self._kappa1: list[Tensor] = []
        #: delta, the learned inclusion probability, [] or [K].
        self.delta = torch.zeros(())
        #: sigma^2, [] or [K].
        self.noise_variance = torch.zeros(())

    def attach(
        self, params: Sequence[Tensor], chain_dims: int = 0, names: Sequence[str] | None = None
    ) -> None:
        """Start all hyper-parameters anew."""
        super().attach(params, chain_dims, names)
        first, self.updates = params[0], 0
        self.rho = [torch.full_like(p, self.first_delta) for p in params]
        self._kappa0 = [(1 - rho) / self.v0 for rho in self.rho]
        self._kappa1 = [rho / self.v1 for rho in self.rho]
        self.delta = first.detach().new_full(first.shape[:chain_dims], self.first_delta)
        self.noise_variance = first.detach().new_full(first.shape[:chain_dims], self.first_variance)

    def bind_residuals(self, sse: Callable[[], Tensor], num_data: int) -> None:
        """Let sigma^2 learn from the data as their noise variance.

        Args:
            sse: Returns the sum of squared residuals over all N examples at the current weights,
                or an estimate of it, [] or [K]; the same on every replica.
            num_data: N, the number of residuals.
        """
        self._residuals, self._num_data = sse, num_data

    def rates(self) -> list[tuple[Tensor, Tensor]]:
        """Return kappa0 / sigma and kappa1 / sigma^2 of each tensor."""
        sigma = self.noise_variance.sqrt()
        return [
            (k0 / per_chain(sigma, k0), k1 / per_chain(self.noise_variance, k1))
            for k0, k1 in zip(self._kappa0, self._kappa1, strict=True)
        ]

    def log_density(self, params: Sequence[Tensor]) -> Tensor:
        """Return log p(theta) given the hyper-parameters, differentiable in theta, [] or [K]."""
        parts = []
        for p, (e, c) in zip(params, self.rates(), strict=True):
            tiny = c.clamp_min(torch.finfo(c.dtype).tiny)
            log_z = torch.special.erfcx(e / (2 * tiny).sqrt()).log() - 0.5 * tiny.log()
            parts.append(-e * p.abs() - 0.5 * c * p**2 - log_z - 0.5 * math.log(2 * math.pi))
        return total(parts, self.chain_dims)

    def add_gradient_(
        self, grads: Sequence[Tensor], params: Sequence[Tensor], scale: float
    ) -> None:
        """Add ``scale`` times kappa1 theta / sigma^2 + kappa0 sign(theta) / sigma, in place."""
        for g, p, (e, c) in zip(grads, params, self.rates(), strict=True):
            g.addcmul_(c, p, value=scale).addcmul_(e, p.sign(), value=scale)

    def max_curvature(self, params: Sequence[Tensor]) -> float:
        """Return the largest kappa1 / sigma^2."""
        return max((float(c.max()) for _, c in self.rates() if c.numel()), default=0.0)

    @torch.no_grad()
    def update(self, params: Sequence[Tensor]) -> None:
        """Move the hyper-parameters by one step of stochastic approximation."""
        c1, c2, power = self.omega
        omega = min(1.0, c1 * (self.updates + c2) ** -power)
        self.updates += 1
        count = sum(p.shape[self.chain_dims :].numel() for p in params)
        odds = self.delta.log() - torch.log1p(-self.delta)
        for p, rho, k0, k1 in zip(params, self.rho, self._kappa0, self._kappa1, strict=True):
            rho.lerp_(torch.sigmoid(per_chain(odds, p) + self._log_ratio(p)), omega)
            k0.lerp_((1 - rho) / self.v0, omega)
            k1.lerp_(rho / self.v1, omega)
        b = count if self.b is None else self.b
        inclusion = (total(self.rho, self.chain_dims) + self.a - 1) / (self.a + b + count - 2)
        self.delta = torch.lerp(self.delta, inclusion, omega)
        R_b = total(
            (k * p.abs() for k, p in zip(self._kappa0, params, strict=True)), self.chain_dims
        )
        R_c = total((k * p**2 for k, p in zip(self._kappa1, params, strict=True)), self.chain_dims)
        R_c = R_c + self.nu * self.scale
        if self._residuals is not None:
            R_c = R_c + self._residuals().to(R_c)
        R_a = self._num_data + count + self.nu
        root = (R_b + (R_b**2 + 4 * R_a * R_c).sqrt()) / (2 * R_a)
        self.noise_variance = torch.lerp(self.noise_variance, root**2, omega)

    def _log_ratio(self, p: Tensor) -> Tensor:
        """Return log N(theta; 0, sigma^2 v1) - log Laplace(theta; 0, sigma v0)."""
        z = p / per_chain(self.noise_variance.sqrt(), p)
        constant = math.log(2 * self.v0) - 0.5 * math.log(2 * math.pi * self.v1)
        return constant - z**2 / (2 * self.v1) + z.abs() / self.v0

    def state_dict(self) -> dict[str, Any]:
        """Return the hyper-parameters and how far their updates have come."""
        return super().state_dict() | {
            "updates": self.updates,
            "rho": self.rho,
            "kappa0": self._kappa0,
            "kappa1": self._kappa1,
            "delta": self.delta,
            "variance": self.noise_variance,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the hyper-parameters."""
        super().load_state_dict(state)
        device = self.noise_variance.device

        def here(tensors: Sequence[Tensor]) -> list[Tensor]:
            return [t.to(device, copy=True) for t in tensors]

        self.updates, self.rho = state["updates"], here(state["rho"])
        self._kappa0, self._kappa1 = here(state["kappa0"]), here(state["kappa1"])
        self.delta, self.noise_variance = here([state["delta"], state["variance"]])

    def __repr__(self) -> str:
        given = arguments_of(self) | {"delta": self.first_delta, "variance": self.first_variance}
        return f"SpikeAndSlabPrior({listed(given)})"
