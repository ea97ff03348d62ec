"""Data sets of random permeabilities and their flows (Wang, Deng, Lin 2020, section 5.3.2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np

from ..darcy.family import BACKENDS, DarcyFamily
from ..darcy.solver import DarcySolution
from ..errors import PdeError
from ..fields.kle import KarhunenLoeve, RandomPermeability
from ..grid import Array
from .dataset import Dataset
from .family import Arrays, DataSpec, Family

PRESSURE = {"left": 1.0, "right": 0.0}


@dataclass(frozen=True)
class PermeabilityDataSpec(DataSpec):
    """Random permeabilities, and the flow from left (pressure 1) to right (0) through each.

    The other arguments are those of `DataSpec`.

    Args:
        kind: `additive`, mean + field, or `lognormal`, exp(mean + field).
        mean: kappa_0. The paper does not give it; 6 is what its errors imply.
        variance: Variance of the Gaussian field.
        lengths: Its correlation lengths in x and y.
        terms: Number of Karhunen-Loeve modes p.
        kernel: `gaussian` or `exponential`.
        source: The source f, the same everywhere; the paper's is 1.

    Raises:
        PdeError: A value that is not one of these.
    """

    format: ClassVar[str] = "pde permeability data"
    backends: ClassVar[tuple[str, ...]] = BACKENDS

    nx: int = 50
    ny: int = 50
    kind: str = "additive"
    mean: float = 6.0
    variance: float = 2.0
    lengths: tuple[float, float] = (0.2, 0.3)
    terms: int = 64
    kernel: str = "gaussian"
    source: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", tuple(float(length) for length in self.lengths))
        super().__post_init__()
        if not np.isfinite(self.source):
            raise PdeError(f"source={self.source!r}, expected a finite number")
        if self.nx < 2 or self.ny < 2:
            raise PdeError(f"a grid of {self.nx} x {self.ny} cells, expected at least 2 x 2")
        _ = self.fields

    @property
    def fields(self) -> RandomPermeability:
        """The permeabilities."""
        expansion = KarhunenLoeve(self.grid, self.variance, self.lengths, self.terms, self.kernel)
        return RandomPermeability(expansion, self.kind, self.mean, self.seed)

    def notes(self) -> dict[str, str]:
        """What the file says of the problem."""
        return {"boundary": "pressure 1 on the left, 0 on the right, no flow below and above"}

    def drawn(self) -> dict[str, tuple[int, ...]]:
        """The coefficients, and the permeability that they make."""
        return {"coefficients": (self.terms,), "permeability": self.grid.shape}

    def family(self, shared: Arrays, backend: str) -> Family:
        """What one worker keeps."""
        solver = DarcyFamily(self.grid, PRESSURE, self.source, backend)
        return RandomPermeabilities(self, solver.solve)


PermeabilityDataset: TypeAlias = Dataset[PermeabilityDataSpec]


class RandomPermeabilities(Family):
    """Drawn permeabilities, and a solver for many of them.

    Args:
        spec: What to make.
        flow: Solves for permeabilities `[n, ny, nx]`.
    """

    def __init__(self, spec: PermeabilityDataSpec, flow: Callable[[Array], DarcySolution]) -> None:
        self.spec, self._fields, self._flow = spec, spec.fields, flow

    def draw(self, samples: range) -> Arrays:
        """Coefficients `[n, terms]` and permeabilities `[n, ny, nx]`."""
        xi, kappa = zip(*(self._fields.draw(i) for i in samples), strict=True)
        return {"coefficients": np.stack(xi), "permeability": np.stack(kappa)}

    def solve(self, drawn: Arrays) -> DarcySolution:
        """Solve for all at once."""
        return self._flow(drawn["permeability"])
