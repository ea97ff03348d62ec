"""Which fields of other kinds are called outside the law of the training fields, and how often."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import pde
from pde.fields.kle import MEANS
from tasks.experiments.hasgld.table2_shift import FIELDS, OTHERS, crops
from tasks.surrogates import Array
from tasks.training_law import TrainingLaw

#: Training fields, of which 100 more set sigma, and further ones of the same law.
TRAINING, FURTHER = 1200, 2000


def outside(
    folder: Path,
    grid: int = 50,
    training: int = TRAINING,
    further: int = FURTHER,
    fields: int = FIELDS,
) -> dict[str, Any]:
    """Compare fields of each kind with the law of training fields; no network is asked.

    Args:
        folder: Of the cell; nothing is written to it.
        grid: Cells in each direction.
        training: Number of training fields.
        further: Number of further fields of their law.
        fields: Number of fields of each other kind. Those of SPE10 are left out where it is not
            at hand.
    """
    rows = {}
    for kind in MEANS:
        known = _drawn(kind, grid, 0, training)
        law = TrainingLaw.fit(known)
        kinds = {"as in training": _drawn(kind, grid, 2, further)}
        kinds |= {k: _drawn(kind, grid, 1, fields, **other) for k, other in OTHERS.items() if other}
        kinds |= crops(grid, fields, float(np.log(known).mean()))
        for name, kappas in kinds.items():
            distances = law.distances(kappas) / law.threshold
            rows[f"{kind}, {name}"] = {
                "fields": len(kappas),
                "outside": float(law.outside(kappas).mean()),
                "distance_median": float(np.median(distances)),
                "distance_least": float(distances.min()),
                "distance_largest": float(distances.max()),
            }
    return {"training": training, "level": law.level, "rows": rows}


def _drawn(kind: str, grid: int, seed: int, count: int, **other: Any) -> Array:
    usual: dict[str, Any] = {"kind": kind, "mean": MEANS[kind], "seed": seed}
    law = pde.PermeabilityDataSpec(nx=grid, ny=grid, **(usual | other)).fields
    return np.stack([law.sample(i) for i in range(count)])
