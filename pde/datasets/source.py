"""Data sets of varying sources on one permeability (Wang, Deng, Lin 2020, section 5.3.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ..darcy.solver import DarcySolution, DarcySolver
from ..errors import PdeError, check_choice
from ..fields.channels import channelised_permeability
from ..fields.sources import (
    SPREADS,
    random_source,
    strengths_of,
    three_spots,
)
from ..fields.streams import check_draw
from ..grid import Array
from ..io.spe10 import check_window, spe10_layer
from .family import Arrays, DataSpec, Family

_SPE10_ONLY = ("spe10_file", "layer", "component", "origin", "window")
_ORIGINS = {
    "channelised": "synthetic channelised field of SPE10's character, not SPE10",
    "spe10": "SPE10 model 2",
}


@dataclass(frozen=True)
class SourceDataSpec(DataSpec):
    """Sources and their velocities on one permeability, all sides closed.

    The other arguments are those of `DataSpec`.

    Args:
        field: `channelised` (synthetic, from `field_seed`), or `spe10`, cut from `spe10_file`.
        field_seed: Seed of the synthetic field.
        spe10_file: SPE10's `spe_perm.dat`, plain, `.xz`, or in the official zip.
        layer: SPE10 layer, 1 (top) to 85.
        component: SPE10 component, `kx`, `ky` or `kz`.
        origin: First SPE10 cell (x, y) of the crop, counted from zero.
        window: SPE10 cells (x, y) that the grid covers; the grid's own numbers when None.
        source: `three_spot`, or `random` (zero-sum, arbitrary).
        spread: What the 5 in N(10, 5) is, `variance` or `sd`; for three spots.

    Raises:
        PdeError: A value that is not one of these.
    """

    format: ClassVar[str] = "pde source data"
    version: ClassVar[int] = 2  # 1 was a .npz file
    ignored: ClassVar[tuple[str, ...]] = ("spe10_file",)

    nx: int = 60
    ny: int = 60
    field: str = "channelised"
    field_seed: int = 0
    spe10_file: str | None = None
    layer: int = 36
    component: str = "kx"
    origin: tuple[int, int] = (0, 0)
    window: tuple[int, int] | None = None
    source: str = "three_spot"
    spread: str = "variance"

    def __post_init__(self) -> None:
        for name in ("origin", "window"):
            pair = getattr(self, name)
            if pair is not None:
                object.__setattr__(self, name, tuple(int(number) for number in pair))
        if self.spe10_file is not None:
            object.__setattr__(self, "spe10_file", str(self.spe10_file))
        for name, choices in (
            ("field", tuple(_ORIGINS)),
            ("source", ("three_spot", "random")),
            ("spread", tuple(SPREADS)),
        ):
            check_choice(name, getattr(self, name), choices)
        super().__post_init__()
        for name, owner in self._unused().items():
            value = getattr(self, name)
            if value != type(self).__dataclass_fields__[name].default:
                raise PdeError(f"{name} = {value} is of {owner}: set that too, or drop {name}")
        check_draw(self.field_seed, 0)
        if self.source == "three_spot":
            three_spots(self.grid)
        if self.field == "spe10":
            if self.spe10_file is None:
                raise PdeError("field='spe10' needs spe10_file, the path of spe_perm.dat")
            check_window(self.layer, self.grid, self.component, self.origin, self.window)

    def permeability(self) -> Array:
        """The permeability `[ny, nx]`, made or read anew."""
        if self.field == "channelised":
            return channelised_permeability(self.grid, self.field_seed)
        assert self.spe10_file is not None
        return spe10_layer(
            self.spe10_file, self.layer, self.grid, self.component, self.origin, self.window
        )

    def parameters(self) -> dict[str, Any]:
        """The values that shape this data set, ready for JSON; those that do not are left out."""
        unused = self._unused()
        return {k: v for k, v in super().parameters().items() if k not in unused}

    def _unused(self) -> dict[str, str]:
        """The values that do not shape this data set, and what they belong to."""
        owners = dict.fromkeys(_SPE10_ONLY, "field='spe10'")
        if self.field == "spe10":
            owners = {"field_seed": "field='channelised'"}
        return owners | ({"spread": "source='three_spot'"} if self.source == "random" else {})

    def notes(self) -> dict[str, str]:
        """What the file says of the problem."""
        return {"permeability": _ORIGINS[self.field], "boundary": "no flow through any side"}

    def unlike(self, arrays: Mapping[str, Array]) -> list[str]:
        """Whether the SPE10 file, where it is at hand, holds another permeability."""
        at_hand = self.field == "spe10" and Path(str(self.spe10_file)).exists()
        if at_hand and not np.array_equal(arrays["permeability"], self.permeability()):
            return [f"{self.spe10_file} holds another permeability"]
        return []

    def in_threads(self, backend: str) -> bool:
        """Three spots are sums of two flows, too little work for processes."""
        return self.source == "three_spot"

    def shared(self) -> Arrays:
        """The permeability and, for three spots, the flows of the two patterns."""
        arrays = {"permeability": self.permeability()}
        if self.source == "three_spot":
            solver = DarcySolver(self.grid, arrays["permeability"])
            basis = solver.solve(three_spots(self.grid))
            arrays["basis_velocity"] = basis.velocity
            if self.save_pressure:
                arrays["basis_pressure"] = basis.pressure
        return arrays

    def drawn(self) -> dict[str, tuple[int, ...]]:
        """The strengths of three spots, or the whole sources."""
        return {"strengths": (2,)} if self.source == "three_spot" else {"source": self.grid.shape}

    def family(self, shared: Arrays, backend: str) -> Family:
        """What one worker keeps."""
        return (ThreeSpots if self.source == "three_spot" else RandomSources)(self, shared)


class ThreeSpots(Family):
    """Sums of two flows; elementwise, so that a sample's bits do not depend on its neighbours."""

    def __init__(self, spec: SourceDataSpec, shared: Arrays) -> None:
        self.spec: SourceDataSpec = spec
        self._velocity = shared["basis_velocity"]
        self._pressure = shared.get("basis_pressure", np.zeros((2, *spec.grid.shape)))

    def draw(self, samples: range) -> Arrays:
        """Strengths `[n, 2]`."""
        return {"strengths": strengths_of(self.spec.seed, samples, self.spec.spread)}

    def solve(self, drawn: Arrays) -> DarcySolution:
        """Superpose the two patterns' flows."""
        f1, f2 = drawn["strengths"].T[:, :, None]
        p1, p2 = self._pressure
        velocity = f1 * self._velocity[0] + f2 * self._velocity[1]
        pressure = f1[..., None] * p1 + f2[..., None] * p2
        return DarcySolution(self.spec.grid, velocity, pressure)


class RandomSources(Family):
    """Arbitrary sources through one factorization."""

    def __init__(self, spec: SourceDataSpec, shared: Arrays) -> None:
        self.spec: SourceDataSpec = spec
        self._solver = DarcySolver(spec.grid, shared["permeability"])

    def draw(self, samples: range) -> Arrays:
        """Sources `[n, ny, nx]`."""
        drawn = [random_source(self.spec.grid, self.spec.seed, i) for i in samples]
        return {"source": np.stack(drawn)}

    def solve(self, drawn: Arrays) -> DarcySolution:
        """Solve for all at once."""
        return self._solver.solve(drawn["source"])
