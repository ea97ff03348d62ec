"""Data sets of sources on one permeability: Wang, Deng, Lin 2020, section 5.3.1, and own ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add, mul
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ..darcy.cells import BoolArray
from ..darcy.solver import DarcySolution, DarcySolver
from ..darcy.wells import Well
from ..errors import FileContentError, PdeError, check_choice
from ..fields.channels import channelised_permeability
from ..fields.sources import (
    SPREADS,
    random_source,
    strengths_of,
    three_spots,
)
from ..fields.streams import check_draw
from ..grid import Array, Grid
from ..io.field_file import own_activity, own_permeability
from ..io.spe10 import check_window, spe10_layer
from .family import Arrays, DataSpec, Family
from .well_rates import WellProblem, check_varying, num_strengths, well_flows, well_strengths

_ORIGINS = {
    "channelised": "synthetic channelised field of SPE10's character, not SPE10",
    "spe10": "SPE10 model 2",
    "file": "from a file",
}
#: The parameters that each kind of field has for itself.
_FIELDS: dict[str, tuple[str, ...]] = {
    "channelised": ("field_seed",),
    "spe10": ("spe10_file", "layer", "component", "origin", "window"),
    "file": ("permeability_file", "permeability_name", "axes", "active_file"),
}
#: Those that each kind of source has for itself.
_SOURCES: dict[str, tuple[str, ...]] = {
    "three_spot": ("spread",),
    "random": (),
    "wells": ("wells", "side_pressure", "side_flux"),
}
#: Those that are left out of a file's header where they are not given.
_OPTIONAL = ("dx", "dy")


@dataclass(frozen=True)
class SourceDataSpec(DataSpec):
    """Sources and their velocities on one permeability; all sides are closed, unless wells vary.

    The other arguments are those of `DataSpec`.

    Args:
        field: `channelised` (synthetic, from `field_seed`), `spe10`, cut from `spe10_file`, or
            `file`, read from `permeability_file`.
        field_seed: Seed of the synthetic field.
        spe10_file: SPE10's `spe_perm.dat`, plain, `.xz`, or in the official zip.
        layer: SPE10 layer, 1 (top) to 85.
        component: SPE10 component, `kx`, `ky` or `kz`.
        origin: First SPE10 cell (x, y) of the crop, counted from zero.
        window: SPE10 cells (x, y) that the grid covers; the grid's own numbers when None.
        permeability_file: File of the permeability, as for `read_field`; two fields in it are those
            along x and along y.
        permeability_name: The array in it, where it holds several.
        axes: `yx` or `xy`, as for `read_field`.
        active_file: File of which cells are active, 1 or 0; all without it.
        source: `three_spot`, `random` (zero-sum, arbitrary) or `wells`.
        spread: What the 5 in N(10, 5) is, `variance` or `sd`; for three spots.
        wells: The wells, or their values by name: those with a spread have rates that vary.
        side_pressure: Pressures of sides and parts of sides, as for `DarcySolver`; for wells.
        side_flux: `u . n` out of sides and parts of sides; for wells.
        dx: Widths of the columns where they differ.
        dy: Heights of the rows where they differ.

    Raises:
        PdeError: A value that is not one of these.
    """

    format: ClassVar[str] = "pde source data"
    version: ClassVar[int] = 2  # 1 was a .npz file
    ignored: ClassVar[tuple[str, ...]] = ("spe10_file", "permeability_file", "active_file")

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
    permeability_file: str | None = None
    permeability_name: str | None = None
    axes: str = "yx"
    active_file: str | None = None
    wells: tuple[Well, ...] = ()
    side_pressure: Mapping[str, float] = dataclasses.field(default_factory=dict, hash=False)
    side_flux: Mapping[str, float] = dataclasses.field(default_factory=dict, hash=False)
    dx: tuple[float, ...] | None = None
    dy: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("origin", "window"):
            pair = getattr(self, name)
            if pair is not None:
                object.__setattr__(self, name, tuple(int(number) for number in pair))
        for name in self.ignored:
            if getattr(self, name) is not None:
                object.__setattr__(self, name, str(getattr(self, name)))
        wells = (w if isinstance(w, Well) else Well(**w) for w in self.wells)
        object.__setattr__(self, "wells", tuple(wells))
        for name, choices in (
            ("field", _FIELDS),
            ("source", _SOURCES),
            ("spread", tuple(SPREADS)),
        ):
            check_choice(name, getattr(self, name), choices)
        super().__post_init__()
        check_draw(self.field_seed, 0)
        self._refuse_strangers("field", _FIELDS)
        self._refuse_strangers("source", _SOURCES)
        if self.source == "three_spot":
            three_spots(self.grid)
        if self.source == "wells":
            check_varying(self.grid, self.wells)
        if self.source == "random" and self.active_file is not None:
            raise PdeError("random sources are in all cells: leave active_file out, or give wells")
        if self.field == "file" and self.permeability_file is None:
            raise PdeError("field='file' needs permeability_file, the path of the permeability")
        if self.field == "spe10":
            if self.spe10_file is None:
                raise PdeError("field='spe10' needs spe10_file, the path of spe_perm.dat")
            check_window(self.layer, self.grid, self.component, self.origin, self.window)

    def _refuse_strangers(self, what: str, kinds: Mapping[str, tuple[str, ...]]) -> None:
        """Raise `PdeError` where a parameter of another kind is given."""
        kind = getattr(self, what)
        for other, names in kinds.items():
            for name in names:
                stated = type(self).__dataclass_fields__[name]
                make: Any = stated.default_factory
                default = stated.default if make is dataclasses.MISSING else make()
                given = getattr(self, name)
                if other != kind and given != default:
                    raise PdeError(
                        f"{name} = {given} is of {what}={other!r}, and {what} is {kind!r}: give "
                        "both or neither"
                    )

    @property
    def grid(self) -> Grid:
        """The grid."""
        return Grid(self.nx, self.ny, lx=self.lx, ly=self.ly, dx=self.dx, dy=self.dy)

    @property
    def well_problem(self) -> WellProblem:
        """The wells and the sides."""
        return WellProblem(self.grid, self.wells, self.side_pressure, self.side_flux)

    def permeability(self) -> Array:
        """The permeability `[ny, nx]`, or along x and y `[ny, nx, 2]`, made or read anew."""
        if self.field == "channelised":
            return channelised_permeability(self.grid, self.field_seed)
        if self.field == "file":
            assert self.permeability_file is not None
            values = own_permeability(
                self.grid, self.permeability_file, self.permeability_name, self.axes, self.active()
            )
            fields = values.reshape(-1, *self.grid.shape)
            if len(fields) > 2:
                raise FileContentError(
                    f"{self.permeability_file} holds {len(fields)} fields, expected one, or two: "
                    "along x and along y"
                )
            return np.moveaxis(fields, 0, -1).copy() if len(fields) == 2 else fields[0]
        assert self.spe10_file is not None
        return spe10_layer(
            self.spe10_file, self.layer, self.grid, self.component, self.origin, self.window
        )

    def parameters(self) -> dict[str, Any]:
        """The values that shape this data set, ready for JSON; those that do not are left out."""
        kinds = ((_FIELDS, self.field), (_SOURCES, self.source))
        unused = {n for all_, kind in kinds for k, ns in all_.items() if k != kind for n in ns}
        unused |= {name for name in _OPTIONAL if getattr(self, name) is None}
        values = {k: v for k, v in super().parameters().items() if k not in unused}
        if self.source == "wells":
            values["wells"] = [dataclasses.asdict(well) for well in self.wells]
        return values

    def notes(self) -> dict[str, str]:
        """What the file says of the problem."""
        sides = self.side_pressure or self.side_flux
        said = "as the parameters say" if sides else "no flow through any side"
        return {"permeability": _ORIGINS[self.field], "boundary": said}

    def unlike(self, arrays: Mapping[str, Array]) -> list[str]:
        """Whether the field's files, where they are at hand, say something else."""
        path = {"spe10": self.spe10_file, "file": self.permeability_file}.get(self.field)
        files = [Path(name) for name in (path, self.active_file) if name is not None]
        if path is None or not all(file.exists() for file in files):
            return []
        active = self.active()
        everywhere = np.ones(self.grid.shape)
        if not np.array_equal(
            arrays.get("active", everywhere), everywhere if active is None else active
        ):
            return ["other cells are active there"]
        if not np.array_equal(arrays["permeability"], self.permeability()):
            return [f"{path} holds another permeability"]
        return []

    def active(self) -> BoolArray | None:
        """Which cells are active, `[ny, nx]`; None if all are."""
        if self.active_file is None:
            return None
        return own_activity(self.grid, self.active_file, self.axes)

    def in_threads(self, backend: str) -> bool:
        """Spots and wells are sums of few flows, too little work for processes."""
        return self.source != "random"

    def shared(self) -> Arrays:
        """The permeability and, for three spots and wells, the flows of the patterns."""
        arrays = {"permeability": self.permeability()}
        active = self.active()
        if active is not None:
            arrays["active"] = active.astype(np.float64)
        if self.source == "wells":
            arrays |= well_flows(self.well_problem, arrays["permeability"], active)
            if not self.save_pressure:
                del arrays["basis_pressure"]
            return arrays
        if self.source == "three_spot":
            solver = DarcySolver(self.grid, arrays["permeability"], active=active)
            basis = solver.solve(three_spots(self.grid))
            arrays["basis_velocity"] = basis.velocity
            if self.save_pressure:
                arrays["basis_pressure"] = basis.pressure
        return arrays

    def drawn(self) -> dict[str, tuple[int, ...]]:
        """The strengths of spots or wells, or the whole sources."""
        if self.source == "random":
            return {"source": self.grid.shape}
        return {
            "strengths": (2 if self.source == "three_spot" else num_strengths(self.well_problem),)
        }

    def family(self, shared: Arrays, backend: str) -> Family:
        """What one worker keeps."""
        return (RandomSources if self.source == "random" else Superposed)(self, shared)


class Superposed(Family):
    """Sums of few flows; elementwise, so that a sample's bits do not depend on its neighbours."""

    def __init__(self, spec: SourceDataSpec, shared: Arrays) -> None:
        self.spec: SourceDataSpec = spec
        self._velocity = shared["basis_velocity"]
        nothing = np.zeros((len(self._velocity), *spec.grid.shape))
        self._pressure = shared.get("basis_pressure", nothing)

    def draw(self, samples: range) -> Arrays:
        """Strengths `[n, patterns]`."""
        if self.spec.source == "wells":
            return {"strengths": well_strengths(self.spec.well_problem, self.spec.seed, samples)}
        return {"strengths": strengths_of(self.spec.seed, samples, self.spec.spread)}

    def solve(self, drawn: Arrays) -> DarcySolution:
        """Superpose the patterns' flows."""
        strengths = drawn["strengths"].T[:, :, None]
        velocity = reduce(add, map(mul, strengths, self._velocity))
        pressure = reduce(add, map(mul, strengths[..., None], self._pressure))
        return DarcySolution(self.spec.grid, velocity, pressure)


class RandomSources(Family):
    """Arbitrary sources through one factorization."""

    def __init__(self, spec: SourceDataSpec, shared: Arrays) -> None:
        self.spec: SourceDataSpec = spec
        self._solver = DarcySolver(spec.grid, shared["permeability"], active=spec.active())

    def draw(self, samples: range) -> Arrays:
        """Sources `[n, ny, nx]`."""
        drawn = [random_source(self.spec.grid, self.spec.seed, i) for i in samples]
        return {"source": np.stack(drawn)}

    def solve(self, drawn: Arrays) -> DarcySolution:
        """Solve for all at once."""
        return self._solver.solve(drawn["source"])
