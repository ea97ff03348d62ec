"""Hessian-approximated SGLD of Wang, Deng and Lin (2020)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor

from lightning_sgmcmc.common.vectors import dot, flatten, unflatten
from lightning_sgmcmc.preconditioners import AveragedLBFGS
from lightning_sgmcmc.samplers.base import Pair
from lightning_sgmcmc.samplers.common import CommonAndIncrements, Unpack
from lightning_sgmcmc.samplers.sgld import SGLD


class HASGLD(SGLD):
    """``SGLD`` with an averaged L-BFGS metric: HASGLD-SA (Wang, Deng, Lin 2020, Algorithm 2).

    theta <- theta - lr * C (grad mean NLL + grad(-log p)/N) + sqrt(2 * lr * T/N) * C^(1/2) z

    C approximates the inverse Hessian of the mean loss, N times the paper's G, so that lr is the
    paper's epsilon. Target: exp(-U/T) up to O(lr) once C is frozen at the end of burn-in. While C
    adapts, each step needs a second gradient on its minibatch.

    With ``paper_mode=True`` the step is the paper's lines 5 to 9 as printed, where
    xi_k and eta_k average the products G~g and S~z themselves and are normalised:

        theta <- theta - lr * xi_k / |xi_k| + sqrt(2 * lr * T) * eta_k / |eta_k|

    This does **not** sample the posterior: in one dimension its law is Laplace(1/T) whatever the
    target is, and in d dimensions it does not depend on N. It is here for the paper's tables.

    Args:
        params: Parameters, as for any torch optimizer.
        lr: Step size, or ``"auto"``; stable on a quadratic while lr * lambda_max(C H) < 2. 1 is a
            Newton step if C is the inverse Hessian; with few pairs that product can be 5 to 40.
        memory: Number of L-BFGS pairs M.
        r: Damping threshold.
        delta: Floor of the initial Hessian scale, on the scale of the sum over the data.
        slots: Operators averaged in C; None for all of them, as a matrix; ``"auto"`` for all up to
            256 weights, and 4 above.
        omega: (c1, c2, power) of the averaging rate c1 (k + c2)^-power.
        prior_in_pairs: Take y as the change of grad U / N, prior included, as the paper does, so
            that C approximates the inverse of U's Hessian / N. Otherwise y is the change of the
            mean likelihood gradient.
        paper_mode: Take the paper's steps as printed. T is the paper's 1/tau.
        **common: See :class:`~lightning_sgmcmc.samplers.Sampler`.
    """

    preconditioner: AveragedLBFGS

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Literal["auto"],
        *,
        memory: int = 2,
        r: float = 0.25,
        delta: float = 1e-3,
        slots: int | Literal["auto"] | None = "auto",
        omega: tuple[float, float, float] = (5.0, 10.0, 0.9),
        prior_in_pairs: bool = False,
        paper_mode: bool = False,
        **common: Unpack[CommonAndIncrements],
    ) -> None:
        super().__init__(
            params,
            lr,
            preconditioner=AveragedLBFGS(memory, r, delta, slots, omega),
            **common,
        )
        self.prior_in_pairs, self.paper_mode = prior_in_pairs, paper_mode
        self._averages: list[Tensor] = []  # the paper's G_k g_k and S_k z_k
        if paper_mode and self.auto_lr:
            raise ValueError('paper_mode normalises its steps, so lr="auto" has no meaning in it')

    def max_stable_lr(self, eigenvalue: float) -> float:
        """Return 2 / eigenvalue; the printed algorithm's steps have a length, not a limit."""
        return math.inf if self.paper_mode else super().max_stable_lr(eigenvalue)

    def caveats(self, frozen: bool) -> list[str]:
        """Return what ``paper_mode`` does to the target."""
        if not self.paper_mode:
            return super().caveats(frozen)
        return ["paper_mode normalises drift and noise: the draws are not of the posterior"]

    def freeze(self) -> None:
        """Make C a constant; the printed algorithm never does."""
        if not self.paper_mode:
            super().freeze()

    def _start_pair(self, grads: list[Tensor]) -> Pair:
        moved, change = super()._start_pair(grads)
        if self.prior_in_pairs:
            torch._foreach_sub_(change, self._prior_gradient())
        return moved, change

    def _learn(self, pair: Pair, grads: list[Tensor]) -> None:
        if self.prior_in_pairs:
            grads = list(torch._foreach_add(grads, self._prior_gradient()))
        super()._learn(pair, grads)

    def _prior_gradient(self) -> list[Tensor]:
        """Return grad(-log p) / N at the current weights."""
        assert self.num_data is not None
        gradient = [torch.zeros_like(p) for p in self.params]
        self.prior.add_gradient_(gradient, self.params, 1 / self.num_data)
        return gradient

    def _move(self, grads: list[Tensor]) -> None:
        if not self.paper_mode:
            super()._move(grads)
            return
        assert self.num_data is not None
        self.prior.add_gradient_(grads, self.params, 1 / self.num_data)
        self._masked(grads)
        newest, rate = self.preconditioner.newest(), self.preconditioner.rate()
        products = [
            newest.apply(flatten(grads, self.chain_dims)),
            newest.root(flatten(self._masked(self.stream.normal()), self.chain_dims)),
        ]
        if self._averages:
            products = [
                (1 - rate) * old + rate * new
                for old, new in zip(self._averages, products, strict=True)
            ]
        self._averages = products
        for product, size in zip(
            products, (-self.lr, math.sqrt(2 * self.lr * self.temperature)), strict=True
        ):
            moved = self._masked(unflatten(product.clone(), self.params, self.chain_dims))
            masked = flatten(moved, self.chain_dims)
            unit = masked / dot(masked, masked).sqrt().clamp_min(torch.finfo(masked.dtype).tiny)
            torch._foreach_add_(
                self.params, unflatten(unit, self.params, self.chain_dims), alpha=size
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the chain's state, with the averaged products of ``paper_mode``."""
        state = super().state_dict()
        state["chain"]["averages"] = self._averages
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the chain that gave ``state_dict``, to the bit."""
        super().load_state_dict(state_dict)
        device = self.params[0].device
        self._averages = [a.to(device) for a in state_dict["chain"]["averages"]]
