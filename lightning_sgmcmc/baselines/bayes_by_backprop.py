"""Bayes by Backprop: a mean-field Gaussian fitted by stochastic gradients, as a sampler."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lightning_sgmcmc.baselines import inner
from lightning_sgmcmc.priors import Prior
from lightning_sgmcmc.priors.base import positive
from lightning_sgmcmc.samplers import Sampler


class BayesByBackprop(Sampler):
    """Draws of a variational approximation q = prod_j N(mu_j, sigma_j^2), **not** of the posterior.

    With sigma = softplus(rho) and w = mu + sigma eps, eps ~ N(0, I), each step moves mu and rho by
    a torch optimizer along the gradients of f/N, f = log q(w | mu, rho) - log p(w) + N mean NLL(w),
    of which one draw w is an unbiased estimate of the variational free energy:

        g_mu  = grad mean NLL(w) + grad(-log p(w)) / N
        g_rho = (eps g_mu - 1 / (N sigma)) / (1 + exp(-rho)).

    These are the gradients of the paper; of the terms of log q all cancel but the entropy's. The
    parameters then become a fresh draw w, at which the next gradient is taken: any two states are
    independent draws, given q. mu starts at the network's weights, where the first gradient is
    taken (eps = 0).

    q minimises KL(q || posterior): on a Gaussian posterior with precision A it is mu = its mean and
    sigma_j = A_jj^(-1/2), never wider than the posterior. **Burn-in is the fit**: where it ends q
    freezes, and what follows draws from it. ``freeze_preconditioner=False`` of the module keeps
    fitting while draws are kept.

    Source: Blundell et al. 2015, sections 3.2 and 3.3, with the weight 1/M for each of M
    minibatches. The paper's steps act on the sum over a minibatch of n: lr = n times its.

    Args:
        params: Parameters, as for any torch optimizer.
        lr: Step size of mu and rho on the mean loss.
        optimizer: Called with mu and rho, returns the optimizer that moves them; an lr of its own
            is not used. None is Adam.
        initial_std: First sigma of every weight, positive; the paper names none.
        num_data: N, the number of training examples.
        prior: Prior over the weights, such as ``ScaleMixturePrior``; None is a flat one.
        seed: Seed of the chain's own noise.
        chain: Number of the (first) chain.

    Raises:
        ValueError: If a value lies outside its range, lr is ``"auto"``, or the optimizer needs
            more than one gradient a step; by :meth:`freeze` if nothing was fitted.
    """

    #: The fit averages over minibatches, whose noise does not enter q.
    absorbs_gradient_noise = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        optimizer: inner.MakeOptimizer | None = None,
        initial_std: float = 0.05,
        num_data: int | None = None,
        prior: Prior | None = None,
        seed: int = 0,
        chain: int = 0,
    ) -> None:
        if isinstance(lr, str):
            raise ValueError('lr="auto" has no meaning for an optimizer: give a number')
        self.initial_std = positive(initial_std, "initial_std")
        self._make = optimizer or torch.optim.Adam
        super().__init__(params, lr, num_data=num_data, prior=prior, seed=seed, chain=chain)

    def _attach(self) -> None:
        rho = self.initial_std + math.log(-math.expm1(-self.initial_std))
        #: mu and rho of every weight, shaped like the parameters, once a step was taken.
        self.mu = [p.detach().clone() for p in self.params]
        self.rho = [torch.full_like(p, rho) for p in self.params]
        #: eps of the draw that the parameters hold.
        self._eps = [torch.zeros_like(p) for p in self.params]
        self._frozen = False
        #: The optimizer of mu and rho.
        self.optimizer = inner.build(self._make, [*self.mu, *self.rho], self.lr)
        super()._attach()

    @property
    def std(self) -> list[Tensor]:
        """Sigma of every weight, shaped like the parameters."""
        return [functional.softplus(rho) for rho in self.rho]

    @property
    def unstackable(self) -> str | None:
        """Why chains cannot be stacked, None where they can."""
        return inner.unstackable(self.optimizer)

    def caveats(self, frozen: bool) -> list[str]:
        """Return that the draws are of an approximation."""
        fitted = "fitted during burn-in" if frozen else "which still moves while draws are kept"
        return [f"draws are of a variational approximation, a mean-field Gaussian {fitted}"]

    def max_stable_lr(self, eigenvalue: float) -> float:
        """Return infinity: the optimizer has a limit of its own that is not known here."""
        return math.inf

    def draw_weight(self) -> float:
        """Return 1."""
        return 1.0

    def freeze(self) -> None:
        """Stop fitting q; what follows are draws from it.

        Raises:
            ValueError: If no step was taken yet.
        """
        self.check_burn_in(self.steps_taken)
        super().freeze()
        self._frozen = True

    def check_burn_in(self, steps: int) -> None:
        """Raise ValueError if there is no step to fit q in."""
        if steps == 0:
            raise ValueError(
                "Bayes by Backprop fits q during burn-in, but burn_in ends before its first step: "
                "raise burn_in, or set freeze_preconditioner to false"
            )

    def formula(self, grads: list[Tensor]) -> None:
        """Take the optimizer's step on the variational bound, and draw the weights anew."""
        if self.steps_taken == 0:  # a burn-in optimizer may have moved the weights
            torch._foreach_copy_(self.mu, self.params)
        if not self._frozen:
            self._fit(grads)
        torch._foreach_copy_(self._eps, self.noise())
        torch._foreach_copy_(self.params, self.mu)
        torch._foreach_addcmul_(self.params, self.std, self._eps)
        self.apply_masks_()

    def _fit(self, grads: list[Tensor]) -> None:
        """Move mu and rho by one step of the optimizer."""
        assert self.num_data is not None
        of_mu = self.drift(grads)
        of_rho = [
            torch.sigmoid(rho) * (eps * g - 1 / (self.num_data * std))
            for rho, eps, g, std in zip(self.rho, self._eps, of_mu, self.std, strict=True)
        ]
        variables = [*self.mu, *self.rho]
        inner.step(self.optimizer, variables, [*of_mu, *self._masked(of_rho)], self.lr)
        self._masked(self.mu)

    def set_masks(self, masks: Sequence[Tensor] | None) -> None:
        """Hold weights, and their means, at zero where a mask is zero."""
        super().set_masks(masks)
        self._masked(self.mu)

    def state_dict(self) -> dict[str, Any]:
        """Return the chain's state, with q and its optimizer's."""
        state = super().state_dict()
        state["chain"] |= {
            "mu": self.mu,
            "rho": self.rho,
            "eps": self._eps,
            "frozen": self._frozen,
            "optimizer": inner.state_dict(self.optimizer),
        }
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the chain that gave ``state_dict``, to the bit."""
        super().load_state_dict(state_dict)
        chain = state_dict["chain"]
        for name, own in (("mu", self.mu), ("rho", self.rho), ("eps", self._eps)):
            for tensor, value in zip(own, chain[name], strict=True):
                tensor.copy_(value)
        self._frozen = chain["frozen"]
        inner.load_state_dict(self.optimizer, chain["optimizer"])
