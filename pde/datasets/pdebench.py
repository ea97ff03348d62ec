"""Darcy data of PDEBench's law (Takamoto et al. 2022), solved exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..darcy.family import BACKENDS, DarcyFamily
from ..darcy.solver import DarcySolution
from ..errors import PdeError, check_positive
from ..fields.two_phase import bumps_permeability
from ..grid import SIDES
from .family import Arrays, DataSpec, Family


@dataclass(frozen=True)
class PdebenchDataSpec(DataSpec):
    r"""`-div(kappa grad p) = beta` on a square, p = 0 on its sides, kappa of two values.

    kappa is `high` where a sum of five Gaussian bumps is above the law's mean, else `low`
    (`pde.fields.two_phase.bumps_permeability`). The flow is exact in RT0/P0 with p = 0 on the
    sides: PDEBench's own pressures are of another scheme, `pde.read_pdebench` says by how much they
    differ. The other arguments are those of `DataSpec`.

    Args:
        nx: Cells in x.
        ny: Cells in y.
        low: The smaller value of kappa.
        high: The larger one.
        beta: The source.

    Raises:
        PdeError: A value that is not one of these, or a domain that is no square.
    """

    format: ClassVar[str] = "pde pdebench data"
    version: ClassVar[int] = 2  # 1 had the mean of each field
    backends: ClassVar[tuple[str, ...]] = BACKENDS

    nx: int = 128
    ny: int = 128
    low: float = 0.1
    high: float = 1.0
    beta: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if check_positive("low", self.low) > check_positive("high", self.high):
            raise PdeError(f"low={self.low:g} is larger than high={self.high:g}: exchange them")
        if self.lx != self.ly:
            raise PdeError(f"a domain of {self.lx:g} x {self.ly:g}, expected a square")
        if not np.isfinite(self.beta):
            raise PdeError(f"beta={self.beta!r}, expected a finite number")

    def notes(self) -> dict[str, str]:
        """What the file says of the problem."""
        return {"boundary": "p = 0"}

    def drawn(self) -> dict[str, tuple[int, ...]]:
        """The permeability."""
        return {"permeability": self.grid.shape}

    def family(self, shared: Arrays, backend: str) -> Family:
        """What one worker keeps."""
        return Bumps(self, backend)


class Bumps(Family):
    """Permeabilities of two values, and a solver for many of them."""

    def __init__(self, spec: PdebenchDataSpec, backend: str) -> None:
        self.spec: PdebenchDataSpec = spec
        self._solver = DarcyFamily(spec.grid, dict.fromkeys(SIDES, 0.0), spec.beta, backend)

    def draw(self, samples: range) -> Arrays:
        """Permeabilities `[n, ny, nx]`."""
        spec = self.spec
        drawn = [bumps_permeability(spec.grid, spec.seed, i, spec.low, spec.high) for i in samples]
        return {"permeability": np.stack(drawn)}

    def solve(self, drawn: Arrays) -> DarcySolution:
        """Solve for all at once."""
        return self._solver.solve(drawn["permeability"])
