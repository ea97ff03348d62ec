"""The diagonal preconditioner of pSGLD."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lightning_sgmcmc.common.vectors import flatten, inner, per_chain, unflatten
from lightning_sgmcmc.noise import NoiseStream
from lightning_sgmcmc.preconditioners.diagonal import Diagonal, refuse_unstable

if TYPE_CHECKING:
    from lightning_sgmcmc.target import Target


class RMSProp(Diagonal):
    """C = diag(1 / (eps + floor * mean(sqrt V) + sqrt V)), V <- alpha V + (1 - alpha) g^2.

    g is the minibatch's mean likelihood gradient, as in ``torch.optim.RMSprop`` (eps outside the
    root) and in pSGLD (Li et al. 2016, Algorithm 1), where eps is called lambda. V starts at 0,
    or at the first g^2 with ``start_at_gradient``.

    While V follows the gradient, a chain without the Gamma term does not sample its target: with
    an exact gradient, alpha fixed and the step going to 0, the density tends to pi / C, and the
    variance of N(0, 1) to 2 (docs/psgld-bias.md). Frozen, C is a constant and the target is exact
    up to the step size.

    Args:
        alpha: Memory of the moving average, in [0, 1).
        eps: Positive constant added to sqrt V. A weight whose gradient is always zero has
            C = 1/eps, unless ``floor`` is positive.
        floor: Multiple of the mean of sqrt V over all weights that is added to sqrt V; bounds C
            by 1 / (floor * mean(sqrt V)) relative to the network's own scale.
        gamma_probes: None drops Gamma, as the paper does; 0 computes it exactly by one
            Hessian-vector product a weight; k > 0 estimates it by Hutchinson's method with k
            probes. Only while V adapts.
        start_at_gradient: Start V at the first g^2, as the authors' code does, instead of 0.

    Raises:
        ValueError: If alpha lies outside [0, 1), eps is not positive, floor or probes negative.
    """

    adaptive = True

    def __init__(
        self,
        alpha: float = 0.99,
        eps: float = 1e-5,
        floor: float = 0.0,
        gamma_probes: int | None = None,
        start_at_gradient: bool = False,
    ) -> None:
        super().__init__()
        if not 0 <= alpha < 1:
            raise ValueError(f"alpha must lie in [0, 1), got {alpha}")
        if not 0 < eps < math.inf:
            raise ValueError(f"eps must be positive and finite, got {eps}")
        if not 0 <= floor < math.inf:
            raise ValueError(f"floor must be finite and not negative, got {floor}")
        if gamma_probes is not None and gamma_probes < 0:
            raise ValueError(f"gamma_probes must be None, 0 or positive, got {gamma_probes}")
        self.alpha, self.eps, self.floor = alpha, eps, floor
        self.gamma_probes, self.start_at_gradient = gamma_probes, start_at_gradient
        self.needs_target = gamma_probes is not None
        # V and C^(1/2) as vectors, and the same memory as lists like the parameters.
        self._flat = (torch.empty(0), torch.empty(0))
        #: V, shaped like the parameters.
        self.square_avg: list[Tensor] = []
        self._root: list[Tensor] = []
        #: Whether V has seen a gradient.
        self.started = False

    def attach(self, params: Sequence[Tensor], chain_dims: int = 0) -> None:
        """Allocate V for these parameters."""
        super().attach(params, chain_dims)
        self.started = False
        zeros = flatten([torch.zeros_like(p) for p in params])
        self._flat = (zeros, zeros.clone())
        self.square_avg, self._root = (unflatten(vector, params) for vector in self._flat)
        self._refresh()

    @property
    def horizon(self) -> int:
        """The memory 1 / (1 - alpha), after which 63 % of V comes from gradients.

        V_i of few gradients is close to 0 for some weights by chance.
        """
        return round(1 / (1 - self.alpha))

    def update(self, grads: Sequence[Tensor]) -> None:
        """V <- alpha V + (1 - alpha) g^2."""
        if self.start_at_gradient and not self.started:
            torch._foreach_addcmul_(self.square_avg, list(grads), list(grads))
        else:
            self._flat[0].mul_(self.alpha)
            torch._foreach_addcmul_(self.square_avg, list(grads), list(grads), value=1 - self.alpha)
        self.started = True
        self._refresh()

    def _refresh(self) -> None:
        square_avg, root = self._flat
        torch.sqrt(square_avg, out=root)
        if self.floor and self.chain_dims:
            sizes = sum(r.shape[self.chain_dims :].numel() for r in self._root)
            ones = [torch.ones_like(r) for r in self._root]
            means = inner(self._root, ones, self.chain_dims).to(root.dtype) / sizes
            shifts = [per_chain(self.floor * means, r) for r in self._root]
            torch._foreach_add_(self._root, shifts)
        elif self.floor:
            root.add_(self.floor * root.mean(dtype=torch.float64))
        root.add_(self.eps).rsqrt_()

    def shift(self) -> float:
        """Return floor * mean(sqrt V) of a single chain, where the root holds sqrt V."""
        return self.floor * float(self._flat[1].mean(dtype=torch.float64))

    def root(self) -> list[Tensor]:
        """Return C^(1/2)."""
        return self._root

    def freeze(self) -> None:
        """Keep C as V makes it, to the bit as a resumed run makes it."""
        super().freeze()
        self._refresh()

    def gamma(
        self, target: Target, grads: Sequence[Tensor], stream: NoiseStream
    ) -> list[Tensor] | None:
        """Gamma_i = -(1 - alpha) g_i dg_i/dtheta_i / (sqrt V_i * (eps + sqrt V_i)^2).

        Li et al. 2016, section 3.2, for the C of one step; 0 once C is frozen. The small
        dependence of ``floor * mean(sqrt V)`` on a single weight is left out.
        """
        if self.gamma_probes is None or self.frozen:
            return None
        diagonal = target.hessian_diagonal(self.gamma_probes, stream)
        result = list(torch._foreach_mul(diagonal, list(grads)))
        torch._foreach_mul_(result, -(1 - self.alpha))
        self.apply_(self.apply_(result))
        roots = torch._foreach_sqrt(self.square_avg)
        torch._foreach_clamp_min_(roots, torch.finfo(roots[0].dtype).tiny)
        torch._foreach_div_(result, roots)
        return result

    def check(self, lr: float, num_data: int, prior_precision: float) -> None:
        """Refuse a step at which a weight without gradient would diverge under the prior alone."""
        largest = float(self._flat[1].max()) ** 2
        refuse_unstable(largest, lr, num_data, prior_precision, "raise eps, or set floor")

    def state_dict(self) -> dict[str, Any]:
        """Return V and whether it is frozen."""
        return super().state_dict() | {
            "square_avg": self.square_avg,
            "started": self.started,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore V, and C from it."""
        super().load_state_dict(state)
        torch._foreach_copy_(self.square_avg, list(state["square_avg"]))
        self.started = bool(state["started"])
        self._refresh()
