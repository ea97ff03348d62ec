"""What a data set of varying sources is, in plain values."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import PdeError
from ..fields.channels import channelised_permeability
from ..fields.sources import SPREADS, check_draw, three_spots
from ..grid import Array, Grid
from ..io.spe10 import check_window, spe10_layer

FORMAT, VERSION = "pde source data", 1
_SPE10_ONLY = ("spe10_file", "layer", "component", "origin", "window")


@dataclass(frozen=True)
class SourceDataSpec:
    """Sources and their velocities on one permeability, all sides closed.

    Args:
        nx: Cells in x.
        ny: Cells in y.
        lx: Width of the domain.
        ly: Height of the domain.
        field: `channelised` (synthetic, from `field_seed`), or `spe10`, cut from `spe10_file`.
        field_seed: Seed of the synthetic field.
        spe10_file: SPE10's `spe_perm.dat`, plain, `.xz`, or in the official zip.
        layer: SPE10 layer, 1 (top) to 85.
        component: SPE10 component, `kx`, `ky` or `kz`.
        origin: First SPE10 cell (x, y) of the crop, counted from zero.
        window: SPE10 cells (x, y) that the grid covers; the grid's own numbers when None.
        source: `three_spot`, or `random` (zero-sum, arbitrary).
        spread: What the 5 in N(10, 5) is, `variance` or `sd`; for three spots.
        num_samples: Number of samples.
        seed: Sample i depends on (seed, i) alone.
        save_pressure: Whether the pressures are kept too.

    Raises:
        PdeError: A value that is not one of these.
    """

    nx: int = 60
    ny: int = 60
    lx: float = 1.0
    ly: float = 1.0
    field: str = "channelised"
    field_seed: int = 0
    spe10_file: str | None = None
    layer: int = 36
    component: str = "kx"
    origin: tuple[int, int] = (0, 0)
    window: tuple[int, int] | None = None
    source: str = "three_spot"
    spread: str = "variance"
    num_samples: int = 1500
    seed: int = 0
    save_pressure: bool = False

    def __post_init__(self) -> None:
        for name in ("origin", "window"):
            pair = getattr(self, name)
            if pair is not None:
                object.__setattr__(self, name, tuple(int(number) for number in pair))
        if self.spe10_file is not None:
            object.__setattr__(self, "spe10_file", str(self.spe10_file))
        grid = self.grid
        for name, choices in (
            ("field", ("channelised", "spe10")),
            ("source", ("three_spot", "random")),
            ("spread", tuple(SPREADS)),
        ):
            if getattr(self, name) not in choices:
                raise PdeError(
                    f"{name}={getattr(self, name)!r}, expected one of {', '.join(choices)}"
                )
        check_draw(self.seed, self.num_samples)
        check_draw(self.field_seed, 0)
        if self.num_samples < 1:
            raise PdeError(f"num_samples={self.num_samples}, expected at least 1")
        if self.source == "three_spot":
            three_spots(grid)
        if self.field == "spe10":
            if self.spe10_file is None:
                raise PdeError("field='spe10' needs spe10_file, the path of spe_perm.dat")
            check_window(self.layer, grid, self.component, self.origin, self.window)

    @property
    def grid(self) -> Grid:
        """The grid."""
        return Grid(self.nx, self.ny, self.lx, self.ly)

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
        values = dataclasses.asdict(self)
        unused: tuple[str, ...] = ("field_seed",) if self.field == "spe10" else _SPE10_ONLY
        unused += ("spread",) if self.source == "random" else ()
        for name in unused:
            del values[name]
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    def differences(self, stored: dict[str, Any]) -> list[str]:
        """Parameters in which a stored set differs; where its SPE10 file lay does not matter."""
        ours = self.parameters()
        names = [name for name in {**ours, **stored} if name != "spe10_file"]
        return [
            f"{name} is {stored.get(name)!r} there, {ours.get(name)!r} here"
            for name in names
            if stored.get(name) != ours.get(name)
        ]

    def spe10_at_hand(self) -> bool:
        """Whether the field comes from an SPE10 file, and that is there to be read."""
        return self.field == "spe10" and Path(str(self.spe10_file)).exists()
