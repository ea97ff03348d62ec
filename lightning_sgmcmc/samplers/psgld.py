"""Preconditioned SGLD of Li, Chen, Carlson and Carin (2016)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from lightning_sgmcmc.preconditioners import RMSProp
from lightning_sgmcmc.samplers.common import CommonAndIncrements, Unpack
from lightning_sgmcmc.samplers.sgld import SGLD


class PSGLD(SGLD):
    """``SGLD`` with the ``RMSProp`` preconditioner: pSGLD (Li et al. 2016, Algorithm 1).

    Target: exp(-U/T) up to O(lr) once C is frozen, or with ``gamma_probes`` while it adapts. The
    paper drops Gamma and keeps adapting, which changes the target (docs/psgld-bias.md). The
    paper's epsilon is 2 lr / N; the step in the authors' code is lr.

    Args:
        params: Parameters, as for any torch optimizer.
        lr: Step size on the mean loss, or ``"auto"``.
        alpha: Memory of the moving average of squared gradients.
        eps: The paper's lambda.
        floor: Multiple of the mean of sqrt V added to sqrt V.
        gamma_probes: Gamma: None drops it, 0 is exact, k > 0 takes k Hutchinson probes.
        **common: See :class:`~lightning_sgmcmc.samplers.Sampler`.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Literal["auto"],
        *,
        alpha: float = 0.99,
        eps: float = 1e-5,
        floor: float = 0.0,
        gamma_probes: int | None = None,
        **common: Unpack[CommonAndIncrements],
    ) -> None:
        super().__init__(
            params,
            lr,
            preconditioner=RMSProp(alpha, eps, floor, gamma_probes),
            **common,
        )
