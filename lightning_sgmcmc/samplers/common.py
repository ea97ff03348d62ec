"""Arguments that samplers share; :class:`~lightning_sgmcmc.samplers.Sampler` documents them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from lightning_sgmcmc.noise import Increments
from lightning_sgmcmc.preconditioners import Preconditioner
from lightning_sgmcmc.priors import Prior

if TYPE_CHECKING:
    from typing import Unpack
else:
    # Given typing's, the command line would show these arguments without defaults and help. So it
    # follows ``**common`` to the class that has both.
    Unpack = dict

__all__ = ["Common", "CommonAndIncrements", "CommonAndMetric", "Unpack"]


class Common(TypedDict, total=False):
    """What every sampler takes by keyword, for the annotation of its ``**common``."""

    num_data: int | None
    prior: Prior | None
    temperature: float
    seed: int
    chain: int


class CommonAndMetric(Common, total=False):
    """The same for a sampler whose metric is the caller's choice."""

    preconditioner: Preconditioner | None


class CommonAndIncrements(Common, total=False):
    """The same for an ``SGLD`` that brings its own metric."""

    increments: Increments
