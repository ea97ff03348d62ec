"""Dual averaging of a step size towards a mean acceptance."""

from __future__ import annotations

import math
from dataclasses import dataclass

# Dual averaging (Hoffman and Gelman 2014, section 3.2): gamma, t0 and kappa.
_SHRINKAGE, _DELAY, _FORGETTING = 0.05, 10.0, 0.75


@dataclass
class DualAveraging:
    """log of the time step relative to its start (Hoffman and Gelman 2014, eq. 6).

    Attributes:
        log_step: The step in use.
        averaged: The average of the steps, which the adaptation ends with.
        shortfall: Running mean of the target acceptance minus the one found.
        count: Number of updates.
    """

    log_step: float = 0.0
    averaged: float = 0.0
    shortfall: float = 0.0
    count: int = 0

    def update(self, shortfall: float) -> None:
        """Take in a trajectory's shortfall of acceptance."""
        self.count += 1
        self.shortfall += (shortfall - self.shortfall) / (self.count + _DELAY)
        self.log_step = math.log(10) - math.sqrt(self.count) / _SHRINKAGE * self.shortfall
        self.averaged += self.count**-_FORGETTING * (self.log_step - self.averaged)

    def finish(self) -> None:
        """Use the average of the steps from now on."""
        self.log_step = self.averaged
