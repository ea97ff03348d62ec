"""Darcy data as the Fourier neural operator's papers have it (Li et al. 2021, section 5.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..darcy.five_point import FivePointSolver
from ..errors import PdeError, check_count, check_positive
from ..fields.two_phase import thresholded_permeability
from ..grid import Array
from .family import Arrays, DataSpec, Family


@dataclass(frozen=True)
class FnoDataSpec(DataSpec):
    r"""`-div(a grad u) = 1` on the unit square, u = 0 on its boundary, a of two values.

    a is `high` where a draw of N(0, 9 (-Laplace + 9)^-2) is at least zero, else `low`
    (`pde.fields.two_phase`), at the nodes of a grid on which the five-point scheme is solved; every
    so many of these nodes are kept. The papers' sets have 421 x 421 nodes, of which every fifth is
    kept. The script that made them interpolates a and u between nodes and cell centres by splines;
    here both are of the nodes.

    In the file `permeability` and `pressure` are a and u, `[num_samples, ny, nx]`, *at nodes*, the
    first and last of them on the boundary. There are no velocities. The other arguments are those
    of `DataSpec`.

    Args:
        nx: Nodes that are kept in x, at least 3.
        ny: Nodes that are kept in y, as many.
        every: Steps of the solver's grid from one of them to the next.
        low: The smaller value of a.
        high: The larger one.

    Raises:
        PdeError: A value that is not one of these, a domain that is not the unit square, or
            pressures that are not to be kept.
    """

    format: ClassVar[str] = "pde fno data"

    nx: int = 85
    ny: int = 85
    every: int = 5
    low: float = 3.0
    high: float = 12.0
    save_pressure: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nx != self.ny or self.nx < 3 or (self.lx, self.ly) != (1.0, 1.0):
            raise PdeError(
                f"{self.nx} x {self.ny} nodes on {self.lx:g} x {self.ly:g}, expected as many in x "
                "as in y, at least 3, on the unit square"
            )
        check_count(f"every={self.every!r}", self.every)
        if check_positive("low", self.low) > check_positive("high", self.high):
            raise PdeError(f"low={self.low:g} is larger than high={self.high:g}: exchange them")
        if not self.save_pressure:
            raise PdeError("the pressure is all that this set has: leave save_pressure true")

    @property
    def nodes(self) -> int:
        """Nodes of the solver's grid in each direction."""
        return (self.nx - 1) * self.every + 1

    def notes(self) -> dict[str, str]:
        """What the file says of the problem."""
        return {"boundary": "u = 0", "places": "nodes, the boundary's included"}

    def drawn(self) -> dict[str, tuple[int, ...]]:
        """The coefficient."""
        return {"permeability": self.grid.shape}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The coefficient and u, no velocities."""
        return self.drawn() | {"pressure": self.grid.shape}

    def family(self, shared: Arrays, backend: str) -> Family:
        """What one worker keeps."""
        return Thresholded(self)


class Thresholded(Family):
    """Coefficients of two values on a fine grid, and the five-point scheme there."""

    def __init__(self, spec: FnoDataSpec) -> None:
        self.spec: FnoDataSpec = spec
        self._solver = FivePointSolver(spec.nodes)

    def draw(self, samples: range) -> Arrays:
        """Coefficients at the solver's nodes, `[n, nodes, nodes]`."""
        spec = self.spec
        drawn = [
            thresholded_permeability(spec.nodes, spec.seed, i, spec.low, spec.high) for i in samples
        ]
        return {"permeability": np.stack(drawn)}

    def solve(self, drawn: Arrays) -> Array:
        """The pressures u at the solver's nodes."""
        return self._solver.solve(drawn["permeability"])

    def compute(self, samples: range) -> Arrays:
        """What is kept of both; memory holds one sample's fine grid."""
        kept = np.s_[:, :: self.spec.every, :: self.spec.every]
        parts: list[Arrays] = []
        for i in samples:
            fine = super().compute(range(i, i + 1))
            parts.append({name: values[kept].copy() for name, values in fine.items()})
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
