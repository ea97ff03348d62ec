"""The potential, its derivatives, estimates of its gradient, and per-example gradients."""

from lightning_sgmcmc.target.estimators import (
    SVRG,
    ControlVariate,
    FullGradient,
    GradientEstimator,
    Minibatch,
)
from lightning_sgmcmc.target.per_example import PerExample
from lightning_sgmcmc.target.potential import Batch, Target

__all__ = [
    "SVRG",
    "Batch",
    "ControlVariate",
    "FullGradient",
    "GradientEstimator",
    "Minibatch",
    "PerExample",
    "Target",
]
