"""Hessian-approximated MCMC of Simsekli et al. (2016): interleaved chains with an L-BFGS metric."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from lightning_sgmcmc.preconditioners import AveragedLBFGS
from lightning_sgmcmc.samplers.base import Pair, Sampler
from lightning_sgmcmc.samplers.common import CommonAndIncrements, Unpack
from lightning_sgmcmc.samplers.sgld import SGLD


class HAMCMC(SGLD):
    """M interleaved chains, each moved with an L-BFGS metric that it has no part in.

    theta_t <- theta_(t-M) - lr * C (grad mean NLL(theta_(t-M)) + grad(-log p)/N)
               + sqrt(2 * lr * T/N) * C^(1/2) z,   z ~ N(0, I)

    C approximates the inverse Hessian of the mean loss (N times the paper's H, so that lr is the
    paper's epsilon), by L-BFGS from the last moves of the M - 1 other chains: the pairs
    (theta_k - theta_(k-M), the change of the gradient on one minibatch), k = t-M+1, ..., t-1,
    which span the paper's history {t-2M+1, ..., t-1} without t-M. A step costs two gradients, at
    theta_(t-M) and at theta_t on the same minibatch, and one once C is frozen.

    The parameters are theta_t, so that draws visit the chains in turn and draws M steps apart are
    of one chain. All chains start at the first weights.

    Target: exp(-U/T) up to O(lr) for each chain. C is constant in the chain that it moves, hence
    no Gamma term; yet its pairs span two generations of the others, so that the product of the M
    targets is left alone up to O(lr) only, also where a constant C would be exact: a quartic
    target at M = 2 and lr = .01 comes out 2.3 % high in E[theta^2]. Frozen, the bias is SGLD's.

    Source: Simsekli, Badeau, Cemgil, Richard 2016, Algorithm 1 and eq. 9, with the damping and
    the root of C of Wang, Deng, Lin 2020 that ``HASGLD`` uses.

    Args:
        params: Parameters, as for any torch optimizer.
        lr: Step size, or ``"auto"``; stable on a quadratic while lr * lambda_max(C H) < 2. 1 is a
            Newton step if C is the inverse Hessian; with few pairs that product can be 5 to 40.
        memory: M, the number of chains, at least 2; C is made of M - 1 pairs.
        r: Damping threshold.
        delta: Floor of the initial Hessian scale, on the scale of the sum over the data.
        **common: See :class:`~lightning_sgmcmc.samplers.Sampler`.

    Raises:
        ValueError: If memory is below 2 or r or delta lie outside their ranges.
    """

    preconditioner: AveragedLBFGS

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Literal["auto"],
        *,
        memory: int = 3,
        r: float = 0.25,
        delta: float = 1e-3,
        **common: Unpack[CommonAndIncrements],
    ) -> None:
        if not (memory >= 2 and float(memory).is_integer()):
            raise ValueError(f"memory must be a whole number of at least 2, got {memory}")
        super().__init__(
            params,
            lr,
            preconditioner=AveragedLBFGS(memory - 1, r, delta, slots=1, omega=(math.inf, 1.0, 1.0)),
            **common,
        )
        self.memory = int(memory)
        # theta_(t-M), ..., theta_(t-2), where the parameters are theta_(t-1).
        self._others: list[list[Tensor]] = []
        self._stepping = False

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move the chain whose turn it is.

        Args:
            closure: Zeroes the gradients, computes the mean NLL of the minibatch, calls backward
                and returns the loss, [] or [K]; called at theta_(t-M), so it is always needed.

        Returns:
            What the closure returned at theta_(t-M).

        Raises:
            RuntimeError: If N or the step size is unknown, the closure is missing or returns
                nothing, or a gradient is missing, sparse or not finite. Nothing has moved then.
        """
        self._check_ready()
        if closure is None:
            raise RuntimeError(
                "HAMCMC takes its gradient at weights of its own (and needs a second gradient "
                "until it freezes): call step(closure) with a closure that returns the loss"
            )
        last = [p.clone() for p in self.params]
        others = self._others or [last] * (self.memory - 1)
        torch._foreach_copy_(self.params, others[0])
        self._stepping = True
        try:
            loss = Sampler.step(self, closure)  # the plain one: torch wraps SGLD's in hooks
        except BaseException:
            torch._foreach_copy_(self.params, last)
            raise
        finally:
            self._stepping = False
        self._others = [*others[1:], last]
        return loss

    def _advance(self, grads: list[Tensor]) -> Pair | None:
        if not self._stepping:
            raise RuntimeError(
                "HAMCMC moves by step(closure) alone: run one chain a process, or stack them"
            )
        return super()._advance(grads)

    def set_masks(self, masks: Sequence[Tensor] | None) -> None:
        """Hold weights at zero where a mask is zero, in all chains."""
        super().set_masks(masks)
        self._others = [self._masked([t.clone() for t in other]) for other in self._others]

    def state_dict(self) -> dict[str, Any]:
        """Return the chain's state, with the weights of the other chains."""
        state = super().state_dict()
        state["chain"]["others"] = self._others
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the chain that gave ``state_dict``, to the bit."""
        super().load_state_dict(state_dict)
        device = self.params[0].device
        self._others = [[t.to(device) for t in other] for other in state_dict["chain"]["others"]]
