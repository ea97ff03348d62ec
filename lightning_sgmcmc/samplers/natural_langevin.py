"""Natural Langevin dynamics of Marceau-Caron and Ollivier (2017)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from lightning_sgmcmc.preconditioners import QuasiDiagonalFisher
from lightning_sgmcmc.preconditioners.fisher import Labels
from lightning_sgmcmc.samplers.common import CommonAndIncrements, Unpack
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
        **common: See :class:`~lightning_sgmcmc.samplers.Sampler`.
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
        **common: Unpack[CommonAndIncrements],
    ) -> None:
        super().__init__(
            params,
            lr,
            preconditioner=QuasiDiagonalFisher(labels, eps, power=power, memory=memory),
            **common,
        )
