"""Arguments that samplers share; :class:`~lightning_sgmcmc.samplers.Sampler` documents them."""

from __future__ import annotations

from typing import TypedDict

from lightning_sgmcmc.noise import Generator, Increments
from lightning_sgmcmc.preconditioners import Preconditioner
from lightning_sgmcmc.preconditioners.keywords import Unpack
from lightning_sgmcmc.priors import Prior

__all__ = ["Common", "CommonAndIncrements", "CommonAndMetric", "Unpack"]


class Common(TypedDict, total=False):
    """What every sampler takes by keyword, for the annotation of its ``**common``."""

    num_data: int | None
    prior: Prior | None
    temperature: float
    seed: int
    chain: int
    noise: Generator | None


class CommonAndMetric(Common, total=False):
    """The same for a sampler whose metric is the caller's choice."""

    preconditioner: Preconditioner | None


class CommonAndIncrements(Common, total=False):
    """The same for an ``SGLD`` that brings its own metric."""

    increments: Increments
