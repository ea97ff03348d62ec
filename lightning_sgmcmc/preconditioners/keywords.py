"""Arguments of constructors that are stated once and passed on as ``**keywords``."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from typing import Unpack
else:
    # Given typing's, the command line would show these arguments without defaults and help. So it
    # follows the keywords to the class that has both.
    Unpack = dict

__all__ = ["Average", "CentredAverage", "Dense", "Unpack"]


class Average(TypedDict, total=False):
    """What :class:`~lightning_sgmcmc.preconditioners.Fisher` takes by keyword, but ``centred``."""

    floor: float
    power: float
    memory: float | None


class CentredAverage(Average, total=False):
    """All that it takes by keyword."""

    centred: bool


class Dense(CentredAverage, total=False):
    """The same for metrics of dense blocks."""

    diagonal_start: bool
