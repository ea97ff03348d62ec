"""Small data sets of every family, which the tests of the runner share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pde import (
    DataSpec,
    FnoDataSpec,
    PermeabilityDataSpec,
    ReactionDataSpec,
    SourceDataSpec,
    generate,
)

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "generate_pde.py"
SPECS: dict[str, DataSpec] = {
    "three spots": SourceDataSpec(nx=12, ny=10, num_samples=150, seed=3, save_pressure=True),
    "random sources": SourceDataSpec(
        nx=9, ny=8, source="random", num_samples=150, seed=3, save_pressure=True
    ),
    "permeability": PermeabilityDataSpec(
        nx=12, ny=10, terms=8, num_samples=150, seed=3, save_pressure=True
    ),
    "reaction": ReactionDataSpec(
        nx=12, ny=10, terms=8, num_samples=150, seed=3, save_pressure=True
    ),
    "fno": FnoDataSpec(nx=9, ny=9, every=2, num_samples=150, seed=3),
}
#: One that works in threads and one in processes, where every family would tell the same.
TWO = ["three spots", "random sources"]


def other(spec: DataSpec, **changed: Any) -> DataSpec:
    """The same specification but for some values."""
    return type(spec)(**(spec.parameters() | changed))


def make(spec: DataSpec, path: Path, workers: int | None = 1, **options: Any) -> Path:
    return generate(spec, path, workers, progress=False, **options)
