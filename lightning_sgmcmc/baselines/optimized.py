"""A torch optimizer with the interface of a sampler: point estimates and deep ensembles."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from lightning_sgmcmc.baselines import inner
from lightning_sgmcmc.common.arguments import shown_optimizer
from lightning_sgmcmc.priors import Prior
from lightning_sgmcmc.samplers import Sampler


class Optimized(Sampler):
    """A torch optimizer's step on U/N, without noise: **not** a sample of a posterior.

    The optimizer sees the gradient of

        U/N = mean NLL - log p(theta) / N,

    so that it ends at a maximum of the posterior, or of the likelihood under a flat prior. The
    draws are its iterates. They count alike in averages, also where a schedule takes the step size
    to 0; with ``draw_weights="time"`` by their step sizes, as a sampler's draws do.

    - A point estimate is one draw at the end: ``burn_in = max_steps - 1``.
    - A deep ensemble of K networks (Lakshminarayanan et al. 2017) is that with ``num_chains=K``:
      every chain has its own initialisation and its own order of the minibatches.
    - Draws that are kept along the way are a trajectory ensemble; with ``CyclicalCosine`` and
      ``cycle`` a snapshot ensemble (Huang et al. 2017).

    Optimizers of torch that treat every weight by itself run K chains stacked; of others, such as
    ``RMSspectral``, the chains run in turn.

    Args:
        params: Parameters, as for any torch optimizer.
        lr: Step size on the mean loss; the inner optimizer follows its schedule.
        optimizer: Called with the parameters, returns the optimizer, for instance
            ``partial(SGD, momentum=0.9)``; an lr of its own is not used. None is plain SGD.
        num_data: N, the number of training examples.
        prior: Prior over the weights; None is a flat one.
        seed: Seed of the chain's minibatches and start; a step takes no noise.
        chain: Number of the (first) chain.

    Raises:
        ValueError: If a value lies outside its range, lr is ``"auto"``, or the optimizer
            needs more than one gradient a step.
    """

    iterates = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        optimizer: inner.MakeOptimizer | None = None,
        num_data: int | None = None,
        prior: Prior | None = None,
        seed: int = 0,
        chain: int = 0,
    ) -> None:
        if isinstance(lr, str):
            raise ValueError('lr="auto" has no meaning for an optimizer: give a number')
        self._make = optimizer or torch.optim.SGD
        super().__init__(
            params, lr, num_data=num_data, prior=prior, temperature=0.0, seed=seed, chain=chain
        )

    def _attach(self) -> None:
        #: The optimizer that takes the steps.
        self.optimizer = inner.build(self._make, self.params, self.lr)
        super()._attach()

    @property
    def unstackable(self) -> str | None:
        """Why chains cannot be stacked, None where they can."""
        return inner.unstackable(self.optimizer)

    @property
    def name(self) -> str:
        """The baseline's name, with that of its optimizer."""
        return f"Optimized({shown_optimizer(self.optimizer)})"

    def caveats(self, frozen: bool) -> list[str]:
        """Return that the draws are no sample."""
        return ["this is not a sample of a posterior: the draws are an optimizer's iterates"]

    def max_stable_lr(self, eigenvalue: float) -> float:
        """Return infinity: the optimizer has a limit of its own that is not known here."""
        return math.inf

    def formula(self, grads: list[Tensor]) -> None:
        """Take the optimizer's step on U/N."""
        inner.step(self.optimizer, self.params, self.drift(grads), self.lr)
        self.apply_masks_()

    def state_dict(self) -> dict[str, Any]:
        """Return the chain's state, with the optimizer's."""
        state = super().state_dict()
        state["chain"]["optimizer"] = inner.state_dict(self.optimizer)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the chain that gave ``state_dict``, to the bit."""
        super().load_state_dict(state_dict)
        inner.load_state_dict(self.optimizer, state_dict["chain"]["optimizer"])
