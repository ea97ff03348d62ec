"""Metrics over ensembles of draws."""

from lightning_sgmcmc.metrics.classification import (
    Reliability,
    agreement,
    class_metrics,
    entropy,
    label_nll,
    out_of_distribution_auroc,
    reliability,
)
from lightning_sgmcmc.metrics.conformal import Conformal
from lightning_sgmcmc.metrics.ensemble import PosteriorEnsemble
from lightning_sgmcmc.metrics.laws import Bernoulli, Categorical, Law, Normal, Unstated
from lightning_sgmcmc.metrics.prediction import Moments, Prediction
from lightning_sgmcmc.metrics.regression import (
    band_metrics,
    gaussian_crps,
    relative_l2_error,
)

__all__ = [
    "Bernoulli",
    "Categorical",
    "Conformal",
    "Law",
    "Moments",
    "Normal",
    "PosteriorEnsemble",
    "Prediction",
    "Reliability",
    "Unstated",
    "agreement",
    "band_metrics",
    "class_metrics",
    "entropy",
    "gaussian_crps",
    "label_nll",
    "out_of_distribution_auroc",
    "relative_l2_error",
    "reliability",
]
