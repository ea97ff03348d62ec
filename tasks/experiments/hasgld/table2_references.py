"""Table 2's references, with which a network for ``pde_perm`` is compared.

They are the mean field, and least squares on the Karhunen-Loeve coefficients, linear and with the
products of the leading ones. Held-out training fields decide how many are leading. Each prediction
is an affine combination of training velocities, so that it conserves mass as they do. The mixed
multiscale solver that the network imitates learns nothing.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

import pde
from lightning_sgmcmc.metrics import band_metrics
from pde.datasets.permeability import PRESSURE
from tasks.data.pde_perm import PDEPermData
from tasks.surrogates import Array, Regression, num_features, relative_errors

#: Leading coefficients whose products enter.
QUADRATIC = (0, 5, 10, 15, 20, 25, 30)
NUM_VAL = 200
#: Blocks of the multiscale solver in each direction.
BLOCKS = (5, 10, 25)


def references(
    folder: Path,
    kind: Literal["additive", "lognormal"],
    terms: int = 64,
    blocks: tuple[int, ...] = BLOCKS,
    **options: Any,
) -> dict[str, Any]:
    """Fit the references to the training fields and measure them on the test fields.

    Args:
        folder: Of the cell.
        kind: Kind of permeability.
        terms: Karhunen-Loeve modes.
        blocks: Of the multiscale solver, in each direction.
        **options: Of :class:`~tasks.data.pde_perm.PDEPermData`.
    """
    data = PDEPermData(kind=kind, terms=terms, **{"num_val": NUM_VAL} | options)
    data.prepare_data()
    data.setup()
    train, held_out = data.coefficients("train"), data.coefficients("val")
    velocity, velocity_held_out = data.arrays("train")[1], data.arrays("val")[1]
    tried = {
        q: 100 * float(relative_errors(model.predict(held_out), velocity_held_out).mean())
        for q in QUADRATIC
        if (model := _fit(train, velocity, q)) is not None
    }
    chosen = min(tried, key=lambda q: tried[q])
    everything = np.concatenate([train, held_out])
    velocities = np.concatenate([velocity, velocity_held_out])
    none = np.zeros((len(everything), 0))
    models = {
        "mean field": (Regression.fit(none, velocities), 0),
        "linear regression": (Regression.fit(everything, velocities), terms),
        "quadratic regression": (Regression.fit(everything, velocities, chosen), terms),
    }
    return {
        "errors_held_out_percent": {str(q): error for q, error in tried.items()},
        "quadratic": chosen,
        "rows": {name: _measure(data, model, used) for name, (model, used) in models.items()}
        | {f"mixed multiscale, {n} x {n} blocks": _multiscale(data, n) for n in blocks},
    }


def _fit(coefficients: np.ndarray, velocity: np.ndarray, quadratic: int) -> Regression | None:
    """Fit unless there are fewer samples than features."""
    if num_features(coefficients.shape[1], quadratic) >= len(coefficients):
        return None
    return Regression.fit(coefficients, velocity, quadratic)


def _multiscale(data: PDEPermData, blocks: int) -> dict[str, float]:
    """Return errors, mass balance and processor time on the test fields."""
    solver = pde.MultiscaleSolver(data.data.grid, (blocks, blocks))
    fields, source = data.arrays("test")[0], data.spec.source
    solver.solve(fields[0], source, PRESSURE)  # what is done once for all fields
    began = time.process_time()
    found = [solver.solve(kappa, source, PRESSURE).solution.velocity for kappa in fields]
    milliseconds = 1e3 * (time.process_time() - began) / len(fields)
    return _errors(data, np.stack(found)) | {"milliseconds": milliseconds}


def _errors(data: PDEPermData, predicted: Array) -> dict[str, float]:
    """Return errors and mass balance on the test fields.

    ``imbalance`` is the largest difference of a cell's outflow from its source, over the mean flow
    through an edge.
    """
    _, velocity = data.arrays("test")
    errors = 100 * relative_errors(predicted, velocity)
    grid, source = data.data.grid, data.spec.source
    scale = np.abs(velocity).mean() / grid.hx
    return {
        "relative_l2_mean_percent": float(errors.mean()),
        "relative_l2_median_percent": float(np.median(errors)),
        "relative_l2_largest_percent": float(errors.max()),
        "imbalance": float(np.abs(grid.divergence(predicted) - source).max() / scale),
        "imbalance_of_truth": float(np.abs(grid.divergence(velocity) - source).max() / scale),
    }


def _measure(data: PDEPermData, model: Regression, used: int) -> dict[str, float]:
    """Return errors, mass balance and bands of a regression on the test fields."""
    _, velocity = data.arrays("test")
    predicted = model.predict(data.coefficients("test")[:, :used])
    flows = model.std > 1e-12 * model.std.max()
    bands = band_metrics(
        torch.from_numpy(velocity[:, flows]),
        torch.from_numpy(predicted[:, flows]),
        torch.from_numpy(np.broadcast_to(model.std[flows], (len(velocity), flows.sum())).copy()),
    )
    return _errors(data, predicted) | bands
