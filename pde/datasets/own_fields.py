"""Data sets of the flows through one's own permeabilities, all fields of a file."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ..darcy.solver import DarcySolution, DarcySolver
from ..darcy.wells import Well, cells_of, read_wells
from ..errors import FileContentError, PdeError, check_count
from ..grid import Array, Grid
from ..io.field_file import own_permeability, read_cells
from .family import Arrays, DataSpec, Family


@dataclass(frozen=True)
class OwnFieldsSpec(DataSpec):
    """Permeabilities of a file, and the flow through each under the same wells and sides.

    Args:
        permeability_file: File of n fields, as for `read_field`; the first `num_samples` count.
        permeability_name: The array in it, where it holds several.
        axes: `yx` or `xy`, as for `read_field`.
        digest: SHA-256 of the file, which tells one file from another of its name.
        source: The source f, the same everywhere.
        wells: Wells, none of whose rates varies, or their values by name.
        side_pressure: Pressures of sides and parts of sides, as for `DarcySolver`.
        side_flux: `u . n` out of sides and parts of sides.

    Raises:
        PdeError: A value that is not one of these.
    """

    format: ClassVar[str] = "pde own fields"
    ignored: ClassVar[tuple[str, ...]] = ("permeability_file",)

    permeability_file: str = ""
    permeability_name: str | None = None
    axes: str = "yx"
    digest: str = ""
    source: float = 0.0
    wells: tuple[Well, ...] = ()
    side_pressure: Mapping[str, float] = dataclasses.field(default_factory=dict, hash=False)
    side_flux: Mapping[str, float] = dataclasses.field(default_factory=dict, hash=False)
    dx: tuple[float, ...] | None = None
    dy: tuple[float, ...] | None = None

    @classmethod
    def of_file(
        cls,
        path: str,
        name: str | None = None,
        axes: str = "yx",
        *,
        lx: float | None = None,
        ly: float | None = None,
        wells: str | None = None,
        num_samples: int | None = None,
        **others: Any,
    ) -> OwnFieldsSpec:
        """The set of the fields of a file, of all unless `num_samples` says how many.

        Raises:
            FileContentError: One field, or fewer than asked for; others as for `read_field`.
            PdeError: As for `read_wells`, or lengths that nothing names.
        """
        file = read_cells(path, name, axes)
        if file.values.ndim != 3:
            raise FileContentError(f"{path} holds one field, expected several, (n, ny, nx)")
        grid = file.on_domain(Path(path), lx, ly)
        count = len(file.values)
        if num_samples is not None and not 1 <= check_count("num_samples", num_samples) <= count:
            raise FileContentError(f"{path} holds {count} fields, asked for are {num_samples}")
        return cls(
            **{name: getattr(grid, name) for name in ("nx", "ny", "lx", "ly", "dx", "dy")},
            permeability_file=str(path),
            permeability_name=name,
            axes=axes,
            digest=_digest(path),
            wells=read_wells(wells) if wells is not None else (),
            num_samples=num_samples or count,
            **others,
        )

    def __post_init__(self) -> None:
        wells = (w if isinstance(w, Well) else Well(**w) for w in self.wells)
        object.__setattr__(self, "wells", tuple(wells))
        super().__post_init__()
        cells_of(self.grid, self.wells)
        varying = [well for well in self.wells if well.spread]
        if varying:
            raise PdeError(
                f"the well at ({varying[0].x:g}, {varying[0].y:g}) has a spread; where the "
                "permeability varies, rates do not: leave the column out"
            )
        pressures = {*self.side_pressure.values(), *(well.pressure for well in self.wells)} - {None}
        rates = [*self.side_flux.values(), *(well.rate for well in self.wells)]
        if not (self.source or any(rates) or len(pressures) > 1):
            raise PdeError(
                "nothing drives a flow: give rates, side_flux, source or two different pressures"
            )

    @property
    def grid(self) -> Grid:
        """The grid."""
        return Grid(self.nx, self.ny, lx=self.lx, ly=self.ly, dx=self.dx, dy=self.dy)

    def parameters(self) -> dict[str, Any]:
        """The values that shape this data set, ready for JSON."""
        return super().parameters() | {"wells": [dataclasses.asdict(well) for well in self.wells]}

    def solver(self, permeability: Array) -> DarcySolver:
        """The problem of one permeability."""
        return DarcySolver(
            self.grid, permeability, self.side_pressure, flux=self.side_flux, wells=self.wells
        )

    def cell_source(self) -> Array:
        """What is known to come into each cell, `[ny, nx]`; NaN where a well has no rate."""
        source = np.full(self.grid.shape, self.source)
        for cell, well in zip(cells_of(self.grid, self.wells), self.wells, strict=True):
            source[cell] += (well.rate if well.rate is not None else np.nan) / self.grid.cell_areas[
                cell
            ]
        return source

    def drawn(self) -> dict[str, tuple[int, ...]]:
        """The permeability."""
        return {"permeability": self.grid.shape}

    def family(self, shared: Arrays, backend: str) -> Family:
        """What one worker keeps."""
        return OwnFields(self, shared.get("permeability"))


def _digest(path: str | Path) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


class OwnFields(Family):
    """The fields of the file, each solved for itself.

    Args:
        spec: What to make.
        fields: Those of a finished set, which is known without the file.
    """

    def __init__(self, spec: OwnFieldsSpec, fields: Array | None = None) -> None:
        self.spec: OwnFieldsSpec = spec
        if fields is not None:
            self._fields = fields
            return
        path = Path(spec.permeability_file)
        if spec.digest and path.is_file() and _digest(path) != spec.digest:
            raise FileContentError(f"{path} is another file than was given: copy it to the worker")
        self._fields = own_permeability(
            spec.grid,
            spec.permeability_file,
            spec.permeability_name,
            spec.axes,
            count=spec.num_samples,
        )

    def draw(self, samples: range) -> Arrays:
        """Permeabilities `[n, ny, nx]`."""
        return {"permeability": self._fields[samples.start : samples.stop]}

    def solve(self, drawn: Arrays) -> DarcySolution:
        """Solve one after the other."""
        solutions = [
            self.spec.solver(kappa).solve(self.spec.source) for kappa in drawn["permeability"]
        ]
        velocity = np.stack([solution.velocity for solution in solutions])
        return DarcySolution(self.spec.grid, velocity, np.stack([s.pressure for s in solutions]))
