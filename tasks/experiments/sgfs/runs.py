"""The runs that both network experiments of SGFS's paper have."""

from __future__ import annotations

from typing import Any

from lightning_sgmcmc import SGFS
from tasks.experiments.experiment import Cell
from tasks.experiments.overrides import OPTIMIZED, gaussian, sampler, schedule


def annealed(
    config: str, kind: str, name: str, lr: float, b: float, delta: float, variance: float
) -> Cell:
    """Return a run of ``sgd`` or ``sgld`` whose step decays from ``lr`` as (1 + t / b)^-delta."""
    drawn = sampler({"sgd": OPTIMIZED, "sgld": "SGLD"}[kind], lr, gaussian(variance))
    return Cell(name, config, drawn | schedule("PolynomialDecay", b=b, gamma=delta))


def fisher(
    config: str, kind: str, name: str, lr: float, variance: float, frozen: bool, **more: Any
) -> Cell:
    """Return a run of SGFS-d or SGFS-f, its matrix frozen where burn-in ends or adapting."""
    variant = {"d": "diagonal", "f": "full"}[kind]
    drawn = sampler("SGFS", lr, gaussian(variance), variant=variant, **more)
    return Cell(name, config, drawn | {"model.freeze_preconditioner": frozen})


def step_size(alpha: float, num_data: int, batch: int, digits: int) -> float:
    """Return SGFS's lr of the paper's alpha, rounded to significant digits."""
    return float(f"{SGFS.step_size(alpha, num_data, batch):.{digits}g}")
