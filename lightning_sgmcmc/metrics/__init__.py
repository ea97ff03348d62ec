"""Metrics over ensembles of draws."""

from lightning_sgmcmc.metrics.ensemble import PosteriorEnsemble, Prediction
from lightning_sgmcmc.metrics.regression import (
    band_metrics,
    gaussian_crps,
    relative_l2_error,
)

__all__ = [
    "PosteriorEnsemble",
    "Prediction",
    "band_metrics",
    "gaussian_crps",
    "relative_l2_error",
]
