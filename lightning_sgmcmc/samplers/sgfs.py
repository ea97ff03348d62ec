"""Stochastic gradient Fisher scoring of Ahn, Korattikara and Welling (2012)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from lightning_sgmcmc.common.vectors import flatten, unflatten
from lightning_sgmcmc.preconditioners import BlockFisher, DiagonalFisher, Fisher, FullFisher
from lightning_sgmcmc.priors import GAUSSIAN_PRIORS
from lightning_sgmcmc.samplers.base import Pair, Sampler
from lightning_sgmcmc.samplers.common import Common, Unpack

Variant = Literal["full", "diagonal", "block"]


class SGFS(Sampler):
    """Stochastic gradient Fisher scoring: Langevin steps that count the minibatches' own noise.

    With I the covariance of the per-example scores, gamma = 1 + N / (n T), n the minibatch's size
    and B = gamma N b,

        theta <- theta - 2/gamma K (grad mean NLL + grad(-log p)/N)
                 + 2 alpha sqrt(T / (gamma N)) K b^(1/2) z,   K = (I + alpha^2 b)^-1

    where lr = 2 / (gamma (1 + alpha^2)), so that 0 < lr <= 2/gamma. By default b = I, and then

        theta <- theta - lr C (grad mean NLL + grad(-log p)/N)
                 + sqrt(2 lr T/N * alpha^2 / (1 + alpha^2)) C^(1/2) z,   C = I^-1.

    Target: exp(-U/T); for any b up to O(lr), and without error at any lr where the posterior is
    N(theta_0, (N I)^-1), the prior flat, I exact, ``variant="full"`` and minibatches independent,
    drawn with replacement. The chain then has lag-1 autocorrelation 1 - lr. A Gaussian prior that
    is not negligible keeps the chain exact if ``count_prior`` adds its precision / (gamma N) to
    1/K; it never enters I. The diagonal and block variants are exact in the limit of small lr
    only, and at large ones too narrow. With reshuffled minibatches, whose noise is smaller, every
    variant is too narrow at large steps.

    A step size that decays from 2/gamma, by :class:`~lightning_sgmcmc.PolynomialDecay`,
    is the paper's "anytime" mode: Fisher scoring at first, SGLD with metric 1/b in the end.

    Source: Ahn, Korattikara and Welling 2012, Algorithm 1, whose epsilon is 4 / alpha^2.

    Args:
        params: Parameters, as for any torch optimizer.
        lr: Step size on the mean loss (:meth:`step_size` gives it from alpha), or ``"auto"``.
        variant: ``"full"``, ``"diagonal"`` (SGFS-d), or ``"block"``, a block a layer.
        b: B / (gamma N): ``"fisher"`` for I; a positive number times the identity; a positive
            tensor a parameter, diagonal; or for ``"full"`` one positive definite matrix [d, d].
        count_prior: Add a Gaussian prior's precision to the matrix that is inverted.
        floor: Multiple of the mean of I's diagonal that is added to the diagonal.
        **common: See :class:`~lightning_sgmcmc.samplers.Sampler`.

    Raises:
        ValueError: If a value lies outside its range, the temperature is 0, lr is "auto" with a b
            of another kind than "fisher", or the prior to be counted is not Gaussian; before a
            step, if lr is larger than 2/gamma.
    """

    batches: Literal["reshuffled", "independent", "full"] = "independent"
    absorbs_gradient_noise = True
    preconditioner: Fisher

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Literal["auto"],
        *,
        variant: Variant = "full",
        b: Literal["fisher"] | float | Sequence[Tensor] | Tensor = "fisher",
        count_prior: bool = False,
        floor: float = 1e-5,
        **common: Unpack[Common],
    ) -> None:
        if isinstance(b, str) and b != "fisher":
            raise ValueError(f'b must be "fisher", a number or tensors, got {b!r}')
        if isinstance(b, (int, float)) and not b > 0:
            raise ValueError(f"b must be positive, got {b}")
        diagonals = [] if isinstance(b, (str, int, float, Tensor)) else b
        if not all(bool((t > 0).all()) for t in diagonals):
            raise ValueError("b must be positive, got a tensor with an entry that is not")
        if isinstance(b, Tensor) and variant != "full":
            raise ValueError(f'a matrix b belongs to variant "full", not to {variant!r}')
        if lr == "auto" and not (isinstance(b, str) and not count_prior):
            raise ValueError('lr="auto" needs b="fisher" and no counted prior: give lr')
        options: dict[str, Any] = {"eps": 0.0, "floor": floor, "power": 1.0, "centred": True}
        if variant == "diagonal":
            metric: Fisher = DiagonalFisher(**options)
        elif variant in ("full", "block"):
            kind = FullFisher if variant == "full" else BlockFisher
            metric = kind(**options, diagonal_start=True)
        else:
            raise ValueError(f"variant must be full, diagonal or block, got {variant!r}")
        self.variant, self.b, self.count_prior = variant, b, count_prior
        super().__init__(
            params,
            lr,
            preconditioner=metric,
            **common,
        )
        if self.temperature == 0:
            raise ValueError("SGFS has no T = 0: its minibatches' own noise is part of the law")
        if count_prior and not isinstance(self.prior, GAUSSIAN_PRIORS):
            raise ValueError(f"only a Gaussian prior can be counted, got {self.prior!r}")

    @staticmethod
    def step_size(alpha: float, num_data: int, batch_size: int, temperature: float = 1.0) -> float:
        """Return lr for the paper's alpha; alpha = 0 is the largest step."""
        gamma = 1 + num_data / (batch_size * temperature)
        return 2 / (gamma * (1 + alpha**2))

    @property
    def gamma(self) -> float:
        """1 + N / (n T), with n from the chain, else from the latest minibatch that I has seen.

        Raises:
            RuntimeError: If neither is known.
        """
        return self._gamma(self._examples)

    @property
    def _examples(self) -> int:
        """n, 0 where it is not known."""
        return self.batch_size or self.preconditioner.batch_size

    def _gamma(self, batch_size: int) -> float:
        if not batch_size:
            raise RuntimeError("SGFS has seen no minibatch yet: it needs steps before it is frozen")
        assert self.num_data is not None
        return 1 + self.num_data / (batch_size * self.temperature)

    @property
    def alpha(self) -> float:
        """The paper's alpha, which lr stands for."""
        return math.sqrt(max(0.0, 2 / (self.gamma * self.lr) - 1))

    def max_stable_lr(self, eigenvalue: float) -> float:
        """Return the smaller of the stability limit and 2/gamma, above which noise is too much.

        It is that of steps lr C, hence of b = I: along directions in which another b is smaller
        than I, steps are longer, and at most 2/gamma C.
        """
        limit = super().max_stable_lr(eigenvalue)
        return min(limit, 2 / self.gamma) if self._examples else limit

    def counted_noise(self, lr: float) -> float:
        """Return lr gamma / 2 = 1 / (1 + alpha^2), what b = I leaves out of the injected noise.

        With the minibatches' own, s = 1/n along every direction in the metric C = I^-1, the
        variance is exact at every lr where H = I: the excess is lr (N s / T - gamma + lambda) /
        (2 - lr lambda), lambda = 1 the curvature.
        """
        return lr * self.gamma / 2

    def _advance(self, grads: list[Tensor]) -> Pair | None:
        size = self._examples
        if not (self.batch_size or self.preconditioner.frozen or self.target is None):
            size = self.target.per_example.count if self.target.per_example else size
        largest = 2 / self._gamma(size)
        if self.lr > largest * (1 + 1e-9):
            raise ValueError(
                f"lr = {self.lr:.6g} is larger than 2/gamma = {largest:.6g}, the largest step of "
                f"SGFS with n = {size}, N = {self.num_data} and T = {self.temperature:g}"
            )
        return super()._advance(grads)

    def formula(self, grads: list[Tensor]) -> None:
        """Take the step of the class's equation, with the minibatch's noise counted."""
        assert self.num_data is not None
        if not self.lr:
            return  # alpha is infinite
        alpha, gamma, scale = self.alpha, self.gamma, self.temperature / self.num_data
        if isinstance(self.b, str) and not self.count_prior:
            torch._foreach_add_(self.params, self.drift(grads), alpha=-self.lr)
            if alpha:
                share = alpha**2 / (1 + alpha**2)
                size = math.sqrt(2 * self.lr * scale * share)
                torch._foreach_add_(self.params, self.noise(), alpha=size)
            return
        self.prior.add_gradient_(grads, self.params, 1 / self.num_data)
        total = list(torch._foreach_mul(self._masked(grads), 2 / gamma))
        if alpha:
            kick = self._masked(self._b_noise())
            torch._foreach_add_(total, kick, alpha=-2 * alpha * math.sqrt(scale / gamma))
        moved = self._masked(self._solve(total, alpha**2, gamma))
        torch._foreach_sub_(self.params, moved)

    def _solve(self, vectors: list[Tensor], alpha_squared: float, gamma: float) -> list[Tensor]:
        """Return K ``vectors``, with 1/K = I + alpha^2 b, and the prior's share if counted."""
        assert self.num_data is not None
        shift = [torch.zeros_like(p) for p in self.params]
        if self.count_prior:
            at_zero = [torch.zeros_like(p) for p in self.params]
            at_one = [torch.ones_like(p) for p in self.params]
            share = 1 / (gamma * self.num_data)
            self.prior.add_gradient_(shift, at_one, share)
            self.prior.add_gradient_(shift, at_zero, -share)
        if isinstance(self.b, str):
            return self.preconditioner.solve_shifted(vectors, 1 + alpha_squared, shift)
        if isinstance(self.b, Tensor):
            b = self.b.to(shift[0])
            return self.preconditioner.solve_shifted(vectors, 1.0, shift, alpha_squared * b)
        for s, diagonal in zip(shift, self._b_diagonal(), strict=True):
            s.add_(diagonal, alpha=alpha_squared)
        return self.preconditioner.solve_shifted(vectors, 1.0, shift)

    def _b_diagonal(self) -> list[Tensor]:
        if isinstance(self.b, (int, float)):
            return [torch.full_like(p, self.b) for p in self.params]
        return [t.to(p) for t, p in zip(self.b, self.params, strict=True)]

    def _b_noise(self) -> list[Tensor]:
        """Draw from N(0, b)."""
        if isinstance(self.b, str):
            return self.preconditioner.inverse_noise(self.stream)
        z = self.stream.increments()
        if isinstance(self.b, Tensor):
            root = torch.linalg.cholesky(self.b.to(z[0]))
            return unflatten(flatten(z, self.chain_dims) @ root.mT, self.params, self.chain_dims)
        torch._foreach_mul_(z, list(torch._foreach_sqrt(self._b_diagonal())))
        return z
