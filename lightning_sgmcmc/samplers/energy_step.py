"""A time step at which the energy error of a step has a stated size."""

from __future__ import annotations

import math
from dataclasses import dataclass

# The average's weights fall as a power of the steps since, which forgets where a chain started.
_POWER, _DELAY = 6.0, 8.0
# One step says at most that the time step is ten times too large.
_LARGEST = 1e6


@dataclass
class EnergyStep:
    """log of the time step relative to its start, from the energy errors of steps.

    The error of a second-order splitting grows as dt^3, so that x = E[dE^2] / (d v) at a step dt
    becomes 1, which is to say E[dE^2] = d v, at dt x^(-1/6) (Robnik, De Luca, Silverstein and
    Seljak 2023, section 4.1). x is averaged as if it were measured at the first step, with weights
    a_n = 6 / (n + 8) for the latest, that begin with the first step's being right.

    Attributes:
        log_step: log of the time step in use over the first one.
        average: Of x at the first step.
        count: Number of updates.
    """

    log_step: float = 0.0
    average: float = 1.0
    count: int = 0

    def update(self, relative: float) -> None:
        """Take in dE^2 / (d v) of a step; what is not finite counts as the largest error."""
        error = min(relative, _LARGEST) if math.isfinite(relative) else _LARGEST
        weight = _POWER / (self.count + _DELAY)
        self.count += 1
        self.average += weight * (error * math.exp(-6 * self.log_step) - self.average)
        self.log_step = -math.log(max(self.average, 1e-300)) / 6
