"""SWAG: a Gaussian through the iterates of an optimizer, as a sampler."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from lightning_sgmcmc.baselines import inner
from lightning_sgmcmc.baselines.optimized import Optimized
from lightning_sgmcmc.common.vectors import flatten, unflatten
from lightning_sgmcmc.priors import Prior


class SWAG(Optimized):
    """Draws of a Gaussian through an optimizer's iterates, **not** of the posterior.

    The first ``start`` steps are the optimizer's alone. Of those that follow, every ``every``-th
    iterate theta_i, i = 1, 2, ..., enters

        m_i = m_(i-1) + (theta_i - m_(i-1)) / i,    s_i alike of theta_i^2,    d_i = theta_i - m_i,

    of which the last ``rank`` deviations d are kept. Where burn-in ends the fit is frozen, and
    every further step is a draw

        theta = m + (s - m^2)^(1/2) z_1 / sqrt(2) + D z_2 / sqrt(2 (rank - 1)),    z ~ N(0, I),

    of N(m, (diag(s - m^2) + D D' / (rank - 1)) / 2). K stacked networks have a Gaussian each,
    whose draws together are MultiSWAG (Wilson and Izmailov 2020).

    Source: Maddox et al. 2019, Algorithm 1, whose optimizer is SGD with a constant step.

    Args:
        params: Parameters, as for any torch optimizer.
        lr: Step size on the mean loss, constant while iterates are taken.
        start: Steps before the first iterate that enters, which lie within burn-in.
        every: Steps between iterates that enter.
        rank: Deviations that are kept, at least 2; the paper has 20.
        optimizer: As for :class:`Optimized`.
        num_data: N, the number of training examples.
        prior: Prior over the weights; None is a flat one.
        seed: Seed of the chain's noise.
        chain: Number of the (first) chain.

    Raises:
        ValueError: If a value lies outside its range; by :meth:`freeze` if fewer than ``rank``
            iterates have entered.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        start: int,
        every: int = 100,
        rank: int = 20,
        optimizer: inner.MakeOptimizer | None = None,
        num_data: int | None = None,
        prior: Prior | None = None,
        seed: int = 0,
        chain: int = 0,
    ) -> None:
        if start < 0 or every < 1 or rank < 2:
            raise ValueError(
                "need start of at least 0, every of at least 1 and rank of at least 2, got "
                f"{start}, {every} and {rank}"
            )
        self.start, self.every, self.rank = start, every, rank
        super().__init__(
            params, lr, optimizer=optimizer, num_data=num_data, prior=prior, seed=seed, chain=chain
        )

    def _attach(self) -> None:
        super()._attach()
        self._frozen, self._entered = False, 0
        self._mean = flatten(self.params, self.chain_dims).detach().double()
        self._square = self._mean.square()
        #: D', [rank, d] or [K, rank, d]: the deviation d_i is row i modulo rank.
        *chains, size = self._mean.shape
        self._deviations = self._mean.new_zeros(*chains, self.rank, size)

    @property
    def mean(self) -> Tensor:
        """m, [d] or [K, d]."""
        return self._mean

    @property
    def variance(self) -> Tensor:
        """The diagonal s - m^2, at least 0, [d] or [K, d]."""
        return (self._square - self._mean.square()).clamp_min(0)

    @property
    def name(self) -> str:
        """The baseline's name."""
        return "SWAG"

    def caveats(self, frozen: bool) -> list[str]:
        """Return that the draws are of a Gaussian, or of none."""
        if not frozen:
            return ["SWAG is never frozen: the draws are an optimizer's iterates, of no Gaussian"]
        return ["draws are of a Gaussian through an optimizer's iterates"]

    def freeze(self) -> None:
        """Stop fitting; what follows are draws of the Gaussian.

        Raises:
            ValueError: If fewer than ``rank`` iterates have entered.
        """
        self._check_entered(self._entered)
        super().freeze()
        self._frozen = True

    def check_burn_in(self, steps: int) -> None:
        """Raise ValueError if fewer than ``rank`` iterates will have entered."""
        self._check_entered(max(0, steps - self.start) // self.every)

    def _check_entered(self, entered: int) -> None:
        if entered < self.rank:
            raise ValueError(
                f"SWAG has taken {entered} iterates where burn-in ends, and needs "
                f"{self.rank}: raise burn_in, or lower start, every or rank"
            )

    def formula(self, grads: list[Tensor]) -> None:
        """Take the optimizer's step, or draw from the Gaussian once it is frozen."""
        if self._frozen:
            self._draw()
            return
        super().formula(grads)
        after = self.steps_taken + 1 - self.start
        if after > 0 and after % self.every == 0:
            self._enter(flatten(self.params, self.chain_dims).double())

    def _enter(self, theta: Tensor) -> None:
        self._entered += 1
        self._mean.lerp_(theta, 1 / self._entered)
        self._square.lerp_(theta.square(), 1 / self._entered)
        self._deviations[..., self._entered % self.rank, :] = theta - self._mean

    def _draw(self) -> None:
        z1 = flatten(self.noise(), self.chain_dims).double()
        # Uniform numbers of the chain's own: [rank], or [K, rank].
        z2 = torch.special.ndtri(self.uniform(self.rank).double().clamp(1e-12, 1 - 1e-12))
        low_rank = torch.einsum("...r,...rd->...d", z2, self._deviations)
        theta = self._mean + self.variance.sqrt() * z1 / math.sqrt(2)
        theta += low_rank / math.sqrt(2 * (self.rank - 1))
        for p, value in zip(
            self.params, unflatten(theta, self.params, self.chain_dims), strict=True
        ):
            p.copy_(value)
        self.apply_masks_()

    def state_dict(self) -> dict[str, Any]:
        """Return the chain's state, with the Gaussian's."""
        state = super().state_dict()
        state["chain"]["swag"] = {
            "mean": self._mean,
            "square": self._square,
            "deviations": self._deviations,
            "entered": self._entered,
            "frozen": self._frozen,
        }
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the chain that gave ``state_dict``, to the bit."""
        super().load_state_dict(state_dict)
        swag = state_dict["chain"]["swag"]
        self._mean.copy_(swag["mean"])
        self._square.copy_(swag["square"])
        self._deviations.copy_(swag["deviations"])
        self._entered, self._frozen = swag["entered"], swag["frozen"]
