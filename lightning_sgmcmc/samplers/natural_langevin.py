"""Natural Langevin dynamics of Marceau-Caron and Ollivier (2017)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from lightning_sgmcmc.preconditioners import QuasiDiagonalFisher
from lightning_sgmcmc.preconditioners.fisher import Labels
from lightning_sgmcmc.priors import Prior
from lightning_sgmcmc.samplers.sgld import SGLD


class NaturalLangevin(SGLD):
    """``SGLD`` with the ``QuasiDiagonalFisher`` preconditioner: natural Langevin dynamics.

    Target: exp(-U/T) up to O(lr) once C is frozen. The paper (Marceau-Caron and Ollivier 2017,
    Algorithm 1) keeps adapting C and leaves out its Gamma term. lr is the paper's eta. The running
    posterior mean that it reports is that of the kept draws.

    Args:
        params: Parameters, as for any torch optimizer.
        lr: Step size on the mean loss, or ``"auto"``.
        labels: ``"data"`` for the outer product of gradients under the data's labels, ``"model"``
            for labels drawn from the network's predictive distribution.
        eps: Added to the Fisher matrix's diagonal.
        power: Decay of the moving average's gamma_t = t^-power.
        memory: A constant 1 - gamma_t instead.
        num_data: N, the number of training examples.
        prior: Prior over the weights; None is a flat one.
        temperature: T; 1 samples the posterior.
        seed: Seed of the chain's own noise.
        chain: Number of the chain.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Literal["auto"],
        *,
        labels: Labels = "data",
        eps: float = 1e-4,
        power: float = 0.5,
        memory: float | None = None,
        num_data: int | None = None,
        prior: Prior | None = None,
        temperature: float = 1.0,
        seed: int = 0,
        chain: int = 0,
    ) -> None:
        super().__init__(
            params,
            lr,
            num_data=num_data,
            prior=prior,
            preconditioner=QuasiDiagonalFisher(labels, eps, power=power, memory=memory),
            temperature=temperature,
            seed=seed,
            chain=chain,
        )
