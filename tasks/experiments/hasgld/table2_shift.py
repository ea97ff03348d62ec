"""Errors of a surrogate on fields of other kinds than it was trained on."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor

import pde
from lightning_sgmcmc import load_posterior
from lightning_sgmcmc.metrics import Conformal
from lightning_sgmcmc.posterior import Posterior
from lightning_sgmcmc.posterior.law import PredictiveLaw
from pde.datasets.permeability import PRESSURE
from pde.fields.kle import MEANS
from pde.io.spe10 import SHAPE
from tasks.data.pde_perm import CALIBRATION
from tasks.data.pde_source import find_spe10
from tasks.experiments.experiment import need
from tasks.pde_perm import PDEPerm
from tasks.surrogates import Array

#: Fields of each kind.
FIELDS = 200
#: What the fields differ in from the training fields, which have p = 64 and lengths .2 and .3.
OTHERS: dict[str, dict[str, Any]] = {
    "as in training": {},
    "p = 128": {"terms": 128},
    "lengths .3, .45": {"lengths": (0.3, 0.45)},
    "lengths .1, .15": {"lengths": (0.1, 0.15), "terms": 256},
}
#: SPE10 layers of a character, top and bottom.
LAYERS = {"SPE10, smooth layers": (1, 35), "SPE10, channelised layers": (36, 85)}


def panel(
    folder: Path,
    kind: Literal["additive", "lognormal"],
    run: Path | None = None,
    grid: int = 50,
    fields: int = FIELDS,
    calibration: int = CALIBRATION,
) -> dict[str, Any]:
    """Predict the flow through fields of other kinds, and measure error and deviation.

    The fields of SPE10 are crops cell for cell of k_x, each divided by its geometric mean and
    multiplied by that of a training field whose logarithms have their mean; they are left out
    where the SPE10 file is not at hand.

    Args:
        folder: Of the cell.
        kind: Kind of permeability that the network was trained on.
        run: Folder of that network's run; None is ``unet-physics-KIND-64`` beside ``folder``.
        grid: Cells in each direction.
        fields: Number of fields of each kind.
        calibration: Number of further fields of the training law, which set conformal bands.

    Raises:
        ValueError: If that run has not been made.
    """
    run = run or folder.parent / f"unet-physics-{kind}-64"
    need(run)
    posterior = load_posterior(run)
    usual = {"kind": kind, "mean": MEANS[kind], "seed": 1, "num_samples": fields}

    def solved(name: str, **other: Any) -> tuple[Array, Array]:
        spec = pde.PermeabilityDataSpec(nx=grid, ny=grid, **(usual | other))
        path = folder / f"{name}.safetensors"
        pde.generate_permeabilities(spec, path)
        data = pde.load_permeabilities(path)
        return np.array(data.permeability), np.array(data.velocity)

    bands = Bands.of(posterior, *solved("calibration", seed=2, num_samples=calibration))
    rows: dict[str, dict[str, Any]] = {}
    for name, other in OTHERS.items():
        rows[name] = measure(posterior, *solved(str(len(rows)), **other), bands)
    level = float(posterior.module.net.get_buffer("log_mean"))
    for name, kappas in crops(grid, fields, level).items():
        family = pde.DarcyFamily(pde.Grid(grid, grid), PRESSURE, 1.0)
        velocity = np.stack([family.solve(kappa).velocity for kappa in kappas])
        rows[name] = measure(posterior, kappas, velocity, bands)
    return {
        "run": run.name,
        "draws": len(posterior),
        "calibration_fields": calibration,
        "rows": rows,
    }


@dataclass(frozen=True)
class Bands:
    """Conformal bands from fields of the training law.

    Attributes:
        alike: In units of the predictive deviation.
        following: In proportion to the bound of the field's error as well.
    """

    alike: Conformal
    following: Conformal

    @classmethod
    def of(cls, posterior: Posterior, permeability: Array, velocity: Array) -> Bands:
        """Calibrate on fields [n, ny, nx] and their flows [n, edges]."""
        law, difficulty = _predicted(posterior, permeability)
        y = torch.from_numpy(velocity)
        return cls(Conformal(law, y), Conformal(law, y, difficulty))


def _predicted(posterior: Posterior, permeability: Array) -> tuple[PredictiveLaw, Tensor]:
    """Return the law of the flows, and the difficulty of the fields."""
    assert isinstance(posterior.module, PDEPerm)
    x = torch.from_numpy(permeability).float()
    with warnings.catch_warnings(action="ignore"):  # fields outside the training law are meant
        law = posterior.predict(x)
    difficulty = posterior.module.difficulty(x, law)
    assert difficulty is not None
    return law, difficulty


def measure(
    posterior: Posterior, permeability: Array, velocity: Array, bands: Bands
) -> dict[str, Any]:
    """Return errors beside what the posterior says of them, field by field and on average.

    Of a field, ``errors`` has the relative L2 error in percent of the posterior mean, and
    ``deviations`` the predictive deviation (over draws, and with noise) in the same norm.
    ``rank_correlation`` is Spearman's between error and deviation over draws, and
    ``bound_correlation`` between error and the guaranteed bound.
    """
    prediction, difficulty = _predicted(posterior, permeability)
    mean, spread = prediction.mean.numpy(), prediction.epistemic_std.numpy()
    total = prediction.std.numpy()
    lower, upper = (ends.numpy() for ends in prediction.interval(0.9))
    size = np.linalg.norm(velocity, axis=1)
    errors = 100 * np.linalg.norm(mean - velocity, axis=1) / size
    of_weights = 100 * np.linalg.norm(spread, axis=1) / np.linalg.norm(mean, axis=1)
    flows = np.abs(velocity).max(0) > 0
    deviations = 100 * np.linalg.norm(total[:, flows], axis=1) / np.linalg.norm(mean, axis=1)
    inside = ((lower <= velocity) & (velocity <= upper))[:, flows]
    gap = torch.from_numpy(np.abs(mean - velocity))

    def held(conformal: Conformal, given: Tensor | None) -> float:
        half = conformal.half_width(prediction, 0.9, given)
        return float((gap <= half)[:, flows].double().mean())

    return {
        "error_percent": float(errors.mean()),
        "deviation_of_weights_percent": float(of_weights.mean()),
        "deviation_percent": float(deviations.mean()),
        "coverage_90": float(inside.mean()),
        "conformal_90": held(bands.alike, None),
        "following_90": held(bands.following, difficulty),
        "rank_correlation": float(spearmanr(errors, of_weights).statistic),
        "bound_correlation": float(spearmanr(errors, difficulty.numpy()).statistic),
        "errors": errors.tolist(),
        "deviations_of_weights": of_weights.tolist(),
        "difficulties": difficulty.tolist(),
    }


def crops(grid: int, fields: int, level: float) -> dict[str, Array]:
    """Return SPE10 crops [fields, grid, grid] of mean logarithm ``level``, where SPE10 is."""
    path = find_spe10()
    if not path.is_file():
        return {}
    layers = pde.read_spe10(path)[0]
    _, _, ny, nx = SHAPE
    found = {}
    for name, (first, last) in LAYERS.items():
        rng = np.random.default_rng(first)
        cut = []
        for _ in range(fields):
            layer = layers[rng.integers(first - 1, last)]
            y, x = rng.integers(ny - grid + 1), rng.integers(nx - grid + 1)
            logs = np.log(layer[y : y + grid, x : x + grid])
            cut.append(np.exp(logs - logs.mean() + level))
        found[name] = np.stack(cut)
    return found
